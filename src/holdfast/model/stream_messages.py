"""Messages along edges and of captures: subscriptions, rows, fetches, state on its way to an image.

They are messages as those of `model/messages.py`, which brings all of them together, are.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.block import WATERMARK_MIN, Block, Rows, batch_length
from holdfast.model.ids import NO_SEAT, Address, Asset, Consumer, Edge, Seat, asset_id, dead_edge
from holdfast.model.message import FencedBy, Message, SaidBy, View, epoch_ahead, position_ahead
from holdfast.model.parts import Cargo, HandedPart, OutputPart
from holdfast.model.ranges import Number, Piece, Position, PositionOrNone, Time, shown
from holdfast.model.reasons import BarReason, FetchReason

# --- edges ------------------------------------------------------------------------------------------------------------


class Subscribe(Message, frozen=True, kw_only=True):
    """From a consumer: stream from `at`; everything before `ack` is safe with me. Also keeps a lease alive."""

    fenced_by = (FencedBy.CONSUMER,)
    said_by = SaidBy.CONSUMER
    heavy = True
    key = ("edge", "consumer")
    edge: Edge
    consumer: Consumer
    epoch: Number
    at: Position
    ack: Position
    #: Positions and watermarks are enough: whoever asks fetches the rows elsewhere.
    bare: bool = False
    #: Of a guest: the run that its positions are of. Those of another mean nothing here, even if there are blocks.
    query: str = ""
    #: Which running copy of a shard asks. Only what its primary acknowledges counts.
    seat: Seat = NO_SEAT
    #: Stream nothing: only say (`Here`) from where this consumer could go on.
    paused: bool = False
    #: Of a second copy that stands by again: stream nothing until it asks anew (hybrid-ha §IV-B: `isActive` is false).
    inactive: bool = False
    #: An earlier life of this reader had planned a batch up to here, and may have written rows of it.
    planned: Position = 0

    def objection(self, source: Address, view: View) -> str:
        if self.ack > self.at:
            return f"it has acknowledged {self.ack}, and wants to go on from {self.at}"
        return (
            _not_read(self.edge, self.consumer, view)
            or epoch_ahead(view, asset_id(self.consumer), self.epoch)
            or position_ahead(view, self.edge, max(self.at, self.planned))
        )


class Here(Message, frozen=True, kw_only=True):
    """To a consumer that subscribed paused: what I keep for you begins here. For one that starts empty: what comes next
    will be at `next`, after `watermark`; and every row that any copy of me made before lies before event time `to`."""

    fenced_by = (FencedBy.PRODUCER,)
    said_by = SaidBy.MAKER
    edge: Edge
    epoch: Number
    consumer: Consumer
    first: Position
    next: PositionOrNone = -1
    watermark: Time = WATERMARK_MIN
    to: Time = 0

    def objection(self, source: Address, view: View) -> str:
        if self.consumer not in view.topology.shard:
            return f"it is for {self.consumer}, which is not a shard"
        return _not_read(self.edge, self.consumer, view) or _of_edge(
            self.edge, self.epoch, max(self.first, self.next), view
        )


class Data(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.PRODUCER,)
    said_by = SaidBy.MAKER
    bulk = heavy = True
    edge: Edge
    epoch: Number
    blocks: tuple[Block, ...]

    def objection(self, source: Address, view: View) -> str:
        end = self.blocks[-1].end if self.blocks else 0
        return _of_edge(self.edge, self.epoch, end, view) or blocks_objection(self.blocks, whole=view.is_node)

    def with_rows(self, take: Callable[[Rows], Rows]) -> Data:
        for block in self.blocks:
            take(block.rows)
        return self


class Trimmed(Message, frozen=True, kw_only=True):
    """To a reader whose lease lapsed: what you ask for is gone; the edge starts here."""

    fenced_by = (FencedBy.PRODUCER,)
    said_by = SaidBy.PRODUCER
    edge: Edge
    epoch: Number
    first: Position

    def objection(self, source: Address, view: View) -> str:
        return _of_edge(self.edge, self.epoch, self.first, view)


class Barred(Message, frozen=True, kw_only=True):
    """To a reader that cannot be served, however often it asks."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.MEMBER
    edge: Edge
    #: The reader's, as it asked: what was said to an earlier life of it does not concern a later one.
    epoch: Number
    why: BarReason


class Fetch(Message, frozen=True, kw_only=True):
    """From a task of a reader: the rows of [start, end) of an edge. On real nodes it comes as a ticket of Flight."""

    fenced_by = (FencedBy.CONSUMER,)
    before_record = True
    #: The asker's number for this question; the answer repeats it.
    ticket: Number
    edge: Edge
    start: Position
    end: Position
    consumer: Consumer
    epoch: Number
    #: The newest epoch of the producing shard that the asker knows of: a copy at an older one must not answer.
    producer_epoch: Number = 0
    #: The run that the positions are of; empty: any.
    query: str = ""
    #: How long the node may keep the question until the rows are made.
    wait_ns: Number = 0

    def objection(self, source: Address, view: View) -> str:
        return f"[{self.start}, {self.end}) is not a piece of an edge" if self.start > self.end else ""


