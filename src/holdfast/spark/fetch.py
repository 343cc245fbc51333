"""Rows of an edge, fetched by a task from whoever is primary now.

A node's death must never end a query: a fetch follows the placement record and waits for the new primary. It gives up
after a limit, and says what it waited for; and at once if it is fenced, since then another driver of the same query
runs and this one's rows are not wanted.
"""

from __future__ import annotations

import time

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.model.ids import Edge, name_of
from holdfast.model.record import Record
from holdfast.runtime.transport import Caller, told_error
from holdfast.spark.connect import Run, caller_of

FETCH_S_MAX = 60.0
#: How long a node may keep one fetch waiting for rows that its unit has yet to make again.
NODE_WAIT_S = 5.0
#: The newest record this process knows, by run.
_records: dict[bytes, Record | None] = {}


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Elements [start, end) of an edge, for one consumer."""

    edge: Edge
    unit: str
    start: int
    end: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reads."""

    run: Run
    consumer: str
    epoch: int
    pieces: tuple[Piece, ...]


class Gone(HoldfastError):
    """Fenced, or the rows are gone: waiting does not help."""


def fetch(order: Order, piece: Piece, limit_s: float = FETCH_S_MAX) -> list[pa.RecordBatch]:
    """All batches of a piece. Whole or not at all, so that a retry never doubles a row."""
    raw = msgspec.json.encode(order.run)
    caller = caller_of(raw, f"{order.consumer}.task")
    ticket = {
        "edge": piece.edge,
        "start": piece.start,
        "end": piece.end,
        "consumer": order.consumer,
        "epoch": order.epoch,
        "wait_s": NODE_WAIT_S,
    }
    until = time.monotonic() + limit_s
    trouble = ""
    while True:
        record = _records.get(raw)
        place = record.places.get(piece.unit) if record is not None else None
        if place is not None and place.primary is not None:
            try:
                stream = caller.fetch(name_of(place.primary), ticket, timeout=limit_s)
                return [chunk.data for chunk in stream if chunk.data is not None and chunk.data.num_rows]
            except (HoldfastError, pa.ArrowException, OSError) as error:
                told = error if isinstance(error, HoldfastError) else told_error(error, name_of(place.primary))
                if told.what.startswith(("fenced", "trimmed")):
                    raise Gone(told.what, detail=told.detail, hint=told.hint) from error
                trouble = f"{told.what} {told.detail}"
        elif record is not None:
            trouble = f"unit {piece.unit} has no primary"
        if time.monotonic() > until:
            raise HoldfastError(
                f"rows of {piece.edge} did not come within {limit_s:g} s",
                detail=f"Positions {piece.start} to {piece.end} for {order.consumer}: {trouble}",
                hint="`holdfast status` says which nodes are up.",
            )
        _records[raw] = _newest(caller, order.run, record)
        time.sleep(0.02 if _records[raw] is not record else 0.1)


def _newest(caller: Caller, run: Run, known: Record | None) -> Record | None:
    """The newest record that any node tells, or the one that is known."""
    for name in run.names:
        try:
            found = msgspec.msgpack.decode(caller.call_raw(name, "record", timeout=1.0), type=Record)
        except (HoldfastError, msgspec.MsgspecError):
            continue
        if known is None or found.version > known.version:
            known = found
    return known
