"""`format("holdfast-state")` in a real Spark: a checkpoint shows what its operator held, and what Spark computes in
batch over the same rows. Each operator is read once, and looked at by several tests.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import oracle
from support.against_spark import expected
from support.stored_states import EVERY, SOME, StoredRun, rows, side

from holdfast.operators import Agg, Window
from holdfast.operators.contents import contents, contents_schema
from holdfast.spark import HoldfastStateSource

pytestmark = pytest.mark.spark

SECOND = 1_000_000
OPERATORS = ("every", "sliding", "alone", "counted", "blocks", "pairs")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> StoredRun:
    found = StoredRun(tmp_path_factory.mktemp("states"))
    for name in OPERATORS:
        found.feed(name, rows())
        found.checkpoint_all(name)
    return found


@pytest.fixture(scope="module")
def session(spark):
    spark.dataSource.register(HoldfastStateSource)
    oracle.view(spark, rows(), "input")
    spark.sql("cache table input")
    return spark


def read(spark, run, **options):
    reader = spark.read.format("holdfast-state").option("run", str(run.directory))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def _aggs(settings) -> dict[str, Agg]:
    return {name: Agg(function, column, nulls) for name, (function, column, nulls) in settings.items()}


def _held(run, name) -> pa.Table:
    """What the operators themselves hold, with the shard."""
    tables = []
    for shard in run.shards(name):
        op = run.ops[shard]
        table = pa.Table.from_batches(contents(op), contents_schema(op))
        tables.append(table.add_column(0, "shard", pa.repeat(shard, len(table))))
    return pa.concat_tables(tables)


def _told(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture(scope="module")
def states(session, run):
    """What Spark reads of every operator."""
    found: dict[str, pa.Table] = {}

    def state(name: str) -> pa.Table:
        if name not in found:
            found[name] = read(session, run, operator=name).toArrow()
        return found[name]

    return state


@pytest.mark.parametrize("name", OPERATORS)
def test_what_spark_reads_is_what_the_operator_holds(states, run, name):
    ours = states(name)
    assert ours.column_names[:2] == ["shard", "sequence"]
    assert set(ours.column("sequence").to_pylist()) == {1}
    assert _told(ours.drop_columns(["sequence"])) == _told(_held(run, name))
    assert len(ours) > 1


def _flat(table: pa.Table, *columns: str, **names: str) -> pa.Table:
    """These columns, some by another name, and the fields of `key` and `value`."""
    found = {name: table.column(column) for name, column in [*zip(columns, columns, strict=True), *names.items()]}
    for struct in ("key", "value"):
        column = table.column(struct).combine_chunks()
        found |= {field.name: pc.struct_field(column, [i]) for i, field in enumerate(column.type)}
    return pa.table(found)


@pytest.mark.parametrize(
    ("name", "pane_s", "by", "aggs"),
    [("every", 10, ["long", "flag"], EVERY), ("sliding", 3, ["short", "money"], SOME), ("alone", 10, [], SOME)],
)
def test_a_pane_has_what_spark_computes_over_its_rows(session, states, name, pane_s, by, aggs):
    ours = _flat(states(name), window_start="pane_start", window_end="pane_end")
    for column in ("window_start", "window_end"):
        ours = ours.set_column(ours.column_names.index(column), column, ours.column(column).cast(pa.int64()))
    window = Window(pane_s * SECOND, pane_s * SECOND)
    oracle.assert_same(ours, expected(session, window, by, _aggs(aggs), "input"), ["window_start", *by], slack=1e-6)


@pytest.mark.parametrize(("name", "size", "step", "pane"), [("counted", 6, 4, 2), ("blocks", 5, 5, 5)])
def test_a_pane_of_rows_has_what_spark_computes_over_the_rows_that_wait(session, states, name, size, step, pane):
    """A key keeps the panes of windows that are not whole yet; one that has none keeps its count."""
    ours = _flat(states(name), "rows", "pane_start", "pane_end")
    sql = ", ".join(f"{oracle.spark_sql_of(agg)} as `{name}`" for name, agg in _aggs(SOME).items())
    session.sql("select *, row_number() over w - 1 as number from input window w as (partition by long order by seq)") \
        .createOrReplaceTempView("numbered")  # fmt: skip
    keys = f"""select long, count(1) as rows, if(count(1) < {size}, 0, ((count(1) - {size}) div {step} + 1) * {step})
               as first from input group by long"""
    panes = f"""select n.long, k.rows, number div {pane} * {pane} as pane_start,
                number div {pane} * {pane} + {pane} as pane_end, {sql}
                from numbered n join ({keys}) k on n.long <=> k.long where number >= first
                group by n.long, k.rows, number div {pane}"""
    results = ", ".join(f"p.`{name}`" for name in SOME)
    theirs = session.sql(f"""select k.rows, p.pane_start, p.pane_end, k.long, {results}
                             from ({keys}) k left join ({panes}) p on k.long <=> p.long""").toArrow()
    oracle.assert_same(ours, theirs, ["long", "pane_start"])
    assert name != "blocks" or theirs.column("pane_start").null_count, "a key whose rows have all come out"


def test_a_join_shows_the_rows_of_both_sides_that_wait(session, states):
    """Rows that could match something: all that have a key and a time, since no watermark has passed."""
    table = states("pairs")
    for which, name in enumerate(("left", "right")):
        prefix = "r_" * which
        given = side(rows(), which)
        session.createDataFrame(given).createOrReplaceTempView(name)
        waits = given.filter(pc.field(f"{prefix}short").is_valid() & pc.field(f"{prefix}ts").is_valid())
        ours = table.filter(pc.field("side") == name)
        assert _told(_flat(ours).select(waits.column_names)) == _told(waits)
        assert pc.struct_field(ours.column("key"), "short").to_pylist() == _flat(ours)[f"{prefix}short"].to_pylist()
        assert ours.column("matched").null_count == which * len(ours), "nobody keeps it of the right side"
    matched = _flat(table.filter(pc.field("matched"))).column("seq").to_pylist()
    pairs = session.sql("""select distinct seq from left join right on short = r_short
                           and r_ts between ts and ts + interval 2 seconds""").toArrow()
    assert sorted(matched) == sorted(pairs.column(0).to_pylist())
    assert matched


def test_what_cannot_be_read_is_one_clear_error_in_spark(session, run, tmp_path):
    with pytest.raises(Exception, match="has no operator 'nobody'") as error:
        read(session, run, operator="nobody")
    assert "There are every, sliding" in str(error.value)
    other = StoredRun(tmp_path / "other")
    other.feed("alone", rows(50))
    other.checkpoint("alone-0")
    pages = other.directory / "store" / "checkpoint" / "alone-0-1" / "pages-0"
    raw = bytearray(pages.read_bytes())
    raw[300] ^= 1
    pages.write_bytes(raw)
    with pytest.raises(Exception, match="pages-0 has a damaged page"):
        read(session, other, operator="alone").collect()
