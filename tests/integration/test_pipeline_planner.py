"""Plans of pipelines with Spark's schemas; and wrong pipelines, which fail before anything starts."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.cli.planning import plan_file
from holdfast.errors import ConfigError
from holdfast.model.plan import Plan
from holdfast.operators import build, rows_schema, wire_schema
from holdfast.pipeline import describe, feed_of, plan

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, src string, bytes long, ratio double, tags array<string>, text_ts string, day date"
TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "in").mkdir()
    return str(tmp_path / "in")


class Maker:
    """Pipelines over one json source."""

    def __init__(self, files, out):
        self.files, self.out = files, out
        self.p = hf.Pipeline("p")

    def source(self, schema=SCHEMA, event_time="ts", **options):
        files = self.files
        return self.p.read(
            lambda spark: spark.readStream.schema(schema).json(files), event_time=event_time, watermark="2 s", **options
        )

    def counts(self, stream, *by, name="talkers", **options):
        return stream.window("10 s", every="1 s").by(*(by or ("src",))).agg(n=hf.count(), name=name, **options)

    def write(self, stream, name="out"):
        out = self.out if name == "out" else f"{self.out}_{name}"
        stream.write(lambda df: df.writeStream.format("parquet").option("path", out), name=name)
        return self.p


@pytest.fixture
def make(files, tmp_path):
    return Maker(files, str(tmp_path / "out"))


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_has_the_types_that_toarrow_gives_and_survives_json(spark, make):
    stream = make.source(idle="30 s", trigger="100 ms", late_to="/tmp/late").map(lambda df: df.where("bytes > 0"))
    talkers = (
        stream.window("10 s", every="1 s").by("src", "day").agg(n=hf.count(), mean=hf.avg("bytes"), name="talkers")
    )
    made = plan(make.write(talkers), spark)
    operator = made.operator("talkers")
    assert wire_schema(operator.inputs[0]) == pa.schema(
        [("ts", TIME), ("src", pa.string()), ("day", pa.date32()), ("bytes", pa.int64())]
    )
    output = pa.ipc.read_schema(pa.py_buffer(operator.output))
    assert output.types == [TIME, TIME, pa.string(), pa.date32(), pa.int64(), pa.float64()]
    stage = made.stage("talkers_in")
    assert (stage.delay_us, stage.idle_ns, stage.trigger_ms, stage.late_to) == (2_000_000, 30 * 10**9, 100, "/tmp/late")
    assert operator.inputs[0].partial
    feed = feed_of(operator, 0)
    assert list(feed.group) == ["pane_start", "src", "day"]
    assert next(iter(feed.partial)) == "n__count"
    again = msgspec.json.decode(msgspec.json.encode(made), type=Plan)
    assert again == made
    assert build(again.operator("talkers")).output_schema == output


def test_the_same_file_gives_the_same_plan_and_another_query_on_request(spark, files, tmp_path):
    def made():
        m = Maker(files, str(tmp_path / "out"))
        return m.write(m.counts(m.source().filter("bytes > 0")))

    assert plan(made(), spark) == plan(made(), spark)
    assert plan(made(), spark).query.startswith("p-")
    assert plan(made(), spark, query="q7").topology.stage["talkers_in"].query == "q7"


def test_a_source_without_end_is_known_as_such(spark, make):
    def numbers(spark):
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()

    stream = make.p.read(numbers, event_time="timestamp", watermark="1 s")
    make.write(make.counts(stream, "value"))
    make.write(make.counts(make.source(), name="other"), "out_2")
    made = plan(make.p, spark)
    assert [s.endless for s in made.stages if s.kind == "source"] == [True, False]


def test_what_needs_the_rows_is_not_sent_in_part(spark, make):
    stream = make.source().window("10 s").by("src").agg(f=hf.first("bytes"), name="talkers")
    operator = plan(make.write(stream), spark).operator("talkers")
    assert not operator.inputs[0].partial
    assert feed_of(operator, 0).partial == {}


def test_windows_over_windows_go_by_the_end_of_the_window(spark, make):
    talkers = make.counts(make.source())
    top = talkers.window("1 s").agg(most=hf.max("n"), name="top")
    pairs = talkers.join(
        top, on=[("n", "most")], window="1 s", name="pairs", where="n >= most and right_window_end is not null"
    )
    made = plan(make.write(pairs), spark)
    given = made.operator("top").inputs[0]
    assert (given.source, given.event_time, given.partial) == ("talkers", "window_time", False)
    assert "window_time" not in wire_schema(given).names
    assert "window_time" in rows_schema(given).names
    right = made.operator("pairs").inputs[1]
    assert right.rename == {c: f"right_{c}" for c in ("window_start", "window_end", "window_time")}
    names = pa.ipc.read_schema(pa.py_buffer(made.operator("pairs").output)).names
    assert names[:5] == ["window_start", "window_end", "src", "n", "window_time"]
    assert "right_window_end" in names
    assert made.operator("talkers").feeds == (("top", 0, 1, ()), ("pairs", 0, 4, ("n",)))


def test_a_stage_between_operators_has_the_event_time_of_what_it_reads(spark, make):
    talkers = make.counts(make.source())
    again = talkers.filter("n > 1").window("10 s").by("src").agg(m=hf.sum("n"), name="again")
    made = plan(make.write(again), spark)
    stage = made.stage("again_in")
    assert (stage.kind, stage.reads, stage.event_time) == ("between", ("talkers",), "window_time")
    assert wire_schema(made.operator("again").inputs[0]).names == ["window_time", "src", "n"]


def test_a_join_of_streams_holds_all_columns_under_names_of_their_own(spark, make):
    left = make.source("ts timestamp, src string, a long")
    right = make.source("ts timestamp, src string, b long")
    made = plan(make.write(left.join(right, on="src", within=("0s", "5s"), how="left", name="pairs")), spark)
    operator = made.operator("pairs")
    assert operator.settings["on"] == [["src", "right_src"]]
    assert operator.settings["within"] == [0, 5_000_000]
    assert operator.inputs[1].by == ("src",), "cut by the name on the edge"
    assert build(operator).output_schema.names == ["ts", "src", "a", "right_ts", "right_src", "b"]


def test_planning_names_sinks_that_may_double(spark, make):
    stream = make.counts(make.source())
    stream.write(lambda df: df.writeStream.format("console"), name="shown")
    stream.write(lambda df: df.writeStream.foreachBatch(lambda f, i: None), name="own")
    make.write(stream)
    plan(make.p, spark)
    assert [w.partition(":")[0] for w in make.p.warnings] == ["shown", "own"]
    assert all("twice after a failure" in w for w in make.p.warnings)
    sinks = {s["id"]: s for s in describe(make.p, spark)["stages"] if s["kind"] == "sink"}
    assert sinks["out"]["idempotent"]
    assert sinks["out"]["path"] == make.out
    assert not sinks["own"]["idempotent"]
    assert "writes parquet" in make.p.explain(spark)


# -- wrong pipelines --------------------------------------------------------------------------------------------------


def refuse(spark, pipeline, match, detail=""):
    with pytest.raises(ConfigError, match=match) as error:
        plan(pipeline, spark)
    assert detail in error.value.detail
    assert "\n" not in error.value.what
    assert spark.streams.active == []
    return error.value


def test_unknown_columns_are_named_with_the_nearest(spark, make):
    error = refuse(spark, make.write(make.counts(make.source(), "Src")), "talkers: no column named 'Src'", "src, bytes")
    assert "'src'" in error.hint


def test_unknown_columns_of_aggregates_steps_and_joins_are_named(spark, make):
    stream = make.source()
    agg = stream.window("1 s").by("src").agg(s=hf.sum("octets"), name="talkers")
    refuse(spark, make.write(agg), "talkers: no column named 'octets'")


def test_an_unknown_column_in_a_map_names_the_map(spark, make):
    stream = make.counts(make.source().map(lambda df: df.select("ts", "nosuch")))
    refuse(spark, make.write(stream), r"map \(test_pipeline_planner.py:\d+\): no column named 'nosuch'")


def test_an_unknown_column_in_a_filter_after_an_operator_names_the_filter(spark, make):
    stream = make.counts(make.source()).filter("packets > 3")
    refuse(spark, make.write(stream), r"filter \(test_pipeline_planner.py:\d+\): no column named 'packets'")


def test_an_unknown_key_of_a_join_is_named(spark, make):
    pairs = make.source("ts timestamp, a long").join(
        make.source("ts timestamp, b long"), on="a", within="1 s", name="pairs"
    )
    refuse(spark, make.write(pairs), "pairs: no column named 'a'", "ts, b")


def test_no_event_time(spark, make):
    stream = make.counts(make.source().map(lambda df: df.drop("ts")))
    refuse(spark, make.write(stream), "talkers: no (event time|column named 'ts')")


def test_no_event_time_after_a_window(spark, make):
    stream = make.counts(make.source()).map(lambda df: df.drop("window_end")).window("10 s").by("src")
    refuse(spark, make.write(stream.agg(m=hf.sum("n"), name="again")), "again: no event time", "'window_end'")


def test_an_event_time_that_is_no_timestamp(spark, make):
    stream = make.counts(make.source(event_time="text_ts"))
    refuse(spark, make.write(stream), "talkers: event time 'text_ts' is not a timestamp", "string")


def test_keys_and_aggregates_of_types_that_cannot_be_held(spark, make):
    refuse(
        spark, make.write(make.counts(make.source(), "tags")), "talkers: column 'tags' has a type that cannot be held"
    )


def test_a_sum_of_text_makes_no_sense(spark, make):
    stream = make.source().window("1 s").by("bytes").agg(s=hf.sum("src"), name="talkers")
    refuse(spark, make.write(stream), "talkers: sum of column 'src' makes no sense")


def test_keys_of_two_types_cannot_be_joined(spark, make):
    left, right = make.source("ts timestamp, a long"), make.source("ts timestamp, b string")
    pairs = left.join(right, on=[("a", "b")], within="1 s", name="pairs")
    refuse(spark, make.write(pairs), "pairs: keys 'a' and 'b' have different types")


def test_a_condition_that_a_node_cannot_compute(spark, make):
    left, right = make.source("ts timestamp, k long, a long"), make.source("ts timestamp, k long, b long")
    pairs = left.join(right, on="k", within="1 s", name="pairs", where="a < c")
    refuse(spark, make.write(pairs), "pairs: where='a < c' names no column 'c'")


@pytest.mark.parametrize("source", ["socket", "rate"])
def test_sources_that_cannot_be_replayed(spark, make, source):
    def read(spark):
        return spark.readStream.format(source).option("host", "localhost").option("port", 9).load()

    column = "timestamp" if source == "rate" else "value"
    stream = make.p.read(read, event_time=column, watermark="1 s", name="feed")
    error = refuse(spark, make.write(make.counts(stream)), f"read feed .*: source '{source}' cannot be replayed")
    assert "rate-micro-batch" in error.hint
    assert "kafka" in error.hint


def test_a_source_that_is_no_stream(spark, make):
    stream = make.p.read(lambda spark: spark.range(3), event_time="id", watermark="1 s")
    refuse(spark, make.write(make.counts(stream)), "read .*: the source is not a stream")


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("a streaming aggregation", lambda df: df.groupBy("src", "ts").count()),
        ("dropDuplicates or distinct", lambda df: df.dropDuplicates(["src"])),
        ("dropDuplicates or distinct", lambda df: df.select("ts", "src").distinct()),
        ("a join of two streams", lambda df: df.join(df.selectExpr("src as s"), df.src == df.src)),
        ("limit", lambda df: df.limit(5)),
    ],
    ids=["groupBy", "dropDuplicates", "distinct", "join", "limit"],
)
def test_state_inside_a_map(spark, make, what, function):
    stream = make.counts(make.source().map(function))
    refuse(spark, make.write(stream), rf"map \(test_pipeline_planner.py:\d+\): {what} needs state")


def test_an_aggregation_of_a_table_to_look_up_in_is_no_state(spark, make):
    def with_names(df):
        names = df.sparkSession.range(5).selectExpr("cast(id as string) as src", "id").groupBy("src").count()
        return df.join(names, "src")

    assert plan(make.write(make.counts(make.source().map(with_names))), spark).operators


@pytest.mark.parametrize(
    "sql", ["rand()", "uuid()", "monotonically_increasing_id()", "current_timestamp()", "1 + hash(now())"]
)
def test_functions_that_would_differ_in_a_replay(spark, make, sql):
    stream = make.counts(make.source().map(lambda df: df.selectExpr("*", f"{sql} as x")))
    refuse(spark, make.write(stream), r"map .*\(\) would give something else in a replay")


def test_unions_of_different_schemas(spark, make):
    a, b = make.source("ts timestamp, src string"), make.source("ts timestamp, src long")
    refuse(
        spark, make.write(make.counts(a.union(b))), "talkers: a union of different schemas", "'src' is string and int64"
    )


def test_unions_of_different_results(spark, make):
    stream = make.source()
    a, b = make.counts(stream, name="a"), stream.window("1 s").by("src").agg(m=hf.max("bytes"), name="b")
    refuse(spark, make.write(a.union(b)), "out: a union of different schemas", "'n' is bigint and missing")


@pytest.mark.parametrize("name", ["console", "noop", "memory", "org.apache.spark.sql.execution.datasources.noop.Noop"])
def test_formats_that_spark_has_are_taken(spark, make, name):
    known = name.replace(".Noop", ".NoopDataSource")
    make.counts(make.source()).write(lambda df: df.writeStream.format(known), name="out")
    assert plan(make.p, spark).stages


@pytest.mark.parametrize(
    ("match", "write"),
    [
        ("out: output mode 'complete'", lambda df: df.writeStream.format("parquet").outputMode("complete")),
        ("out: output mode 'update'", lambda df: df.writeStream.format("parquet").outputMode("update")),
        ("out: checkpointLocation", lambda df: df.writeStream.format("parquet").option("checkpointLocation", "x")),
        ("out: the writer starts the query itself", lambda df: df.writeStream.format("noop").start()),
        ("out: the writer starts the query itself", lambda df: df.writeStream.toTable("t")),
        ("out: Spark knows no sink format 'parkay'", lambda df: df.writeStream.format("parkay").option("path", "x")),
        ("out: Spark knows no sink format 'a.b.C'", lambda df: df.writeStream.format("a.b.C")),
        ("out: a parquet sink needs a path", lambda df: df.writeStream.format("parquet")),
        ("out: the function gives no DataStreamWriter", lambda df: df),
        ("out: the writer fails with", lambda df: df.nosuch.writeStream),
    ],
    ids=["complete", "update", "checkpoint", "start", "toTable", "format", "class", "path", "none", "fails"],
)
def test_writers_that_cannot_be_used(spark, make, match, write):
    make.counts(make.source()).write(write, name="out")
    refuse(spark, make.p, match)


def test_a_map_that_gives_no_frame(spark, make):
    stream = make.counts(make.source().map(lambda df: None))
    refuse(spark, make.write(stream), "map .*: the function gives no DataFrame")


def test_a_map_that_drops_the_stream(spark, make):
    stream = make.counts(make.source().map(lambda df: df.sparkSession.sql("select now() as ts, 'a' as src")))
    refuse(spark, make.write(stream), "map .*: (the function returns something that is not the stream|now)")


PRINTS = """
import holdfast as hf
pipeline = hf.Pipeline("p")
rows = pipeline.read(
    lambda spark: spark.readStream.schema("ts timestamp, src string").json(spark.conf.get("spark.test.input")),
    event_time="ts", watermark="2 s")
rows.window("10 s").by("src").agg(n=hf.count(), name="talkers").write(
    lambda df: df.writeStream.format("parquet").option("path", "out"), name="out")
print("hello", pipeline.explain())
"""


def test_a_file_that_prints_is_planned_and_refused_only_where_an_earlier_run_wrote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    file = tmp_path / "prints.py"
    file.write_text(PRINTS)
    conf = {"spark.test.input": "in"}  # the planner has the settings of the stages
    planned, warnings = plan_file(file, tmp_path / "run", query="q", conf=conf, runs_here=True)
    assert [s.id for s in planned.stages if s.kind == "sink"] == ["out"]
    assert warnings == []
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out" / "_spark_metadata" / "0").write_text("v1")
    with pytest.raises(ConfigError, match="sink out: out holds what an earlier run wrote"):
        plan_file(file, tmp_path / "fresh", query="q", conf=conf, runs_here=True)
