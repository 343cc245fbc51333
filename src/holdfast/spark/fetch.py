"""Rows of an edge for a Spark task: the core's `Errand` decides whom to ask and when; here its messages are carried.

A `Fetch` is a ticket of Flight, a `Pull` the action `record`, asked of all nodes at once. Both block, so the errand's
clock is looked at between them, and each has the limit that the errand gives it.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.core.errand import LIMITS, Errand, Limits
from holdfast.core.reader import Piece
from holdfast.core.ready import TICK, Ready, Received
from holdfast.errors import HoldfastError
from holdfast.model.block import Block
from holdfast.model.ids import Consumer, Name, name_of
from holdfast.model.messages import Fetch, Fetched, FetchRefused, Message, Push
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Record
from holdfast.runtime.net.refusal import FetchError
from holdfast.runtime.net.rows import ArrowRows, batches_of
from holdfast.runtime.net.transport import Caller
from holdfast.spark.connect import Run, caller_of

#: How long all nodes are asked for a newer record.
LOOK_S_MAX = 1.0
#: The newest record this process knows, by run; what a task was told may be older.
_records: dict[bytes, Record] = {}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reads."""

    run: Run
    consumer: Consumer
    epoch: int
    pieces: tuple[Piece, ...]
    #: Who was primary of each shard when this was planned, by which record.
    homes: dict[str, Name]
    version: int
    #: Who may stand in for it; empty: nobody.
    standbys: dict[str, Name] = {}
    #: The epoch of each shard by that record: an older copy's rows are not wanted.
    epochs: dict[str, int] = {}
    #: The run that the positions are of: another one's nodes may listen there by now.
    query: str = ""
    #: Nobody reads on from here: the lease is let go of when everything was fetched.
    last: bool = False


class RowsGone(HoldfastError):
    """Fenced, or the rows are gone: waiting does not help."""


def fetch(order: Order, piece: Piece, limits: Limits = LIMITS) -> list[pa.RecordBatch]:
    """All batches of a piece. Whole or not at all, so that a retry never doubles a row."""
    raw = msgspec.json.encode(order.run)
    carrier = _Carrier(raw, _caller(raw, order.consumer))
    errand = _errand(order, piece, raw, limits)
    event: Received | None = None
    while not errand.over:
        ready = errand.step(event or TICK, time.monotonic_ns())
        event = carrier.carry(ready, errand)
        if event is None and not errand.over:
            time.sleep(max(0.0, (ready.wake_ns - time.monotonic_ns()) / 1e9))
    if errand.gone is not None:
        error = FetchError(errand.gone, errand.asked)
        raise RowsGone(error.what, detail=error.detail, hint=error.hint)
    if errand.answer is None:
        raise HoldfastError(
            f"rows of {piece.edge} did not come within {limits.limit_ns / 1e9:g} s",
            detail=f"Positions {piece.start} to {piece.end} for {order.consumer}: {carrier.trouble}",
            hint="`holdfast status` says which nodes are up.",
        )
    return [batch for block in errand.answer.blocks for batch in batches_of(block.rows)]


def connect(run: Run, consumer: Consumer) -> None:
    """To all nodes, as `fetch` will."""
    for _ in _caller(msgspec.json.encode(run), consumer).call_all("record", timeout=LOOK_S_MAX):
        pass


def _caller(raw: bytes, consumer: Consumer) -> Caller:
    return caller_of(raw, f"{consumer}.task")


def _errand(order: Order, piece: Piece, raw: bytes, limits: Limits) -> Errand:
    asked = Fetch(
        ticket=0,
        edge=piece.edge,
        start=piece.start,
        end=piece.end,
        consumer=order.consumer,
        epoch=order.epoch,
        producer_epoch=order.epochs.get(piece.shard, 0),
        query=order.query,
    )
    home, now_ns = order.homes.get(piece.shard, Name("")), time.monotonic_ns()
    standby = order.standbys.get(piece.shard, Name(""))
    errand = Errand(asked, piece.shard, home, order.version, tuple(order.run.names), limits, now_ns, standby)
    known = _records.get(raw)
    if known is not None:
        errand.learn(known)
    return errand


class _Carrier:
    """Does what an errand wants sent, and brings back what was answered."""

    def __init__(self, raw: bytes, caller: Caller) -> None:
        self.raw = raw
        self.caller = caller
        self.trouble = "the shard has no primary"

    def carry(self, ready: Ready, errand: Errand) -> Received | None:
        """The answer to what was sent; None: nobody has one, and the errand's timer goes on."""
        for target, message in ready.send:
            if isinstance(message, Fetch):
                answer = self._fetch(name_of(target), message, errand)
                return Received(target, answer) if answer is not None else None
        return self._look(errand.version) if ready.send else None

    def _fetch(self, home: Name, asked: Fetch, errand: Errand) -> Message | None:
        timeout_s = max(0.001, (errand.due_ns - time.monotonic_ns()) / 1e9)
        try:
            table = self.caller.fetch(home, asked, timeout=timeout_s)
        except FetchError as error:
            self.trouble = f"{error.what} {error.detail}"
            return error.refusal
        except HoldfastError as error:
            self.trouble = f"{error.what} {error.detail}"
            if isinstance(error.__cause__, flight.FlightTimedOutError):
                return None  # the errand's patience has passed, too
            return FetchRefused(ticket=asked.ticket, edge=asked.edge, reason=FetchReason.NOT_HERE)  # nobody listens
        rows = ArrowRows.of(table)
        # of the watermarks inside only the reader's machine knows: a task wants the rows
        whole = Block(asked.start, asked.end, rows, 0)
        return Fetched(ticket=asked.ticket, edge=asked.edge, epoch=errand.producer_epoch, blocks=(whole,))

    def _look(self, version: int) -> Received | None:
        """Is there a newer record? Nodes that hang are not waited for if another knows one."""
        for name, answer in self.caller.call_all("record", timeout=LOOK_S_MAX):
            with contextlib.suppress(msgspec.MsgspecError):
                found = msgspec.msgpack.decode(answer, type=Record) if isinstance(answer, bytes) else None
                if found is not None and found.version > version:
                    _records[self.raw] = found
                    return Received(name, Push(record=found))
        return None
