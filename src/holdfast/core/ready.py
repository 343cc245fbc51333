"""The contract between a machine and its driver, as in etcd's raft: `step(event, now_ns) -> Ready`.

A driver does, in this order and no other:

    0. early     hand each (address, message) to the network without waiting for this step's own writes. They wait for
                 those of earlier steps; and they must not say that anything of this step is safe.
    1. persist   write every (key, value) and sync; nothing below may happen before. What a later step sends waits
                 behind this sync too, since it may already speak of what is being written.
    2. send      hand each (address, message) to the network, which may lose, delay, double or reorder it.
    3. apply     do each effect (start a stage, finish a Spark batch, spill).
    4. timers    feed a Tick when the process's clock reaches `wake_ns` (0: no change to the timer that is set).
                 Feed `Idle` as soon as no other event waits, if `idle` says that there is work for such a moment.
                 Feed `AGAIN`, if `again` says so, when the messages of this step are on their way and before any heavy
                 message: it is work that those who wait for the messages need not wait for.

`notes` (`model/notes.py`) say what was decided, for stories, checkers and logs. They change nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.ids import Address, Asset, Consumer, Edge, Name
from holdfast.model.messages import Message
from holdfast.model.notes import Note
from holdfast.model.parts import CommitRecord
from holdfast.model.reasons import HandOverReason


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
    """The batch counts and both holders have it: `foreachBatch` may return."""

    stage: Asset
    batch: int


class StageFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The stage cannot run at all; Spark must not go on."""

    stage: Asset
    reason: HandOverReason
    detail: str = ""


class Spill(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of this edge now on disk: [trimmed, to). A driver that cannot write feeds DiskFull."""

    edge: Edge
    trimmed: int
    to: int


Effect = StartStage | StopStage | WarmStage | Opened | BatchDone | StageFailed | Spill


class DiskFull(msgspec.Struct, frozen=True, array_like=True):
    """The disk takes no more spill (full), or takes it again."""

    full: bool


class ChildDied(msgspec.Struct, frozen=True, array_like=True):
    """The process of a stage's driver on this node is dead, or has been silent too long."""

    stage: Asset
    epoch: int


class StageBusy(msgspec.Struct, frozen=True, array_like=True):
    """What the process of a stage's driver on this node has used of all cores since it started."""

    stage: Asset
    busy_ns: int


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
