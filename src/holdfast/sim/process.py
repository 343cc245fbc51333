"""Processes of the virtual world: a machine of the core, with a clock, a CPU, a disk and a fate of its own."""

from __future__ import annotations

from collections import deque
from random import Random

from holdfast.core.ready import Effect, Machine
from holdfast.model.ids import Address, Name
from holdfast.model.messages import Message
from holdfast.sim.spill import SpillDisk

PPM = 1_000_000


class VirtualDisk:
    """What was written and synced; what was written only is lost in a crash, but for a prefix that luck decides."""

    __slots__ = ("content", "pending")

    def __init__(self) -> None:
        self.content: dict[str, object] = {}
        self.pending: list[tuple[str, object]] = []

    def write(self, items: list[tuple[str, object]]) -> None:
        self.pending.extend(items)

    def sync(self, count: int) -> None:
        for key, value in self.pending[:count]:
            self.content[key] = value
        del self.pending[:count]

    def crash(self, rng: Random) -> None:
        self.sync(rng.randrange(len(self.pending) + 1))
        self.pending.clear()


class Waiting:
    """What one step wants sent and done, waiting for its writes (and all before them) to be on disk."""

    __slots__ = ("apply", "send", "writes")

    def __init__(self, writes: int, send: list[tuple[Address, Message]], apply: list[Effect]) -> None:
        self.writes = writes
        self.send = send
        self.apply = apply


class Process:
    __slots__ = (
        "address", "alive", "backlog", "busy_ns", "disk", "drift_ppm", "held", "host", "machine", "offset_ns",
        "slow", "spill", "spoke", "stalled_ns", "stopped_ns", "wake_token", "wants_idle",
    )  # fmt: skip

    def __init__(self, address: Address, host: Name, machine: Machine, disk: VirtualDisk | None) -> None:
        self.address = address
        self.host = host
        self.machine = machine
        self.disk = disk
        self.spill = SpillDisk()
        self.alive = True
        #: Something it did has left it: before that, its whole life may be forgotten.
        self.spoke = False
        #: Its clock reads true time * (1 + drift) + offset.
        self.offset_ns = 0
        self.drift_ppm = 0
        self.busy_ns = 0
        self.stalled_ns = 0
        #: How much of this stall its clock does not see.
        self.stopped_ns = 0
        self.slow = 1
        self.wake_token = 0
        self.wants_idle = False
        #: Messages that arrived while it was stalled or busy, in order.
        self.backlog: deque[tuple[Address, Message]] = deque()
        self.held: deque[Waiting] = deque()

    def clock(self, true_ns: int) -> int:
        return true_ns + true_ns * self.drift_ppm // PPM + self.offset_ns

    def true_time(self, clock_ns: int) -> int:
        """When its clock will read this: rounded up, so that a timer never fires early."""
        return -(-(clock_ns - self.offset_ns) * PPM // (PPM + self.drift_ppm))
