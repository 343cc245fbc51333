"""The modelled network: latency, bandwidth, loss, reordering, duplication, damage, partitions (also one-way).

Each pair of hosts has a link per direction that serialises: a message leaves when the one before it has, takes
size / bandwidth to leave and latency plus a random part to travel. The random part is what reorders.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.model.messages import Deliver, Message
from holdfast.sim.costs import Costs, size_of


class Network:
    __slots__ = (
        "bytes", "costs", "cuts", "damage", "doubling", "extra_jitter_ns", "free_ns", "loss", "lost", "lost_ns",
        "messages", "rng",
    )  # fmt: skip

    def __init__(self, costs: Costs, rng: Random) -> None:
        self.costs = costs
        self.rng = rng
        #: Directed pairs of hosts that hear nothing, and how many faults say so.
        self.cuts: dict[tuple[str, str], int] = {}
        self.loss = 0.0
        self.doubling = 0.0
        #: Share of deliveries that arrive with other rows than were sent, as if no checksum had noticed.
        self.damage = 0.0
        self.extra_jitter_ns = 0
        self.free_ns: dict[tuple[str, str], int] = {}
        self.messages = 0
        self.lost = 0
        #: When a message was last lost, by (source, target).
        self.lost_ns: dict[tuple[str, str], int] = {}
        self.bytes = 0

    def cut(self, source: str, target: str) -> None:
        self.cuts[(source, target)] = self.cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        left = self.cuts.get((source, target), 0) - 1
        if left > 0:
            self.cuts[(source, target)] = left
        else:
            self.cuts.pop((source, target), None)

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.doubling = self.damage = 0.0
        self.extra_jitter_ns = 0

    def carried(self, message: Message) -> Message:
        """What the receiver will see: most often what was sent."""
        if not self.damage or not isinstance(message, Deliver) or self.rng.random() >= self.damage:
            return message
        parts = dict(message.parts)
        for edge, rows in parts.items():
            if rows:
                parts[edge] = (*rows[:-1], (rows[-1][0], rows[-1][1], rows[-1][2] + 1))
                break
        return msgspec.structs.replace(message, parts=parts)

    def arrivals(self, source: str, target: str, message: Message, at_ns: int) -> tuple[int, ...]:
        """When copies of this message arrive: none, one or two times."""
        self.messages += 1
        if source == target:
            return (at_ns + self.costs.loopback_ns,)
        rng = self.rng
        is_cut = self.cuts and (source, target) in self.cuts
        if is_cut or (self.loss and rng.random() < self.loss):
            self.lost += 1
            self.lost_ns[(source, target)] = at_ns
            return ()
        size = size_of(message)
        self.bytes += size
        costs = self.costs
        link = (source, target)
        leaves_ns = max(at_ns, self.free_ns.get(link, 0)) + size * 1_000_000_000 // costs.bandwidth_bytes
        self.free_ns[link] = leaves_ns
        spread_ns = costs.jitter_ns + self.extra_jitter_ns
        first = leaves_ns + costs.latency_ns + (int(rng.random() * spread_ns) if spread_ns else 0)
        if self.doubling and rng.random() < self.doubling:
            return (first, first + int(rng.random() * (spread_ns + costs.latency_ns)))
        return (first,)
