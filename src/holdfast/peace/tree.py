"""The network as the scheduler walks it, and what a timestep has left of it (sguard §5, figure 5).

The paper's graph has four vertices per server (sending, up, down, receiving) and one per switch. Its links are a tree
here, so between two servers there is exactly one way: up from the sender's switch to where both ways meet, and down to
the receiver's. The edges of a server in one direction are in series and carry the same, so each direction has one
number, and the cost of a way is its number of links. What is left to choose is the server; `chain.py` does.

`Remaining` is the residual graph. It has no edges backwards: giving flow back would send a chunk that is promised
already to another server, which its chain and its constraints do not allow. (The paper has no example of that either:
a link that is full is full.)
"""

from __future__ import annotations

from itertools import pairwise

from holdfast.errors import check
from holdfast.peace.model import NetworkModel, Where

#: How the store is called that places chunks by itself. It sits in a rack of its own, as its only server.
STORE = "(store)"


class Tree:
    """A model by numbers. Servers, racks and switches are counted in the order of their file. Never changes."""

    def __init__(self, model: NetworkModel) -> None:
        switches = {name: number for number, name in enumerate(model.switches)}
        racks = {name: number for number, name in enumerate(model.racks)}
        self.servers: list[str] = list(model.servers)
        self.rack_of = [racks[server.rack] for server in model.servers.values()]
        self.send = [server.send or 0 for server in model.servers.values()]
        self.receive = [server.receive or 0 for server in model.servers.values()]
        self.racks: list[str] = list(model.racks)
        self.switch_of_rack = [switches[rack.switch] for rack in model.racks.values()]
        self.switches: list[str] = list(model.switches)
        self.above = [-1 if s.uplink is None else switches[s.uplink] for s in model.switches.values()]
        self.up = [switch.up or 0 for switch in model.switches.values()]
        self.down = [switch.down or 0 for switch in model.switches.values()]
        self.replicas: tuple[Where, ...] = model.replicas
        self.places = model.store is None
        if model.store is not None:
            self.servers.append(STORE)
            self.rack_of.append(len(self.racks))
            self.send.append(0)
            self.receive.append(model.store.receive or 0)
            self.racks.append(STORE)
            self.switch_of_rack.append(switches[model.store.switch])
        #: A store is not a writer, so it has no number by name.
        self.number_of = {name: number for number, name in enumerate(model.servers)}
        self.switch_of = [self.switch_of_rack[rack] for rack in self.rack_of]
        self.depth = [self._depth(switch) for switch in range(len(self.switches))]
        self._racks_at: list[list[int]] = [[] for _ in self.switches]
        for rack, switch in enumerate(self.switch_of_rack):
            self._racks_at[switch].append(rack)
        self._beside = [[above] if above >= 0 else [] for above in self.above]
        for switch, above in enumerate(self.above):
            if above >= 0:
                self._beside[above].append(switch)
        #: There is no switch below this one: when its uplink is full, nothing leads away from it.
        self.is_leaf = [above >= 0 and len(beside) == 1 for above, beside in zip(self.above, self._beside, strict=True)]
        self._tiers: dict[int, list[list[int]]] = {}

    def _depth(self, switch: int) -> int:
        depth = 0
        while self.above[switch] >= 0:
            switch, depth = self.above[switch], depth + 1
        return depth

    def links(self, source: int, target: int) -> tuple[list[int], list[int]]:
        """The way between two switches: those whose uplink is taken up, and those whose uplink is taken down."""
        ups: list[int] = []
        downs: list[int] = []
        above, depth = self.above, self.depth
        while source != target:
            if depth[source] >= depth[target]:
                ups.append(source)
                source = above[source]
            else:
                downs.append(target)
                target = above[target]
        return ups, downs

    def cost(self, source: int, target: int) -> int:
        """Links on the way from one server to another. A server's own disk costs nothing."""
        if source == target:
            return 0
        ups, downs = self.links(self.switch_of[source], self.switch_of[target])
        return 2 + len(ups) + len(downs)

    def tiers(self, switch: int) -> list[list[int]]:
        """All racks, those that are equally many links away from a switch together, the nearest first."""
        found = self._tiers.get(switch)
        if found is None:
            found = self._tiers[switch] = []
            at, before = [switch], {switch}
            while at:
                racks = [rack for here in at for rack in self._racks_at[here]]
                if racks:
                    found.append(racks)
                at = [beside for here in at for beside in self._beside[here] if beside not in before]
                before.update(at)
        return found


