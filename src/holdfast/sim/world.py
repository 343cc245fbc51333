"""The event loop of the virtual world: one heap, one clock, one seed.

A world owns processes and moves events between them; it decides nothing about streams. What each step of a machine
wants (`Ready`) is done in the order of the contract: a step's messages leave only when its writes are on disk, but for
those that may leave early.
Every event of a process waits until that process is neither stalled nor busy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from holdfast.core.node import Node
from holdfast.core.ready import (
    AGAIN,
    TICK,
    AskWitness,
    Done,
    DropSpill,
    Effect,
    FindLetters,
    Idle,
    LoadBatches,
    LoadCheckpoint,
    LogBatch,
    PutCheckpoint,
    Ready,
    Received,
    SetAside,
    Spill,
    Unreachable,
)
from holdfast.model import found
from holdfast.model.block import Row
from holdfast.model.config import MS, Config
from holdfast.model.ids import Address, Asset, Name, life_of, name_of
from holdfast.model.messages import Fetch, FetchRefused, Message
from holdfast.model.protection import Protection
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Record, first_record
from holdfast.model.topology import ShardSpec, Topology
from holdfast.sim.costs import Costs
from holdfast.sim.network import Network
from holdfast.sim.operators import SUM_MAX, Meter, Poison, WindowSum
from holdfast.sim.peace import SimPeace
from holdfast.sim.process import Process, VirtualDisk, Waiting
from holdfast.sim.spill import LetterBox, SpillDisk, delay_ns
from holdfast.sim.store import AnyStoreEffect, SimStore
from holdfast.sim.store import delay_ns as store_delay_ns

_MESSAGE, _WAKE, _SYNC, _CALL, _BACKLOG, _IDLE = range(6)

Notice = Callable[[int, Address, list], None]
Watch = Callable[[Process, Address, Message], None]


class World:
    def __init__(
        self,
        *,
        topology: Topology,
        names: tuple[Name, ...],
        config: Config,
        costs: Costs,
        seed: int,
        window_ns: int,
        spares: tuple[Name, ...] = (),
        late: tuple[Name, ...] = (),
        own: dict[str, Protection] | None = None,
        resets: bool = False,
        sum_max: int = SUM_MAX,
        peaceful: bool = False,
    ) -> None:
        self.topology = topology
        #: Nodes that the files of all others name; all that there may be; and those that no file names but their own.
        self.filed = (*names, *spares)
        self.names = (*self.filed, *late)
        self.late = late
        #: Whether the one process knows where the other is, and is let in there; asked if some nodes come late.
        self.reaches: Callable[[Process, Process], bool] = lambda source, target: True
        self.config = config
        self.costs = costs
        self.window_ns = window_ns
        self.sum_max = sum_max
        #: Somebody who knows the secret sends messages of its own: then, and only then, some are refused.
        self.hostile = False
        #: The network tells peers that a process is gone.
        self.resets = resets
        self.rng = Random(f"world {seed}")
        self.spill_rng = Random(f"spill {seed}")
        self.store_rng = Random(f"store {seed}")
        self.store = SimStore()
        #: Who says when checkpoints may be written; None: nobody is asked.
        self.peace = SimPeace(self.names, seed, self.call, lambda: self.now_ns, self.node) if peaceful else None
        self.network = Network(costs, Random(f"network {seed}"))
        self.meter = Meter()
        self.first: Record = first_record(
            topology, names, config.protection, own, config.domains, draws=config.assignor == "random_static"
        )
        self.now_ns = 0
        self.events = 0
        self.processes: dict[Address, Process] = {}
        self.disks: dict[Name, VirtualDisk] = {name: VirtualDisk() for name in self.names}
        #: Seats that died before anything left them: nobody knows of them, and they may be taken again.
        self.unheard: dict[Address, None] = {}
        #: Nodes whose disk takes no spill; whose disk does not say what became of it; and what tells it twice.
        self.full: dict[Name, None] = {}
        self.silent: dict[Name, None] = {}
        self.stutters: dict[Name, None] = {}
        #: Dead letters of every shard, by position: a directory that all nodes share.
        self.letters: dict[Asset, LetterBox] = {shard: LetterBox() for shard in topology.shard}
        #: Rows that some operators cannot take.
        self.poison: dict[Row, Poison] = {}
        #: Most elements that any node has had in spill files.
        self.spilled_max = 0
        #: Who is told of every step's notes, and of every message that leaves (to check it; to trace it).
        self.notices: list[Notice] = []
        self.watches: list[Watch] = []
        self.wiretap: Callable[[int, Address, Address, Message], None] | None = None
        #: Who takes effects of drivers and of nodes (modelled Spark).
        self.on_effect: Callable[[Process, Effect], None] = lambda process, effect: None
        self._heap: list[tuple] = []
        self._count = 0

    # --- processes

    def operator(self, spec: ShardSpec, home: Name) -> WindowSum:
        made = WindowSum(spec, self.window_ns, self.costs, self.meter, self.sum_max)
        made.home, made.poison = home, self.poison
        return made

    def node(self, name: Name) -> Node | None:
        """The living node of this name."""
        process = self.processes.get(name)
        return process.machine if process is not None and process.alive else None  # type: ignore[return-value]

    def start_node(self, name: Name) -> None:
        """A node's process starts (again): it finds what its disk has."""
        disk = self.disks[name]
        before = self.processes.get(name)
        process = Process(name, name, None, disk)  # type: ignore[arg-type]
        if before is not None:
            process.drift_ppm, process.offset_ns = before.drift_ppm, before.offset_ns
        node = Node(
            name,
            (*self.filed, name) if name in self.late else self.filed,
            self.topology,
            self.config,
            lambda spec: self.operator(spec, name),
            Random(f"{name} {self.rng.random()}"),
            found.read(disk.content),
            self.first,
            process.clock(self.now_ns),
        )
        process.machine = node
        process.address = node.seat
        self.processes[name] = process
        self.do(process, node.start(process.clock(self.now_ns)))

    def add(self, process: Process) -> None:
        """A driver or a reader starts."""
        self.processes[process.address] = process
        self._wake(process, self.now_ns)

    def end(self, process: Process) -> None:
        """A process has done what it was there for: nobody will speak to it again."""
        process.alive = False
        if self.processes.get(process.address) is process:
            del self.processes[process.address]

    def crash(self, address: Address) -> None:
        """kill -9: memory and unsynced writes are gone; on a node, the drivers it runs too."""
        process = self.processes.get(address)
        if process is None or not process.alive:
            return
        process.alive = False
        process.held.clear()
        if process.disk is not None:
            if not process.spoke:
                self.unheard[process.address] = None
            process.disk.crash(self.rng)
            process.spill = SpillDisk()
            for other in list(self.processes.values()):
                if other.host == address and other.alive:
                    self.crash(other.address)
            if self.resets:
                self._reset(process)

    def _reset(self, gone: Process) -> None:
        """Peers find their connections refused, unless they are cut off; some sooner than others."""
        name = name_of(gone.address)
        event = Unreachable(name, life_of(gone.address))
        for peer in self.names:
            other = self.processes.get(peer)
            if other is not None and other.alive and (peer, name) not in self.network.cuts and self.rng.random() < 0.8:
                self.call(self.rng.randrange(50 * MS), lambda other=other: self.feed_if_awake(other, event))

    def stall(self, address: Address, for_ns: int, *, clock_stops: bool) -> None:
        """The process freezes; when it wakes it may believe that no time has passed. (If it is frozen already, only
        what this adds counts: a clock that stood still for longer than its process would go back.)"""
        process = self.processes.get(address)
        if process is None or not process.alive:
            return
        if process.stalled_ns <= self.now_ns:
            process.stopped_ns = 0
        frozen_ns = max(process.stalled_ns, self.now_ns)
        process.stalled_ns = max(frozen_ns, self.now_ns + for_ns)
        if clock_stops:
            process.offset_ns -= process.stalled_ns - frozen_ns
            process.stopped_ns += process.stalled_ns - frozen_ns

    def heal_disks(self) -> None:
        for bad in (self.full, self.silent, self.stutters):
            bad.clear()
        self.store.full = self.store.silent = False

    # --- events

    def _push(self, at_ns: int, kind: int, process: Process | None, payload: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, kind, process, payload))

    def call(self, after_ns: int, action: Callable[[], None]) -> None:
        """Do something later that belongs to no process (faults, modelled Spark, observers)."""
        self._push(self.now_ns + after_ns, _CALL, None, action)

    def later(self, process: Process, after_ns: int, action: Callable[[], None]) -> None:
        """The next step of what runs in a process, unless that dies before; a stalled one does it when it wakes."""

        def step() -> None:
            if not process.alive:
                return
            if process.stalled_ns > self.now_ns:
                self.call(process.stalled_ns - self.now_ns, step)
                return
            action()

        self.call(after_ns, step)

    def _wake(self, process: Process, at_ns: int) -> None:
        process.wake_token += 1
        self._push(max(at_ns, self.now_ns), _WAKE, process, process.wake_token)

    def route(self, address: Address) -> Process | None:
        """The process that answers at this address now: a seat of an earlier life answers nowhere."""
        process = self.processes.get(name_of(address))
        if process is None or not process.alive:
            return None
        life = life_of(address)
        if life and process.machine.life != life:  # type: ignore[attr-defined]
            return None
        return process

    def send(self, source: Process, target: Address, message: Message, at_ns: int) -> None:
        process = self.processes.get(name_of(target))
        if process is None or (self.late and not self.reaches(source, process)):
            return
        for watch in self.watches:
            watch(source, target, message)
        if self.wiretap is not None:
            self.wiretap(at_ns, source.address, target, message)
        message = self.network.carried(message)
        for arrives_ns in self.network.arrivals(source.host, process.host, message, at_ns):
            self._push(arrives_ns, _MESSAGE, None, (source.address, target, message))

    def wake(self, process: Process, at_ns: int) -> None:
        """It stalls no longer than until then; what has come meanwhile it reads then, and its timers go off."""
        early_ns = process.stalled_ns - at_ns
        if early_ns > 0:
            process.stalled_ns = at_ns
            process.offset_ns += min(early_ns, process.stopped_ns)
            self._push(at_ns, _WAKE, process, process.wake_token)
            self._push(at_ns, _BACKLOG, process, None)

    def run(self, until_ns: int) -> None:
        """Everything that happens until then."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            at_ns, _, kind, process, payload = heapq.heappop(heap)
            self.now_ns = at_ns
            if kind == _MESSAGE:
                self._on_message(payload)
            elif kind == _WAKE:
                self._on_wake(process, payload)
            elif kind == _BACKLOG:
                self._on_backlog(process)
            elif kind == _SYNC:
                self._on_sync(process)
            elif kind == _IDLE:
                self._on_idle(process)
            else:
                payload()
        self.now_ns = max(self.now_ns, until_ns)

    def _on_message(self, payload: tuple[Address, Address, Message]) -> None:
        """Hand it over, or queue it behind what a stalled or busy process has not yet read."""
        source, target, message = payload
        process = self.route(target)
        if process is None:
            self._nobody_listens(source, target, message)
            return
        free_ns = max(process.stalled_ns, process.busy_ns)
        if free_ns > self.now_ns or process.backlog:
            if not process.backlog:
                self._push(free_ns, _BACKLOG, process, None)
            process.backlog.append((source, message))
            return
        self.feed(process, Received(source, message))

    def _nobody_listens(self, source: Address, target: Address, message: Message) -> None:
        """A task finds its connection refused: the carrier of its fetch says so, as on real nodes."""
        if self.resets and isinstance(message, Fetch):
            refused = FetchRefused(ticket=message.ticket, edge=message.edge, reason=FetchReason.NOT_HERE)
            self._push(self.now_ns + self.costs.latency_ns, _MESSAGE, None, (target, source, refused))

    def _on_backlog(self, process: Process) -> None:
        if not process.alive or not process.backlog:
            return
        if process.stalled_ns <= self.now_ns and process.busy_ns <= self.now_ns:
            self.feed(process, Received(*process.backlog.popleft()))
        if process.backlog:
            self._push(max(process.stalled_ns, process.busy_ns), _BACKLOG, process, None)

    def _on_idle(self, process: Process) -> None:
        """An idle moment, if there is one: rows that wait come first."""
        if not process.alive:
            return
        free_ns = max(process.stalled_ns, process.busy_ns)
        if free_ns > self.now_ns or process.backlog:
            self._push(max(free_ns, self.now_ns + 1), _IDLE, process, None)
            return
        process.wants_idle = False
        self.feed(process, Idle(self.config.idle_budget_ns))

    def _on_wake(self, process: Process, token: int) -> None:
        if not process.alive or token != process.wake_token:
            return
        free_ns = max(process.stalled_ns, process.busy_ns)
        if free_ns > self.now_ns:
            self._push(free_ns, _WAKE, process, token)
        else:
            self.feed(process, TICK)

    def feed(self, process: Process, event: object) -> None:
        """One step of one machine."""
        self.events += 1
        self.do(process, process.machine.step(event, process.clock(self.now_ns)))

    def feed_if_awake(self, process: Process, event: object) -> None:
        """Later if it is stalled or busy."""
        free_ns = max(process.stalled_ns, process.busy_ns)
        if process.alive and free_ns > self.now_ns:
            self.call(free_ns - self.now_ns, lambda: self.feed_if_awake(process, event))
        elif process.alive:
            self.feed(process, event)

    def do(self, process: Process, ready: Ready) -> None:
        cost_ns = (self.costs.event_ns + self.meter.take()) * process.slow
        process.busy_ns = done_ns = self.now_ns + cost_ns
        if ready.notes:
            for notice in self.notices:
                notice(self.now_ns, process.address, ready.notes)
            if not process.alive:
                return  # killed in the middle of this step
        if ready.idle and not process.wants_idle:
            process.wants_idle = True
            self._push(done_ns, _IDLE, process, None)
        if ready.wake_ns:
            self._wake(process, max(done_ns, process.true_time(ready.wake_ns)))
        if ready.again:
            self.call(cost_ns, lambda: self.feed_if_awake(process, AGAIN))
        if ready.early and process.held:
            process.held.append(Waiting(0, ready.early, []))  # behind the writes of earlier steps
        elif ready.early:
            self._release(process, ready.early, [], done_ns)
        if ready.persist and process.disk is not None:
            process.disk.write(ready.persist)
            process.held.append(Waiting(len(ready.persist), ready.send, ready.apply))
            self._push(done_ns + self.costs.sync_ns * process.slow, _SYNC, process, None)
        elif process.held:
            process.held.append(Waiting(0, ready.send, ready.apply))
        else:
            self._release(process, ready.send, ready.apply, done_ns)

    def _on_sync(self, process: Process) -> None:
        """The oldest writes are on disk: what waited for them, and only for them, goes out."""
        if not process.alive or process.disk is None:
            return
        if process.stalled_ns > self.now_ns:
            self._push(process.stalled_ns, _SYNC, process, None)
            return
        held = process.held.popleft()
        process.disk.sync(held.writes)
        self._release(process, held.send, held.apply, self.now_ns)
        while process.alive and process.held and not process.held[0].writes:
            held = process.held.popleft()
            self._release(process, held.send, held.apply, self.now_ns)

    def _release(self, process: Process, send: list, apply: list, at_ns: int) -> None:
        process.spoke = True
        for target, message in send:
            self.send(process, target, message, at_ns)
        for effect in apply:
            if isinstance(effect, Spill):
                self._spill(process, effect)
            elif isinstance(effect, DropSpill):
                process.spill.drop(effect)
            elif isinstance(effect, SetAside):
                self._set_aside(process, effect)
            elif isinstance(effect, FindLetters):
                self._find_letters(process, effect)
            elif isinstance(effect, PutCheckpoint | LoadCheckpoint | LogBatch | LoadBatches | AskWitness):
                self._ask_store(process, effect)
            else:
                self.on_effect(process, effect)

    def _spill(self, process: Process, effect: Spill) -> None:
        """Write, some time later, and say so; in any order, since every write takes its own time."""
        number = process.spill.ask()
        after_ns = delay_ns(self.spill_rng, self.costs.sync_ns) * process.slow
        self.call(after_ns, lambda: self._spilled(process, effect, number))

    def _spilled(self, process: Process, effect: Spill, number: int) -> None:
        if not process.alive:
            return  # and with it what was being written
        name = process.host
        if name in self.full:
            done = Done(ticket=effect.ticket, ok=False, why="No space left on device.")
        else:
            done = Done(ticket=effect.ticket, ok=True, kept=process.spill.write(number, effect))
            self.spilled_max = max(self.spilled_max, process.spill.elements)
        self._answer(process, done)

    def _set_aside(self, process: Process, effect: SetAside) -> None:
        """Keep dead letters. The file may be there long before its node hears so, or not at all if that dies first."""
        full = process.host in self.full
        wait_ns = delay_ns(self.spill_rng, self.costs.sync_ns) * process.slow
        if not full and self.spill_rng.random() < 0.5:
            self.letters[effect.shard].write(effect.blocks)
        self.call(wait_ns, lambda: self._kept(process, effect, full))

    def _kept(self, process: Process, effect: SetAside, full: bool) -> None:
        if not process.alive:
            return
        if not full:
            self.letters[effect.shard].write(effect.blocks)
        self._answer(process, Done(ticket=effect.ticket, ok=not full, why="No space left on device." if full else ""))

    def _find_letters(self, process: Process, effect: FindLetters) -> None:
        """What is there when the answer leaves; what a node that is replaced still writes may come after it."""
        to = max((block.end for block in self.letters[effect.shard].files.values()), default=0)
        wait_ns = self.costs.sync_ns * process.slow
        self.call(wait_ns, lambda: self._answer(process, Done(ticket=effect.ticket, ok=True, to=to)))

    def _ask_store(self, process: Process, effect: AnyStoreEffect) -> None:
        """It is done at some moment before the answer comes, whatever becomes of whoever asked; or when it comes."""
        peace = self.peace
        if peace is not None and isinstance(effect, PutCheckpoint):
            peace.ask(process, lambda request: self._begin(process, effect, lambda: peace.over(process, request)))
        else:
            self._begin(process, effect)

    def _begin(self, process: Process, effect: AnyStoreEffect, then: Callable[[], None] = lambda: None) -> None:
        wait_ns = store_delay_ns(self.store_rng, self.costs.sync_ns)
        if self.store_rng.random() < 0.5:
            done = self.store.do(effect)
            self.call(wait_ns, lambda: self._store_answers(process, done))
        else:
            self.call(wait_ns, lambda: self._store_does(process, effect))
        self.call(wait_ns, then)

    def _store_does(self, process: Process, effect: AnyStoreEffect) -> None:
        if process.alive or self.store_rng.random() < 0.5:
            self._store_answers(process, self.store.do(effect))

    def _store_answers(self, process: Process, done: Done) -> None:
        if not self.store.silent:
            self.feed_if_awake(process, done)

    def _answer(self, process: Process, done: Done) -> None:
        """Unless the disk says nothing; perhaps twice."""
        name = process.host
        if name in self.silent:
            return
        self.feed_if_awake(process, done)
        if name in self.stutters:
            self.call(delay_ns(self.spill_rng, self.costs.sync_ns), lambda: self.feed_if_awake(process, done))
