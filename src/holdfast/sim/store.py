"""The stable store of the virtual world: outlives every node, takes its time, refuses, falls silent.

What is put is there at some moment before its writer hears so, or not at all if the store is full then. A claim is
compared and set in one step, as the stores that we use can do.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.core.ready import (
    AskWitness,
    Done,
    LoadBatches,
    LoadCheckpoint,
    LogBatch,
    PutCheckpoint,
    PutFootprints,
    StoreEffect,
    WitnessState,
)
from holdfast.core.witness import answer
from holdfast.model.block import digest_of
from holdfast.model.ids import Asset, Edge
from holdfast.model.parts import CheckpointHead, HeldBatch, LoggedBatch
from holdfast.sim.traces import TraceLog

#: Of nodes and of stages.
AnyStoreEffect = StoreEffect | LogBatch


class StoredState(msgspec.Struct, frozen=True):
    epoch: int
    head: CheckpointHead
    image: object

    @property
    def consumed(self) -> int:
        """Copies of a shard consume in one order: of two checkpoints one has consumed all that the other has."""
        return sum(self.head.to.values())


class SimStore:
    __slots__ = ("claims", "full", "log", "newest", "silent", "traces", "witness")

    def __init__(self) -> None:
        #: Which epoch has claimed each shard; and its checkpoint that has consumed most.
        self.claims: dict[Asset, int] = {}
        self.newest: dict[Asset, StoredState] = {}
        #: Logs of shards that leave footprints.
        self.traces: dict[Asset, TraceLog] = {}
        #: Every try of every batch, by edge.
        self.log: dict[Edge, dict[tuple[int, int, int], LoggedBatch]] = {}
        #: What it has voted for and accepted.
        self.witness = WitnessState()
        #: It takes nothing; it does not answer.
        self.full = False
        self.silent = False

    def do(self, effect: AnyStoreEffect) -> Done:
        """What becomes of it, now."""
        ticket = effect.ticket
        if isinstance(effect, LoadCheckpoint):
            return self._load(effect)
        if isinstance(effect, LoadBatches):
            tries = self.log.get(effect.edge, {})
            found = tuple(one for key, one in sorted(tries.items()) if effect.first <= key[0] <= effect.last)
            return Done(ticket=ticket, ok=True, batches=found)
        if self.full:
            return Done(ticket=ticket, ok=False, why="No space left in the store.")
        if isinstance(effect, AskWitness):
            self.witness, said = answer(self.witness, effect)
            return Done(ticket=ticket, ok=True, witness=said)
        if isinstance(effect, LogBatch):
            for edge, rows in effect.parts.items():
                held = HeldBatch(effect.batch, effect.epoch, effect.attempt, rows, digest_of(rows))
                key = (effect.batch, effect.epoch, effect.attempt)
                self.log.setdefault(edge, {})[key] = LoggedBatch(held, effect.last)
            return Done(ticket=ticket, ok=True)
        if isinstance(effect, PutFootprints):
            return self._put_footprints(effect)
        return self._put(effect)

    def _put_footprints(self, effect: PutFootprints) -> Done:
        claim = self.claims.get(effect.shard, 0)
        if effect.epoch < claim:
            return Done(ticket=effect.ticket, ok=False, why=f"Epoch {claim} has claimed the shard.")
        self.claims[effect.shard] = effect.epoch
        state, known = StoredState(effect.epoch, effect.head, None), self.newest.get(effect.shard)
        if known is not None and state.consumed < known.consumed:
            return Done(ticket=effect.ticket, ok=True, passed_over=True)
        trace = self.traces.setdefault(effect.shard, TraceLog())
        if not trace.has(effect):
            return Done(ticket=effect.ticket, ok=False, why="An entry that this one needs is gone.")
        trace.add(effect)
        self.newest[effect.shard] = state
        for edge, batch in effect.trace.batches.items():  # what no restore asks for any more
            tries = self.log.get(edge, {})
            for key in [key for key in tries if key[0] < batch]:
                del tries[key]
        return Done(ticket=effect.ticket, ok=True)

    def _put(self, effect: PutCheckpoint) -> Done:
        claim = self.claims.get(effect.shard, 0)
        if effect.epoch < claim:
            return Done(ticket=effect.ticket, ok=False, why=f"Epoch {claim} has claimed the shard.")
        self.claims[effect.shard] = effect.epoch
        state, known = StoredState(effect.epoch, effect.head, effect.image), self.newest.get(effect.shard)
        if known is None or state.consumed >= known.consumed:
            self.newest[effect.shard] = state
        return Done(ticket=effect.ticket, ok=True)

    def _load(self, effect: LoadCheckpoint) -> Done:
        claim = self.claims.get(effect.shard, 0)
        if effect.epoch < claim:
            return Done(ticket=effect.ticket, ok=False, why=f"Epoch {claim} has claimed the shard.")
        self.claims[effect.shard] = effect.epoch
        found = self.newest.get(effect.shard)
        head, image = (found.head, found.image) if found else (None, None)
        if found is not None and image is None:
            head, image = self.traces[effect.shard].bring_back(self.log)
        return Done(ticket=effect.ticket, ok=True, head=head, image=image)


def delay_ns(rng: Random, sync_ns: int) -> int:
    """A store takes longer than a disk, and now and then very long."""
    return sync_ns * rng.choice((2, 3, 5, 8, 60))
