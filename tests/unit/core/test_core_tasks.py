"""Which capture or paste runs next, for how long, and what goes before it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace
from support.core import SMALL, fill, images, op, take

from holdfast.core.copy import Copy
from holdfast.core.node import TICK_BUDGETS, Node
from holdfast.core.operator import OperatorFactory
from holdfast.core.ready import TICK, Idle, Ready, Received
from holdfast.core.recovery import Exposure, HaSegment, Outlook
from holdfast.core.roles import State
from holdfast.core.tasks import CAPTURE, PASTE, Task, scheduler_of
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, SCHEDULERS, SECOND
from holdfast.model.found import Found
from holdfast.model.record import first_record
from holdfast.model.topology import ShardSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

THREE = layered(stages=1, shards=3)
NAMES = ("n0", "n1")
FIRST = first_record(THREE, NAMES)


MINE, OTHER, THEIRS = HaSegment("n0", "n1"), HaSegment("n0", "n2"), HaSegment("n3", "n0")
NEW = [name for name in SCHEDULERS if name != "period"]


def task(kind: str, shard: str, **fields: object) -> Task:
    return Task(kind, shard, 0, lambda now_ns, ready: True, **fields)


@dataclass
class Offered:
    """What there is to do, and what each segment would take to recover: (now, nanoseconds more per second)."""

    tasks: list[Task]
    segments: dict[HaSegment, tuple[int, int]] = field(default_factory=dict)
    is_under_way: bool = False

    def outlook(self) -> Outlook:
        return Outlook(Exposure(str(s), s, load, now_ns) for s, (now_ns, load) in self.segments.items())


def pick(name: str, tasks: list[Task], segments: dict | None = None, *, idle: bool = True) -> str | None:
    found = scheduler_of(name).pick(Offered(tasks, segments or {}), idle=idle)
    return found.shard if found else None


def test_held_captures_go_first_in_the_order_in_which_they_came():
    found = [task(CAPTURE, "u0"), task(PASTE, "u1"), task(PASTE, "u2")]
    assert pick("period", found) == "u1"
    assert pick("period", found[:1]) == "u0"


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_that_may_be_set_exists_and_does_nothing_where_there_is_nothing(name: str):
    assert pick(name, []) is None
    assert pick(name, [], idle=False) is None


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_scheduler_leaves_a_single_paste_undone(name: str):
    assert pick(name, [task(PASTE, "u0", segment=THEIRS)]) == "u0"


@pytest.mark.parametrize("name", NEW)
def test_a_burst_of_input_goes_before_all_but_what_is_pressing(name: str):
    found = [task(CAPTURE, "u0", gain_ns=9, segment=MINE), task(PASTE, "u1", segment=THEIRS)]
    assert pick(name, found, idle=False) is None
    found.append(task(CAPTURE, "u2", pressing=True, since_ns=7))
    assert pick(name, found, idle=False) == "u2"
    assert pick(name, found) == "u2"
    found.append(task(PASTE, "u3", pressing=True, since_ns=5))
    assert pick(name, found, idle=False) == "u3"  # it has waited longer


def test_round_robin_takes_what_was_not_done_for_the_longest_time():
    found = [task(CAPTURE, "u0", since_ns=3), task(PASTE, "u1", since_ns=2), task(CAPTURE, "u2", since_ns=1)]
    assert pick("round_robin", found) == "u2"


def test_whole_takes_everything_at_once_when_nothing_is_under_way():
    ran: list[str] = []

    def capture(shard: str) -> Task:
        return Task(CAPTURE, shard, 5, lambda now_ns, ready: ran.append(shard) or True)

    offered = Offered([capture("u0"), capture("u1")])
    picked = scheduler_of("whole").pick(offered, idle=True)
    assert picked is not None
    assert picked.cost_ns == 10
    assert picked.run(0, Ready())
    assert ran == ["u0", "u1"]
    offered.is_under_way = True
    assert scheduler_of("whole").pick(offered, idle=True) is None
    offered.tasks.insert(0, task(PASTE, "u2"))
    assert scheduler_of("whole").pick(offered, idle=True) is offered.tasks[0]


def test_min_max_captures_for_the_segment_that_would_take_longest():
    found = [task(CAPTURE, "u0", gain_ns=90, whole_ns=1, segment=MINE), task(CAPTURE, "u1", gain_ns=5, segment=OTHER)]
    assert pick("min_max", found, {MINE: (100, 0), OTHER: (200, 0)}) == "u1"
    assert pick("min_max", found, {MINE: (200, 0), OTHER: (100, 0)}) == "u0"


def test_min_max_asks_who_will_be_worst_when_the_capture_ends():
    ends = SECOND  # after a second the other segment has overtaken it
    found = [task(CAPTURE, "u0", gain_ns=1, whole_ns=ends, segment=MINE), task(CAPTURE, "u1", gain_ns=1, segment=OTHER)]
    assert pick("min_max", found, {MINE: (200, 0), OTHER: (100, 500)}) == "u0"  # u1 ends at once, and is not worst then
    found[1] = task(CAPTURE, "u1", gain_ns=1, whole_ns=ends, segment=OTHER)
    assert pick("min_max", found, {MINE: (200, 0), OTHER: (100, 500)}) == "u1"


def test_min_max_takes_of_a_segment_what_brings_most_for_its_cost():
    found = [
        task(CAPTURE, "u0", gain_ns=100, whole_ns=50, segment=MINE),
        task(CAPTURE, "u1", gain_ns=90, whole_ns=30, segment=MINE),
    ]
    assert pick("min_max", found, {MINE: (500, 0)}) == "u1"


def test_min_max_takes_no_capture_that_brings_nothing():
    assert pick("min_max", [task(CAPTURE, "u0", gain_ns=0, segment=MINE)], {MINE: (500, 0)}) is None


def test_min_max_captures_for_the_next_worst_while_all_of_the_worst_is_on_its_way():
    found = [task(CAPTURE, "u0", gain_ns=1, segment=MINE)]
    assert pick("min_max", found, {MINE: (100, 0), OTHER: (200, 0)}) == "u0"


def test_min_max_captures_for_an_image_that_nobody_could_recover_from_after_the_segments():
    """A shard that is being brought up elsewhere has no backup, and so no expected recovery time."""
    found = [task(CAPTURE, "u0", gain_ns=99), task(CAPTURE, "u1", gain_ns=1, segment=MINE)]
    assert pick("min_max", found, {MINE: (100, 0)}) == "u1"
    assert pick("min_max", found[:1], {MINE: (100, 0)}) == "u0"


def test_min_max_pastes_for_whoever_needs_it_more_than_its_own_segments():
    found = [task(CAPTURE, "u0", gain_ns=1, segment=MINE), task(PASTE, "u1", segment=THEIRS)]
    assert pick("min_max", found, {MINE: (100, 0), THEIRS: (101, 0)}) == "u1"
    assert pick("min_max", found, {MINE: (100, 0), THEIRS: (100, 0)}) == "u0"
    worse = HaSegment("n4", "n0")
    found.append(task(PASTE, "u2", segment=worse))
    assert pick("min_max", found, {MINE: (100, 0), THEIRS: (101, 0), worse: (102, 0)}) == "u2"


def test_a_decision_takes_time_in_proportion_to_the_units_of_its_node():
    """1,000 units on 100 nodes: ten of its own, ten of others. A hundred times as many on one node are still no matter
    of their square. By ratio, since the clock of a busy machine says nothing."""
    took: dict[int, float] = {}
    for count in (20, 2_000):
        found, segments = [], {}
        for i in range(count):
            segment = HaSegment("n0", f"n{i % 10}") if i % 2 else HaSegment(f"n{i % 10}", "n0")
            kind = CAPTURE if i % 2 else PASTE
            found.append(task(kind, f"u{i}", gain_ns=i + 1, whole_ns=i + 1, segment=segment))
            segments[segment] = (i, i)
        offered, times = Offered(found, segments), []
        for _ in range(5):
            began = time.thread_time()
            scheduler_of("min_max").pick(offered, idle=True)
            times.append(time.thread_time() - began)
        took[count] = min(times)
    assert took[2_000] < 300 * took[20]


# --- by what they are fed


def test_expected_recovery_is_the_work_since_the_image_and_what_is_to_be_pasted():
    each = Exposure("u0", MINE, load=SECOND // 2, replay_ns=100 * MS, paste_ns=30 * MS)
    assert each.recovery_ns() == 130 * MS
    assert each.recovery_ns(ahead_ns=200 * MS) == 230 * MS


def test_a_segment_is_recovered_in_turn_and_segments_beside_each_other():
    found = [Exposure("u0", MINE, 0, 10), Exposure("u1", MINE, 0, 5), Exposure("u2", OTHER, SECOND, 12)]
    outlook = Outlook([*found, Exposure("u3", THEIRS, 0, 99)])
    assert (outlook.segment_ns(MINE), outlook.segment_ns(OTHER)) == (15, 12)
    assert (outlook.query_ns("n0"), outlook.worst("n0")) == (15, MINE)
    assert outlook.query_ns("n0", ahead_ns=10) == 22  # the other one is busier
    assert (outlook.query_ns("n9"), outlook.worst("n9")) == (0, None)


# --- in a node


def slow(spec: ShardSpec) -> WindowSum:
    """Four windows are a piece: 2 ms."""
    return WindowSum(spec, 10, Costs(paste_window_ns=MS // 2), Meter())


def backup(pieces: int = 5, factory: OperatorFactory = op) -> tuple[Node, dict[str, list[m.Message]]]:
    """A node that backs up shards, and for each of them a capture in so many pieces that is on its way to it."""
    made = Node("n1", NAMES, THREE, SMALL, factory, Random(1), Found(), FIRST, 0)
    made.start(0)
    captures = {}
    for shard in THREE.shards:
        place = FIRST.places[shard.id]
        if place.backup == made.seat:
            primary = Copy(shard, THREE, op(shard), SMALL, based=True)
            guard = images(primary, place, SMALL)
            fill(primary, range(4 * pieces))
            captures[shard.id] = take(guard)[made.seat]
    return made, captures


def give(made: Node, messages: list[m.Message]) -> None:
    for message in messages:
        made.step(Received("n0#1", message), 10 * MS)


def pasted(made: Node, event: object, now_ns: int) -> list[str]:
    return [note.shard for note in made.step(event, now_ns).notes if isinstance(note, notes.Pasted)]


@pytest.mark.parametrize("backwards", [False, True])
def test_held_captures_are_pasted_in_the_order_in_which_they_came(backwards: bool):
    made, captures = backup()
    order = sorted(captures, reverse=backwards)
    assert len(order) > 1
    for shard in order:
        give(made, captures[shard])
    seen = [shard for at_ms in range(11, 20) for shard in pasted(made, Idle(SMALL.idle_budget_ns), at_ms * MS)]
    assert seen == order


@pytest.mark.parametrize("newest", ["moving", "joining"])
def test_what_is_pressing_does_not_wait_for_what_came_before_it_from_the_same_sender(newest: str):
    """A node that is never idle pastes what is pressing only: a shard that hands over stands still meanwhile, and a
    scan that takes too long begins again."""
    made, captures = backup()
    first, last = sorted(captures)
    give(made, captures[first])
    give(made, captures[last])
    assert [task.pressing for task in made.host.agenda(11 * MS).tasks] == [False]
    if newest == "moving":
        where = replace(FIRST.places[last], moving=True, since=2)
        made.host.on_record(replace(FIRST, version=2, places=FIRST.places | {last: where}), 11 * MS, Ready())
    else:
        made.host.states[last] = State.JOINING
    tasks = made.host.agenda(11 * MS).tasks
    assert [(task.shard, task.pressing) for task in tasks] == [(first, True)]


def test_an_idle_moment_ends_with_its_budget_and_a_tick_has_several():
    for event, budgets in ((Idle(SMALL.idle_budget_ns), 1), (TICK, TICK_BUDGETS)):
        made, captures = backup(pieces=40, factory=slow)
        shard = sorted(captures)[0]
        give(made, captures[shard])
        copy = made.host.copies[shard]
        ready = made.step(event, 100 * MS)
        assert copy.pasting is not None
        ran = 40 - len(copy.pasting.left)
        assert ran == -(-budgets * SMALL.idle_budget_ns // (2 * MS))  # the last one may pass the budget
        assert ready.idle  # what is left waits for the next moment


def test_a_burst_of_input_runs_no_task_and_what_was_held_goes_on_after_it():
    made, captures = backup()
    shard = sorted(captures)[0]
    give(made, captures[shard])
    copy = made.host.copies[shard]
    assert copy.pasting is not None
    before = len(copy.pasting.left)
    for i in range(50):
        deliver = m.Deliver(stage="s0", epoch=1, batch=0, attempt=i + 1, shards={shard: 1}, parts={}, last=None)
        answer = made.step(Received("s0@1", deliver), 11 * MS)
        assert answer.send  # at once
        assert len(copy.pasting.left) == before
    assert pasted(made, Idle(SMALL.idle_budget_ns), 12 * MS) == [shard]


def test_what_is_pasted_is_not_a_task_any_more():
    made, captures = backup()
    shard = sorted(captures)[0]
    give(made, captures[shard])
    assert pasted(made, Idle(SMALL.idle_budget_ns), 11 * MS) == [shard]
    give(made, captures[shard])  # they come again: it is said again how far they are
    assert pasted(made, Idle(SMALL.idle_budget_ns), 12 * MS) == []
    assert made.host.copies[shard].op.windows == {(10, key): 1 for key in range(20)}
