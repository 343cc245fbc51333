"""What a step decided, one frozen struct per kind of decision: what checkers, traces, stories and counts read.

A note is entered here and nowhere else (of stages, disks, the store, skips, links, modes, balance: in
`model/..._notes.py`); `model/note.py` says what its class has to say.
"""

from __future__ import annotations

from holdfast.model.balance_notes import Balanced, Reassigned, SpreadOut  # noqa: F401
from holdfast.model.block import Block
from holdfast.model.disk_notes import DeadKept, DeadRefused, SpillAgain, Spilled, SpillRefused  # noqa: F401
from holdfast.model.ids import Address, Asset, Consumer, Edge, Name, Seat
from holdfast.model.link_notes import Detoured, LinkCut, LinkMended  # noqa: F401
from holdfast.model.member_notes import Invited, SentOff  # noqa: F401
from holdfast.model.mode_notes import (  # noqa: F401
    EmittedBeside,
    InputKept,
    InTimeAgain,
    Lags,
    ModeChanged,
    NoObjective,
    NotInTime,
    Recovered,
    ReplayOver,
    RunsBeside,
    StandsDown,
    StandsIn,
)
from holdfast.model.note import Note, Told
from holdfast.model.reasons import BarReason, FetchReason
from holdfast.model.skip_notes import Failed, GaveUp, Skipped  # noqa: F401
from holdfast.model.stage_notes import (  # noqa: F401
    AllDelivered,
    AllSealed,
    BatchDone,
    CommitTaken,
    Committed,
    Delivered,
    Differs,
    Ledgered,
    Sealed,
    StageOpen,
    StageOver,
    TurnedAway,
)
from holdfast.model.store_notes import (  # noqa: F401
    Logged,
    LogRefused,
    LookupFailed,
    Restored,
    RestoreFailed,
    Restoring,
    Stored,
    StoreRefused,
)


def all_notes() -> list[type[Note]]:
    """Every kind of note."""
    return Note.__subclasses__()


class Objected(Note, frozen=True):
    """A message was refused that no right peer could have sent."""

    checked = True
    told = Told("refused-message", "A message {kind} from {source} was refused: {why}.", 5)
    kind: str
    source: str
    why: str
    who: Address


# --- members, and who decides -----------------------------------------------------------------------------------------


class Started(Note, frozen=True):
    """A node begins a life."""

    checked = True
    seat: Seat


class Suspects(Note, frozen=True):
    checked = False
    told = Told("suspicion", "{name} has not heard {suspect} (life {life}) for too long.", 1)
    name: Name
    suspect: Name
    life: int


class Unreachable(Note, frozen=True):
    checked = False
    told = Told("unreachable", "Nothing listens any more where {gone} (life {life}) did.")
    name: Name
    gone: Name
    life: int


class Dismissed(Note, frozen=True):
    """A suspicion is not acted on: the coordinator has heard that member itself."""

    checked = False
    told = Told("dismissed", "{name} has heard {suspect} itself: it is not gone.", 1)
    name: Name
    suspect: Name
    life: int


class NoQuorum(Note, frozen=True):
    checked = False
    told = Told("no-quorum", "{suspect} seems gone, but without it there would be no majority: it stays a member.", 5)
    name: Name
    suspect: Name
    version: int


class Spared(Note, frozen=True):
    checked = False
    told = Told("spared", "{suspect} seems gone, but it may hold the last copy of something: it stays for now.", 5)
    name: Name
    suspect: Name
    version: int


class Campaign(Note, frozen=True):
    checked = False
    told = Told("campaign", "{name} stands for coordinator in term {term}.")
    name: Name
    term: int


class Elected(Note, frozen=True):
    checked = True
    told = Told("elected", "{name} is coordinator of term {term}.")
    name: Name
    term: int


class Proposed(Note, frozen=True):
    checked = False
    name: Name
    version: int
    term: int


class Decided(Note, frozen=True):
    """A node knows that this record counts."""

    checked = True
    name: Name
    version: int
    term: int