class Remaining:
    """What one timestep has left of every capacity. Nobody else changes it."""

    def __init__(self, tree: Tree, absent: frozenset[int] = frozenset()) -> None:
        """`absent`: servers that take and send nothing at the moment."""
        self.tree = tree
        self.send = list(tree.send)
        self.receive = list(tree.receive)
        self.up = list(tree.up)
        self.down = list(tree.down)
        #: Of every rack the servers that can take a chunk, and those that can send it on besides. In any order: a
        #: server leaves its list when it is full, in one step, and comes back at the end.
        self.takers = _Lists(tree, [r > 0 for r in self.receive])
        self.relays = _Lists(tree, [r > 0 and s > 0 for r, s in zip(self.receive, self.send, strict=True)])
        for server in absent:
            self.close(server)

    def close(self, server: int) -> None:
        """A server takes and sends nothing any more."""
        self.send[server] = self.receive[server] = 0
        self.takers.drop(server)
        self.relays.drop(server)

    def has_way(self, source: int, target: int) -> bool:
        """Does one more chunk fit between two switches?"""
        above, depth = self.tree.above, self.tree.depth
        while source != target:
            if depth[source] >= depth[target]:
                if self.up[source] <= 0:
                    return False
                source = above[source]
            else:
                if self.down[target] <= 0:
                    return False
                target = above[target]
        return True

    def take(self, source: int, target: int) -> None:
        """One chunk from a server to another, or to its own disk."""
        if source != target:
            self._change_way(source, target, -1)
            self.send[source] -= 1
            check(self.send[source] >= 0, "a server sends more than it can", self.tree.servers[source])
            if self.send[source] == 0:
                self.relays.drop(source)
        self.receive[target] -= 1
        check(self.receive[target] >= 0, "a server takes more than it can", self.tree.servers[target])
        if self.receive[target] == 0:
            self.takers.drop(target)
            self.relays.drop(target)

    def give_back(self, source: int, target: int) -> None:
        """Undo `take`."""
        if source != target:
            self._change_way(source, target, 1)
            self.send[source] += 1
            if self.receive[source] > 0:
                self.relays.add(source)
        self.receive[target] += 1
        self.takers.add(target)
        if self.send[target] > 0:
            self.relays.add(target)

    def _change_way(self, source: int, target: int, chunks: int) -> None:
        tree = self.tree
        ups, downs = tree.links(tree.switch_of[source], tree.switch_of[target])
        for switch in ups:
            self.up[switch] += chunks
            check(self.up[switch] >= 0, "an uplink carries more than it can", tree.switches[switch])
        for switch in downs:
            self.down[switch] += chunks
            check(self.down[switch] >= 0, "a downlink carries more than it can", tree.switches[switch])

    def hold(self, chain: list[int]) -> None:
        """Take the places of a chain from before that is still being written, on the disks of its servers.

        Only there: it has used most of its time on the links. A server may have gone since, so nothing falls below 0.
        """
        for server in chain[1:]:
            self.receive[server] = max(0, self.receive[server] - 1)
            if self.receive[server] == 0:
                self.takers.drop(server)
                self.relays.drop(server)

    def hold_way(self, chain: list[int]) -> None:
        """Take all that such a chain uses, links included."""
        tree = self.tree
        for source, target in pairwise(chain):
            ups, downs = tree.links(tree.switch_of[source], tree.switch_of[target])
            for left, switches in ((self.up, ups), (self.down, downs)):
                for switch in switches:
                    left[switch] = max(0, left[switch] - 1)
            self.send[source] = max(0, self.send[source] - 1)
            if self.send[source] == 0:
                self.relays.drop(source)
        self.hold(chain)


class _Lists:
    """A list of servers for every rack, out of which any can be taken in one step."""

    __slots__ = ("_at", "_rack_of", "of")

    def __init__(self, tree: Tree, wanted: list[bool]) -> None:
        self._rack_of = tree.rack_of
        self.of: list[list[int]] = [[] for _ in tree.racks]
        self._at = [-1] * len(wanted)
        for server, is_wanted in enumerate(wanted):
            if is_wanted:
                self.add(server)

    def add(self, server: int) -> None:
        if self._at[server] < 0:
            mine = self.of[self._rack_of[server]]
            self._at[server] = len(mine)
            mine.append(server)

    def drop(self, server: int) -> None:
        at = self._at[server]
        if at >= 0:
            mine = self.of[self._rack_of[server]]
            last = mine.pop()
            if last != server:
                mine[at] = last
                self._at[last] = at
            self._at[server] = -1
