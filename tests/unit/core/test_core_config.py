"""Settings that cannot work are refused, with one clear line each; those in bounds are taken."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.model.config import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, MS, Config
from holdfast.model.plan import OperatorPlan, Plan
from holdfast.model.protection import METHODS, MODES, PERIOD_NS_MAX, PERIOD_NS_MIN, Protection
from holdfast.model.record import first_record
from holdfast.model.topology import layered


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"mode": "hopeful"}, "unknown mode"),
        ({"mode": ""}, "unknown mode"),
        ({"method": "sometimes"}, "unknown checkpoint method"),
        ({"period_ns": 0}, "between 1 ms and an hour"),
        ({"period_ns": -5 * MS}, "between 1 ms and an hour"),
        ({"period_ns": PERIOD_NS_MIN - 1}, "between 1 ms and an hour"),
        ({"period_ns": PERIOD_NS_MAX + 1}, "between 1 ms and an hour"),
    ],
)
def test_settings_of_an_operator_that_cannot_work_are_refused(setting, says):
    with pytest.raises(ConfigError, match=says) as refused:
        Protection(**setting)
    assert len(str(refused.value).splitlines()[0]) < 100
    assert refused.value.hint


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"transfer_bytes_per_s": 0}, "less than one piece a second"),
        ({"transfer_bytes_per_s": -1}, "less than one piece a second"),
        ({"transfer_bytes_per_s": 1_023, "chunk_bytes": 1_024}, "less than one piece a second"),
        ({"chunk_bytes": CHUNK_BYTES_MAX + 1}, "too small or too large"),
        ({"chunk_bytes": CHUNK_BYTES_MIN - 1}, "too small or too large"),
        ({"joins_max": 0}, "no image could ever be brought up"),
        ({"scheduler": "hasty"}, "unknown scheduler"),
        ({"misses_max": 0}, "failure detector"),
        ({"election_ns": 2 * Config().beat_ns}, "elections would start"),
        ({"load_period_ns": 0}, "load could not be measured"),
        ({"load_period_ns": 2 * MS, "load_window_ns": MS}, "load could not be measured"),
        ({"load_period_ns": 5 * MS, "balance_ns": 10 * MS}, "before the coordinator knows the loads"),
        ({"imbalance_ns": 0}, "moved for nothing"),
        ({"retained_soft_max": 0}, "too late"),
        ({"retained_soft_max": 9, "retained_hard_max": 8}, "too late"),
    ],
)
def test_settings_of_the_core_that_cannot_work_are_refused(setting, says):
    with pytest.raises(ConfigError, match=says) as refused:
        Config(**setting)
    assert len(str(refused.value).splitlines()[0]) < 100
    assert refused.value.hint


def test_settings_at_their_bounds_are_taken():
    for mode in MODES:
        for method in METHODS:
            Protection(mode=mode, method=method, period_ns=PERIOD_NS_MIN)
    Protection(period_ns=PERIOD_NS_MAX)
    for chunk in (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX):
        Config(chunk_bytes=chunk, transfer_bytes_per_s=chunk, joins_max=1)


def test_a_pipeline_starts_with_the_settings_of_its_operators():
    shape = layered(stages=1, shards=2)
    record = first_record(shape, ("n0", "n1"), Protection(period_ns=7 * MS))
    assert record.protection == {"u0": Protection(period_ns=7 * MS), "u1": Protection(period_ns=7 * MS)}
    assert first_record(shape, ("n0", "n1")).protection_of("u1") == Protection()
    assert record.protection_of("an operator that came later") == Protection()


def planned(**own) -> OperatorPlan:
    return OperatorPlan(name="u0", kind="join", shards=1, inputs=(), settings={}, output=b"", **{"mode": "auto", **own})


def test_an_operator_has_the_nodes_settings_but_for_what_it_says_itself():
    default = Protection(mode="passive", period_ns=7 * MS, checkpoint="paged", checkpoint_ns=3_000 * MS)
    assert planned().protection(default) == default
    own = planned(mode="none", checkpoint="none").protection(default)
    assert (own.mode, own.checkpoint, own.period_ns) == ("none", "none", 7 * MS)
    assert planned(checkpoint="paged", checkpoint_ns=20 * MS).protection(default).checkpoint_ns == 20 * MS


def test_what_is_to_be_kept_in_a_store_needs_one():
    shape = layered(stages=1, shards=1)
    for checkpoint, refused in (("auto", False), ("none", False), ("paged", True)):
        plan = Plan(pipeline="p", query="p-1", topology=shape, operators=(planned(checkpoint=checkpoint),), stages=())
        plan.check_store(has_store=True)
        if not refused:
            plan.check_store(has_store=False)
            continue
        with pytest.raises(ConfigError, match='u0: checkpoint="paged" needs a store') as error:
            plan.check_store(has_store=False)
        assert "--store" in error.value.hint
