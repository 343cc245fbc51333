"""Stages, operators and edges of pipelines; no Spark."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.pipeline import describe, explain
from holdfast.pipeline.layout import lay_out


def source(pipeline, name=None, event_time="ts"):
    return pipeline.read(lambda spark: None, event_time=event_time, watermark="2 s", name=name)


def write(stream, name=None):
    stream.write(lambda df: df.writeStream, name=name)


def counts(stream, by="k", **options):
    return stream.window("10 s").by(by).agg(n=hf.count(), **options)


def test_import_is_light_and_a_pipeline_needs_no_pyspark():
    code = (
        "import sys, holdfast as hf; assert not {'pyspark', 'numba', 'pyarrow'} & set(sys.modules); "
        "hf.Pipeline('p'); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_stateless_runs_become_one_stage_each():
    p = hf.Pipeline("p")
    stream = source(p).map(lambda df: df).filter("x > 0").map(lambda df: df)
    write(counts(stream, name="talkers").map(lambda df: df).filter("n > 1"), name="out")
    layout = lay_out(p)
    assert {s.id: (s.kind, len(s.branches[0].steps)) for s in layout.stages.values()} == {
        "talkers_in": ("source", 3),
        "out": ("sink", 2),
    }


def test_two_operators_of_one_chain_share_its_stage():
    p = hf.Pipeline("p")
    stream = source(p).map(lambda df: df)
    write(counts(stream, name="a"))
    write(counts(stream, name="b", shards=2))
    layout = lay_out(p)
    assert layout.stages["a_in"].feeds == [("a", 0), ("b", 0)]
    topology = layout.topology("q")
    assert topology.stage["a_in"].shards == ("a-0", "a-1", "a-2", "a-3", "b-0", "b-1")
    assert topology.shard["b-1"].inputs == ("a_in>b-1",)


def test_chains_of_one_source_share_its_stage_each_with_an_outlet():
    p = hf.Pipeline("p")
    stream = source(p, "packets")
    write(counts(stream, name="a"))
    write(counts(stream.filter("k = 1"), name="b", shards=2))
    write(counts(stream, name="c"))
    (stage,) = (s for s in lay_out(p).stages.values() if s.kind == "source")
    assert (stage.id, stage.feeds) == ("packets", [("a", 0), ("b", 0), ("c", 0)])
    assert (stage.outlets, stage.fed_with) == (("a", "b"), [0, 1, 0])


def test_two_chains_of_one_source_into_one_operator_are_two_stages():
    p = hf.Pipeline("p")
    stream = source(p, "rides")
    left, right = stream.filter("k = 1"), stream.filter("k = 2")
    write(left.join(right, on="id", within="1 h", name="pairs"))
    assert [s.id for s in lay_out(p).stages.values() if s.kind == "source"] == ["rides", "rides_2"]


def test_the_same_chain_twice_into_one_operator_makes_two_stages():
    p = hf.Pipeline("p")
    stream = source(p)
    write(stream.join(stream, on="id", within="1 h", name="pairs"))
    layout = lay_out(p)
    assert [i.source for i in layout.operators["pairs"].inputs] == ["pairs_left", "pairs_right"]
    assert layout.topology("q").shard["pairs-0"].inputs == ("pairs_left>pairs-0", "pairs_right>pairs-0")


def test_stateful_operators_without_a_step_between_are_joined_shard_to_shard():
    p = hf.Pipeline("p")
    first = counts(source(p), name="first", shards=2)
    second = counts(first, by="n", name="second", shards=3)
    write(second)
    write(first, name="all")
    layout = lay_out(p)
    topology = layout.topology("q")
    assert topology.shard["first-0"].outputs == ("first-0.0", "first-0.1", "first-0.2", "first-0.3")
    assert topology.shard["second-1"].inputs == ("first-0.2", "first-1.2")
    assert topology.consumers["first-0.2"] == ("second-1",)
    assert topology.consumers["first-0.0"] == ("all",)


def test_ports_follow_the_order_of_consumers():
    p = hf.Pipeline("p")
    first = counts(source(p), name="first", shards=1)
    write(counts(first, by="n", name="b", shards=2))
    write(counts(first, by="n", name="c", shards=2))
    topology = lay_out(p).topology("q")
    assert topology.shard["b-0"].inputs == ("first-0.1",)
    assert topology.shard["c-0"].inputs == ("first-0.3",)
    assert topology.shard["c-1"].inputs == ("first-0.4",)


def test_a_step_between_operators_is_a_stage_that_reads_and_feeds():
    p = hf.Pipeline("p")
    first = counts(source(p), name="first", shards=2)
    write(counts(first.filter("n > 1"), name="second", shards=1))
    layout = lay_out(p)
    stage = layout.stages["second_in"]
    assert (stage.kind, stage.reads, stage.feeds) == ("between", ("first",), [("second", 0)])
    topology = layout.topology("q")
    assert next(r for r in topology.readers if r.id == "second_in").edges == ("first-0.0", "first-1.0")
    assert topology.stage["second_in"].shards == ("second-0",)


def test_a_union_before_an_operator_gives_it_several_inputs():
    p = hf.Pipeline("p")
    a, b = source(p, "a"), source(p, "b")
    write(counts(a.union(b).map(lambda df: df), name="both", shards=1))
    layout = lay_out(p)
    assert layout.topology("q").shard["both-0"].inputs == ("a>both-0", "b>both-0")
    assert [len(layout.stages[s].branches[0].steps) for s in ("a", "b")] == [1, 1]


def test_a_union_of_results_is_one_sink_that_reads_several_operators():
    p = hf.Pipeline("p")
    stream = source(p)
    a, b = counts(stream, name="a", shards=1), counts(stream, name="b", shards=1)
    write(a.union(b.map(lambda df: df)), name="out")
    topology = lay_out(p).topology("q")
    assert next(r for r in topology.readers if r.id == "out").edges == ("a-0.0", "b-0.0")
    assert topology.stage["out"].shards == ()


def test_sinks_and_stages_are_placed_under_the_ids_of_their_readers():
    p = hf.Pipeline("p")
    write(counts(source(p), name="a"))
    topology = lay_out(p).topology("q")
    assert {r.id for r in topology.readers} <= set(topology.stage)
    assert topology.stage["a_in"].delay_ns == 2_000_000, "in units of the watermark: microseconds"
    assert topology.stage["a_in"].tick_ns == 1_000


def test_default_names_are_telling_and_free():
    p = hf.Pipeline("p")
    stream = source(p)
    for _ in range(2):
        write(stream.window("1 s").by("Src IP").agg(n=hf.count()))
    write(stream.window("1 s").agg(n=hf.count()))
    assert list(lay_out(p).operators) == ["by_src_ip", "by_src_ip_2", "all"]
    assert [s for s in lay_out(p).stages if s.startswith("out")] == ["out_0", "out_1", "out_2"]


def test_without_a_key_there_is_one_shard():
    p = hf.Pipeline("p")
    write(source(p).window("1 s").agg(n=hf.count(), name="all"))
    assert lay_out(p).operators["all"].shards == 1


def test_the_same_pipeline_gives_the_same_layout():
    def make():
        p = hf.Pipeline("p")
        stream = source(p, "s").map(lambda df: df)
        first = counts(stream, name="first")
        write(first.join(stream.window("10 s").by("j").agg(m=hf.max("v")), on=[("k", "j")], window="10 s"))
        write(counts(first.filter("n > 1")))
        return lay_out(p).topology("q")

    assert make() == make()


def test_explain_says_what_will_run(capsys):
    p = hf.Pipeline("p")
    stream = source(p, "packets").filter("x > 0")
    talkers = stream.window("10 s", every="1 s").by("src").agg(n=hf.count(), name="talkers", shards=8)
    write(talkers, name="alerts")
    text = p.explain()
    assert capsys.readouterr().out.strip() == text
    for line in (
        "pipeline p: 2 stages, 1 operator, 8 shards, 16 edges",
        "stage packets (source)",
        "watermark 2 s behind",
        "feeds talkers over 8 edges",
        "operator talkers: windows of 10 s every 1 s by src: n=count(*)",
        "8 shards talkers-0..7, mode auto",
        "stage alerts (sink)",
        "reads talkers",
    ):
        assert line in text
    described = describe(p)
    assert described["operators"][0]["inputs"][0] == {"from": "packets", "by": ["src"], "direct": False, "edges": 8}
    assert explain(p) == text


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(match):
    return pytest.raises(ConfigError, match=match)


def test_names_are_checked():
    p = hf.Pipeline("p")
    stream = source(p, "packets")
    with refused("two operators are named 'packets'"):
        counts(stream, name="packets")
    with refused("name 'Big Talkers' cannot be used"):
        counts(stream, name="Big Talkers")
    with refused("pipeline name 'Net Mon' cannot be used"):
        hf.Pipeline("Net Mon")


def test_a_source_says_when_and_how_late():
    p = hf.Pipeline("p")
    with refused("read packets: no event time is given"):
        p.read(lambda spark: None, watermark="1 s", name="packets")
    with refused("read: no watermark is given"):
        p.read(lambda spark: None, event_time="ts")
    with refused("read: a function is needed"):
        p.read("in/", event_time="ts", watermark="1 s")


@pytest.mark.parametrize("most", [-1, 2.5, True, "10"])
def test_a_source_says_how_many_rows_may_be_bad(most):
    with refused("read: bad_rows_max must be a whole number, 0 or more"):
        hf.Pipeline("p").read(lambda spark: None, event_time="ts", watermark="1 s", bad_rows_max=most)
    with refused("port packets: future_max is not a duration"):
        hf.Pipeline("p").port("packets", schema="ts timestamp", event_time="ts", watermark="1 s", future_max=5)


def test_a_window_is_a_multiple_of_its_step():
    stream = source(hf.Pipeline("p"))
    with refused("not a multiple of its step") as error:
        stream.window("10 s", every="3 s")
    assert "9 s or 12 s" in error.value.hint
    assert "test_pipeline_layout.py:" in error.value.detail
    with refused("cannot be used"):
        stream.window("1 s", every="2 s")
    with refused("cannot be used"):
        stream.window("0 s")
    with refused("multiple"):
        stream.window(rows=100, every=30)
    with refused("either a size or a number of rows"):
        stream.window()
    with refused("either a size or a number of rows"):
        stream.window("1 s", rows=5)


def test_an_operator_says_what_of_it_is_kept_in_the_store_and_how_often():
    p = hf.Pipeline("p")
    stream = source(p)
    write(counts(stream, name="talkers", checkpoint="paged", checkpoint_every="2 seconds"))
    assert "mode auto, checkpoint paged every 2 s" in explain(p)
    with refused("checkpoint='often' is not known"):
        counts(stream, name="often", checkpoint="often")
    with refused('checkpoint_every is given, but checkpoint="none"'):
        counts(stream, name="both", checkpoint="none", checkpoint_every="2 seconds")
    with refused("checkpoint_every must lie between 10 ms and an hour"):
        counts(stream, name="rare", checkpoint_every="2 hours")


def test_an_operator_says_how_long_its_recovery_may_take():
    p = hf.Pipeline("p")
    stream = source(p)
    write(counts(stream, name="talkers", recover_in="300 ms"))
    assert "recovered in 300 ms" in explain(p)
    with refused('recover_in is given, but mode="none" keeps no copy'):
        counts(stream, name="none", mode="none", recover_in="300 ms")
    for wrong in ("5 ms", "0 s", "2 hours"):
        with refused("recover_in must lie between 10 ms and an hour"):
            counts(stream, name="wrong", recover_in=wrong)
    with refused("recover_in"):
        counts(stream, name="wrong", recover_in=300)


def test_a_mode_that_is_not_known_says_which_are():
    stream = source(hf.Pipeline("p"))
    with refused("mode 'turbo' is not known") as error:
        counts(stream, mode="turbo")
    assert "'none', 'replay', 'passive', 'hybrid', 'active', and 'auto'" in error.value.hint


def test_mode_replay_is_for_windows_over_event_time_alone():
    p = hf.Pipeline("p")
    stream = source(p)
    write(counts(stream, name="talkers", mode="replay"))
    assert "mode replay" in explain(p)
    assert lay_out(p).topology("q").timeless == ()
    write(stream.join(source(p, name="other"), on="k", within="1 s", name="pairs"))
    assert lay_out(p).topology("q").timeless == ("pairs",)
    with refused("a join cannot be in mode 'replay'"):
        stream.join(stream, on="k", within="1 s", name="twins", mode="replay")
    with refused("a window that counts rows cannot be in mode 'replay'"):
        stream.window(rows=5).by("k").agg(n=hf.count(), name="fives", mode="replay")
    with refused('recover_in is given, but mode="replay" keeps no copy'):
        counts(stream, name="late", mode="replay", recover_in="300 ms")
    with refused("twice: mode 'replay' keeps no second copy"):
        counts(stream, name="twice", mode="replay", copies=2)


def test_two_copies_are_what_every_mode_but_none_keeps():
    stream = source(hf.Pipeline("p"))
    counts(stream, name="twice", mode="active", copies=2)
    with refused("thrice: mode 'active' keeps 2 copies of every shard, not 3"):
        counts(stream, name="thrice", mode="active", copies=3)
    with refused("once: mode 'none' keeps no second copy"):
        counts(stream, name="once", mode="none", copies=2)


def test_aggregates_are_checked():
    stream = source(hf.Pipeline("p"))
    with refused("talkers: no aggregate is given"):
        stream.window("1 s").by("k").agg(name="talkers")
    with refused("talkers: n='count' is not an aggregate"):
        stream.window("1 s").by("k").agg(n="count", name="talkers")
    with refused("talkers: shards must be 1 to 1024"):
        counts(stream, name="talkers", shards=0)
    with refused("all: shards=4 without a key"):
        stream.window("1 s").agg(n=hf.count(), shards=4)
    with refused("is not a column name"):
        stream.window("1 s").by(lambda df: df)


def test_joins_are_checked():
    p = hf.Pipeline("p")
    a, b = source(p), source(p)
    with refused("join: give either within or window"):
        a.join(b, on="k")
    with refused("join: on="):
        a.join(b, on=[], within="1 s")
    with refused("how='full' is not known"):
        a.join(b, on="k", within="1 s", how="full")
    with refused("pairs: within=.* is empty"):
        a.join(b, on="k", within=("5 s", "1 s"), name="pairs")
    with refused("two pipelines"):
        a.join(source(hf.Pipeline("q")), on="k", within="1 s")


def test_every_result_is_written():
    p = hf.Pipeline("p")
    with refused("pipeline 'p' reads nothing"):
        lay_out(p)
    stream = source(p, "packets")
    with refused("pipeline 'p' has no sink"):
        lay_out(p)
    talkers = counts(stream, name="talkers")
    write(talkers)
    counts(stream, name="loose")
    with refused("operator loose: its result is not used"):
        lay_out(p)


def test_a_loose_step_is_named_by_its_line():
    p = hf.Pipeline("p")
    stream = source(p)
    write(counts(stream))
    stream.map(lambda df: df)
    with refused(r"map \(test_pipeline_layout.py:\d+\): its result is not used"):
        lay_out(p)


def test_a_sink_needs_something_stateful_before_it():
    p = hf.Pipeline("p")
    write(source(p, "packets").map(lambda df: df), name="out")
    with refused("out: nothing stateful stands between read packets"):
        lay_out(p)


def test_windows_of_rows_have_no_event_time_to_window_again():
    p = hf.Pipeline("p")
    write(counts(source(p).window(rows=10).by("k").agg(n=hf.count(), name="tens"), name="again"))
    with refused("again: the result of count windows tens has no event time"):
        lay_out(p)


def test_a_join_has_the_event_time_of_its_left_side():
    p = hf.Pipeline("p")
    left = source(p, event_time="asked")
    pairs = left.join(source(p, event_time="spoken"), on="k", within="1 s", name="pairs")
    write(counts(pairs, name="again"))
    assert lay_out(p).operators["again"].inputs[0].branch.event_time == "asked"


def port(pipeline, name="packets"):
    return pipeline.port(name, schema="ts timestamp, k string", event_time="ts", watermark="2 s")


def test_a_port_is_a_stage_of_its_own_name_that_no_node_runs():
    p = hf.Pipeline("p")
    packets = port(p, "a_in")  # the name that the stage of `a` would have
    write(counts(packets, name="b"))
    write(counts(source(p).map(lambda df: df), name="a"))
    layout = lay_out(p)
    assert {s.id: s.kind for s in layout.stages.values() if s.kind != "sink"} == {"a_in": "port", "a_in_2": "source"}
    specs = layout.topology("q").stage
    assert (specs["a_in"].foreign, specs["a_in"].delay_ns) == (True, 2_000_000)
    assert not specs["a_in_2"].foreign
    assert "stage a_in (port)" in explain(p)


def test_two_operators_share_a_port_and_a_union_may_have_one():
    p = hf.Pipeline("p")
    packets = port(p)
    write(counts(packets, name="a"))
    write(counts(packets.union(source(p, name="more")), name="b"))
    layout = lay_out(p)
    assert layout.stages["packets"].feeds == [("a", 0), ("b", 0)]
    assert layout.stages["more"].feeds == [("b", 1)]


def test_what_a_port_cannot_do_is_said():
    p = hf.Pipeline("p")
    write(counts(port(p).map(lambda df: df), name="a"))
    with pytest.raises(ConfigError, match=r"a: map .* stands between port packets") as error:
        lay_out(p)
    assert "in the program that writes" in error.value.hint
    p = hf.Pipeline("p")
    packets = port(p)
    write(packets.join(packets, on="k", within="1 s", name="j"))
    with pytest.raises(ConfigError, match="j: takes port packets"):
        lay_out(p)
    with pytest.raises(ConfigError, match="no watermark"):
        hf.Pipeline("p").port("x", schema="ts timestamp", event_time="ts")


def test_an_arrow_sink_takes_the_rows_of_one_operator_as_they_are():
    p = hf.Pipeline("p")
    counts(source(p, "a"), name="talkers").write_arrow(lambda table, batch: None, name="out")
    stage = lay_out(p).stages["out"]
    assert (stage.kind, stage.reads) == ("sink", ("talkers",))


def test_what_an_arrow_sink_cannot_do_is_said():
    p = hf.Pipeline("p")
    counts(source(p, "a"), name="x").filter("n > 1").write_arrow(lambda table, batch: None, name="out")
    with pytest.raises(ConfigError, match=r"out: filter \(.*\) stands between x and write_arrow"):
        lay_out(p)
    p = hf.Pipeline("p")
    both = counts(source(p, "a"), name="x").union(counts(source(p, "b"), name="y"))
    both.write_arrow(lambda table, batch: None, name="out")
    with pytest.raises(ConfigError, match="out: write_arrow takes the result of one operator, not a union"):
        lay_out(p)
    with pytest.raises(ConfigError, match="write_arrow"):
        counts(source(p, "c"), name="z").write_arrow("not a function")  # pyright: ignore[reportArgumentType]


async def later(table, batch): ...


def yielding(table, batch):
    yield table


class AsyncSink:
    async def __call__(self, table, batch): ...


def given_one(table): ...


def given_named(table, batch, *, more): ...


@pytest.mark.parametrize("function", [later, yielding, AsyncSink(), partial(later, batch=None), given_one, given_named])
def test_a_function_that_would_never_write_a_row_or_cannot_be_called_is_refused_as_an_arrow_sink(function):
    with pytest.raises(ConfigError, match=r"write_arrow out: .*") as raised:
        counts(source(hf.Pipeline("p"), "a"), name="x").write_arrow(function, name="out")
    assert "test_pipeline_layout.py:" in raised.value.detail


def test_functions_objects_and_built_in_functions_of_two_arguments_are_arrow_sinks():
    class Sink:
        def __call__(self, table, batch): ...

        def keep(self, *given): ...

    for function in (Sink(), Sink().keep, partial(print, "x"), print, lambda table, batch, more=1: None):
        counts(source(hf.Pipeline("p"), "a"), name="x").write_arrow(function)


def test_a_batch_of_an_arrow_sink_has_a_key_of_its_own_among_all_runs_and_sinks():
    batch = hf.SinkBatch(run="p-1", sink="out", number=7, positions={"x-0.0": 12})
    assert batch.key == "p-1/out/7"
