"""What of a stream is to be fetched, and from whom; leases on what is retained. Without Spark: a task of Spark's, a
standby that rehearses and a sink without Spark all read this way."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from holdfast.core.reader import Piece
from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Consumer, Edge, maker_of, name_of
from holdfast.model.plan import Plan, edges_of
from holdfast.model.record import Record
from holdfast.runtime.net.transport import Peer
from holdfast.spark.connect import let_go, plan_of
from holdfast.spark.fetch import Order, RowsGone, connect, fetch
from holdfast.spark.follower import HOLD_S_MAX, Follower, Offset, ReadOptions, _silent
from holdfast.spark.hand_over import ask_record

#: One task reads at least this many rows: starting a task costs more than reading a few rows.
TASK_ROWS_MIN = 50_000


def read_order(order: Order) -> Iterator[pa.RecordBatch]:
    for piece in order.pieces:
        yield from fetch(order, piece)
    if order.last:
        let_go(order.run, order.consumer, [piece.edge for piece in order.pieces])


def hold(settings: ReadOptions, plan: Plan) -> tuple[Follower, Offset, Offset]:
    """A lease on everything that is retained now: who holds it, where it begins and where it ends."""
    edges = edges_of(plan.operator(settings.stream))
    until = time.monotonic() + HOLD_S_MAX
    while True:
        found = bounds(settings, edges)
        start = {e: [first, WATERMARK_MIN] for e, (first, _) in found.items()}
        end = {e: [end, WATERMARK_MIN] for e, (_, end) in found.items()}
        follower = Follower(settings, plan, start)
        try:
            follower.reach(start, end, until)
            return follower, start, end
        except BaseException as error:
            follower.close()
            if not isinstance(error, RowsGone) or time.monotonic() > until:  # trimmed between the look and the lease
                raise


def bounds(settings: ReadOptions, edges: tuple[Edge, ...]) -> dict[Edge, tuple[int, int]]:
    """First retained and next position of edges, from their primaries. Waits for a fail-over to end."""
    run = settings.run
    until = time.monotonic() + HOLD_S_MAX
    peer = Peer(settings.consumer, run.endpoints, run.security(), lambda source, message: None)
    try:
        while True:
            record = ask_record(peer, _silent)
            found, trouble = _look(peer, record, edges)
            missing = [e for e in edges if e not in found]
            if not missing:
                return found
            lost = any(record.places[maker_of(e)].primary is None for e in missing)
            if lost or time.monotonic() > until:
                raise HoldfastError(
                    f'format("holdfast"): no node holds {", ".join(missing)} now',
                    detail="Every node that held them is gone." if lost else trouble,
                    hint="See `holdfast status`; if a fail-over is under way, try again.",
                )
            time.sleep(0.1)
    finally:
        peer.close()


def _look(peer: Peer, record: Record, edges: tuple[Edge, ...]) -> tuple[dict[Edge, tuple[int, int]], str]:
    """What the primaries of a record say; and why one does not."""
    found: dict[Edge, tuple[int, int]] = {}
    trouble = ""
    homes = {name_of(record.places[maker_of(edge)].primary or "") for edge in edges} - {""}
    for name in sorted(homes):
        try:
            held = peer.caller.edges(name)
        except HoldfastError as error:  # it has just died, and the record does not know yet
            trouble = str(error)
            continue
        found |= {edge: (at.trimmed, at.next) for edge, at in held.items() if edge in edges}
    return found, trouble


def orders(
    settings: ReadOptions, wanted: list[Piece], record: Record, query: str, *, last: bool = False
) -> list[Order]:
    """Pieces dealt out to tasks: few tasks if there is little to read."""
    rows = sum(piece.rows for piece in wanted)
    count = max(1, min(len(wanted), settings.parallelism, -(-rows // TASK_ROWS_MIN)))
    hands: list[list[Piece]] = [[] for _ in range(count)]
    load = [0] * count
    for piece in sorted(wanted, key=lambda piece: -piece.rows):
        least = load.index(min(load))
        load[least] += piece.rows
        hands[least].append(piece)
    places = record.places
    return [
        Order(
            run=settings.run,
            consumer=settings.consumer,
            epoch=settings.epoch,
            query=query,
            pieces=tuple(hand),
            homes={piece.shard: name_of(places[piece.shard].primary or "") for piece in hand},
            standbys={piece.shard: name_of(places[piece.shard].beside or "") for piece in hand},
            epochs={piece.shard: places[piece.shard].epoch for piece in hand},
            version=record.version,
            last=last,
        )
        for hand in hands
        if hand
    ]


def rehearse(settings: ReadOptions) -> None:
    """Connect, follow and fetch once, as a guest. A reader that waits at a latch does it before: importing and
    connecting would be a part of the take-over else."""
    guest = msgspec.structs.replace(settings, consumer=Consumer(f"rehearsal-{uuid.uuid4().hex[:12]}"), epoch=0)
    run = settings.run
    with contextlib.suppress(HoldfastError):  # it helps, but nothing depends on it
        plan = plan_of(run, settings.directory)
        follower, start, end = hold(guest, plan)
        try:
            few = [piece for piece in follower.pieces(start, end) if piece.rows <= TASK_ROWS_MIN][:1]
            for order in orders(guest, few, follower.record(), plan.topology.query):
                for _ in read_order(order):
                    pass
        finally:
            follower.close()
            let_go(run, guest.consumer, start)
        connect(run, settings.consumer)
