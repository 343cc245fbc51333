"""A recovery-time objective: captures early enough that a recovery would take less than was asked for.

An operator may say `recover_in` (`Protection.recover_ns`). What is kept below it is R of a segment
(`core/recovery.py`): the work that one node would have to do if this one failed now, for all the shards that it backs
up for it, since it recovers them in turn. So the strictest objective in a segment holds for all of it. How long the
failure takes to be noticed is not in it, as in the paper.

Every tick each segment gets a *budget*: half of what the objective leaves beside pasting what the next captures will
carry. (The other half is for what grows while captures are on their way, and between two ticks.) Its shards share it by
their load, so that all of them come to its end after the same time, and a shard at its end is captured, whether or not
its period is over: that is pressing, so every scheduler does it first. Only a capture that is not pasted yet holds up
the next one, and captures follow each other no faster than lets them take a quarter of the time.

That cannot always be enough. Then the note `NotInTime` says how long it would take and what is in the way, and
`InTimeAgain` when that is over. In a mode that keeps no copy of the state (`replay`, `none`) no capture helps: the note
`NoObjective` says once that the objective has no effect. Nothing here changes what is kept or acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.agenda import images_of
from holdfast.core.host import Host
from holdfast.core.protect import Images
from holdfast.core.ready import Ready
from holdfast.core.recovery import HaSegment
from holdfast.model import notes
from holdfast.model.config import MS, SECOND
from holdfast.model.ids import Asset, Name, name_of, operator_of
from holdfast.model.protection import MODES, OnFailure

#: Late looks count for less as time goes by: each loses a twentieth with every look after it. At three it is said
#: (about one look in seven is late), below one it is over. A single late one is a burst.
FORGETS = 20
TOO_LATE, IN_TIME = 3.0, 1.0
#: Captures of a shard take at most this share of the time, and are never closer than that.
CAPTURES_SHARE = 4
GAP_NS_MIN = 10 * MS

Guards = dict[Asset, Images]


class Objective:
    """Of one node: looks at its segments with every tick, if there is any objective at all."""

    __slots__ = ("_host", "_late", "_void", "missed")

    def __init__(self, host: Host) -> None:
        self._host = host
        #: How many of the last looks found that a backup would take too long.
        self._late: dict[Name, float] = {}
        #: Operators with an objective that has no effect, in the mode that they are in: it was said.
        self._void: dict[str, str] = {}
        #: Backups of which it was said, and how long they would take.
        self.missed: dict[Name, int] = {}

    def look(self, now_ns: int, ready: Ready) -> None:
        record = self._host.record
        if not any(each.recover_ns for each in record.protection.values()):
            self._void.clear()
            return
        self._look_for_void(ready)
        found = self._segments()
        for segment, guards in found.items():
            wanted_ns = min((w for shard in guards if (w := record.protection_of(shard).recover_ns)), default=0)
            share_out(guards, wanted_ns)
            if wanted_ns:
                self._judge(segment, guards, wanted_ns, now_ns, ready)
        backups = {segment.backup for segment in found}
        for name in [name for name in self._late if name not in backups]:
            del self._late[name]
            self.missed.pop(name, None)

    def _look_for_void(self, ready: Ready) -> None:
        """Say of which operators no copy of the state is kept, so that their objective has no effect."""
        host, found = self._host, dict[str, str]()
        for shard, runner in host.runners.items():
            mode = host.record.places[shard].mode
            if runner.is_primary and host.record.protection_of(shard).recover_ns and is_void(mode):
                found[operator_of(shard)] = mode
        ready.notes.extend(notes.NoObjective(*said) for said in sorted(found.items()) if said not in self._void.items())
        self._void = found

    def _segments(self) -> dict[HaSegment, Guards]:
        """What runs here, by who would recover it from an image; "" is nobody. A twin has nothing to do again, and no
        capture makes less of what a keeper has to do."""
        host, found = self._host, dict[HaSegment, Guards]()
        for shard, runner in sorted(host.runners.items()):
            place, guard = host.record.places[shard], images_of(runner)
            if guard is not None and runner.is_primary and not place.twin and not is_void(place.mode):
                backup = name_of(place.backup) if place.backup else Name("")
                found.setdefault(HaSegment(name_of(host.seat), backup), {})[shard] = guard
        return found

    def _judge(self, segment: HaSegment, guards: Guards, wanted_ns: int, now_ns: int, ready: Ready) -> None:
        name = segment.backup
        expected_ns = sum(guard.replay_ns + guard.pasting_ns for guard in guards.values())
        is_late = not name or expected_ns > wanted_ns
        before = self._late.get(name, 0.0)
        late = self._late[name] = before * (1 - 1 / FORGETS) + is_late
        figures = (segment.primary, name or Name("nobody"), len(guards), expected_ns, wanted_ns)
        if is_late and late >= TOO_LATE:
            self.missed[name] = expected_ns
            ready.notes.append(notes.NotInTime(*figures, why_not(guards, name, wanted_ns, now_ns)))
        elif name in self.missed and late < IN_TIME:
            del self.missed[name]
            ready.notes.append(notes.InTimeAgain(*figures))


def is_void(mode: str) -> bool:
    """Does nobody go on from a copy of the state in this mode?"""
    return MODES[mode].on_failure is not OnFailure.PROMOTE


def share_out(guards: Mapping[Asset, Images], wanted_ns: int) -> None:
    """How much each shard of a segment may leave to be done again before it is captured; 0: as its period says."""
    left_ns = max(1, (wanted_ns - pasting_ns(guards)) // 2) if wanted_ns else 0
    load = sum(guard.tally.load for guard in guards.values())
    for guard in guards.values():
        share = left_ns * guard.tally.load // load if load else left_ns // len(guards)
        guard.budget_ns = max(share, 1) if wanted_ns else 0
        guard.gap_ns = max(GAP_NS_MIN, CAPTURES_SHARE * guard.tally.capture.best_ns)


def pasting_ns(guards: Mapping[Asset, Images]) -> int:
    """What pasting a capture of each would take, one after the other."""
    return sum(guard.tally.paste.best_ns for guard in guards.values())


def why_not(guards: Guards, backup: Name, wanted_ns: int, now_ns: int) -> str:
    """What is in the way, the most certain reason first."""
    if not backup:
        return "they have no backup"
    if any(guard.unfit or guard.scans for guard in guards.values()):
        return "an image is being brought up"
    paste_ns = pasting_ns(guards)
    if paste_ns >= wanted_ns:
        return f"pasting their captures alone takes {paste_ns / MS:.0f} ms. More shards, on more nodes, would help"
    waiting = [shard for shard, guard in guards.items() if guard.waiting]
    if waiting and any(now_ns - guards[shard].started_ns >= wanted_ns for shard in waiting):
        return f"{backup} has not pasted what it was sent of {waiting[0]}: it is busy, or far away"
    load = sum(guard.tally.load for guard in guards.values())
    dear = [shard for shard, guard in guards.items() if guard.gap_ns * guard.tally.load // SECOND > guard.budget_ns]
    if dear:
        took_ns = guards[dear[0]].tally.capture.best_ns
        return f"a capture of {dear[0]} takes {took_ns / MS:.0f} ms, too long to take one more often"
    return f"they are busy for {load * 100 // SECOND}% of a core. More shards, on more nodes, would help"
