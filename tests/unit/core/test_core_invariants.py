"""What one process can check about itself: each rule stops it, and says what happened to the thing it is about."""

from __future__ import annotations

import gc
import inspect
import re
import weakref

import pytest

from holdfast.core.invariants import STORIES_MAX, STORY_MAX, Invariants
from holdfast.errors import InvariantError
from holdfast.model import notes as n
from holdfast.model.block import Block

RUNS = n.Promoted("u0", "n0#1", 2, (0,))


def block(start: int, end: int, batch: int = -1) -> Block:
    return Block(start, end, (), 5, batch)


def emitted(start: int, end: int, epoch: int = 2) -> n.Emitted:
    return n.Emitted("u0", "u0.0", epoch, block(start, end))


def accepted(start: int, end: int, epoch: int = 1, life: int = 1) -> n.Accepted:
    return n.Accepted("u4", "u0.0", epoch, block(start, end), life)


def sealed(start: int, end: int, batch: int) -> n.Sealed:
    return n.Sealed("u0", "s0>u0", "n0#1", block(start, end, batch))


def aside(start: int, end: int, epoch: int = 2) -> n.SetAside:
    return n.SetAside("u0", epoch, block(start, end))


STANDS_IN = n.StandsIn("u0", "n0#1", 2, "n1#1")


def beside(start: int, end: int) -> n.EmittedBeside:
    return n.EmittedBeside("u0", "u0.0", 2, block(start, end))


BROKEN = [
    ("stands in for a shard that runs here", [RUNS, STANDS_IN]),
    ("positions have a hole", [STANDS_IN, beside(0, 3), beside(4, 6)]),
    ("emitted by a copy that does not stand in", [beside(0, 3)]),
    ("stands down without standing in", [n.StandsDown("u0", "n0#1", 2, False, "it is back")]),
    ("set aside by a copy that is not primary", [RUNS, aside(0, 3, epoch=1)]),
    ("dead letters went back", [RUNS, aside(0, 3), aside(2, 4)]),
    ("positions have a hole", [RUNS, emitted(0, 3), emitted(4, 6)]),
    ("positions have a hole", [accepted(0, 3), accepted(2, 4)]),
    ("rows from a fenced copy", [accepted(0, 3, epoch=2), accepted(3, 4, epoch=1)]),
    ("an epoch went back or was used twice", [RUNS, n.Demoted("u0", "n0#1", 3), RUNS]),
    ("emitted by a copy that is not primary", [RUNS, n.Demoted("u0", "n0#1", 3), emitted(0, 3)]),
    ("emitted by a copy that is not primary", [RUNS, emitted(0, 3, epoch=1)]),
    ("captured by a copy that is not primary", [n.Captured("u0", 2, 1, True, "n1#1")]),
    ("a round went back", [RUNS, *(n.Captured("u0", 2, r, False, "n1#1") for r in (2, 1))]),
    ("acknowledged by a copy that is not primary", [n.Acked("u0", "s0>u0", 3, 2, 1)]),
    ("an acknowledgement went back", [RUNS, *(n.Acked("u0", "v0.0", at, 2, 1) for at in (5, 4))]),
    ("trimmed by a copy that is not primary", [n.Trimmed("u0", "u0.0", 3)]),
    ("a queue grew at its old end", [RUNS, *(n.Trimmed("u0", "u0.0", at) for at in (5, 4))]),
    ("sealed out of order", [sealed(0, 3, 0), sealed(3, 5, 0)]),
    ("an offset went back", [n.ReaderAcked("r0", "u0.0", at) for at in (5, 4)]),
    ("a record went back", [n.Decided("n0", 3, 1), n.Decided("n0", 3, 2)]),
    ("a term went back", [n.Decided("n0", 3, 2), n.Decided("n0", 4, 1)]),
    ("a ledger went back", [n.Ledgered("s0", 1, (1, 4)), n.Ledgered("s0", 1, (1, 3))]),
]


@pytest.mark.parametrize(("rule", "noted"), BROKEN, ids=lambda given: given if isinstance(given, str) else "")
def test_a_rule_that_does_not_hold_stops_the_process_with_the_story(rule, noted):
    made = Invariants()
    made.on_notes(noted[:-1])
    with pytest.raises(InvariantError) as broken:
        made.on_notes(noted[-1:])
    assert broken.value.what == rule
    told = broken.value.detail.splitlines()[1:]
    assert [line.strip() for line in told] == [str(note) for note in noted]


def test_every_rule_is_broken_by_some_case_here():
    source = inspect.getsource(Invariants)
    assert set(re.findall(r'_(?:fail|grow|runs)\((?:note, )?"([^"]+)"', source)) == {rule for rule, _ in BROKEN}


def test_what_a_process_may_do_passes():
    Invariants().on_notes(
        [
            sealed(0, 3, 0), RUNS, emitted(7, 9), emitted(9, 12), n.Captured("u0", 2, 1, True, "n1#1"),
            n.Acked("u0", "v0.0", 5, 2, 1), n.Trimmed("u0", "u0.0", 8), sealed(3, 5, 1), n.Demoted("u0", "n0#1", 3),
            n.Promoted("u0", "n0#1", 4, (0,)), emitted(3, 4, epoch=4), n.Acked("u0", "v0.0", 2, 4, 1),
            n.Dropped("u0", "n0#1", 5), n.Joining("u0", "n0#1", 6), sealed(0, 3, 0),
            accepted(0, 3), accepted(3, 5, epoch=2), accepted(0, 3, life=2),
        ]
    )  # fmt: skip


def test_a_story_is_short_and_keeps_no_rows_alive():
    class Kept(list):
        pass

    rows = Kept([1])
    seen = weakref.ref(rows)
    made = Invariants()
    made.on_notes([accepted(0, 1)])
    made.on_notes([n.Accepted("u4", "u0.0", 1, Block(1, 3, rows, 5), 1)])
    for at in range(3, 3 + 2 * STORY_MAX):
        made.on_notes([accepted(at, at + 1)])
    del rows
    gc.collect()
    assert seen() is None
    assert len(made.story("u4")) == STORY_MAX


def test_things_that_come_and_go_do_not_fill_the_memory():
    made = Invariants()
    for i in range(STORIES_MAX + 10):
        made.on_notes([n.Left(f"u{i}", "u0.0", "g0", 0)])
    assert made.story("u0") == []
    assert made.story(f"u{STORIES_MAX}") != []
