"""Every message of the core, one frozen struct each, with what the network and the nodes must know about it.

Epochs are on every message that carries rows, acknowledgements or captures, so that each receiver can refuse what a
fenced sender still says. New fields only with defaults: nodes of two versions meet during an upgrade.

A message is entered here and nowhere else (of a ledger: in `model/ledger_messages.py`; along edges and of captures: in
`model/stream_messages.py`; of stand-ins: in `model/stand_in_messages.py`; of mode `replay`: in
`model/replay_messages.py`); `model/message.py` says what its class has to say. What takes it is found by its name: the
method `on_ledger_open` of a part of a node takes a `LedgerOpen`, and so do those of a driver or a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.block import Digest, Rows
from holdfast.model.ids import Address, Asset, Edge, Name, Seat, life_of, name_of, operator_of, stage_edge
from holdfast.model.ledger_messages import (  # noqa: F401
    LedgerCopied,
    LedgerCopy,
    LedgerOpen,
    LedgerState,
    LedgerWrite,
    LedgerWritten,
    commit_objection,
)
from holdfast.model.message import STEP, FencedBy, Message, SaidBy, View, ahead, epoch_ahead
from holdfast.model.parts import CommitRecord
from holdfast.model.protection import MODES, Protection
from holdfast.model.ranges import Number, NumberOrNone, Position, is_word, shown
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Record
from holdfast.model.replay_messages import Horizon, HorizonKept  # noqa: F401
from holdfast.model.skips import Skip
from holdfast.model.skips import objection as skips_objection
from holdfast.model.stand_in_messages import Abreast, Back, FellBack, Missed, StandIn, StoodDown  # noqa: F401
from holdfast.model.stream_messages import (  # noqa: F401
    Barred,
    Capture,
    CapturePiece,
    Data,
    Fetch,
    Fetched,
    FetchRefused,
    Held,
    Here,
    Pasted,
    Subscribe,
    Trimmed,
)
from holdfast.model.successor import record_objection

# --- membership and placement ---------------------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, kw_only=True):
    """To monitor and neighbours: I live. The version lets either side notice that it has missed a record."""

    #: Any word of a member counts, of whichever life: nobody is removed whom somebody just heard.
    fenced_by = ()
    key = ()
    life: Number
    version: Number
    #: I live, but for this long I have been at one thing and heard nobody (a thread beside my loop says so).
    stalled_ns: Number = 0
    #: I live, but a standard set of elements takes me too long (detector "benchmark").
    slow: bool = False


class Suspect(Message, frozen=True, kw_only=True):
    """From a monitor to all: this life of that node has been silent too long. Reports, decides nothing."""

    fenced_by = (FencedBy.LIFE, FencedBy.MEMBER)
    name: Name
    life: Number


class Unheard(Message, frozen=True, kw_only=True):
    """From a member to the coordinator, as long as it is so: these members I do not hear. Reports, decides nothing."""

    fenced_by = (FencedBy.MEMBER,)
    said_by = SaidBy.MEMBER
    key = ()
    members: tuple[Name, ...]

    def objection(self, source: Address, view: View) -> str:
        return "" if self.members and name_of(source) not in self.members else "it names nobody, or its own sender"


class Hello(Message, frozen=True, kw_only=True, repr_omit_defaults=True):
    """From a node that is not (in this life) a member: let me in."""

    #: It raises a life.
    fenced_by = ()
    before_record = True
    key = ()
    name: Name
    life: Number
    #: Of a name in the roster, the record that it has heard of: what is said to it arrives. 0: none.
    version: Number = 0

    def objection(self, source: Address, view: View) -> str:
        if name_of(source) != self.name or life_of(Seat(source)) not in (0, self.life):
            return f"it speaks for life {self.life} of {self.name}"
        return ahead(f"life of {self.name}", self.life, view.record.members.get(self.name, 0), STEP)


class RequestVote(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: Number
    record_rank: tuple[Number, Number]

    def objection(self, source: Address, view: View) -> str:
        if self.record_rank[0] > self.term:
            return f"its record is of term {self.record_rank[0]}"
        return ahead("term", self.term, view.term, STEP)


class Vote(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: Number
    granted: bool

    def objection(self, source: Address, view: View) -> str:
        return ahead("term", self.term, view.term, STEP)


class Append(Message, frozen=True, kw_only=True):
    """The coordinator's next record, to be kept before it is answered."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: Number
    record: Record
    commit: Number

    def objection(self, source: Address, view: View) -> str:
        if self.record.term > self.term or self.commit > self.record.version:
            return "its numbers do not agree"
        return ahead("term", self.term, view.term, STEP) or record_objection(self.record, view)


class Appended(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.OWN,)
    before_record = True
    term: Number
    version: Number

    objection = Vote.objection


