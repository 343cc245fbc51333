"""An operator with eventual checkpoints, and its log: groups, refusals, policies, what a recovery reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.batches import batch, rows
from support.eventual import EDGE, SCHEMA, Oracle, made, start, state_of, steps_of

from holdfast.core.eventual import Cadence, Calibration, RecoverIn, Targets
from holdfast.errors import DamagedLogError, InputError, StateError
from holdfast.operators import Agg, CountWindow, CountWindowAggregate
from holdfast.runtime.disk.eventual import ControlLog, EventualOperator, InputStep, Policy, go_on, recover
from holdfast.runtime.disk.log_reader import LogReader

#: Six windows that open in the first step and stay.
SLOW = [([(0, i % 6, i, i % 6) for i in range(6)], 0, 0)] + [([(i % 10, i % 6, i, 1)], 0, 0) for i in range(40)]

#: Six keys, of which one has all the rows: its windows close, the others stay where they are.
ONE_FAST = [([(0, i, i, i) for i in range(6)], 0, 0)] + [([(0, 1, i, 1)] * 4, 0, 0) for i in range(40)]


def fed(path: Path, kind: str = "tumbling", plan=SLOW, policy: Policy | None = None) -> EventualOperator:
    live = EventualOperator(made(kind), ControlLog(path, EDGE), policy) if policy else start(path, kind, plan)
    for step in steps_of(plan):
        live.step(step)
        live.log.flush()
    return live


class AsDearAsAtFirst(Calibration):
    """Costs that are known, so that a test does not depend on the machine."""

    def checked(self, tuples: int, took_ns: float) -> None: ...

    def replayed(self, rows: int, took_ns: float) -> None: ...


def test_a_log_with_threads_writes_what_came_meanwhile_as_one_group_and_says_what_is_durable(tmp_path: Path):
    live = EventualOperator(made("tumbling"), ControlLog(tmp_path, EDGE, threads=True))
    steps = steps_of([([(0, i % 6, i, i % 6)], 3, 0) for i in range(50)])
    for step in steps:
        live.step(step)
        assert live.log.durable <= live.position
    live.log.flush()
    assert live.log.durable == live.position
    live.log.close()
    reader = LogReader(tmp_path / EDGE, all_of_it=True)
    assert (reader.log.damage, len(reader.entries())) == ("", 50)
    operator = made("tumbling")
    assert recover(operator, tmp_path, EDGE, lambda a, b: steps[a - 1 : b]).step == 50
    assert state_of(operator) == Oracle("tumbling", steps).states[-1]


def test_a_full_disk_is_told_and_the_same_steps_are_written_once_there_is_room(tmp_path: Path, monkeypatch):
    live = start(tmp_path, "tumbling", SLOW)
    steps = steps_of(SLOW)
    live.step(steps[0])
    live.log.flush()
    sync = os.fdatasync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    live.step(steps[1])
    with pytest.raises(StateError, match="could not be written") as caught:
        live.log.flush()
    assert "No space left" in caught.value.detail
    assert live.log.durable < live.position
    monkeypatch.setattr(os, "fdatasync", sync)
    live.step(steps[2])
    live.log.flush()
    assert live.log.durable == live.position
    operator = made("tumbling")
    assert recover(operator, tmp_path, EDGE, lambda a, b: steps[a - 1 : b]).step == 3
    assert state_of(operator) == state_of(live.operator)


def test_targets_keep_the_extent_and_the_replay_short_and_a_recovery_reads_no_more(tmp_path: Path):
    free = fed(tmp_path / "a", "count", ONE_FAST)
    kept = fed(tmp_path / "b", "count", ONE_FAST, Policy(Targets(12, 20)))
    assert free.extent.tuples > 12
    assert free.extent.rows > 20
    assert free.policy.checks == 0
    assert kept.extent.tuples <= 12
    assert kept.extent.rows <= 20
    assert kept.policy.checks > 0
    steps = steps_of(ONE_FAST)
    operator = made("count")
    found = recover(operator, tmp_path / "b", EDGE, lambda a, b: steps[a - 1 : b])
    assert state_of(operator) == state_of(kept.operator)
    assert found.replayed_rows == kept.extent.rows
    assert found.tuples <= 12 + 6  # the entry with the oldest footprint is read whole


def test_no_more_checks_are_made_than_the_interval_allows(tmp_path: Path):
    now = [0]
    costs = AsDearAsAtFirst(check_ns=2_000)
    policy = Policy(Targets(7), Cadence(2_000, 10_000_000), costs, lambda: now[0])
    live = EventualOperator(made("count"), ControlLog(tmp_path, EDGE), policy)
    counts = []
    for step in steps_of(ONE_FAST):
        live.step(step)
        counts.append(policy.count)
    assert max(counts) == 1
    assert live.extent.tuples > 7


def test_an_objective_holds_the_expected_recovery_below_itself(tmp_path: Path):
    costs = AsDearAsAtFirst(check_ns=10, load_ns=1_000, replay_ns=10_000)
    policy = Policy(RecoverIn(200_000, margin=1.0), Cadence(1_000, 1_000), costs, lambda: 0)
    live = fed(tmp_path, "count", ONE_FAST, policy)
    assert live.policy.checks > 0
    assert costs.recovery_ns(live.extent) <= 200_000


def test_an_operator_that_is_given_an_objective_chooses_targets_interval_and_period_by_itself(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr("holdfast.runtime.disk.eventual.CHOOSE_EVERY", 4)
    now = iter(range(0, 10**12, 10_000_000))
    policy = Policy(RecoverIn(5_000_000, margin=1.0), None, AsDearAsAtFirst(), lambda: next(now))
    assert policy.cadence is None
    live = fed(tmp_path, "count", ONE_FAST, policy)
    assert policy.chosen is not None
    assert policy.cadence is not None
    assert policy.chosen.tuples_max >= live.extent.windows
    assert policy.costs.recovery_ns(live.extent) <= 5_000_000
    assert policy.cadence.interval_ns <= policy.cadence.period_ns


def test_windows_that_open_and_close_within_a_step_leave_no_footprint(tmp_path: Path):
    op = EventualOperator(made("tumbling"), ControlLog(tmp_path, EDGE))
    op.step(InputStep(batch(SCHEMA, [1, 2], ["a", "b"], [1, 2], ["x", "y"]), 100))
    assert op.extent.windows == op.extent.tuples == 0
    count = CountWindowAggregate("c", SCHEMA, window=CountWindow(1, 1), by=["k"], aggs={"n": Agg("count")})
    live = EventualOperator(count, ControlLog(tmp_path / "count", EDGE))
    taken = batch(SCHEMA, [0] * 100, ["a"] * 100, range(100), ["x"] * 100)
    for _ in range(5):
        assert live.step(InputStep(taken)).num_rows == 100
    assert live.operator.footprints is not None
    assert (
        live.operator.footprints.tuples == 500
    )  # a hundred results a step: the key's footprint goes with its last one
    assert (live.extent.windows, live.extent.rows) == (1, 0)


def test_a_source_that_gives_other_rows_again_is_found_out(tmp_path: Path):
    fed(tmp_path)
    steps = steps_of(SLOW)
    with pytest.raises(InputError, match="not what was processed"):
        recover(made("tumbling"), tmp_path, EDGE, lambda a, b: steps[a - 1 : b - 1])


def test_a_log_of_another_operator_and_one_without_control_tuples_are_refused(tmp_path: Path):
    fed(tmp_path)
    with pytest.raises(DamagedLogError) as caught:
        recover(made("sliding"), tmp_path, EDGE, lambda a, b: [])
    assert "another schema, window, key or aggregates" in caught.value.detail


def test_a_log_that_begins_after_a_footprint_that_is_needed_is_an_error(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("holdfast.logs.edge_log.SEGMENT_BYTES", 2_000)
    live = fed(tmp_path)
    live.log.drop(live.position - 1)
    with pytest.raises(DamagedLogError) as caught:
        recover(made("tumbling"), tmp_path, EDGE, lambda a, b: [])
    assert "have no footprint in it" in caught.value.detail


def test_a_log_goes_on_after_a_recovery_in_a_segment_of_its_own_and_can_be_dropped(tmp_path: Path):
    steps = steps_of(SLOW)
    fed(tmp_path)
    live, found = go_on(made("tumbling"), tmp_path, EDGE, lambda a, b: steps[a - 1 : b])
    assert found.step == len(steps)
    results = rows(live.step(InputStep(None, 1_000)))
    live.log.flush()
    assert len(results) == live.position - found.position - 1 > 0
    assert len(list((tmp_path / EDGE).glob("*.log"))) == 2
    assert live.extent.windows == 0
    live.log.drop(live.needed[0])
    assert len(list((tmp_path / EDGE).glob("*.log"))) == 1
    operator = made("tumbling")
    assert recover(operator, tmp_path, EDGE, lambda a, b: []).step == len(steps) + 1
    assert state_of(operator) == state_of(live.operator)
