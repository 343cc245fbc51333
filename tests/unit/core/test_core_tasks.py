"""Which capture or paste runs next, for how long, and what goes before it."""

from __future__ import annotations

from random import Random

import pytest
from support.core import SMALL, fill, images, op, take

from holdfast.core.copy import Copy
from holdfast.core.node import TICK_BUDGETS, Node
from holdfast.core.operator import OperatorFactory
from holdfast.core.ready import TICK, Idle, Received
from holdfast.core.tasks import CAPTURE, PASTE, Period, Task, scheduler_of
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, SCHEDULERS
from holdfast.model.found import Found
from holdfast.model.record import first_record
from holdfast.model.topology import ShardSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

THREE = layered(stages=1, shards=3)
NAMES = ("n0", "n1")
FIRST = first_record(THREE, NAMES)


def task(kind: str, shard: str) -> Task:
    return Task(kind, shard, 0, lambda now_ns, ready: True)


def test_held_captures_go_first_in_the_order_in_which_they_came():
    found = [task(CAPTURE, "u0"), task(PASTE, "u1"), task(PASTE, "u2")]
    picked = Period().pick(found, 0)
    assert picked is found[1]
    assert Period().pick(found[:1], 0) is found[0]
    assert Period().pick([], 0) is None


def test_every_scheduler_that_may_be_set_exists():
    for name in SCHEDULERS:
        assert scheduler_of(name).pick([], 0) is None


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