class Beat(Message, frozen=True, kw_only=True):
    """The coordinator lives; its record has `version`, of which everything up to `commit` is decided."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    key = ()
    term: Number
    version: Number
    commit: Number

    def objection(self, source: Address, view: View) -> str:
        if self.commit > self.version:
            return f"it has decided {self.commit}, beyond its own record"
        return ahead("term", self.term, view.term, STEP)


class Pull(Message, frozen=True, kw_only=True):
    """Send me the record if yours is newer than this."""

    fenced_by = ()
    before_record = True
    key = ()
    version: Number


class Push(Message, frozen=True, kw_only=True):
    """A decided record."""

    fenced_by = (FencedBy.OWN,)
    before_record = True
    key = ()
    record: Record

    def objection(self, source: Address, view: View) -> str:
        return record_objection(self.record, view)


class Joined(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: this seat now holds everything, under this version of the place."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.PRIMARY
    asset: Asset
    since: Number
    seat: Seat


class Unfit(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: the image of this backup does not continue; it cannot take over."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.PRIMARY
    asset: Asset
    since: Number
    seat: Seat


class Yielded(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: I have stopped, and my backup stands where I stand."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.PRIMARY
    asset: Asset
    since: Number


class StageDown(Message, frozen=True, kw_only=True):
    """From the node that ran it: the stage's driver of this epoch is dead."""

    fenced_by = (FencedBy.EPOCH,)
    said_by = SaidBy.PRIMARY
    stage: Asset
    epoch: Number

    def objection(self, source: Address, view: View) -> str:
        return epoch_ahead(view, self.stage, self.epoch)


class Warmed(Message, frozen=True, kw_only=True):
    """From the node where a stage stands by, to the coordinator: it can take over now, so the stage may move here."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.HOLDER
    stage: Asset
    since: Number
    seat: Seat


class Loads(Message, frozen=True, kw_only=True):
    """To the coordinator, every few seconds: how busy shards and stages keep this node, in nanoseconds per second."""

    fenced_by = (FencedBy.MEMBER,)
    key = ()
    #: Of what runs here, and of images that are kept here.
    running: dict[Asset, Number]
    images: dict[Asset, Number]
    #: Bytes of memory that each stage takes here, whether it runs or stands by.
    memory: dict[Asset, Number] = msgspec.field(default_factory=dict)
    #: What the last capture of each shard took that runs here, in nanoseconds.
    captures: dict[Asset, Number] = msgspec.field(default_factory=dict)
    #: Where backups are assigned by it: the mean expected recovery time of each shard since the last message, that of
    #: the worst segment, and how many checkpoint cycles were finished here.
    recovery: dict[Asset, Number] = msgspec.field(default_factory=dict)
    query_ns: Number = 0
    cycles: Number = 0


class Drain(Message, frozen=True, kw_only=True):
    """From an operator's hand: move everything away from this node."""

    fenced_by = ()
    name: Name


class LetIn(Message, frozen=True, kw_only=True):
    """From an operator's hand: this node may become a member, and listens there. No file of the others names it."""

    fenced_by = ()
    name: Name
    address: str

    def objection(self, source: Address, view: View) -> str:
        return "" if self.address and is_word(self.address) else f"{shown(self.address)} cannot be where a node listens"


class SendAway(Message, frozen=True, kw_only=True):
    """From an operator's hand: this node, which holds nothing any more, leaves for good."""

    fenced_by = ()
    name: Name


class SetProtection(Message, frozen=True, kw_only=True):
    """From an operator's hand or the prescriber: protect this operator so from now on."""

    fenced_by = ()
    operator: str
    protection: Protection

    def objection(self, source: Address, view: View) -> str:
        known = any(operator_of(shard) == self.operator for shard in view.topology.shard)
        if not known:
            return f"no operator is named {shown(self.operator)}"
        if MODES[self.protection.mode].keeps_input and self.operator in view.topology.timeless:
            return f"the state of {self.operator} cannot be made again from a stretch of its input"
        homeless = self.protection.is_stored and not view.topology.has_store
        return "its checkpoints need a store, and this pipeline has none" if homeless else ""


class SkipWanted(Message, frozen=True, kw_only=True):
    """From an operator's hand to the node that runs this shard: pass over the block that it stands still at."""

    #: It names a position: whoever stands elsewhere does nothing.
    fenced_by = ()
    shard: Asset
    #: One of its edges: from a stage, or from another shard.
    input: Edge
    start: Position

    def objection(self, source: Address, view: View) -> str:
        known = self.input in view.topology.shard[self.shard].inputs
        return "" if known else f"{self.shard} does not read {self.input}"


class CheckpointWanted(Message, frozen=True, kw_only=True):
    """From an operator's hand to the node that runs this shard: make a checkpoint now, whenever the next one is due."""

    #: It asks for no more than what happens anyway, a little later.
    fenced_by = ()
    shard: Asset


