"""A node that answers what a test tells it to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nodes import free_ports

from holdfast.model.ids import Name
from holdfast.runtime.net.security import Security, make_secret
from holdfast.runtime.net.transport import Server


@pytest.fixture
def node() -> Iterator[Any]:
    """A node that answers what it is told to."""
    made: list[Server] = []

    def one(home: Path, name: str = "n0", **actions: Any) -> dict[str, str]:
        (port,) = free_ports(1)
        make_secret(home / "secret")
        security = Security.load(home / "secret")
        given = {
            name: answer if callable(answer) else lambda body, answer=answer: answer for name, answer in actions.items()
        }
        ignore = lambda *_: None  # noqa: E731
        made.append(
            Server(
                f"grpc://127.0.0.1:{port}",
                Name(name),
                security,
                members={"n0", "n1"},
                on_message=ignore,
                on_trouble=ignore,
                actions=given,
                fetch=ignore,
            )
        )
        made[-1].open.set()
        return {name: f"grpc://127.0.0.1:{port}"}

    yield one
    for server in made:
        server.shutdown()