class Fetched(Message, frozen=True, kw_only=True):
    """All blocks of [start, end), from the primary of this epoch."""

    fenced_by = (FencedBy.PRODUCER,)
    said_by = SaidBy.MAKER
    bulk = heavy = True
    ticket: Number
    edge: Edge
    epoch: Number
    blocks: tuple[Block, ...]

    def objection(self, source: Address, view: View) -> str:
        rows, elements = (sum(len(b.rows) for b in self.blocks), sum(b.end - b.start for b in self.blocks))
        if rows > elements:  # (a task on a real node gets them as one block, without the watermarks in between)
            return f"{rows} rows are more than was asked for"
        return epoch_ahead(view, view.topology.producer[self.edge], self.epoch)

    with_rows = Data.with_rows  # type: ignore[assignment]


class FetchRefused(Message, frozen=True, kw_only=True):
    """No rows, and why."""

    #: It answers the question of its ticket.
    fenced_by = ()
    ticket: Number
    edge: Edge
    reason: FetchReason
    #: NOT_HERE: where the shard runs, by the record of the node that was asked.
    home: Seat | None = None
    #: TRIMMED: where the edge starts. FENCED: the epoch that reads now.
    first: Position = 0


# --- captures ---------------------------------------------------------------------------------------------------------


class Capture(Message, frozen=True, kw_only=True):
    """A round's capture for one target: positions, and the first piece of state and cargo."""

    fenced_by = (FencedBy.EPOCH, FencedBy.PLACE)
    said_by = SaidBy.PRIMARY
    bulk = heavy = True
    key = ("shard", "epoch", "round")
    shard: Asset
    epoch: Number
    #: Version of the place under which it was sent: an image that has not seen, or no longer has, this place waits.
    since: Number
    #: Rounds are numbered from the epoch on at which the primary began to run; a skip raises its epoch while it runs.
    born: Number
    round: Number
    #: How many pieces it has; all but the first are messages of their own. 0: only asks how far the round is.
    pieces: Piece
    state: object
    #: The cursor at which the state of an image must stand; 0: it starts here; -1: it has all of it.
    scan: PositionOrNone = -1
    #: The image is being brought up; with this round it is complete.
    rising: bool = False
    done: bool = True
    start: dict[Edge, Position]
    to: dict[Edge, Position]
    watermarks: dict[Edge, Time]
    #: Of the copy: event time before which windows are hidden, and the highest one that was consumed.
    gap: tuple[Time, Time] = (0, WATERMARK_MIN)
    #: How busy the shard keeps its node, in nanoseconds per second, and what an element of its input takes: what a
    #: backup expects of its recovery.
    load: Number = 0
    element_ns: Number = 0
    outputs: dict[Edge, OutputPart]
    #: What stages have handed over and is not consumed: only where an image starts. Rows of both are cargo.
    handed: dict[Edge, HandedPart]
    cargo: tuple[Cargo, ...] = ()

    def objection(self, source: Address, view: View) -> str:
        spec = view.topology.shard[self.shard]
        inputs = set(spec.inputs)
        if not inputs == set(self.start) == set(self.to) == set(self.watermarks):
            return f"it does not say where every input of {self.shard} stands"
        why = epoch_ahead(view, self.shard, self.epoch)
        if not why and self.born > self.epoch:
            why = f"its primary began to run at epoch {self.born}, after epoch {self.epoch}"
        if why or not self.pieces:
            return why
        if set(self.outputs) != {*spec.outputs, dead_edge(self.shard)}:
            return f"it does not say where every output of {self.shard} stands"
        stages = {edge for edge in inputs if view.topology.is_stage_edge(edge)}
        if set(self.handed) != (stages if self.scan == 0 else set()):
            return f"it has not what was handed over to {self.shard}"
        if self.state is None or any(part.blocks for part in self.outputs.values()):
            return "it has no state, or rows that are not its cargo"
        return _cargo_objection(self.cargo, self.shard, view)

    def whole_objection(self, *, logged: bool = False) -> str:
        """The same of a capture that is complete, with all cargo in its parts. Where stages log batches (`logged`), a
        copy may owe some that its image has consumed: it was brought up by one that had looked them up."""
        why = ""
        for part in self.outputs.values():
            why = why or _output_objection(part)
        for edge, handed in self.handed.items():
            why = why or _handed_objection(handed, self.to[edge], logged=logged)
        return why

    def with_rows(self, take: Callable[[Rows], Rows]) -> Capture:
        for part in (part for load in self.cargo for part in (*load.blocks, *load.held)):
            take(part.rows)
        return self


