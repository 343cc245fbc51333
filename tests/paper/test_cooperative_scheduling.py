"""cooperative-ha §5, figures 2 and 3: the shipped schedulers and the shipped estimator on the paper's own example.

Server S1 runs u1 and u2, which S2 backs up, and u3, which S3 backs up. A capture stops S1, so a burst of what waited
comes after it (§3.4); pastes go on beside the backups' own work. Time is in nanoseconds; the paper's figures are in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from holdfast.core.recovery import Exposure, HaSegment, Outlook
from holdfast.core.tasks import CAPTURE, Scheduler, Task, scheduler_of
from holdfast.model.config import MS, SECOND


@dataclass
class HaUnit:
    name: str
    load: float
    cost_s: float
    segment: HaSegment
    #: Of which moment the state is that its backup has or holds; when its last capture began.
    image_s: float = 0.0
    began_s: float = -1.0
    #: Until when its backup has the last capture to paste.
    pasting_until_s: float = 0.0


def units() -> list[HaUnit]:
    """§5.1: constant loads, constant capture costs, paste costs equal to them."""
    one, two = HaSegment("S1", "S2"), HaSegment("S1", "S3")
    return [HaUnit("u1", 0.11, 0.125, one), HaUnit("u2", 0.10, 0.25, one), HaUnit("u3", 0.665, 0.125, two)]


@dataclass
class PaperServer:
    """S1 in its virtual time: idle, capturing, or in the burst after a capture."""

    scheduler: Scheduler
    units: list[HaUnit] = field(default_factory=units)
    step_s: float = 0.0125
    now_s: float = 0.0
    idle_from_s: float = 0.0
    captures: list[tuple[float, str]] = field(default_factory=list)
    is_under_way: bool = False
    #: The capture that goes on, and when it ends.
    taking: tuple[HaUnit, float] | None = None

    @property
    def load(self) -> float:
        return sum(unit.load for unit in self.units)

    def burst_s(self, unit: HaUnit) -> float:
        return unit.cost_s * self.load / (1 - self.load)

    def exposures(self) -> list[Exposure]:
        found = []
        for unit in self.units:
            paste_ns = _ns(unit.cost_s) if self.now_s < unit.pasting_until_s else 0
            replay_ns = _ns(unit.load * (self.now_s - unit.image_s))
            found.append(Exposure(unit.name, unit.segment, _ns(unit.load), replay_ns, paste_ns))
        return found

    def outlook(self) -> Outlook:
        return Outlook(self.exposures())

    def recovery_s(self, name: str) -> float:
        return next(e.recovery_ns() for e in self.exposures() if e.unit == name) / SECOND

    @property
    def tasks(self) -> list[Task]:
        """c-q: what is not being checkpointed."""
        return [self._task(unit) for unit in self.units if self.now_s >= unit.pasting_until_s]

    def _task(self, unit: HaUnit) -> Task:
        cost_ns = _ns(unit.cost_s)
        return Task(
            CAPTURE, unit.name, cost_ns, lambda now_ns, ready: True, whole_ns=cost_ns, segment=unit.segment,
            since_ns=_ns(unit.began_s), gain_ns=_ns(unit.load * (self.now_s - unit.image_s)) - cost_ns,
        )  # fmt: skip

    def run(self, until_s: float, look: Callable[[PaperServer], None] = lambda server: None) -> None:
        while True:
            self._end_capture()
            if self.now_s >= until_s - 1e-9:
                return
            if self.now_s >= self.idle_from_s - 1e-9:
                self._begin_capture()
            look(self)
            self.now_s = round(self.now_s + self.step_s, 4)

    def _begin_capture(self) -> None:
        picked = self.scheduler.pick(self, idle=True)
        if picked is not None:
            unit = next(u for u in self.units if u.name == picked.shard)
            unit.began_s = self.now_s
            self.taking = (unit, self.now_s + unit.cost_s)
            self.idle_from_s = self.taking[1] + self.burst_s(unit)
            self.captures.append((round(self.now_s, 4), unit.name))

    def _end_capture(self) -> None:
        """The message is there at once: its state is of when the capture began."""
        if self.taking is not None and self.now_s >= self.taking[1] - 1e-9:
            unit, self.taking = self.taking[0], None
            unit.image_s, unit.pasting_until_s = unit.began_s, self.now_s + unit.cost_s


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)


def server(name: str) -> PaperServer:
    return PaperServer(scheduler_of(name))


def test_section_5_1_the_burst_after_a_capture_of_u1_takes_0_875_s():
    made = server("round_robin")
    assert made.burst_s(made.units[0]) == pytest.approx(0.875)


def test_figure_2_round_robin_captures_u1_u2_u3_in_turn_one_cycle_in_four_seconds():
    made = server("round_robin")
    made.run(12)
    assert made.captures == [
        (0, "u1"), (1, "u2"), (3, "u3"), (4, "u1"), (5, "u2"), (7, "u3"), (8, "u1"), (9, "u2"), (11, "u3"),
    ]  # fmt: skip


def test_figure_2_a_capture_of_u2_lowers_its_recovery_time_from_0_43_to_0_28_when_it_ends_at_5_25():
    made, seen = server("round_robin"), {}
    made.run(5.25, lambda s: seen.update({s.now_s: s.recovery_s("u2")}))
    just_before = Exposure("u2", made.units[1].segment, _ns(0.10), _ns(0.10 * (5.0 - 1.0)))
    assert just_before.recovery_ns(250 * MS) / SECOND == pytest.approx(0.43, abs=0.006)  # the integral from 1 to 5.25
    assert seen[5.2375] == pytest.approx(0.42375)
    assert made.recovery_s("u2") == pytest.approx(0.28, abs=0.006)  # 0.25 to paste, 0.025 to do again


def test_figure_2_that_lowers_the_segment_by_as_much_and_the_query_not_at_all():
    made = server("round_robin")
    made.run(5.2375)
    one, two = made.units[0].segment, made.units[2].segment
    before = made.outlook()
    made.run(5.25)
    after = made.outlook()
    grown_ns = _ns(0.0125 * 0.21)  # u1 and u2 went on
    assert before.segment_ns(one) - after.segment_ns(one) + grown_ns == _ns(0.4 + 0.025 - 0.275)
    assert after.segment_ns(one) == sum(e.recovery_ns() for e in made.exposures() if e.segment == one)
    assert after.worst("S1") == before.worst("S1") == two
    assert after.query_ns("S1") == after.segment_ns(two) > before.query_ns("S1")


def test_section_5_1_at_5_s_min_max_would_capture_u3_and_not_u2():
    made = server("round_robin")
    made.run(5)
    assert scheduler_of("round_robin").pick(made, idle=True).shard == "u2"
    assert scheduler_of("min_max").pick(made, idle=True).shard == "u3"


def test_figure_3_min_max_keeps_the_recovery_time_of_the_query_30_percent_under_round_robin():
    means, highest = {}, {}
    for name in ("round_robin", "min_max"):
        seen: list[int] = []
        server(name).run(40, lambda s, seen=seen: seen.append(s.outlook().query_ns("S1")) if s.now_s >= 8 else None)
        means[name], highest[name] = sum(seen) / len(seen), max(seen)
    assert means["min_max"] / means["round_robin"] == pytest.approx(0.70, abs=0.02)
    assert highest["min_max"] < 0.8 * highest["round_robin"]


def test_section_5_4_a_checkpoint_cycle_of_min_max_is_longer_and_favours_load_over_cost():
    made = server("min_max")
    made.run(40)
    counts = {unit.name: sum(name == unit.name for _, name in made.captures) for unit in made.units}
    assert counts["u3"] > counts["u1"] > counts["u2"] > 0
    seconds = [at for at, name in made.captures if name == "u2"]
    assert min(later - one for one, later in pairwise(seconds)) > 4  # a cycle of round-robin


def test_whole_checkpointing_takes_all_units_at_once_and_none_before_all_are_pasted():
    made = server("whole")
    made.now_s = 1.0
    picked = scheduler_of("whole").pick(made, idle=True)
    assert picked is not None
    assert picked.whole_ns == 500 * MS
    made.is_under_way = True
    assert scheduler_of("whole").pick(made, idle=True) is None
