"""Links that are cut, checked: what is taken for one, what goes around it, and that output goes on while it lasts."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.config import MS
from holdfast.model.ids import Address, Asset, Edge, Name
from holdfast.sim.sink import SinkQuery
from holdfast.sim.world import World

#: So often at the most something moves for one set of cuts: its backup goes, it gets another one, and it moves there.
DETOURS_MAX = 4
#: How often output is looked at.
LOOK_NS = 50 * MS


class LinkRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.fail = fail
        #: Cuts that each coordinator knows of, and how often each asset went around them.
        self.cuts: dict[Address, dict[tuple[Name, Name], None]] = {}
        self.detours: dict[tuple[Address, Asset], int] = {}

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.LinkCut: self.on_cut, notes.LinkMended: self.on_mended, notes.Detoured: self.on_detoured}

    def on_cut(self, source: Address, note: notes.LinkCut) -> None:
        pair, network, config = (note.one, note.other), self.world.network, self.world.config
        last_ns = max(network.lost_ns.get(way, -(1 << 60)) for way in (pair, (note.other, note.one)))
        limit_ns = 2 * (config.cut_ns + 10 * config.misses_max * config.heartbeat_ns)
        if self.world.now_ns - last_ns > limit_ns:
            self.fail("a link that loses nothing is taken for cut", f"{note.one} and {note.other} by {source}")
        known = self.cuts.setdefault(source, {})
        self._news(source)
        known[pair] = None

    def on_mended(self, source: Address, note: notes.LinkMended) -> None:
        if (note.one, note.other) not in self.cuts.get(source, {}):
            self.fail("a link is mended that was not cut", f"{note.one} and {note.other} by {source}")
        self._news(source)
        del self.cuts[source][note.one, note.other]

    def _news(self, source: Address) -> None:
        self.detours = {key: count for key, count in self.detours.items() if key[0] != source}

    def on_detoured(self, source: Address, note: notes.Detoured) -> None:
        if not self.cuts.get(source):
            self.fail("something goes around a cut that nobody knows of", str(note))
        key = (source, note.asset)
        self.detours[key] = self.detours.get(key, 0) + 1
        if self.detours[key] > DETOURS_MAX:
            self.fail("something goes around the same cut again and again", str(note))


class PauseRule:
    """Output goes on: an edge of which a sink has got its first rows never brings nothing for longer than this."""

    def __init__(self, world: World, sink: SinkQuery, limit_ns: int, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.sink = sink
        self.limit_ns = limit_ns
        self.fail = fail
        self.seen: dict[Edge, tuple[int, int]] = {}

    def watch(self, until_ns: int) -> None:
        now_ns = self.world.now_ns
        for edge, at in self.sink.start.items():
            before, since_ns = self.seen.get(edge, (-1, now_ns))
            if at != before:
                self.seen[edge] = (at, now_ns)
            elif at > 0 and now_ns - since_ns > self.limit_ns:
                self.fail(
                    "output stands still", f"{self.sink.spec.id} got nothing of {edge} for {self.limit_ns // MS} ms"
                )
        if now_ns + LOOK_NS < until_ns:
            self.world.call(LOOK_NS, lambda: self.watch(until_ns))
