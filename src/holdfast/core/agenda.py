"""What a node could do now for the sake of availability: captures that may be taken, captures that are held.

It knows for each of them what a scheduler (`core/tasks.py`) weighs: what it costs, whom it helps, how long it has
waited. Of what each other node has sent only the oldest capture is offered: its sender has chosen the order in which
they help most (cooperative-ha §5.2). It decides nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.protect import Images
from holdfast.core.ready import Ready
from holdfast.core.recovery import Exposure, HaSegment, Outlook
from holdfast.core.roles import State
from holdfast.core.tasks import CAPTURE, PASTE, Task, together
from holdfast.model.ids import Asset, Seat, name_of
from holdfast.model.protection import STRETCH_MAX

if TYPE_CHECKING:
    from holdfast.core.host import Host
    from holdfast.core.runner import Runner


class HostAgenda:
    """Of one moment: what is in it is looked up when it is asked for."""

    __slots__ = ("_host", "_now_ns", "tasks")

    def __init__(self, host: Host, now_ns: int) -> None:
        self._host = host
        self._now_ns = now_ns
        self.tasks = self._pastes() + self._captures()

    @property
    def is_under_way(self) -> bool:
        return any(guard.waiting for runner in self._host.runners.values() if (guard := images_of(runner)))

    def outlook(self) -> Outlook:
        return Outlook(exposures(self._host, self._now_ns))

    # --- pastes

    def _pastes(self) -> list[Task]:
        """The oldest of each sender. It is pressing if any of that sender's is: that one comes after it."""
        found: dict[Seat, tuple[int, Asset]] = {}
        pressed: set[Seat] = set()
        for shard, copy in self._host.copies.items():
            if copy.pasting is not None:
                mine, source = (copy.pasting.number, shard), copy.pasting.source
                found[source] = min(mine, found.get(source, mine))
                if self._is_pressing(shard, copy.pasting.at_ns):
                    pressed.add(source)
        oldest = sorted((number, shard, source) for source, (number, shard) in found.items())
        return [self._paste(shard, pressing=source in pressed) for _, shard, source in oldest]

    def _is_pressing(self, shard: Asset, since_ns: int) -> bool:
        """An image is being brought up, a shard stands still until it has handed over, or it has waited for long."""
        host = self._host
        is_wanted = host.states[shard] is not State.BACKUP or host.record.places[shard].moving
        return is_wanted or self._now_ns - since_ns >= self._waits_max(shard)

    def _paste(self, shard: Asset, *, pressing: bool) -> Task:
        host, copy = self._host, self._host.copies[shard]
        pasting = copy.pasting
        complete = host.states[shard] is State.BACKUP
        return Task(
            PASTE,
            shard,
            copy.op.paste_ns(pasting.left[-1]) if pasting else 0,
            lambda now_ns, ready: host.paste(shard, ready),
            whole_ns=copy.pasting_ns(),
            segment=_segment(host, shard) if complete else None,
            since_ns=pasting.at_ns if pasting else 0,
            pressing=pressing,
        )

    def _waits_max(self, shard: Asset) -> int:
        return STRETCH_MAX * self._host.record.protection_of(shard).period_ns

    # --- captures

    def _captures(self) -> list[Task]:
        """One for each unit, of what may be captured of it; what is pressing does not wait for the rest of its unit."""
        host, runners = self._host, self._host.runners
        units = host.record.units
        groups: dict[tuple[Asset, HaSegment | None], list[Task]] = {}
        for shard in runners:
            if runners[shard].wants_protection(self._now_ns):
                task = self._capture(shard)
                unit = shard if task.pressing else units.get(shard, shard)
                groups.setdefault((unit, task.segment), []).append(task)
        return [together(group) if len(group) > 1 else group[0] for group in groups.values()]

    def _capture(self, shard: Asset) -> Task:
        runner = self._host.runners[shard]
        guard = images_of(runner)

        def run(now_ns: int, ready: Ready) -> bool:
            runner.protect(now_ns, ready)
            return True

        cost_ns = runner.copy.op.delta_ns()
        return Task(
            CAPTURE,
            shard,
            cost_ns,
            run,
            whole_ns=cost_ns,
            segment=_segment(self._host, shard),
            since_ns=guard.started_ns if guard else 0,
            gain_ns=guard.replay_ns - guard.tally.paste_of(cost_ns) if guard else 0,
            pressing=runner.is_pressing(self._now_ns),
        )


def images_of(runner: Runner) -> Images | None:
    return next((guard for guard in runner.guards if isinstance(guard, Images)), None)


def exposures(host: Host, now_ns: int) -> list[Exposure]:
    """Of all that runs here and has an image elsewhere, and of all that has one here."""
    found: list[Exposure] = []
    for shard, runner in host.runners.items():
        segment, guard = _segment(host, shard), images_of(runner)
        if segment is not None and guard is not None:
            found.append(Exposure(shard, segment, guard.tally.load, guard.replay_ns, guard.pasting_ns))
    for shard, copy in host.copies.items():
        if host.states[shard] is State.BACKUP and shard not in host.runners:
            segment = _segment(host, shard)
            if segment is not None:
                paste_ns = copy.pasting_ns()
                replay_ns = copy.exposed_ns(now_ns) - paste_ns
                found.append(Exposure(shard, segment, copy.told.load, replay_ns, paste_ns))
    return found


def _segment(host: Host, shard: Asset) -> HaSegment | None:
    """Who recovers it from an image; None: nobody does. A twin has nothing to do again, and a keeper has no image."""
    place = host.record.places[shard]
    is_backed_up = place.primary and place.backup and not place.twin and not place.keeper
    return HaSegment(name_of(place.primary), name_of(place.backup)) if is_backed_up else None