class Degraded(Note, frozen=True):
    checked = False
    told = Told("degraded", "Only one node is left: {assets} shards and ledgers have no second copy.", 5)
    name: Name
    version: int
    assets: int


class StableAgain(Note, frozen=True):
    """Everything has a backup again, this long after the failed member was last heard."""

    checked = False
    name: Name
    version: int
    after_ns: int


# --- copies of shards -------------------------------------------------------------------------------------------------


class Promoted(Note, frozen=True):
    checked = True
    shard: Asset
    seat: Seat
    epoch: int
    positions: tuple[int, ...]


class Joining(Note, frozen=True):
    checked = True
    told = Told("joining", "{seat} begins to back up {shard}.")
    shard: Asset
    seat: Seat
    since: int


class Demoted(Note, frozen=True):
    checked = True
    told = Told("demoted", "{seat} has handed {shard} over.")
    shard: Asset
    seat: Seat
    epoch: int


class Dropped(Note, frozen=True):
    checked = True
    told = Told("dropped", "{seat} no longer holds {shard}.")
    shard: Asset
    seat: Seat
    epoch: int


class Landed(Note, frozen=True):
    """A shard that started empty goes on; windows that begin before event time `to` are not emitted."""

    checked = True
    told = Told("started-empty", "{shard} goes on without what it knew; {seat} leaves out windows that it cannot know.")
    shard: Asset
    seat: Seat
    epoch: int
    to: int


class CutOff(Note, frozen=True):
    checked = True
    told = Told("cut-off", "Input that {shard} on {seat} must take again is lost: it starts empty.")
    shard: Asset
    seat: Seat
    epoch: int


class Lost(Note, frozen=True):
    checked = False
    told = Told("lost", "Every copy of {shard} is gone: its stage stands still.")
    shard: Asset
    seat: Seat
    epoch: int


class WaitsForMemory(Note, frozen=True):
    """The operator has no room for the next block: the shard tries again until it has."""

    checked = False
    told = Told("memory-full", "{why}", 60)
    shard: Asset
    epoch: int
    why: str


class HasMemory(Note, frozen=True):
    checked = False
    told = Told("memory-again", "{shard} has memory again, and goes on.")
    shard: Asset
    epoch: int


class Captured(Note, frozen=True):
    checked = True
    shard: Asset
    epoch: int
    round: int
    whole: bool
    seat: Seat


class Pasted(Note, frozen=True):
    checked = False
    shard: Asset
    seat: Seat
    epoch: int
    round: int
    whole: bool


class Misfit(Note, frozen=True):
    checked = False
    told = Told("misfit", "{seat} needs a whole capture of {shard}.", 5)
    shard: Asset
    seat: Seat
    epoch: int
    round: int
    whole: bool


class PasteFailed(Note, frozen=True):
    checked = False
    told = Told("paste-failed", "{seat} cannot take a capture of {shard}: {why}", 5)
    shard: Asset
    seat: Seat
    why: str


class StaleCapture(Note, frozen=True):
    checked = False
    told = Told("fenced", "{seat} refused a capture of {shard} at epoch {epoch}.", 1)
    shard: Asset
    seat: Seat
    epoch: int
    since: int


class ScanAgain(Note, frozen=True):
    """A joining image took too long over a round: it is brought up from the start, and holds nobody up meanwhile."""

    checked = True
    told = Told("scan-again", "{seat} is too slow: its image of {shard} is brought up anew.", 5)
    shard: Asset
    epoch: int
    round: int
    seat: Seat


class Acked(Note, frozen=True):
    """A shard tells a producer what is safe, as decided under version `since` of its place."""

    checked = True
    shard: Asset
    edge: Edge
    position: int
    epoch: int
    since: int


# --- edges ------------------------------------------------------------------------------------------------------------


class Emitted(Note, frozen=True):
    checked = True
    shard: Asset
    edge: Edge
    epoch: int
    block: Block

    def parts(self) -> tuple[object, ...]:
        return (self.shard, self.edge, f"epoch={self.epoch}", self.block)


