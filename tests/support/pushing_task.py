"""A task of a real-time query, as an inlet sees it: a thread of this process in the place of Spark's."""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa

from holdfast.pipeline.real_time import OFFSET, PARTITION, TOPIC
from holdfast.spark.inlet import Inlet

SCHEMA = pa.schema([("x", pa.int64()), (TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())])


class PushingTask:
    """Speaks as `java/RealTimeWriter.java` does."""

    def __init__(self, inlet: Inlet, batch: int, task: int, secret: bytes | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(inlet.path)
        self.file: Any = self.socket.makefile("wb", buffering=0)
        self.file.write((secret or inlet.secret) + batch.to_bytes(8) + task.to_bytes(8))
        self.writer = pa.ipc.new_stream(self.file, SCHEMA)

    def push(self, partition: int, *offsets: int, topic: str = "t") -> PushingTask:
        rows = [{"x": 10 * at, TOPIC: topic, PARTITION: partition, OFFSET: at} for at in offsets]
        self.writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
        return self

    def end(self) -> None:
        self.writer.close()
        self.file.write(b"\x01")
        self.tear()

    def tear(self) -> None:
        self.file.close()
        self.socket.close()
