"""One chunk onto its chain of servers: the inner loop of algorithm 1 (sguard §5, lines 7 to 28).

Every replica goes to the nearest server that has room and meets its constraint; the writer sends to the first, the
first to the second, and so on. Among equally near racks, and among the servers of a rack, a seeded generator chooses.
A chunk whose chain cannot be completed takes nothing (lines 21 to 23).

Two things are added to the paper. A replica that has to be passed on goes only to a server that can still send. And
`tries` allows second thoughts: the paper's loop gives up when the nearest server turns out to be a dead end, which
would leave the first request of a queue waiting in an empty network. Within a rack, servers that can take (and send)
are alike for what comes after them, so one of each rack is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from holdfast.peace.model import Where
from holdfast.peace.tree import Remaining, Tree

#: Second thoughts about one chunk, where it must be found if there is a chain at all.
TRIES_MAX = 10_000


class Placing:
    """Places chunks in what remains of a timestep."""

    def __init__(self, remaining: Remaining, random: Random) -> None:
        self.remaining = remaining
        self.tree: Tree = remaining.tree
        self.random = random
        self._tries = 0

    def place(self, writer: int, replicas: int, tries: int = 0) -> list[int] | None:
        """The writer and the servers of its replicas in their order, taken out of what remains; None: no room."""
        self._tries = tries
        chain = [writer]
        return chain if self._extend(chain, replicas) else None

    def undo(self, chain: list[int]) -> None:
        for source, target in pairwise(chain):
            self.remaining.give_back(source, target)

    def _extend(self, chain: list[int], replicas: int) -> bool:
        level, source = len(chain) - 1, chain[-1]
        is_last = level + 1 == replicas
        for target in self._targets(chain, self.tree.replicas[level], is_last):
            self.remaining.take(source, target)
            chain.append(target)
            if is_last or self._extend(chain, replicas):
                return True
            chain.pop()
            self.remaining.give_back(source, target)
            if self._tries <= 0:
                return False
            self._tries -= 1
        return False

    def _targets(self, chain: list[int], where: Where, is_last: bool) -> Iterator[int]:
        """One server of every rack that may take the next replica, the nearest racks first."""
        source, remaining = chain[-1], self.remaining
        if where is Where.SAME_NODE:
            if remaining.receive[source] > 0 and (is_last or remaining.send[source] > 0):
                yield source
            return
        if remaining.send[source] <= 0:
            return
        lists = (remaining.takers if is_last else remaining.relays).of
        mine, at = self.tree.rack_of[source], self.tree.switch_of[source]
        if where is Where.SAME_RACK:
            target = self._pick(lists[mine], chain)
            if target >= 0:
                yield target
            return
        switch_of_rack, is_barred = self.tree.switch_of_rack, where is Where.OTHER_RACK
        tiers = self.tree.tiers(at)
        if self.tree.is_leaf[at] and remaining.up[at] <= 0:
            tiers = tiers[:1]  # the racks at its own switch; to look at all the others would take long
        for tier in tiers:
            for rack in self._shuffled(tier):
                if is_barred and rack == mine:
                    continue
                if lists[rack] and remaining.has_way(at, switch_of_rack[rack]):
                    target = self._pick(lists[rack], chain)
                    if target >= 0:
                        yield target

    def _shuffled(self, racks: list[int]) -> Iterator[int]:
        """In random order, one at a time: mostly the first one will do."""
        if len(racks) == 1:
            yield racks[0]
            return
        left = list(racks)
        random = self.random.random
        while left:
            at = int(random() * len(left))
            left[at], left[-1] = left[-1], left[at]
            yield left.pop()

    def _pick(self, servers: list[int], chain: list[int]) -> int:
        """Any of these but those that have a replica already, each as likely; -1: there is none."""
        if not servers:
            return -1
        server = servers[int(self.random.random() * len(servers))]
        if server not in chain:
            return server
        others = [one for one in servers if one not in chain]
        return others[int(self.random.random() * len(others))] if others else -1
