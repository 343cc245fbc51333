"""`format("holdfast")`, written to: rows of a user's Spark program go to a port of a pipeline.

    df.writeStream.format("holdfast").option("run", DIR).option("stream", "packets")
      .option("checkpointLocation", …).start()

Tasks give their rows back to the driver as Arrow, and the driver's Python worker hands the batch over when all of them
are done (`commit`): the same one path as a pipeline's own stages. Batches are known by their ids, which Spark counts in
the query's checkpoint. A batch write has none, so the program says it: `.option("batch", n)`, from 0 on, no hole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.spark.connect import Target


class WrittenRows(WriterCommitMessage):
    """What one task has, as an Arrow stream; empty: no rows."""

    def __init__(self, ipc: bytes) -> None:
        self.ipc = ipc


class StreamPortWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        check_rows(target, schema, overwrite)
        self.target = target
        self.checkpoint = options.get("checkpointLocation", "")
        if not self.checkpoint:
            raise ConfigError(
                f"port {target.stage.id}: the query has no checkpointLocation",
                detail="It says which batches were written; without it a restart would write rows twice.",
                hint='Give .option("checkpointLocation", <a directory that stays>).',
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return WrittenRows(to_ipc(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from holdfast.spark import port  # not needed by tasks, and it takes a second to load

        port.write(self.target, writer_of(self.checkpoint), batchId, table_of(self.target, messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was handed over."""


class BatchPortWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        check_rows(target, schema, overwrite)
        self.target = target
        number = options.get("batch", "")
        if not number.isdecimal():
            raise ConfigError(
                f"port {target.stage.id}: a batch write needs its number",
                detail="A job that is run again must not write its rows twice, and Spark numbers only streams.",
                hint='Give .option("batch", n), counted from 0: the same n is written once, the next must be n + 1.',
            )
        self.batch = int(number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return WrittenRows(to_ipc(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from holdfast.spark import port

        port.write(self.target, "batch jobs", self.batch, table_of(self.target, messages))
        port.close(self.target)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was handed over."""


def rows_schema(target: Target) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(target.stage.rows))


def check_rows(target: Target, schema: StructType, overwrite: bool) -> None:
    """The rows are exactly what the port was declared with; said before anything is computed."""
    from holdfast.pipeline.frames import arrow_type

    name = target.stage.id
    if overwrite:
        raise ConfigError(
            f"port {name}: rows can only be appended",
            hint='Use outputMode("append"), or mode("append") for a batch.',
        )
    wanted = {f.name: f.type for f in rows_schema(target)}
    given = {f.name: arrow_type(f.dataType.simpleString()) or f.dataType.simpleString() for f in schema.fields}
    if len(given) < len(schema.fields):
        raise ConfigError(f"port {name}: two columns have the same name", hint="Rename one of them before writing.")
    apart = [c for c in (*wanted, *(c for c in given if c not in wanted)) if wanted.get(c) != given.get(c)]
    if apart:
        parts = (f"{c!r} is {given.get(c, 'missing')}, declared {wanted.get(c, 'nowhere')}" for c in apart)
        raise ConfigError(
            f"port {name}: the rows are not what the port was declared with",
            detail="; ".join(parts),
            hint="Select and cast the columns of its schema before writing.",
        )


def to_ipc(batches: Iterator[pa.RecordBatch]) -> bytes:
    kept = [b for b in batches if b.num_rows]
    if not kept:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, kept[0].schema) as stream:
        for batch in kept:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def table_of(target: Target, messages: list[WriterCommitMessage | None]) -> pa.Table:
    """The rows of all tasks in their order, as the port was declared (Spark's timestamps have the session's zone)."""
    schema = rows_schema(target)
    tables = []
    for message in messages:
        if isinstance(message, WrittenRows) and message.ipc:
            table = pa.ipc.open_stream(pa.py_buffer(message.ipc)).read_all()
            tables.append(table.select(schema.names).cast(schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def writer_of(checkpoint: str) -> str:
    """Who writes: the id that Spark gave the query, which a checkpoint that was begun anew does not have. Of a
    checkpoint on a file system that only Spark can read: its address."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        try:
            metadata = json.loads((Path(unquote(parts.path)) / "metadata").read_text())
            return f"query {metadata['id']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "the checkpoint of the writing query cannot be read",
                detail=f"{checkpoint}: {error!r}",
                hint="Give checkpointLocation as an absolute path that the driver's machine can read.",
            ) from error
    return f"checkpoint {checkpoint}"
