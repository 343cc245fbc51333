"""Operators against Spark on real events (HOLDFAST_DATA): equal results, row for row."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support import oracle
from support.against_spark import aggregate, expected, run_join
from support.batches import SECOND, TIME

from holdfast.operators import (
    Agg,
    Join,
    Window,
    Within,
)

pytestmark = pytest.mark.spark


DATA = Path(os.environ.get("HOLDFAST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")).resolve()
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data: {DATA} is absent (set HOLDFAST_DATA)")


def load(name: str, columns: list[str]) -> pa.Table:
    table = pq.read_table(DATA / f"{name}.parquet", columns=columns)
    for i, field in enumerate(table.schema):
        if pa.types.is_large_string(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.string()))
    return table.replace_schema_metadata(None)


REAL = {
    "network events per source": ("net_events", ["src_ip"], Window(10 * SECOND, SECOND), {"port": "dst_port"}),
    "edits per user": ("wikipedia_edits", ["user_id"], Window(3600 * SECOND, 3600 * SECOND), {"added": "added"}),
    "delays by origin": ("flights", ["origin"], Window(86_400 * SECOND, 86_400 * SECOND), {"delay": "dep_delay"}),
}


@real
@pytest.mark.parametrize(("name", "by", "window", "values"), REAL.values(), ids=REAL)
def test_real_events_give_what_spark_computes(spark, name, by, window, values):
    table = load(name, ["ts_us", *by, *values.values()])
    oracle.view(spark, table, name)
    aggs = {"rows": Agg("count")}
    for label, column in values.items():
        for function in ("sum", "avg", "stddev", "min", "max"):
            aggs[f"{function}_{label}"] = Agg(function, column)
    op = aggregate(table, window, by, aggs)
    ours = oracle.feed(op, table, seed=5, batches=40, lateness_us=window.size_us // 3)
    oracle.assert_same(ours, expected(spark, window, by, aggs, name), ["window_start", *by], slack=1e-6)


def side(name: str, columns: list[str], prefix: str, where: pa.Array | None = None) -> pa.Table:
    table = load(name, ["ts_us", *columns])
    if where is not None:
        table = table.filter(where)
    table = table.set_column(0, "ts", table.column("ts_us").cast(TIME))
    return table.rename_columns([prefix + c for c in table.column_names])


@real
def test_names_that_were_looked_up_are_then_spoken_to(spark):
    """DNS joined to TLS on (source, name) within 10 s: 4,801 connections follow a look-up, in 64,274 pairs."""
    dns = side("net_dns", ["src_ip", "query"], "d_")
    tls = side("net_ssl", ["src_ip", "server_name", "uid"], "t_")
    on = [("d_src_ip", "t_src_ip"), ("d_query", "t_server_name")]
    op = Join("j", dns.schema, tls.schema, times=("d_ts", "t_ts"), on=on, window=Within(0, 10 * SECOND))
    ours = pa.concat_tables(run_join(op, [dns, tls], batch=5000))
    assert len(pc.unique(ours.column("t_uid"))) == 4801
    spark.createDataFrame(dns).createOrReplaceTempView("dns")
    spark.createDataFrame(tls).createOrReplaceTempView("tls")
    theirs = spark.sql(
        "select * from dns join tls on d_src_ip = t_src_ip and d_query = t_server_name "
        "and t_ts between d_ts and d_ts + interval 10 seconds"
    ).toArrow()
    assert ours.num_rows == theirs.num_rows == 64_274
    order = [(name, "ascending") for name in ours.column_names]
    assert ours.sort_by(order).to_pydict() == theirs.sort_by(order).to_pydict()


@real
def test_rides_that_start_also_end():
    """Taxi START joined to END on ride_id: 46,450 pairs."""
    kind = load("taxi_rides", ["kind"]).column("kind")
    starts = side("taxi_rides", ["ride_id"], "s_", pc.equal(kind, "START"))
    ends = side("taxi_rides", ["ride_id"], "e_", pc.equal(kind, "END"))
    day = 86_400 * SECOND
    op = Join(
        "j",
        starts.schema,
        ends.schema,
        times=("s_ts", "e_ts"),
        on=[("s_ride_id", "e_ride_id")],
        window=Within(-day, day),
    )
    assert sum(t.num_rows for t in run_join(op, [starts, ends], batch=5000)) == 46_450
