"""The audit itself: it recomputes what ran, and finds what is missing, doubled or wrong, by name."""

from __future__ import annotations

import datetime as dt
import json
import time
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.inprocess import InProcess

import holdfast as hf
from holdfast.errors import ConfigError, InputError
from holdfast.model.parts import GapFound
from holdfast.model.plan import to_core
from holdfast.pipeline import plan
from holdfast.pipeline.compare import compare, less
from holdfast.pipeline.recorded import EXPIRED, Expired, recorded
from holdfast.pipeline.replay import BatchSession, Progress
from holdfast.pipeline.verify import verify
from holdfast.spark import tidy as tidy_module
from holdfast.spark.tidy import KEEP

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIME = pa.timestamp("us", tz="UTC")


def rows(n, *, step_ms=100):
    """Deterministic rows; every 50th comes 20 s late, every 97th has no time."""
    for i in range(n):
        at = START + dt.timedelta(milliseconds=step_ms * i) - dt.timedelta(seconds=20 if i % 50 == 49 else 0)
        yield {"ts": None if i % 97 == 96 else at, "k": f"k{i % 7}", "v": i % 13, "x": (i % 11) / 7}


def write_files(folder, count=6, n=600):
    folder.mkdir(parents=True)
    every = list(rows(n))
    schema = pa.schema([("ts", TIME), ("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
    for i in range(count):
        part = every[i * n // count : (i + 1) * n // count]
        pq.write_table(pa.Table.from_pylist(part, schema=schema), folder / f"f {i:02d}.parquet")


SCHEMA = "ts timestamp, k string, v long, x double"


def read(pipeline, folder, name=None, **options):
    return pipeline.read(
        lambda spark: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)),
        event_time="ts",
        watermark="2 s",
        name=name,
        **options,
    )


class Ran:
    """A small pipeline that ran in process: sums over files, with late rows, and a sink to spoil."""

    def __init__(self, spark, tmp_path):
        write_files(tmp_path / "in")
        self.spark, self.dir, self.out = spark, tmp_path / "run", tmp_path / "out"
        self.pipeline = hf.Pipeline("sums")
        out = str(self.out)
        stream = read(self.pipeline, tmp_path / "in")
        sums = stream.window("10 s", every="5 s").by("k").agg(n=hf.count(), s=hf.sum("v"), m=hf.avg("x"), name="sums")
        sums.write(lambda df: df.where("n > 1").writeStream.format("parquet").option("path", out), name="out")
        self.plan = plan(self.pipeline, spark)
        self.process = InProcess(self.pipeline, self.plan, self.dir, spark)
        self.process.run(100)

    def verify(self, **options):
        return verify(self.pipeline, self.plan, self.dir, self.spark, **options)

    def table(self):
        table = pq.read_table(self.out)  # Spark writes nanoseconds, and cannot read them back from others
        times = [pa.field(f.name, TIME if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]
        return table.cast(pa.schema(times))

    def spoil(self, table):
        for file in self.out.iterdir():
            file.unlink()
        pq.write_table(table, self.out / "part-0.parquet")


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory):
    made = Ran(spark, tmp_path_factory.mktemp("verify"))
    made.good = made.table()
    return made


@pytest.fixture
def sink(ran):
    ran.spoil(ran.good)
    return ran


def test_what_ran_right_is_verified_with_its_counts(sink):
    verdict = sink.verify()
    assert verdict.ok, verdict.text()
    (stage,) = verdict.stages
    assert (stage.rows, stage.late > 0, stage.strange) == (600, True, 0)
    assert "equal, row for row" in verdict.text()
    assert json.loads(json.dumps(verdict.as_json()))["holds"] is True


def test_a_missing_row_is_found_and_named(sink):
    sink.spoil(sink.good.slice(1))
    lost = sink.good.slice(0, 1).to_pylist()[0]
    verdict = sink.verify()
    comparison = verdict.sinks[0].comparison
    assert (comparison.missing, comparison.doubled, comparison.wrong, comparison.unexpected) == (1, 0, 0, 0)
    (example,) = comparison.examples
    assert (example.kind, example.row["k"], example.row["n"]) == ("missing", lost["k"], str(lost["n"]))
    assert "NOT VERIFIED" in verdict.text()
    assert f"k={lost['k']}" in verdict.text()
    assert "sink out" in verdict.text()


def test_a_doubled_row_is_found_and_named(sink):
    sink.spoil(pa.concat_tables([sink.good, sink.good.slice(3, 1)]))
    comparison = sink.verify().sinks[0].comparison
    assert (comparison.missing, comparison.doubled, comparison.wrong, comparison.unexpected) == (0, 1, 0, 0)
    assert comparison.examples[0].row["k"] == sink.good.slice(3, 1).to_pylist()[0]["k"]


@pytest.mark.parametrize(("column", "value"), [("s", 10**6), ("m", 123.5)])
def test_a_wrong_value_is_found_and_named(sink, column, value):
    wrong = sink.good.to_pylist()
    right, wrong[2][column] = wrong[2][column], value
    sink.spoil(pa.Table.from_pylist(wrong, schema=sink.good.schema))
    comparison = sink.verify().sinks[0].comparison
    assert (comparison.missing, comparison.doubled, comparison.wrong, comparison.unexpected) == (0, 0, 1, 0)
    (example,) = comparison.examples
    assert example.found == {column: str(value)}
    assert float(example.row[column]) == pytest.approx(right)


def test_a_row_of_a_window_that_never_was_is_not_expected(sink):
    strange = sink.good.slice(0, 1).to_pylist()
    strange[0]["k"] = "nobody"
    sink.spoil(pa.concat_tables([sink.good, pa.Table.from_pylist(strange, schema=sink.good.schema)]))
    comparison = sink.verify().sinks[0].comparison
    assert (comparison.unexpected, comparison.missing) == (1, 0)


def test_doubles_that_differ_in_the_last_digit_are_equal(sink):
    near = sink.good.to_pylist()
    for row in near:
        row["m"] *= 1 + 1e-12
    sink.spoil(pa.Table.from_pylist(near, schema=sink.good.schema))
    assert sink.verify().ok


def test_only_windows_that_end_by_the_watermark_are_expected(sink):
    limit = int((START + dt.timedelta(seconds=30)).timestamp() * 1e6)
    ends = sink.good.column("window_end").cast(TIME).cast(pa.int64()).to_pylist()
    sink.spoil(sink.good.filter(pa.array([e <= limit for e in ends])))
    assert sink.verify(watermarks={"sums_in": limit}).ok
    assert not sink.verify().ok


def test_late_rows_may_have_maps_and_any_names(spark, tmp_path):
    (tmp_path / "in").mkdir()
    maps = pa.map_(pa.string(), pa.int64())
    types = [("ts", TIME), ("k", pa.string()), ("a.b `c`", pa.int64()), ("m.n", maps), ("l", pa.list_(maps))]
    every = [
        {"ts": r["ts"], "k": r["k"], "a.b `c`": r["v"], "m.n": m, "l": [m, None]}
        for i, r in enumerate(rows(600))
        for m in [[("x", i % 3), ("y", None)] if i % 4 else None]
        for _ in range(2)  # each row twice: one that is late takes only its own with it
    ]
    for i in range(6):
        part = pa.Table.from_pylist(every[i * 200 : (i + 1) * 200], schema=pa.schema(types))
        pq.write_table(part, tmp_path / "in" / f"{i}.parquet")
    columns = "ts timestamp, k string, `a.b ``c``` long, `m.n` map<string, long>, l array<map<string, long>>"
    p, out = hf.Pipeline("odd"), str(tmp_path / "out")
    source = str(tmp_path / "in")
    stream = p.read(
        lambda spark: spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(source),
        event_time="ts",
        watermark="2 s",
    )
    summed = stream.window("5 s").by("k").agg(n=hf.count(), name="odd")
    summed.write(lambda df: df.writeStream.format("parquet").option("path", out), name="out")
    planned = plan(p, spark)
    InProcess(p, planned, tmp_path / "run", spark).run(100)
    verdict = verify(p, planned, tmp_path / "run", spark)
    assert verdict.ok, verdict.text()
    (stage,) = verdict.stages
    assert (stage.rows, stage.late > 0, stage.strange) == (1200, True, 0)


def test_each_late_row_is_taken_away_once_also_where_rows_are_alike_or_hold_nulls(spark):
    schema = "k string, v double"
    every = [
        ("a", 1.0),
        ("a", 1.0),
        ("a", 1.0),
        ("b", None),
        ("b", None),
        (None, None),
        ("c", float("nan")),
        ("d", 2.0),
    ]
    late = [("a", 1.0), ("a", 1.0), ("b", None), (None, None), ("c", float("nan")), ("e", 5.0)]
    left = less(spark.createDataFrame(every, schema), spark.createDataFrame(late, schema)).collect()
    assert sorted(map(tuple, left), key=repr) == [("a", 1.0), ("b", None), ("d", 2.0)]


def test_late_rows_that_were_never_read_are_noticed(sink):
    folder = sink.dir / "late" / "sums_in"
    planted = folder / "batch=999.parquet"
    strange = pq.read_table(next(folder.glob("batch=*.parquet"))).slice(0, 1).to_pylist()
    strange[0]["k"] = "nobody"
    schema = pa.schema([("ts", TIME), ("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
    pq.write_table(pa.Table.from_pylist(strange, schema=schema), planted)
    try:
        verdict = sink.verify()
    finally:
        planted.unlink()
    assert not verdict.ok
    assert "never read" in verdict.text()


def test_late_rows_that_are_merged_are_left_out_as_before(sink):
    folder = sink.dir / "late" / "sums_in"
    files = {f.name: f.read_bytes() for f in folder.glob("batch=*.parquet")}
    before = sink.verify()
    try:
        last = max(one.last for one in recorded(folder))
        with patch.object(tidy_module, "FILES_MIN", 2):
            tidy_module.tidy(folder, last, KEEP, time.time())
        assert len(list(folder.glob("batch=*.parquet"))) < len(files)
        assert sink.verify() == before
    finally:
        for left in folder.glob("batch=*.parquet"):
            left.unlink()
        for name, raw in files.items():
            (folder / name).write_bytes(raw)


def test_late_rows_that_have_expired_are_told_and_nothing_is_called_different(sink):
    folder = sink.dir / "late" / "sums_in"
    note = folder / EXPIRED
    first = recorded(folder)[0]
    note.write_bytes(msgspec.json.encode(Expired(batch=first.last, rows=pq.read_metadata(first.path).num_rows)))
    try:
        verdict = sink.verify()
    finally:
        note.unlink()
    assert not verdict.ok
    assert "have expired (late_keep)" in verdict.text()
    assert "more were late and have expired" in verdict.text()
    assert all(one.not_compared for one in verdict.sinks)
    assert not any(one.strange for one in verdict.stages)


def test_a_file_that_is_gone_is_named(spark, tmp_path):
    checkpoint = tmp_path / "cp"
    for name, text in {
        "commits/0": "v1\n{}",
        "offsets/0": 'v1\n{}\n{"logOffset":0}',
        "sources/0/0": 'v1\n{"path":"file:///no/such/file.json","timestamp":1,"batchId":0}',
    }.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    session = BatchSession(spark, Progress(checkpoint), "read packets")
    with pytest.raises(InputError, match="read packets: an input file is no longer there"):
        session.readStream.schema(SCHEMA).json("/no/such")
    with pytest.raises(ConfigError, match="verify cannot read source 'delta'"):
        session.readStream.format("delta").load("/x")


def test_compacted_logs_of_files_are_read(tmp_path):
    checkpoint = tmp_path / "cp"
    entry = '{{"path":"file:///in/a%20{0}.json","timestamp":1,"batchId":{0}}}'
    for name, text in {
        "commits/3": "v1\n{}",
        "offsets/3": 'v1\n{}\n{"logOffset":3}',
        "sources/0/0": "v1\n" + entry.format(0),
        "sources/0/1": "v1\n" + entry.format(1),
        "sources/0/2.compact": "v1\n" + "\n".join(entry.format(i) for i in range(3)),
        "sources/0/3": "v1\n" + entry.format(3),
        "sources/0/4": "v1\n" + entry.format(4),
    }.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    assert Progress(checkpoint).files(0) == [f"/in/a {i}.json" for i in range(4)]


def test_numbers_of_rate_micro_batch_come_with_sparks_own_times(spark, tmp_path):
    """The same source as a stream and again as a batch: the same rows, to the microsecond."""

    def source(session):
        reader = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).option("numPartitions", 2)
        return reader.option("startTimestamp", 5_000).option("advanceMillisPerBatch", 250).load()

    seen = []
    query = (
        source(spark)
        .writeStream.foreachBatch(lambda frame, k: seen.append((k, frame.toArrow())))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    while len(seen) < 4 and query.isActive:
        query.awaitTermination(1)
    query.stop()
    again = source(BatchSession(spark, Progress(tmp_path / "cp", 2), "x")).toArrow()
    streamed = pa.concat_tables([t for k, t in seen if k <= 2])
    order = [("value", "ascending")]
    assert streamed.num_rows == 21
    assert streamed.sort_by(order).to_pydict() == again.select(streamed.column_names).sort_by(order).to_pydict()


def test_a_pipeline_that_has_changed_is_not_verified(sink, tmp_path):
    other = hf.Pipeline("sums")
    stream = read(other, tmp_path)
    stream.window("10 s").by("k").agg(n=hf.count(), name="sums").write(
        lambda df: df.writeStream.format("parquet").option("path", "x"), name="out"
    )
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match="is not the one that ran"):
        verify(other, sink.plan, sink.dir, sink.spark)


def test_unions_joins_and_windows_over_them_mean_the_same_as_in_spark(spark, tmp_path):
    """Union before an operator, an outer join with a condition, windows over a join, a stage between, a union sink."""
    write_files(tmp_path / "a", n=240)
    write_files(tmp_path / "b", n=180)
    p = hf.Pipeline("mixed")
    a, b = read(p, tmp_path / "a", "a"), read(p, tmp_path / "b", "b")

    def sink(stream, name):
        path = str(tmp_path / "out" / name)
        stream.write(lambda df: df.writeStream.format("parquet").option("path", path), name=name)

    both = (
        a.union(b.map(lambda df: df.select("x", "v", "k", "ts")))
        .window("5 s")
        .by("k")
        .agg(n=hf.count(), d=hf.stddev("x"), name="both")
    )
    sink(both, "both_out")
    few = a.filter("v < 6").map(lambda df: df.select("ts", "k", "v"))
    pairs = few.join(b, on="k", within=("-1 s", "2 s"), how="left", where="v <= right_v and not (x = 0)", name="pairs")
    sink(pairs, "pairs_out")
    again = pairs.window("10 s").by("k").agg(n=hf.count(), most=hf.max("right_v"), name="again")
    more = both.filter("n > 3").window("20 s").by("k").agg(n=hf.sum("n"), name="more")
    sink(
        again.map(lambda df: df.select("window_end", "k", "n")).union(
            more.map(lambda df: df.select("window_end", "k", "n"))
        ),
        "all_out",
    )
    planned = plan(p, spark)
    process = InProcess(p, planned, tmp_path / "run", spark)
    process.run(100)
    verdict = verify(p, planned, tmp_path / "run", spark)
    assert verdict.ok, verdict.text()
    assert all(s.comparison.rows_found > 20 for s in verdict.sinks), verdict.text()
    assert any(s.late for s in verdict.stages)


def test_what_goes_by_arrival_is_said_not_to_be_compared(spark, tmp_path):
    write_files(tmp_path / "in", count=2, n=100)
    p = hf.Pipeline("tens")
    stream = read(p, tmp_path / "in")
    out = str(tmp_path / "out")
    tens = stream.window(rows=10).by("k").agg(n=hf.sum("v"), name="tens")
    tens.write(lambda df: df.writeStream.format("parquet").option("path", out), name="out")
    stream.window("5 s").by("k").agg(n=hf.count(), name="fives").write(
        lambda df: df.writeStream.format("noop"), name="void"
    )
    planned = plan(p, spark)
    verdict = verify(p, planned, tmp_path / "run", spark)
    reasons = {s.sink: s.not_compared for s in verdict.sinks}
    assert not verdict.ok
    assert "windows of rows" in reasons["out"]
    assert "result=" in reasons["void"]


@pytest.mark.parametrize(
    ("wanted", "held", "same"),
    [
        ("double('NaN')", "5.0D", False),
        ("5.0D", "double('NaN')", False),
        ("double('inf')", "5.0D", False),
        ("double('inf')", "double('-inf')", False),
        ("5.0D", "double('-inf')", False),
        ("cast(null as double)", "double('NaN')", False),
        ("double('NaN')", "double('NaN')", True),
        ("double('-inf')", "double('-inf')", True),
        ("cast(null as double)", "cast(null as double)", True),
        ("5.0D", "5.0000001D", True),
        ("0.0D", "-0.0D", True),
    ],
)
def test_what_is_no_number_equals_only_itself(spark, wanted, held, same):
    """Once NaN and infinities were near to every number: the distance to them is as large as they are."""
    frames = [spark.sql(f"select 1 as i, {value} as x") for value in (wanted, held)]
    found = compare(*frames, "out", {"x"})
    assert found.same == same
    assert found.wrong == (0 if same else 1)


def test_more_differences_than_are_looked_at_are_never_equal(spark, monkeypatch):
    """The groups that were looked at may balance (their doubles in another order): the rest has not been seen."""
    monkeypatch.setattr("holdfast.pipeline.compare.DIFFERENCES_MAX", 2)
    one = spark.range(5).selectExpr("id", "1.0D as x")
    other = spark.range(5).selectExpr("id", "2.0D as x")
    found = compare(one, other, "out", {"x"})
    assert found.more
    assert not found.same


def test_rows_are_compared_as_multisets_whatever_their_types(spark):
    one = spark.sql(
        "select * from values (1, cast(null as string), map('a', 1), 0.1D), (1, null, map('a', 1), 0.1D), "
        "(2, 'b', null, double('NaN')) t(i, s, m, x)"
    )
    assert compare(one, one, "out", set()).same
    found = compare(one, one.limit(2), "out", set())
    assert (found.rows_expected, found.rows_found, found.missing) == (3, 2, 1)
    with pytest.raises(InputError, match="out: the sink has other columns"):
        compare(one, one.drop("x"), "out", set())


def test_rows_may_be_missing_in_a_gap_and_nowhere_else_and_none_may_be_wrong(sink):
    """Windows of 10 s every 5 s; the gap is from 20 s to 30 s."""
    micros = [int((START + dt.timedelta(seconds=s)).timestamp() * 1e6) for s in (20, 30)]
    gap = GapFound(consumer="out", edge="sums-0.0", position=0, start=to_core(micros[0]), to=to_core(micros[1]))
    path = sink.dir / gap.key
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(gap))
    try:
        starts, ends = sink.good["window_start"].cast(pa.int64()), sink.good["window_end"].cast(pa.int64())
        inside = pc.and_(pc.greater(ends, micros[0]), pc.less(starts, micros[1]))
        lost = sink.good.filter(pc.invert(inside))
        sink.spoil(pa.concat_tables([lost, sink.good.filter(inside).slice(2)]))
        verdict = sink.verify()
        assert verdict.ok, verdict.text()
        assert (verdict.sinks[0].gaps, verdict.sinks[0].missing_inside) == (1, 2)
        assert "2 missing; those that are there are right" in verdict.text()
        assert "equal outside of gaps, row for row" in verdict.text()
        sink.spoil(lost.slice(1))
        assert sink.verify().sinks[0].comparison.missing == 1
        some = sink.good.filter(inside).slice(0, 3)
        sink.spoil(pa.concat_tables([lost, some, some.slice(0, 1)]))
        assert sink.verify().sinks[0].inside.doubled == 1
        worse = some.set_column(some.column_names.index("s"), "s", pc.add(some["s"], 1))
        sink.spoil(pa.concat_tables([lost, worse]))
        verdict = sink.verify()
        assert not verdict.ok
        assert verdict.sinks[0].inside.wrong == 3
        assert "3 wrong" in verdict.text()
    finally:
        path.unlink()


def test_results_that_do_not_fit_are_dead_letters_as_many_as_there_must_be(spark, tmp_path):
    write_files(tmp_path / "in")
    pipeline, out, run = hf.Pipeline("huge"), str(tmp_path / "out"), tmp_path / "run"
    huge = read(pipeline, tmp_path / "in").map(
        lambda df: df.selectExpr("ts", "k", f"case when k = 'k0' then {1 << 62}L else v end as v")
    )
    sums = huge.window("10 s").by("k").agg(n=hf.count(), s=hf.sum("v"), name="sums")
    sums.write(lambda df: df.writeStream.format("parquet").option("path", out), name="out")
    made = plan(pipeline, spark)
    InProcess(pipeline, made, run, spark).run(100)
    folder = run / "dead" / "sums"
    folder.mkdir(parents=True)

    def with_letters(count, what="result"):
        (folder / "sums-0@0.jsonl").write_text(f'{{"what": "{what}", "row": {{}}}}\n' * count)
        return verify(pipeline, made, run, spark)

    lost = with_letters(1)
    assert lost.sinks[0].ok, lost.text()
    expected = lost.aside[0].expected
    assert expected > 1
    assert not lost.ok
    right = with_letters(expected)
    assert right.ok, right.text()
    assert f"{expected} results set aside that do not fit their types, {expected} expected" in right.text()
    assert not with_letters(expected + 1).ok
    assert "sums has set aside 2 input rows" in with_letters(2, "input row").sinks[0].not_compared