class GivenUp(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: I shall not step this block at my epoch, so let it be skipped."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.PRIMARY
    shard: Asset
    since: Number
    skip: Skip
    #: My state is of no position: only my backup can go on.
    torn: bool = False

    def objection(self, source: Address, view: View) -> str:
        return skips_objection((self.skip,), view.topology.shard[self.shard].inputs)


class SkipsPassed(Message, frozen=True, kw_only=True):
    """From a primary to the coordinator: whoever keeps my state stands behind these; no copy will meet them again."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.PRIMARY
    shard: Asset
    since: Number
    skips: tuple[Skip, ...]

    def objection(self, source: Address, view: View) -> str:
        return skips_objection(self.skips, view.topology.shard[self.shard].inputs)


# --- hand-over from stages ------------------------------------------------------------------------------------------


class Deliver(Message, frozen=True, kw_only=True):
    """Rows of one try of a batch, for every shard of one holder: hold them, and promise to seal them when told so.

    `shards` maps each shard to the `since` of its place: who knows another version refuses. No rows: no part.
    """

    fenced_by = (FencedBy.NOT_AHEAD, FencedBy.EPOCH, FencedBy.THESE_PLACES)
    said_by = SaidBy.DRIVER
    bulk = heavy = True
    key = ("stage", "epoch")
    stage: Asset
    epoch: Number
    batch: Number
    attempt: Number
    shards: dict[Asset, Number]
    parts: dict[Edge, Rows]
    #: The commit before this one: a holder that missed the seal of it seals it now.
    last: CommitRecord | None

    def objection(self, source: Address, view: View) -> str:
        last = self.last
        edges = {stage_edge(self.stage, shard) for shard in self.shards}
        if not edges.issuperset(self.parts) or not self.shards or self.attempt < 1:
            return "it has rows for other shards than it names, or names none"
        if self.batch != (last.batch + 1 if last else 0):
            return f"batch {self.batch} does not follow {last.batch if last else 'nothing'}"
        why = _not_fed(self.stage, self.shards, view) or epoch_ahead(view, self.stage, self.epoch)
        return why or (commit_objection(last, self.epoch, edges) if last else "")

    def with_rows(self, take: Callable[[Rows], Rows]) -> Deliver:
        return msgspec.structs.replace(self, parts={edge: take(rows) for edge, rows in self.parts.items()})


class Delivered(Message, frozen=True, kw_only=True):
    """This try is held here, under these versions of the places. Digests are of what arrived, not of what was sent."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.SEAT
    stage: Asset
    epoch: Number
    batch: Number
    attempt: Number
    seat: Seat
    shards: dict[Asset, Number]
    digests: dict[Edge, Digest]

    def objection(self, source: Address, view: View) -> str:
        if set(self.digests) != {stage_edge(self.stage, shard) for shard in self.shards}:
            return "it has other rows than those of its shards"
        return _not_fed(self.stage, self.shards, view)


class Seal(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.NOT_AHEAD, FencedBy.EPOCH)
    said_by = SaidBy.DRIVER
    heavy = True
    key = ("stage", "epoch")
    stage: Asset
    epoch: Number
    commit: CommitRecord
    shards: dict[Asset, Number]

    def objection(self, source: Address, view: View) -> str:
        edges = {stage_edge(self.stage, shard) for shard in self.shards}
        why = _not_fed(self.stage, self.shards, view) or epoch_ahead(view, self.stage, self.epoch)
        return why or commit_objection(self.commit, self.epoch, edges)


class Sealed(Message, frozen=True, kw_only=True):
    """The shards of `shards` have it under these versions of their places; others were left out."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.SEAT
    stage: Asset
    epoch: Number
    batch: Number
    seat: Seat
    shards: dict[Asset, Number]

    def objection(self, source: Address, view: View) -> str:
        return _not_fed(self.stage, self.shards, view)


class Refused(Message, frozen=True, kw_only=True):
    """A holder or ledger does not do it, and says why; nothing was changed. `version` is the record it knows."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.MEMBER
    stage: Asset
    epoch: Number
    batch: NumberOrNone
    reason: HandOverReason
    version: Number
    detail: str = ""


def _not_fed(stage: Asset, shards: Iterable[Asset], view: View) -> str:
    fed = view.topology.stage[stage].shards
    other = [shard for shard in shards if shard not in fed]
    return f"{stage} does not feed {other[0]}" if other else ""


def all_messages() -> list[type[Message]]:
    """Everything that may come over the network. What is not in here cannot be decoded, let alone handled."""
    here = __name__.rpartition(".")[0]
    return [kind for kind in Message.__subclasses__() if kind.__module__.rpartition(".")[0] == here]


if TYPE_CHECKING:
    AnyMessage = Message
else:
    AnyMessage = reduce(or_, all_messages())
