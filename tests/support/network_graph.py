"""Algorithm 1 as it is printed: an explicit graph, a shortest path per replica, and the graph anew after each.

The oracle for `holdfast.peace`, which never builds this graph. It is written from figure 5 and the text of §5 alone:
vertices `snd`, `up`, `dn` and `rcv` per server and `sw` per switch, cost 1 for a cable and 0 inside a switch. Shortest
paths are Bellman and Ford's. Slow, and easy to check by eye.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from holdfast.peace import NetworkModel, Where

Vertex = tuple[str, str]
Edge = tuple[Vertex, Vertex]


def edges_of(model: NetworkModel) -> dict[Edge, tuple[int, int]]:
    """Every edge with its capacity and its cost."""
    edges: dict[Edge, tuple[int, int]] = {}
    for name, switch in model.switches.items():
        if switch.uplink is not None:
            edges[("sw", name), ("sw", switch.uplink)] = (switch.up or 0, 1)
            edges[("sw", switch.uplink), ("sw", name)] = (switch.down or 0, 1)
    for name, server in model.servers.items():
        at = ("sw", model.racks[server.rack].switch)
        edges[("snd", name), ("up", name)] = (server.send or 0, 1)
        edges[("up", name), at] = (server.send or 0, 0)
        edges[at, ("dn", name)] = (server.receive or 0, 0)
        edges[("dn", name), ("rcv", name)] = (server.receive or 0, 1)
    return edges


def shortest_paths(left: dict[Edge, tuple[int, int]], source: Vertex) -> dict[Vertex, tuple[int, list[Edge]]]:
    """Cost and edges of a cheapest path from `source` to every vertex that still can be reached."""
    found: dict[Vertex, tuple[int, list[Edge]]] = {source: (0, [])}
    changed = True
    while changed:
        changed = False
        for (start, end), (capacity, cost) in left.items():
            if capacity > 0 and start in found:
                total = found[start][0] + cost
                if end not in found or total < found[end][0]:
                    found[end] = (total, [*found[start][1], (start, end)])
                    changed = True
    return found


def allowed(model: NetworkModel, chain: list[str], where: Where) -> list[str]:
    """The servers that may take the next replica as far as constraints go."""
    mine = model.servers[chain[-1]].rack
    others = [name for name in model.servers if name not in chain]
    if where is Where.SAME_RACK:
        return [name for name in others if model.servers[name].rack == mine]
    if where is Where.OTHER_RACK:
        return [name for name in others if model.servers[name].rack != mine]
    return others


class PrintedGraph:
    """The residual graph of a timestep."""

    def __init__(self, model: NetworkModel) -> None:
        self.model = model
        self.left = edges_of(model)

    def costs(self, chain: list[str], where: Where) -> dict[str, int]:
        """What a replica costs on every server that may and can take it."""
        paths = shortest_paths(self.left, ("snd", chain[-1]))
        return {name: paths["rcv", name][0] for name in allowed(self.model, chain, where) if ("rcv", name) in paths}

    def can_send(self, server: str) -> bool:
        return self.left[("snd", server), ("up", server)][0] > 0

    def augment(self, source: str, target: str) -> None:
        """One unit of flow along the cheapest path."""
        for edge in shortest_paths(self.left, ("snd", source))["rcv", target][1]:
            capacity, cost = self.left[edge]
            self.left[edge] = (capacity - 1, cost)

    def augment_chain(self, chain: Iterable[str]) -> None:
        chain = list(chain)
        for source, target in itertools.pairwise(chain):
            self.augment(source, target)

    def least(self) -> int:
        """What the fullest edge has left. Below 0, something carries more than it can."""
        return min(capacity for capacity, _ in self.left.values())