class SetAside(Note, frozen=True):
    """What a shard cannot put out: it goes to the dead letters."""

    checked = True
    shard: Asset
    epoch: int
    block: Block

    def parts(self) -> tuple[object, ...]:
        return (self.shard, f"epoch={self.epoch}", self.block)


class Accepted(Note, frozen=True):
    """A consumer takes a block of a producer that is at `epoch`; `life` is the consumer's own epoch."""

    checked = True
    consumer: Consumer
    edge: Edge
    epoch: int
    block: Block
    life: int

    def parts(self) -> tuple[object, ...]:
        return (self.consumer, self.edge, f"epoch={self.epoch}", self.block)


class Refused(Note, frozen=True):
    checked = False
    told = Told("fenced", "{consumer} refused rows of {edge} at epoch {epoch}: the shard is at epoch {newest}.", 1)
    consumer: Consumer
    edge: Edge
    epoch: int
    newest: int


class Fenced(Note, frozen=True):
    checked = False
    told = Told("fenced", "{shard} refused consumer {consumer} at epoch {epoch}: it is at epoch {newest}.", 1)
    shard: Asset
    edge: Edge
    consumer: Consumer
    epoch: int
    newest: int


class Barred(Note, frozen=True):
    checked = False
    told = Told("refused", "Reader {consumer} of {edge} is refused: {why}.", 5)
    shard: Asset
    edge: Edge
    consumer: Consumer
    why: BarReason


class Gone(Note, frozen=True):
    checked = False
    told = Told("trimmed", "Reader {consumer} asks {edge} from {at}; it starts at {trimmed} now.", 5)
    shard: Asset
    edge: Edge
    consumer: Consumer
    at: int
    trimmed: int


class Trimmed(Note, frozen=True):
    checked = True
    shard: Asset
    edge: Edge
    trimmed: int


class Left(Note, frozen=True):
    """A reader lets go of its lease."""

    checked = False
    shard: Asset
    edge: Edge
    consumer: Consumer
    trimmed: int


class Lapsed(Note, frozen=True):
    checked = True
    told = Told("lease-lapsed", "Reader {consumer} of {edge} was silent too long; its rows are given up.")
    shard: Asset
    edge: Edge
    consumer: Consumer
    trimmed: int


class Served(Note, frozen=True):
    """A primary at `epoch` gives these positions to a task; `life` is the epoch of the task's consumer."""

    checked = True
    shard: Asset
    edge: Edge
    span: tuple[int, int]
    epoch: int
    consumer: Consumer
    life: int


class Unserved(Note, frozen=True):
    checked = False
    told = Told("unserved", "{seat} gives {consumer} no rows of {edge}, positions {span}: {why}.", 5)
    seat: Seat
    edge: Edge
    span: tuple[int, int]
    consumer: Consumer
    life: int
    why: FetchReason


class Fetched(Note, frozen=True):
    """A task has these positions, all of them, from a primary at `epoch`."""

    checked = True
    consumer: Consumer
    edge: Edge
    span: tuple[int, int]
    epoch: int
    blocks: tuple[Block, ...]

    def parts(self) -> tuple[object, ...]:
        rows = sum(len(block.rows) for block in self.blocks)
        return (self.consumer, self.edge, self.span, f"epoch={self.epoch}", f"rows={rows}")


class Missing(Note, frozen=True):
    """A reader has come past a gap: rows with an event time in [start, to) may be missing."""

    checked = True
    consumer: Consumer
    edge: Edge
    position: int
    start: int
    to: int


class ReaderLost(Note, frozen=True):
    checked = False
    consumer: Consumer
    edge: Edge
    first: int


class ReaderBarred(Note, frozen=True):
    checked = False
    consumer: Consumer
    edge: Edge
    why: BarReason


class ReaderAcked(Note, frozen=True):
    checked = True
    consumer: Consumer
    edge: Edge
    position: int
