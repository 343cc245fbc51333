"""A network on paper: writes are fluid, and share what they pass through max-min fair.

One chunk on its way is one flow through everything that its chain uses: the sender's port, the links between racks,
the receiver's port and disk, and so on for every replica. HDFS passes a chunk on while it arrives, so the whole chain
runs at one rate. Rates are max-min fair: all grow alike until something is full, what passes through that is fixed,
and the rest grows on. (TCP shares about like this. Slow starts, lost packets, seeks and processors are not modelled.)

A disk gives its writers what the paper measured (table 8): the total depends on how many there are.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: Megabytes per second through a gigabit port or link: the most that a client of table 8 reached.
GIGABIT_MB_S = 105.0
#: Total megabytes per second of a data node by its number of writers (table 8: per client, times clients).
DISK_MB_S = {1: 30.0, 2: 45.0, 4: 39.6, 8: 48.2, 16: 41.1}
TINY = 1e-9


def disk_mb_s(writers: int) -> float:
    """What a disk takes in all from this many writers: between two rows of table 8 on a line, after the last flat."""
    known = sorted(DISK_MB_S)
    for low, high in itertools.pairwise(known):
        if low <= writers <= high:
            share = (writers - low) / (high - low)
            return DISK_MB_S[low] + share * (DISK_MB_S[high] - DISK_MB_S[low])
    return DISK_MB_S[known[-1]] if writers > known[-1] else DISK_MB_S[1]


@dataclass(eq=False)
class Flow:
    """One chunk on its way."""

    megabytes: float
    #: What it passes through, and how many times.
    uses: Counter[str]
    done: Callable[[], None]
    rate: float = 0.0


@dataclass
class Fluid:
    """Flows over resources, on a virtual clock. Names of disks begin with "disk"."""

    capacity: dict[str, float]
    #: Time from the start of a chunk to its first byte: questions to the store, connections along the chain.
    delay_s: float = 0.0
    now_s: float = 0.0
    flows: list[Flow] = field(default_factory=list)
    #: Started and not flowing yet, in the order of their times.
    starting: deque[tuple[float, Flow]] = field(default_factory=deque)

    def start(self, flow: Flow) -> None:
        self.starting.append((self.now_s + self.delay_s, flow))

    def run(self) -> None:
        """Until nothing flows any more. Whatever ends may start others."""
        while self.flows or self.starting:
            while self.starting and self.starting[0][0] <= self.now_s + TINY:
                self.flows.append(self.starting.popleft()[1])
            share_rates(self.flows, self.capacity)
            steps = [flow.megabytes / flow.rate for flow in self.flows]
            steps += [at_s - self.now_s for at_s, _ in itertools.islice(self.starting, 1)]
            step_s = min(steps)
            self.now_s += step_s
            for flow in self.flows:
                flow.megabytes -= flow.rate * step_s
            over = [flow for flow in self.flows if flow.megabytes <= TINY * 1e3]
            self.flows = [flow for flow in self.flows if flow.megabytes > TINY * 1e3]
            for flow in over:
                flow.done()


def share_rates(flows: list[Flow], capacity: dict[str, float]) -> None:
    """Give every flow its max-min fair rate."""
    load: Counter[str] = Counter()
    for flow in flows:
        load.update(flow.uses)
    left = {name: capacity[name] * (disk_mb_s(load[name]) if name.startswith("disk") else 1.0) for name in load}
    rising = list(flows)
    level = 0.0
    while rising:
        # The level at which the first resource is full, if everything that still rises goes on rising.
        step = min(left[name] / load[name] for name in load if load[name] > 0)
        level += step
        full = set()
        for name, times in load.items():
            if times > 0:
                left[name] -= step * times
                if left[name] <= TINY * max(1.0, level):
                    full.add(name)
        still = []
        for flow in rising:
            if full.isdisjoint(flow.uses):
                still.append(flow)
            else:
                flow.rate = level
                load.subtract(flow.uses)
        rising = still


def uses_of(chain: list[str], rack_of: dict[str, str]) -> Counter[str]:
    """What a chunk passes through from its writer along its chain, for two racks with one link between them."""
    uses: Counter[str] = Counter()
    for source, target in itertools.pairwise(chain):
        uses[f"out {source}"] += 1
        if rack_of[source] != rack_of[target]:
            uses[f"link from {rack_of[source]}"] += 1
        uses[f"in {target}"] += 1
        uses[f"disk {target}"] += 1
    return uses


def capacities(rack_of: dict[str, str]) -> dict[str, Any]:
    """Gigabit everywhere."""
    ports = {f"{way} {server}": GIGABIT_MB_S for server in rack_of for way in ("in", "out")}
    return ports | {f"link from {rack}": GIGABIT_MB_S for rack in set(rack_of.values())}
