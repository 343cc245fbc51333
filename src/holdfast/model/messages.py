"""Every message of the core, one frozen struct each, with what the network and the nodes must know about it.

Epochs are on every message that carries rows, acknowledgements or captures, so that each receiver can refuse what a
fenced sender still says. New fields only with defaults: nodes of two versions meet during an upgrade.

A message is entered here and nowhere else; `model/message.py` says what its class has to say. What takes it is found by
its name: the method `on_ledger_open` of a part of a node takes a `LedgerOpen`, and so do those of a driver or a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.block import WATERMARK_MIN, Block, Digest, Rows
from holdfast.model.ids import NO_SEAT, Asset, Consumer, Edge, Name, Seat, ledger_of
from holdfast.model.message import FencedBy, Message
from holdfast.model.parts import CommitRecord, HandedPart, LedgerPage, OutputPart
from holdfast.model.protection import Protection
from holdfast.model.reasons import BarReason, FetchReason, HandOverReason
from holdfast.model.record import Record

# --- membership and placement ---------------------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, kw_only=True):
    """To the monitor: I live. The version lets either side notice that it has missed a record."""

    #: Any word of a member counts, of whichever life: nobody is removed whom somebody just heard.
    fenced_by = ()
    key = ()
    life: int
    version: int


class Suspect(Message, frozen=True, kw_only=True):
    """From a monitor to all: this life of that node has been silent too long. Reports, decides nothing."""

    fenced_by = (FencedBy.LIFE, FencedBy.MEMBER)
    name: Name
    life: int


class Hello(Message, frozen=True, kw_only=True):
    """From a node that is not (in this life) a member: let me in."""

    #: It raises a life.
    fenced_by = ()
    before_record = True
    key = ()
    name: Name
    life: int


class RequestVote(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: int
    record_rank: tuple[int, int]


class Vote(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: int
    granted: bool


class Append(Message, frozen=True, kw_only=True):
    """The coordinator's next record, to be kept before it is answered."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: int
    record: Record
    commit: int


