"""Faults as data, and the hand that inflicts them.

A fault happens at a time or at the first note that reads like `when`. `Injector.may_crash` knows the promise of the
mode: a crash of the only complete copy of a shard is outside of it, and so is the loss of a majority; schedules that
are drawn at random keep to the promise, scenario files may break it on purpose.
"""

from __future__ import annotations

import msgspec

from holdfast.core.ready import Benchmarked
from holdfast.core.roles import State
from holdfast.core.witness import has_witness
from holdfast.errors import ConfigError
from holdfast.model.config import MS
from holdfast.model.ids import Address, Asset, Consumer, Name, Seat, asset_id, is_ledger, name_of
from holdfast.model.messages import CheckpointWanted, Drain, Message, SetProtection, SkipWanted
from holdfast.model.notes import Failed, Note, all_notes
from holdfast.model.protection import MODES, OnFailure
from holdfast.model.record import majority
from holdfast.sim.members import Hand, newest, tell_all
from holdfast.sim.operators import Poison
from holdfast.sim.sink import SinkQuery
from holdfast.sim.spark import SourceQuery, address_of
from holdfast.sim.world import World

KINDS = {
    "crash": "kill -9 of a node (and the stage drivers it runs)",
    "restart": "the node's process starts again, from its disk",
    "crash-all": "everything at once",
    "stall": "the node freezes `for_ms` and wakes up; its clock stops with it unless value = 1",
    "slow": "the node's CPU and disk are `value` times slower `for_ms`",
    "swap": "the node's memory is short `for_ms`: it freezes for a moment again and again, a share `value` of "
    "the time in all, and its disk says twice what became of spill",
    "drift": "the node's clock runs `value` ppm fast, from now on",
    "cut": "`node` does not hear `other` `for_ms`, nor the other way round",
    "cut-one-way": "`other` does not hear `node` `for_ms`",
    "loss": "a share `value` of all messages is lost `for_ms`",
    "doubling": "a share `value` of all messages comes twice `for_ms`",
    "damage": "a share `value` of all deliveries arrives with other rows than were sent `for_ms`",
    "reorder": "messages take up to `value` ms longer `for_ms`",
    "disk-full": "no more spill on the node's disk `for_ms`",
    "disk-silent": "the node's disk does not say what became of spill `for_ms`, as if its thread were dead",
    "disk-stutter": "the node's disk says twice what became of spill `for_ms`",
    "store-full": "the stable store takes nothing `for_ms`",
    "store-silent": "the stable store does not answer `for_ms`",
    "crash-stage": "kill -9 of a stage's driver",
    "stall-stage": "a stage's driver freezes `for_ms`; its node takes it for dead, and it wakes up later",
    "crash-reader": "kill -9 of a sink query",
    "stall-reader": "a sink query freezes `for_ms`; the node of a placed one takes it for dead, and it wakes up later",
    "checkpoint": "somebody wants a checkpoint of every shard now",
    "drain": "move everything away from the node",
    "join": "the node, which no file of the others names, asks to be let in, and starts when the record has it",
    "leave": "the node is drained, leaves for good and ends; value = 1: it is started again all the same",
    "protect": "the shards of `operator` are captured every `value` ms from now on, or protected by `mode`",
    "poison": "operators on `node` (none: on every node) cannot take the stage's next row; value = 1: it tears their "
    "state. Whoever sees the shard stand still has the batch skipped",
    "idle": "the stage's source shows no new rows `for_ms`",
}


#: With `when`: in the middle of the very step that left the note, so that what it wanted to send is never sent.
AT_ONCE = ("crash", "crash-stage")


#: How long a person takes to say what is to be skipped.
HAND_MS = (5, 60, 20, 150, 300)


#: A node that swaps freezes once in this time.
SWAP_MS = 40


#: What can cost a copy, or get one removed that was only slow: two of them may take both copies of a shard.
DISTURBING = ("crash", "crash-all", "stall", "slow", "swap", "cut", "cut-one-way", "loss", "reorder")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    at_ms: int = 0
    node: Name = Name("")
    #: Of a cut: who it is cut from, a node or a reader.
    other: Address = ""
    stage: Asset = asset_id("")
    reader: Consumer = Consumer("")
    operator: str = ""
    mode: str = ""
    for_ms: int = 0
    value: float = 0.0
    #: Happen at the first note whose text starts with this (after `at_ms`), instead of at a time.
    when: str = ""
    #: Only if the promise of the mode allows it.
    guarded: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"no such fault: {self.kind!r}", hint=f"Choose one of {', '.join(sorted(KINDS))}.")
        words = {note.word for note in all_notes()}
        if self.when and self.when.split()[0] not in words:
            raise ConfigError(f"no note begins like {self.when!r}", hint=f"Choose one of {', '.join(sorted(words))}.")

    def __str__(self) -> str:
        fields = [f"{n}={v!r}" for n, v in msgspec.structs.asdict(self).items() if v and n not in ("kind", "guarded")]
        return f"{self.kind} {' '.join(fields)}"


