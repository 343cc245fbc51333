"""`run --sla`: what is measured, what is decided, and that a workload that wobbles changes nothing."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.model.plan import InputPlan, OperatorPlan, Plan
from holdfast.model.topology import Topology
from holdfast.runtime.client.measured import PRIOR_MTBF_S, compare, failures, mtbf_s, take_samples, window_s
from holdfast.runtime.client.sla import INTERVAL_MAX_S, INTERVAL_MIN_S, SlaWatch


def plan() -> Plan:
    operator = OperatorPlan(
        name="counts", kind="aggregate", shards=2, mode="passive",
        inputs=(InputPlan(source="s", schema=b"", by=("k",), event_time="ts"),),
        settings={"size_us": 10_000_000, "step_us": 1_000_000}, output=b"",
    )  # fmt: skip
    return Plan(
        pipeline="p", query="q", topology=Topology(shards=(), stages=(), readers=()), operators=(operator,), stages=()
    )


def answers(bytes_in: int, state: int, captured: int) -> dict:
    shard = {"role": "primary", "bytes_in": bytes_in, "rows_in": bytes_in // 40, "captured_bytes": captured}
    image = {"role": "backup", "bytes_in": 0, "rows_in": 0, "captured_bytes": 0, "state_bytes": 10**12}
    return {
        "n0": {"shards": {"counts-0": {**shard, "state_bytes": state}, "counts-1": image}},
        "n1": {"shards": {"counts-1": {**shard, "state_bytes": state}}},
    }


def test_rates_come_from_two_looks_at_the_primaries():
    before = take_samples(answers(1_000, 500, 0).values(), 10.0)
    after = take_samples(answers(5_000, 700, 1_000).values(), 12.0)
    (found,) = compare(plan(), before, after, mtbf=99.0)
    assert found.input_rate == 2 * 4_000 / 2.0
    assert found.checkpoint_size == 1_400
    assert found.churn == pytest.approx(0.2)
    assert found.window == 10.0
    assert found.mtbf == 99.0


def test_an_operator_that_moved_meanwhile_is_not_measured():
    before = take_samples(answers(5_000, 500, 0).values(), 10.0)
    after = take_samples(answers(1_000, 500, 0).values(), 12.0)  # a new primary counts from nothing
    assert compare(plan(), before, after, mtbf=1.0) == []


def test_mtbf_starts_at_the_prior_and_moves_to_what_is_seen():
    started = [{"event": "started", "node": n} for n in ("n0", "n1", "n2", "n0", "n0")]
    assert failures(started) == 2
    assert mtbf_s([], 4, 0.0) == PRIOR_MTBF_S
    assert mtbf_s(started, 3, 3_600.0, prior_s=3_600.0) == (3_600 + 3 * 3_600) / 3


def test_window_of_a_join_is_its_reach():
    join = OperatorPlan(name="j", kind="join", shards=1, mode="passive", inputs=(), output=b"",
                        settings={"within": [-5_000_000, 10_000_000]})  # fmt: skip
    assert window_s(join) == 10.0


def watch(hold_s: float = 60.0, nodes: int = 4) -> tuple[SlaWatch, list, list]:
    tuned: list[tuple[str, float]] = []
    told: list[tuple[str, str]] = []
    made = SlaWatch(
        plan(), 0.9999, nodes=nodes,
        tune=lambda operator, seconds: tuned.append((operator, seconds)),
        tell=lambda kind, text, fields: told.append((kind, text)),
        hold_s=hold_s,
    )  # fmt: skip
    return made, tuned, told


def test_the_first_measurement_is_applied_and_said_in_one_sentence():
    made, tuned, told = watch()
    made.look(answers(0, 1_000, 0), 86_400.0, 0.0)
    made.look(answers(2_000_000, 10**6, 10**6), 86_400.0, 5.0)
    ((operator, seconds),) = tuned
    assert operator == "counts"
    assert INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S
    ((kind, text),) = told
    assert kind == "prescribed"
    assert text.startswith("counts: Running cooperative with 4 copies")
    assert "99.99%" in text
    assert "\n" not in text


def test_a_change_is_applied_only_when_it_lasts():
    made, tuned, _ = watch(hold_s=60.0)
    sent, now = 0, 0.0

    def look(mtbf: float) -> None:
        nonlocal sent, now
        sent, now = sent + 2_000_000, now + 10.0
        made.look(answers(sent, 10**5, sent), mtbf, now)

    for mtbf in [86_400.0] * 3 + [600.0, 86_400.0] * 6:  # it wobbles: nothing is changed
        look(mtbf)
    assert [seconds for _, seconds in tuned] == [pytest.approx(35.0, rel=0.1)]
    for _ in range(12):
        look(600.0)
    assert [seconds for _, seconds in tuned[1:]] == [pytest.approx(0.3, rel=0.1)]


def test_more_nodes_than_the_models_know_copies_are_no_error():
    made, tuned, told = watch(nodes=12)
    made.look(answers(0, 1_000, 0), 86_400.0, 0.0)
    made.look(answers(2_000_000, 10**6, 10**6), 86_400.0, 5.0)
    assert len(tuned) == 1
    assert "with 10 copies" in told[0][1]


def test_what_cannot_be_applied_is_told_once_and_applied_later():
    made, tuned, told = watch()
    reach, made._tune = made._tune, refuse
    for i in range(4):
        made.look(answers(i * 2_000_000, 10**6, i * 10**6), 86_400.0, i * 5.0)
    assert [kind for kind, _ in told] == ["sla-failed"]
    assert "no node answers" in told[0][1]
    assert made.applied == {}
    made._tune = reach
    made.look(answers(8_000_000, 10**6, 4 * 10**6), 86_400.0, 20.0)
    assert [operator for operator, _ in tuned] == ["counts"]


def refuse(operator: str, seconds: float) -> None:
    raise ConfigError("no node answers 'tune'", detail="n0: refused")
