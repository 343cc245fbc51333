"""Units: who is captured together, formed from loads and costs (cooperative-ha §4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.units import MARGIN_PERCENT, ShardCost, form
from holdfast.model.config import MS, Config
from holdfast.model.protection import Protection
from holdfast.model.record import Place, first_record
from holdfast.model.successor import record_objection
from holdfast.model.topology import layered
from holdfast.sim.costs import Costs
from holdfast.sim.simulation import Setup, Simulation

SIX = layered(stages=1, shards=6)
#: Two layers: every shard of the first feeds every one of the second.
FED = layered(stages=1, shards=2, tops=2)
HERE = Place(primary="n0#1", backup="n1#1")
MAX = 10 * MS


def together(costs: dict[str, tuple[int, int]], topology=SIX, places=None, before=None, most: int = MAX) -> list:
    """Groups of more than one, as (load, capture) of each shard says."""
    known = {shard: ShardCost(*cost) for shard, cost in costs.items()}
    where = dict.fromkeys(topology.shard, HERE) | (places or {})
    found = form(where, topology, known, before or {}, most)
    return sorted([sorted(s for s in found if found[s] == unit) for unit in set(found.values())])


def test_shards_that_are_alike_are_one_unit_while_its_capture_stays_under_the_threshold():
    alike = {f"u{i}": (100, 3 * MS) for i in range(6)}
    assert [len(group) for group in together(alike)] == [3, 3]
    assert together(alike, most=3 * MS) == []
    assert together(alike, most=0) == []
    assert together(alike, most=18 * MS) == [sorted(alike)]


def test_shards_that_should_be_captured_at_different_times_are_not():
    assert together({"u0": (1_000, MS), "u1": (100, MS), "u2": (1_100, MS), "u3": (90, MS)}) == [
        ["u0", "u2"],
        ["u1", "u3"],
    ]


def test_only_shards_of_one_segment_are_one_unit():
    elsewhere = Place(primary="n0#1", backup="n2#1")
    places = {"u1": elsewhere, "u3": elsewhere, "u4": replace(HERE, backup=None), "u5": replace(HERE, joining="n3#1")}
    assert together({f"u{i}": (100, MS) for i in range(6)}, places=places) == [["u0", "u2"], ["u1", "u3"]]
    twins = dict.fromkeys(SIX.shard, replace(HERE, mode="active"))  # nothing is captured for them
    assert together({f"u{i}": (100, MS) for i in range(6)}, places=twins) == []


def test_shards_of_connected_operators_begin_as_one_unit():
    shards = sorted(FED.shard)
    costs = {shard: (100 * 3**i % 241, MS) for i, shard in enumerate(shards)}
    spread = [load for load, _ in costs.values()]
    assert max(spread) > 2 * min(spread)  # too different to be merged, not to be connected
    assert together(costs, topology=FED) == [shards]


def test_a_unit_whose_capture_takes_too_long_is_cut_up():
    whole = dict.fromkeys(("u0", "u1", "u2"), "u0")
    assert together(dict.fromkeys(whole, (100, 4 * MS)), before=whole) == [["u0", "u1", "u2"]]  # within the margin
    dear = MAX * MARGIN_PERCENT // 100 // 3 + 1
    assert together(dict.fromkeys(whole, (100, dear)), before=whole) == []


def test_a_unit_whose_shards_have_become_different_is_cut_up():
    pair = {"u0": "u0", "u1": "u0"}
    assert together({"u0": (100, MS), "u1": (390, MS)}, before=pair) == [["u0", "u1"]]
    assert together({"u0": (100, MS), "u1": (410, MS)}, before=pair) == []


costs = st.dictionaries(
    st.sampled_from(sorted(SIX.shard)), st.tuples(st.integers(0, 10**9), st.integers(0, 20 * MS)), max_size=6
)


@given(costs, costs)
def test_units_are_the_same_when_nothing_has_changed_and_never_too_dear(first, second):
    known = {shard: ShardCost(*cost) for shard, cost in first.items()}
    places = dict.fromkeys(SIX.shard, HERE)
    one = form(places, SIX, known, {}, MAX)
    assert form(places, SIX, known, one, MAX) == one
    later = form(places, SIX, {shard: ShardCost(*cost) for shard, cost in second.items()}, one, MAX)
    for unit in set(later.values()):
        members = [shard for shard in later if later[shard] == unit]
        assert len(members) > 1
        assert unit == min(members)
        assert sum(second[shard][1] for shard in members) * 100 <= MAX * MARGIN_PERCENT


@pytest.mark.parametrize("units", [{"u0": "u1"}, {"u9": "u9"}, {"u0": "u9", "u9": "u9"}])
def test_a_record_with_units_that_cannot_be_is_refused(units):
    record = first_record(SIX, ("n0", "n1", "n2"))

    class Outside:
        topology, term, is_node = SIX, 0, True

        def __init__(self) -> None:
            self.record = record

        def impossible(self, record: object) -> str:
            return ""

    assert record_objection(replace(record, version=2, units={"u0": "u0", "u1": "u0"}), Outside()) == ""
    assert "groups other shards" in record_objection(replace(record, version=2, units=units), Outside())


def test_a_cluster_forms_units_from_what_it_measures_and_captures_them_together():
    config = Config(
        scheduler="min_max", load_period_ns=100 * MS, load_window_ns=500 * MS, balance_ns=300 * MS,
        protection=Protection(period_ns=100 * MS),
    )  # fmt: skip
    run = Simulation(
        Setup(
            seed=1, nodes=3, topology=layered(stages=1, shards=12), config=config, safety_ms=3_000, keys=40,
            rows_per_second=400, costs=Costs(row_ns=100_000, capture_window_ns=20_000),
        )
    )  # fmt: skip
    assert not run.run().violation
    units = run.checker.record.units
    assert units
    places = run.checker.record.places
    for shard, unit in units.items():
        assert (places[shard].primary, places[shard].backup) == (places[unit].primary, places[unit].backup)
