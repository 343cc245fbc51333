"""Heartbeats in a ring: each member sends its monitor a heartbeat every 100 ms (cooperative-ha §3.5).

The monitor is the next member by name. It only reports (`Suspect`, to all, again until the record changes); what a
suspicion means is decided by the coordinator with a majority. A monitor that was itself away (its own tick came far
too late) starts its count anew: it must not blame others for its own sleep.
"""

from __future__ import annotations

from holdfast.model.config import Config
from holdfast.model.ids import Name
from holdfast.model.messages import Missed, Suspect
from holdfast.model.record import Record


class Detector:
    __slots__ = ("config", "heard_ns", "monitor", "name", "ticked_ns", "watched", "watched_life")

    def __init__(self, name: Name, config: Config) -> None:
        self.name = name
        self.config = config
        #: To whom this node sends heartbeats, and whose it expects; None outside a ring.
        self.monitor: Name | None = None
        self.watched: Name | None = None
        self.watched_life = 0
        self.heard_ns = 0
        self.ticked_ns = 0

    def on_record(self, record: Record, now_ns: int) -> None:
        """Take the place in the ring that the record gives."""
        ring = sorted(record.members)
        if self.name not in record.members or len(ring) < 2:
            self.monitor = self.watched = None
            return
        at = ring.index(self.name)
        self.monitor = ring[(at + 1) % len(ring)]
        watched = ring[at - 1]
        life = record.members[watched]
        if (watched, life) != (self.watched, self.watched_life):
            self.watched, self.watched_life = watched, life
            self.heard_ns = now_ns

    def on_heartbeat(self, name: Name, now_ns: int) -> None:
        if name == self.watched:
            self.heard_ns = now_ns

    def missed(self, now_ns: int) -> Missed | None:
        """The watched member, if one heartbeat of it has not come; to be asked after `on_tick`."""
        if self.watched is None or 2 * (now_ns - self.heard_ns) <= 3 * self.config.heartbeat_ns:
            return None
        return Missed(name=self.watched, life=self.watched_life)

    def on_tick(self, now_ns: int) -> Suspect | None:
        """The watched member, if it has been silent for too long."""
        slept = now_ns - self.ticked_ns > 2 * self.config.heartbeat_ns
        self.ticked_ns = now_ns
        if slept:
            self.heard_ns = max(self.heard_ns, now_ns - self.config.heartbeat_ns)
        if self.watched is None or now_ns - self.heard_ns <= self.config.misses_max * self.config.heartbeat_ns:
            return None
        return Suspect(name=self.watched, life=self.watched_life)
