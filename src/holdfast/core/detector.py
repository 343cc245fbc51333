"""Heartbeats: who sends one to whom, and what the silence of a peer means (cooperative-ha §3.5, hybrid-ha §IV-A).

Every member sends a heartbeat every 100 ms to its *monitor*, the next member by name, and to its *neighbours*: those
with whom the record makes it exchange rows, captures or pages. All others get every tenth, so that a link that nobody
needs at the moment is known to be cut before something is put behind it.

What a peer's silence means is a `Level` (`core/detect/`). A detector only reports. Of a silent member its monitor tells
all (`Suspect`, again until the record changes), and each member tells the coordinator whom it cannot hear (`Unheard`,
`core/links.py`). What follows is decided by the coordinator with a majority. Whoever was itself away (its own tick came
far too late) starts its counts anew: it must not blame others for its own sleep.
"""

from __future__ import annotations

from holdfast.core.detect import METHODS, Judge, Level
from holdfast.model.config import Config
from holdfast.model.ids import Name
from holdfast.model.messages import Missed, Suspect
from holdfast.model.record import Record

#: To members that are not neighbours, one heartbeat of so many is sent.
FAR = 10


class Detector:
    __slots__ = (
        "alarms", "causes", "config", "false_alarms", "false_by", "lives", "monitor", "name", "near", "peers", "slow",
        "stalled", "ticked_ns", "ticks", "unheard", "watched", "watched_life",
    )  # fmt: skip

    def __init__(self, name: Name, config: Config) -> None:
        self.name = name
        self.config = config
        #: To whom this node sends heartbeats, and whose it expects; None outside a ring.
        self.monitor: Name | None = None
        self.watched: Name | None = None
        self.watched_life = 0
        #: Members with whom a heartbeat is exchanged at every tick.
        self.near: frozenset[Name] = frozenset()
        #: Every other member, in the life that the record names.
        self.peers: dict[Name, Judge] = {}
        self.lives: dict[Name, int] = {}
        #: For how long the loop of each stood still when it was last heard.
        self.stalled: dict[Name, int] = {}
        #: Those that said of themselves that they are slow when they were last heard.
        self.slow: dict[Name, None] = {}
        #: Alarms that are open, and how many of each level were false: the peer was heard again, in the same life.
        self.alarms: dict[Name, Level] = {}
        self.false_alarms = {Level.YELLOW: 0, Level.RED: 0}
        #: By what raised each that is open; and how many were false by what raised them.
        self.causes: dict[Name, str] = {}
        self.false_by: dict[str, int] = {}
        #: Members that this one had not heard for too long at its last tick.
        self.unheard: tuple[Name, ...] = ()
        self.ticked_ns = 0
        self.ticks = 0

    def on_record(self, record: Record, now_ns: int, neighbours: frozenset[Name] = frozenset()) -> None:
        """Take the place in the ring that the record gives; expect heartbeats of all other members."""
        ring = sorted(record.members)
        if self.name not in record.members or len(ring) < 2:
            self.monitor = self.watched = None
            self.near, self.peers, self.lives, self.unheard = frozenset(), {}, {}, ()
            self.alarms, self.stalled, self.slow = {}, {}, {}
            return
        at = ring.index(self.name)
        self.monitor, self.watched = ring[(at + 1) % len(ring)], ring[at - 1]
        self.watched_life = record.members[self.watched]
        self.near = (neighbours | {self.monitor, self.watched}) & (frozenset(ring) - {self.name})
        known, before = self.peers, self.lives
        self.lives = {name: record.members[name] for name in ring if name != self.name}
        self.peers = {
            name: known[name] if before.get(name) == life else self._judge(name, now_ns)
            for name, life in self.lives.items()
        }
        same = {name for name, life in self.lives.items() if before.get(name) == life}
        self.alarms = {name: level for name, level in self.alarms.items() if name in same}
        self.stalled = {name: stalled_ns for name, stalled_ns in self.stalled.items() if name in same}
        self.slow = {name: None for name in self.slow if name in same}
        for name, judge in self.peers.items():
            judge.expect(self._interval(name), now_ns)

    def _interval(self, name: Name) -> int:
        return self.config.heartbeat_ns * (1 if name in self.near else FAR)

    def _judge(self, name: Name, now_ns: int) -> Judge:
        return METHODS[self.config.detector](self._interval(name), self.config.misses_max, now_ns)

    def on_heartbeat(self, name: Name, now_ns: int, stalled_ns: int = 0, slow: bool = False) -> None:
        """A peer lives; perhaps it says that its loop stands still, or that it is slow: suspicious and no more."""
        judge = self.peers.get(name)
        if judge is None:
            return
        before = self.alarms.pop(name, Level.GREEN)
        judge.on_heard(now_ns)
        self.stalled[name] = stalled_ns
        if slow:
            self.slow[name] = None
        else:
            self.slow.pop(name, None)
        if before is not Level.GREEN and self.level(name, now_ns) is Level.GREEN:
            self.false_alarms[before] += 1
            cause = self.causes.pop(name, self.config.detector)
            self.false_by[cause] = self.false_by.get(cause, 0) + 1
        elif before is not Level.GREEN:
            self.alarms[name] = Level.YELLOW

    def missed(self, now_ns: int) -> Missed | None:
        """The watched member, if it is suspicious; to be asked after `on_tick`."""
        if self.watched is None or self.level(self.watched, now_ns) is Level.GREEN:
            return None
        return Missed(name=self.watched, life=self.watched_life)

    def on_tick(self, now_ns: int) -> Suspect | None:
        """The watched member, if it has been silent for too long."""
        slept = now_ns - self.ticked_ns > 2 * self.config.heartbeat_ns
        self.ticked_ns = now_ns
        self.ticks += 1
        if slept:
            for judge in self.peers.values():
                judge.heard_ns = max(judge.heard_ns, now_ns - self.config.heartbeat_ns)
        for name in self.peers:
            level = self.level(name, now_ns)
            if level > self.alarms.get(name, Level.GREEN):
                if name not in self.alarms:
                    self.causes[name] = self._cause(name, now_ns)
                self.alarms[name] = level
        self.unheard = tuple(name for name, judge in self.peers.items() if judge.level(now_ns) is Level.RED)
        if self.watched is None or self.watched not in self.unheard:
            return None
        return Suspect(name=self.watched, life=self.watched_life)

    def hearers(self) -> list[Name]:
        """To whom a heartbeat goes with this tick."""
        return sorted(self.peers if self.ticks % FAR == 0 else self.near)

    def level(self, peer: Name, now_ns: int) -> Level:
        """What is to be thought of a peer. Of one that is not a member nothing is expected."""
        judge = self.peers.get(peer)
        if judge is None:
            return Level.GREEN
        says_so = self._stalls(peer) or peer in self.slow
        return max(judge.level(now_ns), Level.YELLOW if says_so else Level.GREEN)

    def _stalls(self, peer: Name) -> bool:
        return self.stalled.get(peer, 0) > self.config.heartbeat_ns * 3 // 2

    def _cause(self, peer: Name, now_ns: int) -> str:
        """What says that a peer is suspicious: the way its silence is judged, or itself."""
        if self.peers[peer].level(now_ns) is not Level.GREEN:
            return "misses" if self.config.detector == "benchmark" else self.config.detector
        return "stalled" if self._stalls(peer) else "benchmark"
