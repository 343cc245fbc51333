"""Rows of an edge, fetched by a task from whoever is primary now.

A node's death must never end a query: a fetch follows the placement record and waits for the new primary. It gives up
after a limit, and says what it waited for; and at once if it is fenced, since then another driver of the same query
runs and this one's rows are not wanted.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import HoldfastError
from holdfast.model.ids import Edge, Name, name_of
from holdfast.model.record import Record
from holdfast.runtime.net.transport import Caller, told_error
from holdfast.spark.connect import Run, caller_of

FETCH_S_MAX = 120.0
#: How long a node may keep one fetch waiting for rows that its shard has yet to make again.
NODE_WAIT_S = 2.0
#: A node that hangs answers nothing and refuses nothing: so long it is waited for at first, twice as long then.
PATIENCE_S = 4.0
#: The newest record this process knows, by run; what a task was told may be older.
_records: dict[bytes, Record] = {}


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Elements [start, end) of an edge, for one consumer."""

    edge: Edge
    shard: str
    start: int
    end: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reads."""

    run: Run
    consumer: str
    epoch: int
    pieces: tuple[Piece, ...]
    #: Who was primary of each shard when this was planned, by which record.
    homes: dict[str, Name]
    version: int
    #: The run that the positions are of: another one's nodes may listen there by now.
    query: str = ""
    #: Nobody reads on from here: the lease is let go of when everything was fetched.
    last: bool = False


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
        "query": order.query,
        "wait_s": NODE_WAIT_S,
    }
    until = time.monotonic() + limit_s
    patience_s, trouble = PATIENCE_S, f"shard {piece.shard} has no primary"
    home = _home(order, raw, piece.shard)
    while True:
        if home:
            try:
                stream = caller.fetch(home, ticket, timeout=patience_s)
                return [chunk.data for chunk in stream if chunk.data is not None and chunk.data.num_rows]
            except (HoldfastError, pa.ArrowException, OSError) as error:
                told = error if isinstance(error, HoldfastError) else told_error(error, home)
                if told.what.startswith(("fenced", "trimmed", "foreign")):
                    raise Gone(told.what, detail=told.detail, hint=told.hint) from error
                trouble = f"{told.what} {told.detail}"
                if isinstance(error.__cause__ or error, flight.FlightTimedOutError):  # a large piece, or a slow way
                    patience_s = max(PATIENCE_S, min(2 * patience_s, until - time.monotonic()))
        if time.monotonic() > until:
            raise HoldfastError(
                f"rows of {piece.edge} did not come within {limit_s:g} s",
                detail=f"Positions {piece.start} to {piece.end} for {order.consumer}: {trouble}",
                hint="`holdfast status` says which nodes are up.",
            )
        before = home
        _look_again(caller, raw)
        home = _home(order, raw, piece.shard)
        time.sleep(0.02 if home != before else 0.1)


def _home(order: Order, raw: bytes, shard: str) -> Name:
    """Who is primary of a shard, by the newest record that this process knows."""
    record = _records.get(raw)
    if record is None or record.version <= order.version:
        return order.homes.get(shard, "")
    place = record.places.get(shard)
    return name_of(place.primary) if place is not None and place.primary else ""


def _look_again(caller: Caller, raw: bytes) -> None:
    """Is there a newer record? Nodes that hang are not waited for if another knows one."""
    known = _records.get(raw)
    for _, answer in caller.call_all("record", timeout=1.0):
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.msgpack.decode(answer, type=Record) if isinstance(answer, bytes) else None
            if found is not None and (known is None or found.version > known.version):
                _records[raw] = found
                return
