"""Which capture or paste runs next."""

from __future__ import annotations

from holdfast.core.tasks import CAPTURE, PASTE, Period, Task, scheduler_of
from holdfast.model.config import SCHEDULERS


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