class CapturePiece(Message, frozen=True, kw_only=True):
    """A further piece of a capture, of the state or cargo, so that no frame grows with the state."""

    fenced_by = (FencedBy.EPOCH, FencedBy.PLACE)
    said_by = SaidBy.PRIMARY
    bulk = heavy = True
    key = ("shard", "epoch", "round", "index")
    shard: Asset
    epoch: Number
    since: Number
    round: Number
    index: Piece
    state: object = None
    cargo: tuple[Cargo, ...] = ()
    with_rows = Capture.with_rows  # type: ignore[assignment]

    def objection(self, source: Address, view: View) -> str:
        if not self.index:
            return "the first piece is in the capture itself"
        return epoch_ahead(view, self.shard, self.epoch) or _cargo_objection(self.cargo, self.shard, view)


class Held(Message, frozen=True, kw_only=True):
    """To the primary: all of this round is in my memory, whatever happens to you; or (`fits` false) it does not fit."""

    fenced_by = (FencedBy.ASKED,)
    shard: Asset
    epoch: Number
    round: Number
    fits: bool
    #: What it will take to paste it, as measured so far.
    cost_ns: Number = 0


class Pasted(Message, frozen=True, kw_only=True):
    """To the primary: this round is in my image; the next one may come."""

    fenced_by = (FencedBy.ASKED,)
    shard: Asset
    epoch: Number
    round: Number
    #: What it took; 0: not known any more.
    cost_ns: Number = 0


def _not_read(edge: Edge, consumer: Consumer, view: View) -> str:
    """A shard, or a sink of the pipeline, reads the edges of the plan and no others; a guest reads what it likes."""
    topology = view.topology
    ours = consumer in topology.shard or any(consumer == r.id for r in topology.readers if not r.leased)
    return f"{consumer} does not read {edge}" if ours and consumer not in topology.consumers[edge] else ""


def _of_edge(edge: Edge, epoch: int, position: int, view: View) -> str:
    return epoch_ahead(view, view.topology.producer[edge], epoch) or position_ahead(view, edge, position)


def blocks_objection(blocks: tuple[Block, ...], *, whole: bool, batches: bool = False) -> str:
    """Could these blocks follow each other on one edge? `whole`: with their rows; `batches`: on an edge of a stage."""
    marks, at = 2 if batches else 1, -1
    for block in blocks:
        rows = len(block.rows)
        if rows != block.end - block.start - marks and (rows or whole or block.end - block.start < marks):
            return f"[{block.start}, {block.end}) cannot have {rows} rows"
        if (block.batch < 0) is batches:
            return f"[{block.start}, {block.end}) cannot be of batch {block.batch}"
        if block.start != at and at >= 0 and not (block.jumps and block.start > at):
            return f"[{block.start}, {block.end}) does not follow {at}"
        at = block.end
    return ""


def _cargo_objection(cargo: tuple[Cargo, ...], shard: Asset, view: View) -> str:
    """Rows of edges that this shard has, with as many as their positions say."""
    spec = view.topology.shard[shard]
    for load in cargo:
        out = load.edge in spec.outputs or load.edge == dead_edge(shard)
        if not out and load.edge not in spec.inputs:
            return f"{shown(load.edge)} is not an edge of {shard}"
        why = blocks_objection(load.blocks, whole=True, batches=not out)
        if why or (out and load.held):
            return why or f"{load.edge} is not handed over"
        if out and load.blocks and (why := position_ahead(view, load.edge, load.blocks[-1].end)):
            return why
    return ""


def _output_objection(part: OutputPart) -> str:
    if not part.trimmed <= part.start <= part.next:
        return f"output that starts at {part.start} cannot be trimmed at {part.trimmed} and end at {part.next}"
    at = part.blocks[0].start if part.blocks else part.start
    end = part.blocks[-1].end if part.blocks else part.next
    if at != part.start or end != part.next:
        return f"output from {part.start} to {part.next} is not all there"
    return blocks_objection(part.blocks, whole=True)


def _handed_objection(part: HandedPart, to: int, *, logged: bool) -> str:
    """What is sealed begins where the copy stands, and ends where the edge stands. One seal may still be on its way
    to a copy that was promoted: its image has the effect of the batch that it only holds."""
    at = part.sealed[0].start if part.sealed else part.next
    end = part.sealed[-1].end if part.sealed else part.next
    ahead = {part.next + batch_length(len(held.rows)) for held in part.held if held.batch == part.last + 1}
    stands = to == at or part.landing or (not part.sealed and (to in ahead or (logged and to > at)))
    if end != part.next or not stands:
        return f"what was handed over from {at} to {end} is not what comes after {to}, before {part.next}"
    if any(held.batch <= part.last or len(held.rows) != held.digest.rows for held in part.held):
        return "it holds batches that are sealed, or rows that are not theirs"
    return blocks_objection(part.sealed, whole=True, batches=True)
