"""A cluster in virtual time, as cooperative-ha §8.1 describes it, with the shipped schedulers, estimator and assignors.

Servers are fluid: rows arrive at a rate, each is some work, and one server does a second of work in a second. What is
not fluid is the high-availability work. A capture stops its server, so rows wait and come in a burst after it (§3.4); a
paste takes what rows leave. Whenever a server is idle, the shipped scheduler (`core/tasks.py`) picks from what there
is, with the shipped expected recovery times (`core/recovery.py`); at the end of an epoch the shipped `dynamic`
(`core/assign.py`) moves backups. Messages take no time, as in the paper's example.

A unit is two parallel aggregates over one stream: windows of 10 s, one a second, per source address (§8.1). Its costs
are those that the paper fitted on its own machine (§8.2), per window captured and pasted whole or in part.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from holdfast.core.assign import UnitShare, dynamic
from holdfast.core.ready import Ready
from holdfast.core.recovery import Exposure, HaSegment, Outlook
from holdfast.core.tasks import CAPTURE, PASTE, Task, scheduler_of
from holdfast.model.config import SECOND
from holdfast.model.ids import Name

#: §8.2, in seconds per window: full and partial captures, full and partial pastes.
CAPTURE_FULL_S, CAPTURE_PART_S, PASTE_FULL_S, PASTE_PART_S = 18.6e-6, 7.3e-6, 30.2e-6, 7.2e-6
#: What any capture or paste takes beside that: stated, not the paper's.
FIXED_S = 1e-3
WINDOW_S, AGGREGATES = 10.0, 2
#: Rows a second: the trace's mean and spread, and the artificial stream's (§8.1).
TRACE_RATE, TRACE_SPREAD, STEADY_RATE, STEADY_KEYS = 2_000.0, 700.0, 100.0, 100
#: No capture waits longer than this (§3.4: an upper bound on the interval).
UPPER_S = 60.0
STEP_S = 0.01
#: Of one row in the two aggregates of its unit: four units of each kind keep a server busy for 90% (§8.3).
ROW_S = 0.9 / (4 * TRACE_RATE + 4 * STEADY_RATE)
EPOCH_MIN_S = 5.0


def load_at(rate: float) -> float:
    """Of a server with four units of each kind."""
    return (4 * rate + 4 * STEADY_RATE) * ROW_S


def rate_at(load: float) -> float:
    return (load / ROW_S - 4 * STEADY_RATE) / 4


def addresses(rows: float) -> float:
    """Different source addresses in so many packets of a skewed trace: stated, since the trace is not here."""
    return min(rows, 8.0 * rows**0.35)


@dataclass(eq=False)
class ClusterUnit:
    name: str
    home: int
    backup: int
    bursty: bool
    row_s: float
    rate: float = 0.0
    load: float = 0.0
    #: Work that has come so far; how much of it the backup's image has seen, and the capture that is on its way.
    work_s: float = 0.0
    image_s: float = 0.0
    began_s: float = 0.0
    waiting: bool = False
    pending_s: float = 0.0
    #: Where its next image goes, if it moves: a whole one.
    moves_to: int | None = None
    pasted_s: float = 0.0
    cycle: int = 0

    def windows(self, passed_s: float) -> tuple[float, float]:
        """Created, and changed, since then."""
        if self.moves_to is not None:
            passed_s = WINDOW_S
        rows = self.rate * min(passed_s, WINDOW_S)
        keys = addresses(rows) if self.bursty else STEADY_KEYS * (1 - math.exp(-rows / STEADY_KEYS))
        fresh_s = min(passed_s, WINDOW_S)
        return AGGREGATES * keys * fresh_s, AGGREGATES * keys * (WINDOW_S - fresh_s)

    def costs_s(self, now_s: float) -> tuple[float, float]:
        """Of a capture now, and of its pasting."""
        new, changed = self.windows(now_s - self.began_s)
        capture = FIXED_S + new * CAPTURE_FULL_S + changed * CAPTURE_PART_S
        return capture, FIXED_S + new * PASTE_FULL_S + changed * PASTE_PART_S

    def recovery_s(self) -> float:
        return self.work_s - self.image_s + self.pending_s

    def segment(self) -> HaSegment:
        return HaSegment(Name(f"S{self.home}"), Name(f"S{self.backup}"))


@dataclass(eq=False)
class HeldMessage:
    unit: ClusterUnit
    left_s: float
    cost_s: float
    target: int


@dataclass(eq=False)
class ModelServer:
    """One node; an agenda for the shipped schedulers."""

    number: int
    cluster: ModelCluster
    units: list[ClusterUnit] = field(default_factory=list)
    backlog_s: float = 0.0
    capturing: list[tuple[ClusterUnit, float, float]] = field(default_factory=list)
    capture_left_s: float = 0.0
    pasting: HeldMessage | None = None
    load: float = 0.0
    held: dict[int, deque[HeldMessage]] = field(default_factory=dict)

    @property
    def is_under_way(self) -> bool:
        return any(unit.waiting for unit in self.units)

    @property
    def tasks(self) -> list[Task]:
        now_s = self.cluster.now_s
        return [
            *(self._paste(queue[0]) for _, queue in sorted(self.held.items()) if queue),
            *(self._capture(unit, now_s) for unit in self.units if not unit.waiting),
        ]

    def outlook(self) -> Outlook:
        return Outlook([_exposure(unit) for unit in (*self.units, *self.cluster.images[self.number])])

    def _capture(self, unit: ClusterUnit, now_s: float) -> Task:
        cost_s, paste_s = unit.costs_s(now_s)

        def run(now_ns: int, ready: Ready) -> bool:
            unit.waiting, unit.began_s = True, now_s
            self.capturing.append((unit, unit.work_s, paste_s))
            self.capture_left_s += cost_s
            return True

        gain_s = unit.work_s - unit.image_s - paste_s
        late = (
            now_s - unit.began_s >= UPPER_S or unit.moves_to is not None
        )  # a new image is pressing, as in the product
        return Task(
            CAPTURE, unit.name, _ns(cost_s), run, _ns(cost_s), unit.segment(), _ns(unit.began_s),  # type: ignore[arg-type]
            _ns(gain_s), late,
        )  # fmt: skip

    def _paste(self, message: HeldMessage) -> Task:
        def run(now_ns: int, ready: Ready) -> bool:
            self.pasting = self.held[message.unit.home].popleft()
            return True

        unit, cost_ns = message.unit, _ns(message.left_s)
        is_new = message.target != unit.backup
        return Task(
            PASTE, unit.name, cost_ns, run, cost_ns, None if is_new else unit.segment(), _ns(unit.began_s),  # type: ignore[arg-type]
            pressing=is_new,
        )  # fmt: skip

    # --- time

    def step(self, step_s: float) -> None:
        left_s = step_s
        self.backlog_s += self.load * step_s
        while left_s > 1e-9:
            if self.capturing:
                used_s = min(left_s, self.capture_left_s)
                self.capture_left_s -= used_s
                if self.capture_left_s <= 1e-12:
                    self._send()
            elif self.backlog_s > self.load * step_s + 1e-9 or (self.backlog_s > 1e-9 and not self._has_work()):
                used_s = min(left_s, self.backlog_s)
                self.backlog_s -= used_s
            elif self.pasting is not None:
                used_s = self._go_on_pasting(left_s)
            elif self._has_work():
                used_s = 0.0
            else:
                break
            left_s -= used_s

    def _go_on_pasting(self, left_s: float) -> float:
        """Beside rows: what they leave."""
        message, rest = self.pasting, max(0.0, 1.0 - self.load)
        assert message is not None
        rows_s = min(self.backlog_s, left_s * self.load)
        given_s = min(message.left_s, left_s * rest)
        self.backlog_s -= rows_s
        message.left_s -= given_s
        if message.left_s <= 1e-12:
            self.pasting = None
            self.cluster.pasted(message)
        return max(given_s / rest if rest > 0 else left_s, 1e-9)

    def _has_work(self) -> bool:
        """Picks, if nothing is going on: true if there is something to do now."""
        if self.pasting is not None or self.capturing:
            return True
        if self.cluster.timed:
            began = time.thread_time_ns()
            picked = self.cluster.scheduler.pick(self, idle=True)
            self.cluster.decided_ns.append(time.thread_time_ns() - began)
        else:
            picked = self.cluster.scheduler.pick(self, idle=True)
        if picked is None:
            return False
        picked.run(0, Ready())
        return True

    def _send(self) -> None:
        for unit, work_s, paste_s in self.capturing:
            target = unit.backup if unit.moves_to is None else unit.moves_to
            if unit.moves_to is None:
                unit.image_s, unit.pending_s = work_s, paste_s
            message = HeldMessage(unit, paste_s, paste_s, target)
            self.cluster.servers[target].held.setdefault(self.number, deque()).append(message)
        self.capturing, self.capture_left_s = [], 0.0

    def recovery_s(self) -> float:
        """R of all that it runs: its segments are recovered beside each other."""
        segments: dict[int, float] = {}
        for unit in self.units:
            segments[unit.backup] = segments.get(unit.backup, 0.0) + unit.recovery_s()
        return max(segments.values(), default=0.0)


class ModelCluster:
    def __init__(
        self,
        servers: int,
        scheduler: str,
        *,
        per_server: int = 8,
        assignment: str = "even",
        seed: int = 0,
        timed: bool = False,
    ) -> None:
        self.rng = Random(f"cluster {seed}")
        self.scheduler = scheduler_of(scheduler)
        self.assignment = assignment
        self.now_s = 0.0
        #: CPU time of every decision, if it is `timed`.
        self.timed = timed
        self.decided_ns: list[int] = []
        self.servers = [ModelServer(i, self) for i in range(servers)]
        half, row_s = per_server // 2, ROW_S * 8 / per_server
        for server in self.servers:
            others = [i for i in range(servers) if i != server.number]
            for k in range(per_server):
                backup = self._backup(others, server.number, k, scheduler)
                unit = ClusterUnit(f"u{server.number}-{k}", server.number, backup, k < half, row_s)
                unit.rate = TRACE_RATE if unit.bursty else STEADY_RATE
                unit.load = unit.rate * row_s
                server.units.append(unit)
            server.load = sum(unit.load for unit in server.units)
        self.units = [unit for server in self.servers for unit in server.units]
        self.images: list[list[ClusterUnit]] = [[u for u in self.units if u.backup == i] for i in range(servers)]
        #: Of this epoch: sums of R by unit and by server, and looks.
        self._clear_epoch()
        self.moved = 0

    def _backup(self, others: list[int], number: int, k: int, scheduler: str) -> int:
        """Dealt out, by lot, or (the whole query as one unit) all on the next server."""
        if scheduler == "whole":
            return others[number % len(others)]
        return others[(k + number) % len(others)] if self.assignment == "even" else self.rng.choice(others)

    def pasted(self, message: HeldMessage) -> None:
        unit = message.unit
        unit.waiting, unit.pending_s = False, 0.0
        unit.pasted_s += message.cost_s
        unit.cycle += 1
        if unit.moves_to == message.target:
            self.images[unit.backup].remove(unit)
            self.images[message.target].append(unit)
            unit.backup, unit.moves_to = message.target, None
            unit.image_s = unit.work_s - unit.load * (self.now_s - unit.began_s)

    def run(self, until_s: float, rate: Callable[[float, int], float], look: Callable[[ModelCluster], None]) -> None:
        steps = round(self.now_s / STEP_S)
        while self.now_s < until_s:
            if steps % 10 == 0:  # rates change every half second at the most
                for i, unit in enumerate(self.units):
                    unit.rate = rate(self.now_s, i) if unit.bursty else unit.rate
                    unit.load = unit.rate * unit.row_s
                for server in self.servers:
                    server.load = sum(unit.load for unit in server.units)
            for unit in self.units:
                unit.work_s += unit.load * STEP_S
            for server in self.servers:
                server.step(STEP_S)
            steps += 1
            self.now_s = steps * STEP_S
            if steps % 10 == 0:
                self._look_at_epoch()
                look(self)

    # --- epochs

    def _clear_epoch(self) -> None:
        self._began_s, self._looks = self.now_s, 0
        self._sums = dict.fromkeys((unit.name for unit in self.units), 0.0)
        self._queries = [0.0] * len(self.servers)
        self._cycles = {unit.name: unit.cycle for unit in self.units}
        self._pasted = {unit.name: unit.pasted_s for unit in self.units}

    def _look_at_epoch(self) -> None:
        if self.assignment != "dynamic":
            return
        self._looks += 1
        for unit in self.units:
            self._sums[unit.name] += unit.recovery_s()
        for server in self.servers:
            self._queries[server.number] += server.recovery_s()
        passed_s = self.now_s - self._began_s
        through = all(unit.cycle > self._cycles[unit.name] for unit in self.units)
        if passed_s < EPOCH_MIN_S or not through or any(unit.moves_to is not None for unit in self.units):
            return
        shares = [
            UnitShare(
                unit.name,  # type: ignore[arg-type]
                unit.segment(),
                _ns(self._sums[unit.name] / self._looks),
                _ns((unit.pasted_s - self._pasted[unit.name]) / passed_s),
            )
            for unit in self.units
        ]
        names = [f"S{server.number}" for server in self.servers]
        queries = {name: _ns(total / self._looks) for name, total in zip(names, self._queries, strict=True)}
        by_name = {unit.name: unit for unit in self.units}
        for move in dynamic(shares, names, None, queries):  # type: ignore[arg-type]
            by_name[move.unit].moves_to = int(move.target[1:])
            self.moved += 1
        self._clear_epoch()


def _exposure(unit: ClusterUnit) -> Exposure:
    replay_ns = _ns(unit.work_s - unit.image_s)
    return Exposure(unit.name, unit.segment(), _ns(unit.load), replay_ns, _ns(unit.pending_s))  # type: ignore[arg-type]


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)


class InputTrace:
    """The rate of the bursty input: up from 0 in `ramp_s`, then as the paper's trace, or constant. Every unit has a
    stretch of its own, whose spread is that of the paper's, with bursts of about a second (stated)."""

    def __init__(self, ramp_s: float, *, bursty: bool, seed: int = 1) -> None:
        self.ramp_s, self.bursty = ramp_s, bursty
        rng, level = Random(f"trace {seed}"), 0.0
        self._levels: list[float] = []
        for _ in range(20_000):  # every half second
            level = 0.4 * level + rng.gauss(0, TRACE_SPREAD * (1 - 0.4**2) ** 0.5)
            self._levels.append(level)

    def __call__(self, now_s: float, unit: int) -> float:
        mean = TRACE_RATE * min(1.0, now_s / self.ramp_s) if self.ramp_s else TRACE_RATE
        if not self.bursty:
            return mean
        burst = self._levels[(int(now_s * 2) + 499 * unit) % len(self._levels)]
        return max(0.0, mean + burst * mean / TRACE_RATE)


def active_s(until_s: float, rate: Callable[[float, int], float], servers: int) -> list[float]:
    """Active standby beside it: rows of primaries first, twins get the rest. How far the twins are behind, every 0.1 s:
    what the others would have to do, beside each other."""
    behind_s, own_s, found = 0.0, 0.0, []
    for i in range(round(until_s / STEP_S)):
        load = load_at(sum(rate(i * STEP_S, unit) for unit in range(4)) / 4)
        own_s += load * STEP_S
        done_s = min(own_s, STEP_S)
        own_s -= done_s
        behind_s = max(0.0, behind_s + load * STEP_S - (STEP_S - done_s))
        if i % 10 == 9:
            found.append(behind_s / (servers - 1))
    return found
