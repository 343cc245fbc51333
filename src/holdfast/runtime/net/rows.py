"""Rows of an edge on a real node: Arrow batches that the core hands around without looking into them.

The core wants three things of rows: a length, a hash, and that they never change. The empty tuple is "no rows" of any
schema. Rows that were spilled are in a file, and come back when somebody looks at them.

The hash is of their Arrow stream, byte for byte: of the bytes that arrived, or of those that will be sent. So a holder
that says which rows it has says it of what came over the wire, whatever the sender meant to send; and rows that came as
bytes go on as the very same bytes, so their hash is the same on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import xxhash

from holdfast.errors import InputError
from holdfast.runtime.net.plain import check_plain

#: Loads what was spilled: Arrow IPC bytes.
Load = Callable[[], bytes | bytearray | memoryview]


class ArrowRows:
    """A run of rows of one schema. Immutable."""

    __slots__ = ("_batches", "_ipc", "_load", "_rows", "_schema")

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None) -> None:
        kept = tuple(batches)
        if schema is None:
            if not kept:
                raise InputError("rows without a schema", hint="Give the schema, or use () for no rows.")
            schema = kept[0].schema
        self._schema: pa.Schema = schema
        self._batches: tuple[pa.RecordBatch, ...] | None = tuple(b for b in kept if b.num_rows)
        self._rows = sum(b.num_rows for b in self._batches)
        self._load: Load | None = None
        #: The same as an Arrow stream, where it is known: they came as one, or are about to be sent to several.
        self._ipc: pa.Buffer | None = None

    @classmethod
    def of(cls, table: pa.Table) -> ArrowRows:
        return cls(table.to_batches(), table.schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        """The batches; of spilled rows, read back for this call only: memory stays as it is."""
        held, load = self._batches, self._load
        if held is not None or load is None:
            return held or ()
        return ArrowRows.from_ipc(load()).batches

    @property
    def spilled(self) -> bool:
        return self._batches is None

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(b.nbytes for b in self._batches) if self._batches is not None else 0

    def on_disk(self, load: Load) -> ArrowRows:
        """The same rows, with their bytes in a file."""
        rows = ArrowRows((), self._schema)
        rows._rows, rows._batches, rows._load = self._rows, None, load
        return rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, part: slice) -> ArrowRows:
        """Some of the rows, which are not copied."""
        start, stop, _ = part.indices(self._rows)
        return self if stop - start == self._rows else ArrowRows.of(self.table().slice(start, stop - start))

    def __add__(self, other: Any) -> ArrowRows:
        if isinstance(other, ArrowRows):
            if other._rows and self._rows and not self._schema.equals(other._schema):
                raise InputError(
                    "rows of two schemas on one edge",
                    detail=f"{_names(self._schema)} and {_names(other._schema)}.",
                    hint="A batch must have one schema: the stage's columns changed within it.",
                )
            if not other._rows:
                return self
            if not self._rows:
                return other
            return ArrowRows((*self.batches, *other.batches), self._schema)
        if len(other) == 0:
            return self
        return NotImplemented

    def __radd__(self, other: Any) -> ArrowRows:
        return self if len(other) == 0 else NotImplemented

    def __repr__(self) -> str:
        return f"ArrowRows({self._rows} rows{', spilled' if self.spilled else ''})"

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, self._schema)

    @property
    def hash64(self) -> int:
        """Of the Arrow stream, which is kept from now on: whoever asks wants to send it, and often more than once."""
        self._ipc = raw = self.to_ipc()
        return xxhash.xxh3_64_intdigest(raw)

    def to_ipc(self) -> pa.Buffer:
        """As an Arrow IPC stream. What was received or spilled is in that format already."""
        if self._ipc is not None:
            return self._ipc
        if self._batches is None and self._load is not None:
            return pa.py_buffer(self._load())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in self.batches:
                writer.write_batch(batch)
        return sink.getvalue()

    @staticmethod
    def from_ipc(raw: bytes | bytearray | memoryview | pa.Buffer) -> ArrowRows:
        """From an IPC stream, every array checked: what comes over the network may point anywhere.

        The bytes are copied to the start of an object of their own. The kernels are compiled for aligned arrays, and
        one in the middle of a message would have them compiled again, in the middle of a fail-over.
        """
        stream = pa.py_buffer(bytes(raw))
        try:
            check_plain(stream)
            with pa.ipc.open_stream(stream) as reader:
                batches = list(reader)
                for batch in batches:
                    batch.validate(full=True)
                rows = ArrowRows(batches, reader.schema)
                rows._ipc = stream  # the batches lie in it: keeping it costs nothing
                return rows
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise InputError("rows cannot be read", detail=str(error), hint="They were damaged on the way.") from error


def batches_of(rows: Any) -> tuple[pa.RecordBatch, ...]:
    """The batches of an edge's rows, whatever stands for none."""
    return rows.batches if isinstance(rows, ArrowRows) else ()


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
