"""The contract between a machine and its driver, as in etcd's raft: `step(event, now_ns) -> Ready`.

A driver does, in this order and no other:

    0. early     hand each (address, message) to the network without waiting for this step's own writes. They wait for
                 those of earlier steps; and they must not say that anything of this step is safe.
    1. persist   write every (key, value) and sync; nothing below may happen before. What a later step sends waits
                 behind this sync too, since it may already speak of what is being written.
    2. send      hand each (address, message) to the network, which may lose, delay, double or reorder it.
    3. apply     do each effect (start a stage, finish a Spark batch, spill, keep dead letters). One with a `ticket` is
                 work that takes time, a disk's or a store's: begin it in the order in which such effects come, never on
                 the thread that steps or sends, and feed `Done` with its ticket when it has ended, well or not.
    4. timers    feed a Tick when the process's clock reaches `wake_ns` (0: no change to the timer that is set).
                 Feed `Idle` as soon as no other event waits, if `idle` says that there is work for such a moment.
                 Feed `AGAIN`, if `again` says so, when the messages of this step are on their way and before any heavy
                 message: it is work that those who wait for the messages need not wait for.

`notes` (`model/notes.py`) say what was decided, for stories, checkers and logs. They change nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.block import Block, Rows
from holdfast.model.ids import Address, Asset, Consumer, Edge, Name
from holdfast.model.messages import Message
from holdfast.model.notes import Note
from holdfast.model.parts import CheckpointHead, CommitRecord, FootprintHead, LoggedBatch
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import NO_RECORD, Record


class Received(msgspec.Struct, frozen=True, array_like=True):
    """A message arrived."""

    source: Address
    message: Message


class Tick(msgspec.Struct, frozen=True, array_like=True):
    """The clock passed `wake_ns` (or a driver wants the machine to look at its timers)."""


TICK = Tick()


class Idle(msgspec.Struct, frozen=True, array_like=True):
    """Nothing waits, and the last step asked for such a moment. Work for about so long will hold nobody up."""

    budget_ns: int


class Benchmarked(msgspec.Struct, frozen=True, array_like=True):
    """This node has become slow by its own benchmark, or is not any more (hybrid-ha §IV-A)."""

    slow: bool


class Again(msgspec.Struct, frozen=True, array_like=True):
    """The last step left something to do that nobody waits for."""


AGAIN = Again()


class StartStage(msgspec.Struct, frozen=True, kw_only=True):
    """Run the driver of this stage, at this epoch, in a child process."""

    stage: Asset
    epoch: int


class StopStage(msgspec.Struct, frozen=True, kw_only=True):
    """Stop that driver; epoch 0: the one that stands by."""

    stage: Asset
    epoch: int


class WarmStage(msgspec.Struct, frozen=True, kw_only=True):
    """Bring up a driver of this stage and let it stand by: `StartStage` may follow at any time."""

    stage: Asset


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger is read and finished: make Spark's checkpoint agree with it, then run batches."""

    stage: Asset
    commit: CommitRecord | None


class BatchDone(msgspec.Struct, frozen=True, kw_only=True):
    """The batch counts, on every disk of the ledger: `foreachBatch` may return. (A final one is sealed, too.)"""

    stage: Asset
    batch: int


class StageFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The stage cannot run at all; Spark must not go on."""

    stage: Asset
    reason: HandOverReason
    detail: str = ""


class Spill(msgspec.Struct, frozen=True, kw_only=True):
    """Write the rows of these blocks of an edge to disk, so that they can leave memory; then feed `Done`, whose `kept`
    stands for the rows of each block from then on. The core asks for one write of an edge at a time: a second one says
    that it has given up the first."""

    ticket: int
    edge: Edge
    blocks: tuple[Block, ...]


class DropSpill(msgspec.Struct, frozen=True, kw_only=True):
    """Files with rows of this edge that were to be written before this, and that end at `to` or below, may go."""

    edge: Edge
    to: int


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what a shard has set aside: each block as a file that all nodes see, named by shard and position; then feed
    `Done`. The same block may be asked for again, after a fail-over also by another node: it has the same rows, and the
    file is the same. The core asks for one write of a shard at a time."""

    ticket: int
    shard: Asset
    blocks: tuple[Block, ...]


class FindLetters(msgspec.Struct, frozen=True, kw_only=True):
    """How far do the files of this shard go, whoever has written them? Feed `Done`, whose `to` says so."""

    ticket: int
    shard: Asset


class PutCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this state of a shard in the store, for good; then feed `Done`. It counts for `epoch`: the store refuses it
    once a later epoch has claimed the shard, and it never replaces one that has consumed more."""

    ticket: int
    shard: Asset
    epoch: int
    head: CheckpointHead
    image: object


class PutFootprints(msgspec.Struct, frozen=True, kw_only=True):
    """Add an entry of footprints to the log of a shard in the store, for good; then feed `Done`. As for a checkpoint
    the store refuses it once a later epoch has claimed the shard, and where it has a state that has consumed more, it
    passes this one over (`Done.passed_over`). Of each output `head` has what was made after the entry before it."""

    ticket: int
    shard: Asset
    epoch: int
    head: CheckpointHead
    trace: FootprintHead
    image: object


class LoadCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Claim the shard for this epoch, so that no earlier one can add a checkpoint; then read the one that has consumed
    most, and feed `Done` with it."""

    ticket: int
    shard: Asset
    epoch: int


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this try of a batch in the store, for good; then feed `Done`. `commit` is what makes it count, if that comes
    to pass; `last` is the commit before it."""

    ticket: int
    stage: Asset
    batch: int
    epoch: int
    attempt: int
    parts: dict[Edge, Rows]
    commit: CommitRecord
    last: CommitRecord | None


class LoadBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Read every try of these batches of an edge, from `first` to `last`, and feed `Done` with them."""

    ticket: int
    edge: Edge
    first: int
    last: int


class WitnessState(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has voted for and accepted (`core/witness.py`)."""

    term: int = 0
    voted_for: Name | None = None
    record: Record = NO_RECORD


class WitnessAnswer(msgspec.Struct, frozen=True, kw_only=True):
    term: int
    granted: bool
    record: Record


class AskWitness(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the store for its vote in this term, or (with a record) to accept that: read its state, put what follows from
    it (`core/witness.py`) in its place by compare-and-set, and feed `Done` with what it says."""

    ticket: int
    name: Name
    term: int
    record: Record | None = None


#: What a node asks of the stable store.
StoreEffect = PutCheckpoint | PutFootprints | LoadCheckpoint | LoadBatches | AskWitness
Effect = (
    StartStage
    | StopStage
    | WarmStage
    | Opened
    | BatchDone
    | StageFailed
    | Spill
    | DropSpill
    | SetAside
    | FindLetters
    | StoreEffect
    | LogBatch
)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The work of an effect with this ticket has ended. Not `ok`: it was refused or failed, `why` says how, and nothing
    of it counts. An answer that comes twice, late, or to nobody any more changes nothing; one that never comes is given
    up after a time, and the work is asked for again under a new ticket."""

    ticket: int
    ok: bool
    why: str = ""
    #: Of a spill: what stands for the rows of each block.
    kept: tuple[Rows, ...] = ()
    #: Of dead letters that were looked for: the position behind the last of them; 0: there are none.
    to: int = 0
    #: Of a checkpoint that was loaded: where it stands (None: there is none), and its state.
    head: CheckpointHead | None = None
    image: object = None
    #: Of an entry of footprints: it was not written, since the store has a state that has consumed more.
    passed_over: bool = False
    #: Of batches that were loaded.
    batches: tuple[LoggedBatch, ...] = ()
    witness: WitnessAnswer | None = None


class ChildDied(msgspec.Struct, frozen=True, array_like=True):
    """A stage's driver on this node is dead, with its process or alone, or has been silent too long."""

    stage: Asset
    epoch: int


class StageBusy(msgspec.Struct, frozen=True, array_like=True):
    """What a stage's driver on this node has used of all cores since it started, and the memory it takes now: its share
    of its process. Of a standby only the memory counts."""

    stage: Asset
    busy_ns: int
    memory_bytes: int = 0


class StandbyReady(msgspec.Struct, frozen=True, array_like=True):
    """The driver of this stage that stands by on this node is warm; not `ready`: it was, and is gone."""

    stage: Asset
    ready: bool = True


class Unreachable(msgspec.Struct, frozen=True, array_like=True):
    """Nothing listens any more where this life of a node did: the network says that its process is gone.

    Better than silence, and sooner: a killed process is missed within milliseconds. It may still be wrong (a firewall,
    an address that moved), and then it does what any false alarm does.
    """

    name: Name
    life: int


class Left(msgspec.Struct, frozen=True, array_like=True):
    """A reader on a lease says that it will ask no more for these edges."""

    consumer: Consumer
    edges: tuple[Edge, ...]


class Ready:
    """What one step wants done. Filled in by the machine and its parts while the step runs."""

    __slots__ = ("again", "apply", "early", "idle", "notes", "persist", "send", "wake_ns")

    def __init__(self) -> None:
        self.early: list[tuple[Address, Message]] = []
        self.persist: list[tuple[str, object]] = []
        self.send: list[tuple[Address, Message]] = []
        self.apply: list[Effect] = []
        self.notes: list[Note] = []
        self.wake_ns = 0
        #: There is work for an idle moment: feed `Idle` when nothing else waits.
        self.idle = False
        self.again = False


class Machine(Protocol):
    """What a driver runs: a node, a stage's driver, a reader."""

    def step(self, event: Any, now_ns: int) -> Ready: ...
