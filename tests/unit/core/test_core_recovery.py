"""What a failure would cost now, as both ends of a segment know it, and what recoveries took."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from support.core import SMALL, feed, fill, host, images, place, record, take

from holdfast.core.agenda import exposures
from holdfast.core.copy import Copy
from holdfast.core.node import Node
from holdfast.core.protect.tally import Tally
from holdfast.core.ready import TICK, Idle, Ready, Received
from holdfast.core.recoveries import LIMIT_NS
from holdfast.core.recovery import HaSegment
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, SECOND
from holdfast.model.found import Found
from holdfast.model.record import first_record
from holdfast.model.topology import ShardSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

THREE = layered(stages=1, shards=3)
NAMES = ("n0", "n1", "n2")
FIRST = first_record(THREE, NAMES)
COSTS = Costs(row_ns=MS, capture_window_ns=2 * MS, paste_window_ns=3 * MS)


def busy(spec: ShardSpec) -> WindowSum:
    """A row takes 1 ms, a window 2 ms to capture and 3 ms to paste."""
    return WindowSum(spec, 10, COSTS, Meter())


def primary(rows: int) -> Copy:
    shard = next(s for s in THREE.shards if FIRST.places[s.id].primary == "n0#1")
    made = Copy(shard, THREE, busy(shard), SMALL, based=True)
    if rows:
        fill(made, range(rows))
    return made


def test_a_primary_knows_the_work_since_the_capture_that_its_backup_holds():
    copy = primary(0)
    guard = images(copy, place(), SMALL)
    fill(copy, range(10))
    assert (guard.replay_ns, guard.pasting_ns) == (10 * MS, 0)
    take(guard, SECOND)
    assert guard.replay_ns == (10 + 20) * MS  # nobody holds it yet; and the capture was work, too
    guard.on_held("b#1", m.Held(shard=copy.id, epoch=1, round=1, fits=True, cost_ns=30 * MS), SECOND, Ready())
    assert (guard.replay_ns, guard.pasting_ns) == (0, 30 * MS)
    guard.on_pasted("b#1", m.Pasted(shard=copy.id, epoch=1, round=1, cost_ns=31 * MS), SECOND, Ready())
    assert (guard.replay_ns, guard.pasting_ns) == (0, 0)
    assert guard.tally.capture == (20 * MS, 20 * MS)  # estimated, measured
    assert guard.tally.paste == (30 * MS, 31 * MS)
    assert guard.tally.load == 10 * MS  # of a second


def test_another_image_that_holds_a_capture_makes_the_recovery_of_the_backup_no_shorter():
    copy = primary(0)
    guard = images(copy, place(joining="c#1"), SMALL)
    fill(copy, range(10))
    take(guard, SECOND)
    guard.on_held("c#1", m.Held(shard=copy.id, epoch=1, round=1, fits=True), SECOND, Ready())
    assert guard.replay_ns == 30 * MS


def test_two_that_run_have_nothing_to_do_again_and_count_in_no_segment():
    """Whatever captures there were before: of a twin that joined, or of a mode with an image."""
    made = host("a#1", place(), factory=busy)
    fill(made.copies["u0"], range(10))
    assert [(each.unit, each.replay_ns) for each in exposures(made, 0)] == [("u0", 10 * MS)]
    made.on_record(record(2, place(2, mode="active")), 0, Ready())
    assert exposures(made, 0) == []


def test_pasting_is_expected_to_take_in_proportion_what_it_took():
    tally = Tally()
    assert tally.paste_of(5 * MS) == 5 * MS  # nothing is known
    tally.on_capture(9 * MS, 10 * MS)
    tally.on_held(20 * MS)
    assert tally.paste_of(5 * MS) == 10 * MS
    tally.on_pasted(40 * MS)
    assert tally.paste_of(5 * MS) == 20 * MS


def test_load_is_smoothed_over_two_rounds_and_never_more_than_a_core():
    tally = Tally()
    tally.on_worked(400 * MS, 100, SECOND)
    tally.on_worked(200 * MS, 100, SECOND)
    assert (tally.load, tally.element_ns) == (300 * MS, 3 * MS)
    tally.on_worked(9 * SECOND, 100, SECOND)
    assert tally.load == (300 * MS + SECOND) // 2
    tally.on_worked(SECOND, 0, 0)
    assert tally.load == (300 * MS + SECOND) // 2


# --- on the node that backs it up


@pytest.fixture
def backup() -> tuple[Node, Copy]:
    """A node that holds a capture of ten windows, and the copy that it is of."""
    copy = primary(0)
    where = FIRST.places[copy.id]
    assert where.backup is not None
    node = Node(where.backup.partition("#")[0], NAMES, THREE, SMALL, busy, Random(1), Found(), FIRST, 0)
    node.start(0)
    guard = images(copy, where, SMALL)
    fill(copy, range(10))
    for message in take(guard, SECOND)[where.backup]:
        node.step(Received("n0#1", message), 10 * MS)
    return node, copy


def test_nothing_has_to_be_done_again_of_a_shard_whose_twin_runs():
    """No capture is taken of it, so the work since the last one says nothing; and it would always look the worst."""
    for seat in ("a#1", "b#1"):
        made = host(seat, place(mode="active"))
        runner = made.runners["u0"]
        runner.copy.op.busy_ns += 5 * SECOND
        assert not [each for each in exposures(made, SECOND) if each.unit == "u0"]


def commit_rows(node: Node, shard: str, count: int) -> None:
    """As a stage would: so many more elements are here, and not consumed by the image."""
    copy = node.host.copies[shard]
    edge = copy.inputs[0].edge
    fill_from = copy.pasting.head.to[edge] if copy.pasting else copy.inputs[0].position
    feed(copy, edge, fill_from, [(key, 1, 1) for key in range(count)], 0, 1)


def test_a_backup_counts_what_it_has_to_paste_and_to_step(backup):
    node, copy = backup
    found = {e.unit: e for e in exposures(node.host, 20 * MS)}
    each = found[copy.id]
    assert each.segment == HaSegment("n0", node.name)
    assert (each.paste_ns, each.replay_ns) == (30 * MS, 0)
    commit_rows(node, copy.id, 22)  # and two marks
    each = next(e for e in exposures(node.host, 20 * MS) if e.unit == copy.id)
    assert each.replay_ns == 24 * (10 * MS // 12)  # 10 rows and 2 marks took 10 ms
    node.step(Idle(SECOND), 30 * MS)
    each = next(e for e in exposures(node.host, 40 * MS) if e.unit == copy.id)
    assert (each.paste_ns, each.replay_ns) == (0, 24 * (10 * MS // 12))


def fail_over(node: Node, shard: str, now_ns: int) -> None:
    """The record without n0: its shards are promoted where their images are."""
    places = {
        asset: replace(p, primary=p.backup, backup=None, epoch=p.epoch + 1, since=2) if p.primary == "n0#1" else p
        for asset, p in FIRST.places.items()
    }
    members = {name: life for name, life in FIRST.members.items() if name != "n0"}
    record = replace(FIRST, version=2, members=members, places=places)
    node.host.on_record(record, now_ns, Ready())


def test_a_recovery_is_told_with_what_was_expected_and_what_it_took(backup):
    node, copy = backup
    commit_rows(node, copy.id, 22)
    fail_over(node, copy.id, 50 * MS)
    assert not node.host.copies[copy.id].inputs[0].queue
    ready = node.step(TICK, 90 * MS)
    told = [note for note in ready.notes if isinstance(note, notes.Recovered)]
    expected_ns = 30 * MS + 24 * (10 * MS // 12)
    assert told == [notes.Recovered("n0", node.seat, 1, expected_ns, 52 * MS, 40 * MS)]
    assert not node.host.recoveries.under_way


def test_a_hand_over_is_not_a_recovery(backup):
    node, copy = backup
    where = FIRST.places[copy.id]
    moved = replace(where, primary=where.backup, backup=where.primary, epoch=2, since=2)
    node.host.on_record(replace(FIRST, version=2, places={**FIRST.places, copy.id: moved}), 50 * MS, Ready())
    assert copy.id in node.host.runners
    assert not node.host.recoveries.under_way


def test_who_does_not_catch_up_is_not_waited_for_for_ever(backup):
    node, copy = backup
    fail_over(node, copy.id, 50 * MS)
    node.host.recoveries.under_way["n0"].positions[copy.id] = {}
    node.host.runners[copy.id].copy.condition = None  # whatever it is, it does not run
    for at_ns, left in ((SECOND, True), (50 * MS + LIMIT_NS, False)):
        node.host.recoveries.look(at_ns, Ready())
        assert bool(node.host.recoveries.under_way) is left