class Appended(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: int
    version: int


class Beat(Message, frozen=True, kw_only=True):
    """The coordinator lives; its record has `version`, of which everything up to `commit` is decided."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    key = ()
    term: int
    version: int
    commit: int


class Pull(Message, frozen=True, kw_only=True):
    """Send me the record if yours is newer than this."""

    fenced_by = ()
    before_record = True
    key = ()
    version: int


class Push(Message, frozen=True, kw_only=True):
    """A decided record."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    key = ()
    record: Record


class Joined(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: this seat now holds everything, under this version of the place."""

    fenced_by = (FencedBy.PLACE,)
    asset: Asset
    since: int
    seat: Seat


class Unfit(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: the image of this backup does not continue; it cannot take over."""

    fenced_by = (FencedBy.PLACE,)
    asset: Asset
    since: int
    seat: Seat


class Yielded(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: I have stopped, and my backup stands where I stand."""

    fenced_by = (FencedBy.PLACE,)
    asset: Asset
    since: int


class StageDown(Message, frozen=True, kw_only=True):
    """From the node that ran it: the stage's driver of this epoch is dead."""

    fenced_by = (FencedBy.EPOCH,)
    stage: Asset
    epoch: int


class Loads(Message, frozen=True, kw_only=True):
    """To the coordinator, every few seconds: how busy shards and stages keep this node, in nanoseconds per second."""

    fenced_by = (FencedBy.MEMBER,)
    key = ()
    #: Of what runs here, and of images that are kept here.
    running: dict[Asset, int]
    images: dict[Asset, int]


class Drain(Message, frozen=True, kw_only=True):
    """From an operator's hand: move everything away from this node."""

    fenced_by = ()
    name: Name


class SetProtection(Message, frozen=True, kw_only=True):
    """From an operator's hand or the prescriber: protect this operator so from now on."""

    fenced_by = ()
    operator: str
    protection: Protection


# --- edges ------------------------------------------------------------------------------------------------------------


class Subscribe(Message, frozen=True, kw_only=True):
    """From a consumer: stream from `at`; everything before `ack` is safe with me. Also keeps a lease alive."""

    fenced_by = (FencedBy.CONSUMER,)
    heavy = True
    key = ("edge", "consumer")
    edge: Edge
    consumer: Consumer
    epoch: int
    at: int
    ack: int
    #: Positions and watermarks are enough: whoever asks fetches the rows elsewhere.
    bare: bool = False
    #: Of a guest: the run that its positions are of. Those of another mean nothing here, even if there are blocks.
    query: str = ""
    #: Which running copy of a shard asks: each acknowledges for itself.
    seat: Seat = NO_SEAT
    #: Stream nothing: only say (`Here`) from where this consumer could go on.
    paused: bool = False


class Here(Message, frozen=True, kw_only=True):
    """To a consumer that subscribed paused: what I keep for you begins here. For one that starts empty: what comes next
    will be at `next`, after `watermark`; and every row that any copy of me made before lies before event time `to`."""

    fenced_by = (FencedBy.PRODUCER,)
    edge: Edge
    epoch: int
    consumer: Consumer
    first: int
    next: int = -1
    watermark: int = WATERMARK_MIN
    to: int = 0


class Data(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.PRODUCER,)
    bulk = heavy = True
    edge: Edge
    epoch: int
    blocks: tuple[Block, ...]

    def with_rows(self, take: Callable[[Rows], Rows]) -> Data:
        for block in self.blocks:
            take(block.rows)
        return self


class Trimmed(Message, frozen=True, kw_only=True):
    """To a reader whose lease lapsed: what you ask for is gone; the edge starts here."""

    fenced_by = (FencedBy.PRODUCER,)
    edge: Edge
    epoch: int
    first: int


class Barred(Message, frozen=True, kw_only=True):
    """To a reader that cannot be served, however often it asks."""

    fenced_by = (FencedBy.ASKED,)
    edge: Edge
    #: The reader's, as it asked: what was said to an earlier life of it does not concern a later one.
    epoch: int
    why: BarReason


class Fetch(Message, frozen=True, kw_only=True):
    """From a task of a reader: the rows of [start, end) of an edge. On real nodes it comes as a ticket of Flight."""

    fenced_by = (FencedBy.CONSUMER,)
    before_record = True
    #: The asker's number for this question; the answer repeats it.
    ticket: int
    edge: Edge
    start: int
    end: int
    consumer: Consumer
    epoch: int
    #: The newest epoch of the producing shard that the asker knows of: a copy at an older one must not answer.
    producer_epoch: int = 0
    #: The run that the positions are of; empty: any.
    query: str = ""
    #: How long the node may keep the question until the rows are made.
    wait_ns: int = 0


class Fetched(Message, frozen=True, kw_only=True):
    """All blocks of [start, end), from the primary of this epoch."""

    fenced_by = (FencedBy.PRODUCER,)
    bulk = heavy = True
    ticket: int
    edge: Edge
    epoch: int
    blocks: tuple[Block, ...]

    with_rows = Data.with_rows  # type: ignore[assignment]


class FetchRefused(Message, frozen=True, kw_only=True):
    """No rows, and why."""

    #: It answers the question of its ticket.
    fenced_by = ()
    ticket: int
    edge: Edge
    reason: FetchReason
    #: NOT_HERE: where the shard runs, by the record of the node that was asked.
    home: Seat | None = None
    #: TRIMMED: where the edge starts. FENCED: the epoch that reads now.
    first: int = 0


# --- captures ---------------------------------------------------------------------------------------------------------


class Capture(Message, frozen=True, kw_only=True):
    """A round's capture for one target: positions, output, and the first piece of the state."""

    fenced_by = (FencedBy.EPOCH, FencedBy.PLACE)
    bulk = heavy = True
    key = ("shard", "epoch", "round")
    shard: Asset
    epoch: int
    #: Version of the place under which it was sent: an image that has not seen, or no longer has, this place waits.
    since: int
    round: int
    #: How many pieces carry the state; all but the first are messages of their own. 0: only asks how far the round is.
    pieces: int
    state: object
    #: The cursor at which an image that is being brought up must stand; 0: it starts here; -1: the image is complete.
    scan: int = -1
    #: With this round the image is complete.
    done: bool = True
    start: dict[Edge, int]
    to: dict[Edge, int]
    watermarks: dict[Edge, int]
    #: Of the copy: event time before which windows are hidden, and the highest one that was consumed.
    gap: tuple[int, int] = (0, WATERMARK_MIN)
    outputs: dict[Edge, OutputPart]
    #: What stages have handed over and is not consumed: only where an image starts.
    handed: dict[Edge, HandedPart]

    def with_rows(self, take: Callable[[Rows], Rows]) -> Capture:
        for part in self.outputs.values():
            for block in part.blocks:
                take(block.rows)
        for handed in self.handed.values():
            for held in (*handed.sealed, *handed.held):
                take(held.rows)
        return self


class CapturePiece(Message, frozen=True, kw_only=True):
    """A further piece of a capture's state, so that no frame grows with the state."""

    fenced_by = (FencedBy.EPOCH, FencedBy.PLACE)
    bulk = heavy = True
    key = ("shard", "epoch", "round", "index")
    shard: Asset
    epoch: int
    since: int
    round: int
    index: int
    state: object


class Held(Message, frozen=True, kw_only=True):
    """To the primary: all of this round is in my memory, whatever happens to you; or (`fits` false) it does not fit."""

    fenced_by = (FencedBy.ASKED,)
    shard: Asset
    epoch: int
    round: int
    fits: bool


class Pasted(Message, frozen=True, kw_only=True):
    """To the primary: this round is in my image; the next one may come."""

    fenced_by = (FencedBy.ASKED,)
    shard: Asset
    epoch: int
    round: int


# --- hand-over from stages ------------------------------------------------------------------------------------------


class Deliver(Message, frozen=True, kw_only=True):
    """Rows of one try of a batch, for every shard of one holder: hold them, and promise to seal them when told so.

    `shards` maps each shard to the `since` of its place: who knows another version refuses. No rows: no part.
    """

    fenced_by = (FencedBy.EPOCH, FencedBy.THESE_PLACES)
    bulk = heavy = True
    key = ("stage", "epoch")
    stage: Asset
    epoch: int
    batch: int
    attempt: int
    shards: dict[Asset, int]
    parts: dict[Edge, Rows]
    #: The commit before this one: a holder that missed the seal of it seals it now.
    last: CommitRecord | None

    def with_rows(self, take: Callable[[Rows], Rows]) -> Deliver:
        return msgspec.structs.replace(self, parts={edge: take(rows) for edge, rows in self.parts.items()})


class Delivered(Message, frozen=True, kw_only=True):
    """This try is held here, under these versions of the places. Digests are of what arrived, not of what was sent."""

    fenced_by = (FencedBy.ASKED,)
    stage: Asset
    epoch: int
    batch: int
    attempt: int
    seat: Seat
    shards: dict[Asset, int]
    digests: dict[Edge, Digest]


class Seal(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.EPOCH,)
    heavy = True
    key = ("stage", "epoch")
    stage: Asset
    epoch: int
    commit: CommitRecord
    shards: dict[Asset, int]


class Sealed(Message, frozen=True, kw_only=True):
    """The shards of `shards` have it under these versions of their places; others were left out."""

    fenced_by = (FencedBy.ASKED,)
    stage: Asset
    epoch: int
    batch: int
    seat: Seat
    shards: dict[Asset, int]


class Refused(Message, frozen=True, kw_only=True):
    """A holder or ledger does not do it, and says why; nothing was changed. `version` is the record it knows."""

    fenced_by = (FencedBy.ASKED,)
    stage: Asset
    epoch: int
    batch: int
    reason: HandOverReason
    version: int
    detail: str = ""


class LedgerOpen(Message, frozen=True, kw_only=True):
    """A new driver takes over: from now on refuse older ones, and tell me the last commit."""

    fenced_by = (FencedBy.OWN,)
    key = ("stage", "epoch")
    stage: Asset
    epoch: int
    query: str

    @property
    def ledger(self) -> Asset:
        return ledger_of(self.stage)


class LedgerWrite(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    key = ("stage", "epoch")
    stage: Asset
    epoch: int
    commit: CommitRecord

    @property
    def ledger(self) -> Asset:
        return ledger_of(self.stage)


class LedgerState(Message, frozen=True, kw_only=True):
    """What both holders have now."""

    fenced_by = (FencedBy.ASKED,)
    stage: Asset
    epoch: int
    commit: CommitRecord | None


class LedgerCopy(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.THIS_PLACE,)
    ledger: Asset
    since: int
    page: LedgerPage


class LedgerCopied(Message, frozen=True, kw_only=True):
    """A page of this rank is on my disk."""

    fenced_by = (FencedBy.THIS_PLACE,)
    ledger: Asset
    since: int
    rank: tuple[int, int]
    #: The page, if it is not the one that was sent: the primary died while it wrote, and has an older one.
    ahead: LedgerPage | None = None


def all_messages() -> list[type[Message]]:
    """Everything that may come over the network. What is not in here cannot be decoded, let alone handled."""
    return [kind for kind in Message.__subclasses__() if kind.__module__ == __name__]


if TYPE_CHECKING:
    AnyMessage = Message
else:
    AnyMessage = reduce(or_, all_messages())
