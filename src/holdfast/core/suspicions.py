"""Which suspicions a coordinator acts on, and which must wait. Removing a member cannot be undone in a hurry.

A member that the coordinator has just heard is not gone. One that may be gone must wait while its removal would leave
no majority that the coordinator hears, or would drop the last copy of something.
"""

from __future__ import annotations

from holdfast.core.election import Election
from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Name, name_of
from holdfast.model.record import NO_RECORD, Record


class Suspicions:
    __slots__ = ("_said", "config", "election", "name", "record")

    def __init__(self, name: Name, election: Election, config: Config) -> None:
        self.name = name
        self.election = election
        self.config = config
        self.record: Record = NO_RECORD
        #: Which suspicions were said to wait, and why, under the present record.
        self._said: dict[tuple[type[notes.Note], Name], None] = {}

    def on_record(self, record: Record) -> None:
        self.record = record
        self._said = {}

    def judge(self, suspects: dict[Name, int], now_ns: int, ready: Ready) -> tuple[dict[Name, int], dict[Name, int]]:
        """Those to be acted on, and those that must wait, each with its life."""
        silence = self.election.silence_ns
        gone: dict[Name, int] = {}
        waiting: dict[Name, int] = {}
        for name, life in suspects.items():
            if self.record.members.get(name) != life:
                continue
            if silence(name, now_ns) < self.config.heartbeat_ns * 3 // 2:
                ready.notes.append(notes.Dismissed(self.name, name, life))
            elif not self.election.can_remove(name, now_ns):
                waiting[name] = life
                self.election.wake_witness(now_ns, ready)
                self._note_once(notes.NoQuorum, name, ready)
            elif self._holds_the_last_copy(name, now_ns):
                waiting[name] = life
                self._note_once(notes.Spared, name, ready)
            else:
                gone[name] = life
        return gone, waiting

    def silent(self, now_ns: int) -> dict[Name, int]:
        """A coordinator hears everyone: who has been silent for twice the limit is suspected even if its monitor, dead
        or asleep itself, does not say so."""
        limit_ns = 2 * self.config.misses_max * self.config.heartbeat_ns
        members = self.record.members.items()
        return {name: life for name, life in members if self.election.is_silent(name, limit_ns, now_ns)}

    def _note_once(self, note: type[notes.NoQuorum | notes.Spared], name: Name, ready: Ready) -> None:
        """Say why a suspicion waits, once per record and reason."""
        if (note, name) not in self._said:
            self._said[(note, name)] = None
            ready.notes.append(note(self.name, name, self.record.version))

    def _holds_the_last_copy(self, name: Name, now_ns: int) -> bool:
        """Is it the backup of something whose primary has been silent for longer? Then the primary must go first: a
        backup that was dropped cannot take over, and this one may only be slow."""
        silence = self.election.silence_ns
        limit_ns = max(self.config.misses_max * self.config.heartbeat_ns, silence(name, now_ns))
        for place in self.record.places.values():
            if place.primary and place.backup and name_of(place.backup) == name and not place.is_stage:
                other = name_of(place.primary)
                if other in self.record.members and (silence(other, now_ns), other) > (limit_ns, name):
                    return True
        return False