class Injector:
    def __init__(self, world: World, sources: dict[Asset, SourceQuery], sinks: dict[Consumer, SinkQuery], log) -> None:
        self.world = world
        self.sources = sources
        self.sinks = sinks
        self.hand = Hand(world)
        self.log = log
        self.done = 0
        self.disturbances = 0
        self.skipped = 0
        self.waiting: list[Fault] = []
        self.seen = 0
        world.notices.append(self._on_notes)

    def plan(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            if fault.when:
                self.world.call(fault.at_ms * MS, lambda fault=fault: self.waiting.append(fault))
            else:
                self.world.call(fault.at_ms * MS, lambda fault=fault: self.inflict(fault))

    def _on_notes(self, at_ns: int, source: Address, notes: list[Note]) -> None:
        for note in notes:
            if isinstance(note, Failed):
                self.seen += 1
                self.world.call(HAND_MS[self.seen % len(HAND_MS)] * MS, lambda note=note: self._skip(note))
        if not self.waiting:
            return
        for note in notes:
            text = str(note)
            for fault in [f for f in self.waiting if text.startswith(f.when)]:
                self.waiting.remove(fault)
                if fault.kind in AT_ONCE:
                    self.inflict(fault)
                else:
                    self.world.call(0, lambda fault=fault: self.inflict(fault))

    def inflict(self, fault: Fault) -> None:
        if fault.guarded and fault.kind == "crash" and not self.may_crash(fault.node):
            self.skipped += 1
            return
        self.done += 1
        self.disturbances += fault.kind in DISTURBING
        self.log(self.world.now_ns, fault)
        getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    # --- the promise

    def may_crash(self, name: Name) -> bool:
        """Would every shard and ledger keep a complete copy on a live node, and the members a majority?"""
        world = self.world
        process = world.processes.get(name)
        if process is None or not process.alive:
            return False
        nodes = [node for node in map(world.node, world.names) if node is not None]
        record = max((node.record for node in nodes), key=lambda r: r.version)
        living = [n for n in record.members if n != name and self._is_well(n)]
        store = has_witness(world.topology, world.names)
        if len(living) + store < majority(len(record.members) + store) or len(living) < 2 - store:
            return False
        for asset, place in record.places.items():
            if asset in world.topology.stage or place.primary is None:
                continue
            holders = [s for s in (place.primary, place.backup) if s]
            if name not in [name_of(s) for s in holders]:
                continue
            others = [s for s in holders if name_of(s) != name]
            if not others and MODES[place.mode].on_failure is OnFailure.EMPTY:
                continue  # it starts empty elsewhere
            if not others or not all(self._is_complete(asset, s) for s in others):
                return False
        return True

    def _is_well(self, name: Name) -> bool:
        process = self.world.processes.get(name)
        return process is not None and process.alive and process.stalled_ns <= self.world.now_ns

    def _is_complete(self, asset: Asset, seat: Seat) -> bool:
        process = self.world.route(seat)
        if process is None or process.stalled_ns > self.world.now_ns:
            return False
        if any(process.host in pair for pair in self.world.network.cuts):
            return False
        if is_ledger(asset):
            return True
        host = process.machine.host  # type: ignore[attr-defined]
        torn = asset in host.copies and host.copies[asset].op.torn
        runs = host.states.get(asset) is State.TWIN and asset in host.runners
        return (runs or host.states.get(asset) in (State.BACKUP, State.PRIMARY, State.YIELDING)) and not torn

    # --- one method per kind

    def _crash(self, fault: Fault) -> None:
        self.world.crash(fault.node)

    def _restart(self, fault: Fault) -> None:
        process = self.world.processes.get(fault.node)
        if process is None or not process.alive:
            self.world.start_node(fault.node)

    def _crash_all(self, fault: Fault) -> None:
        for name in self.world.names:
            self.world.crash(name)
        self.disturbances += len(self.world.names) - 1  # each of them is one: memory alone cannot outlive that

    def _stall(self, fault: Fault) -> None:
        self.world.stall(fault.node, fault.for_ms * MS, clock_stops=not fault.value)

    def _slow(self, fault: Fault) -> None:
        process = self.world.processes.get(fault.node)
        if process is not None:
            process.slow = max(1, int(fault.value))
            self.world.call(fault.for_ms * MS, lambda: setattr(process, "slow", 1))
            if self.world.config.detector == "benchmark":
                self.world.feed_if_awake(process, Benchmarked(slow=True))
                self.world.call(fault.for_ms * MS, lambda: self.world.feed_if_awake(process, Benchmarked(slow=False)))

    def _swap(self, fault: Fault) -> None:
        """Pages come back in moments that nobody chose; no clock stops meanwhile."""
        frozen_ns = int(SWAP_MS * MS * fault.value)
        for at_ms in range(0, fault.for_ms, SWAP_MS):
            self.world.call(at_ms * MS, lambda: self.world.stall(fault.node, frozen_ns, clock_stops=False))
        self._disk_stutter(fault)

    def _drift(self, fault: Fault) -> None:
        process = self.world.processes.get(fault.node)
        if process is not None:
            before = process.clock(self.world.now_ns)
            process.drift_ppm = int(fault.value)
            process.offset_ns += before - process.clock(self.world.now_ns)

    def _cut(self, fault: Fault) -> None:
        self._cut_one_way(fault)
        self._cut_one_way(msgspec.structs.replace(fault, node=fault.other, other=fault.node))

    def _cut_one_way(self, fault: Fault) -> None:
        network = self.world.network
        network.cut(fault.node, fault.other)
        self.world.call(fault.for_ms * MS, lambda: network.mend(fault.node, fault.other))

    def _loss(self, fault: Fault) -> None:
        self.world.network.loss = fault.value
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.network, "loss", 0.0))

    def _doubling(self, fault: Fault) -> None:
        self.world.network.doubling = fault.value
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.network, "doubling", 0.0))

    def _damage(self, fault: Fault) -> None:
        self.world.network.damage = fault.value
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.network, "damage", 0.0))

    def _reorder(self, fault: Fault) -> None:
        self.world.network.extra_jitter_ns = int(fault.value * MS)
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.network, "extra_jitter_ns", 0))

    def _disk_full(self, fault: Fault) -> None:
        self._disk(self.world.full, fault)

    def _disk_silent(self, fault: Fault) -> None:
        self._disk(self.world.silent, fault)

    def _disk_stutter(self, fault: Fault) -> None:
        self._disk(self.world.stutters, fault)

    def _disk(self, bad: dict[Name, None], fault: Fault) -> None:
        bad[fault.node] = None
        self.world.call(fault.for_ms * MS, lambda: bad.pop(fault.node, None))

    def _store_full(self, fault: Fault) -> None:
        self.world.store.full = True
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.store, "full", False))

    def _store_silent(self, fault: Fault) -> None:
        self.world.store.silent = True
        self.world.call(fault.for_ms * MS, lambda: setattr(self.world.store, "silent", False))

    def _crash_stage(self, fault: Fault) -> None:
        query = self.sources[fault.stage]
        address = address_of(query)
        if address is not None:
            self.world.crash(address)
            query.lose_driver(20 * MS)

    def _stall_stage(self, fault: Fault) -> None:
        query = self.sources[fault.stage]
        address = address_of(query)
        if address is not None:
            self.world.stall(address, fault.for_ms * MS, clock_stops=True)
            query.lose_driver(300 * MS)

    def _crash_reader(self, fault: Fault) -> None:
        self.sinks[fault.reader].crash()

    def _stall_reader(self, fault: Fault) -> None:
        self.sinks[fault.reader].stall(fault.for_ms * MS)

    def _checkpoint(self, fault: Fault) -> None:
        for shard in self.world.topology.shard:
            self._tell(CheckpointWanted(shard=shard))

    def _drain(self, fault: Fault) -> None:
        self._tell(Drain(name=fault.node))

    def _join(self, fault: Fault) -> None:
        self.hand.let_in(fault.node)

    def _leave(self, fault: Fault) -> None:
        self.hand.send_away(fault.node, returns=bool(fault.value))

    def _protect(self, fault: Fault) -> None:
        present = newest(self.world).protection.get(fault.operator)
        if present is None:
            return  # nobody is there who could be asked
        protection = msgspec.structs.replace(
            present, mode=fault.mode or present.mode, period_ns=int(fault.value * MS) or present.period_ns
        )
        self._tell(SetProtection(operator=fault.operator, protection=protection))

    def _tell(self, message: Message) -> None:
        tell_all(self.world, message)

    def _poison(self, fault: Fault) -> None:
        rows = (row for at, row in self.sources[fault.stage].source.rows if at > self.world.now_ns)
        if (row := next(rows, None)) is not None:
            self.world.poison[row] = Poison(fault.node, bool(fault.value))

    def _skip(self, note: Failed) -> None:
        """A person has seen that a shard stands still, and says so until it does not."""
        nodes = [node for node in map(self.world.node, self.world.names) if node is not None]
        copies = [node.host.copies[note.shard] for node in nodes if note.shard in node.host.runners]
        if any(copy.blocked is not None and copy.blocked.key == (note.edge, note.start) for copy in copies):
            self._tell(SkipWanted(shard=note.shard, input=note.edge, start=note.start))
            self.world.call(HAND_MS[-1] * MS, lambda: self._skip(note))

    def _idle(self, fault: Fault) -> None:
        query = self.sources[fault.stage]
        shift = fault.for_ms * MS
        now = self.world.now_ns
        query.source.rows = [(at if at <= now else at + shift, row) for at, row in query.source.rows]
