"""Which sources have to go on before what waits can be consumed."""

from __future__ import annotations

from holdfast.checkpoint.behind import NeededMark, WaitingInput, WaitingShard, needed
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.ids import Asset, Edge, asset_id, shard_edge, shard_id
from holdfast.model.plan import OperatorPlan, Plan, StagePlan
from holdfast.model.topology import ShardSpec, StageSpec, Topology


def plan_of(shards: dict[str, tuple[str, ...]], between: dict[str, str] | None = None) -> Plan:
    """Operators of one shard and what each reads: a source, an operator, or a stage between that reads an operator."""
    between = between or {}
    made = {name: shard_edge(shard_id(name, 0)) for name in shards}
    specs, feeds = [], {}
    for name, reads in shards.items():
        shard = shard_id(name, 0)
        stages = [one for one in reads if one not in shards]
        for stage in stages:
            feeds.setdefault(stage, []).append(shard)
        inputs = sorted([made[one] for one in reads if one in shards] + [Edge(f"{s}>{shard}") for s in stages])
        specs.append(ShardSpec(id=shard, inputs=tuple(inputs), outputs=(made[name],)))
    topology = Topology(
        shards=tuple(specs),
        stages=tuple(StageSpec(id=Asset(s), shards=tuple(into), query="q") for s, into in feeds.items()),
        readers=(),
    )
    operators = [
        OperatorPlan(name=name, kind="join", shards=1, mode="none", inputs=(), settings={}, output=b"")
        for name in shards
    ]
    stages = [
        StagePlan(id=Asset(s), kind="between", reads=(between[s],)) if s in between else StagePlan(id=s, kind="source")
        for s in feeds
    ]
    return Plan(pipeline="p", query="q", topology=topology, operators=tuple(operators), stages=tuple(stages))


def shard(inputs: dict[str, tuple[int, int, int]], lag: int = 0) -> WaitingShard:
    """Watermark, the one before the last that waits, how many wait."""
    return WaitingShard(lag, {Edge(edge): WaitingInput(*at) for edge, at in inputs.items()})


def named(waits: dict[str, WaitingShard]) -> dict[Asset, WaitingShard]:
    return {asset_id(name): one for name, one in waits.items()}


def at(waits: dict[str, WaitingShard], plan: Plan) -> dict[str, int]:
    return {source: one.mark for source, one in needed(plan, named(waits)).items()}


JOIN = plan_of({"j": ("a", "b", "c")})


def test_the_source_that_is_behind_is_needed_up_to_where_the_last_batch_of_the_other_waits():
    waits = {"j-0": shard({"a>j-0": (10, 40, 3), "b>j-0": (5, 5, 0), "c>j-0": (41, 41, 0)})}
    assert needed(JOIN, named(waits)) == {"b": NeededMark(40, "j", "a")}


def test_of_equal_watermarks_an_edge_whose_id_comes_first_has_to_be_further():
    waits = {"j-0": shard({"a>j-0": (5, 5, 0), "b>j-0": (10, 40, 3), "c>j-0": (5, 5, 0)})}
    assert at(waits, JOIN) == {"a": 41, "c": 40}


def test_a_source_that_has_ended_waits_with_its_last_batch_where_the_one_before_ended():
    """Nobody could come to the watermark of a final batch."""
    waits = {"j-0": shard({"a>j-0": (40, 40, 2), "b>j-0": (5, 5, 0), "c>j-0": (WATERMARK_MAX, WATERMARK_MAX, 0)})}
    assert at(waits, JOIN) == {"b": 40}


def test_of_several_that_wait_the_furthest_says_how_far_the_others_have_to_go():
    waits = {"j-0": shard({"a>j-0": (10, 20, 3), "b>j-0": (10, 30, 3), "c>j-0": (9, 9, 0)})}
    assert at(waits, JOIN) == {"a": 31, "c": 30}


def test_nothing_is_needed_where_nothing_waits():
    waits = {"j-0": shard({"a>j-0": (10, 10, 0), "b>j-0": (5, 5, 0), "c>j-0": (1, 1, 0)})}
    assert needed(JOIN, named(waits)) == {}


def test_the_sources_of_an_operator_have_to_go_on_for_its_lag_as_well():
    plan = plan_of({"j": ("a", "b"), "k": ("j", "c")})
    waits = {
        "j-0": shard({"a>j-0": (12, 12, 0), "b>j-0": (11, 11, 0)}, 7),
        "k-0": shard({"c>k-0": (10, 30, 2), shard_edge(shard_id("j", 0)): (4, 4, 0)}),
    }
    assert at(waits, plan) == {"a": 37, "b": 37}
    assert at({"k-0": waits["k-0"]}, plan) == {"a": 30, "b": 30}  # a node that does not answer: what is certain


def test_a_stage_between_operators_goes_on_when_what_it_reads_does():
    plan = plan_of({"j": ("a",), "k": ("m", "c")}, between={"m": "j"})
    waits = {
        "j-0": shard({"a>j-0": (12, 12, 0)}, 7),
        "k-0": shard({"c>k-0": (10, 30, 2), "m>k-0": (5, 5, 0)}),
    }
    assert at(waits, plan) == {"a": 37}
