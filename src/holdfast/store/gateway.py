"""py4j to a JVM that is not Spark's, also in a process in which Spark has a session.

PySpark puts a function of its own in place of the one by which py4j makes exceptions of answers, for every gateway of
the process. It asks Spark's JVM of which class the exception is, whichever JVM that comes from: the answer is about
another object of the same number, or that there is none. Exceptions of ours are made before it sees the answer.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway
from py4j.protocol import get_return_value, is_error


class OwnGateway(JavaGateway):
    def __init__(self, port: int, token: str) -> None:
        super().__init__(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))

    def _create_gateway_client(self) -> GatewayClient:
        return _OwnClient(gateway_parameters=self.gateway_parameters)


class _OwnClient(GatewayClient):
    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if not binary and is_error(answer)[0]:
            get_return_value(answer, self, "the JVM", "beside the node")  # raises
        return answer
