"""`spark.read` and `spark.readStream` of a stream of running nodes, as a program of the user's own: a guest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from support.nodes import Nodes
from support.plans import ROWS, WINDOW_US
from support.source import rows

from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.operators import build
from holdfast.runtime.shards import shard_numbers
from holdfast.spark import HoldfastDataSource

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHARDS, RATE = 2, 2_000
IDS = tuple(f"talkers-{i}" for i in range(SHARDS))

#: (end of the window, key, n, total), by shard.
Rows = list[tuple[int, int, int, int]]


def talkers_plan() -> Plan:
    """Counts by key in short windows, cut into shards; source and sink without Spark."""
    given = InputPlan(source="s0", schema=ROWS.serialize().to_pybytes(), by=("key",), event_time="ts")
    settings = {
        "size_us": WINDOW_US, "step_us": WINDOW_US, "by": ["key"], "overflow": "error",
        "aggs": {"n": ["count", None, False], "total": ["sum", "value", False]},
    }  # fmt: skip
    fields = {"name": "talkers", "kind": "aggregate", "shards": SHARDS, "mode": "passive", "inputs": (given,)}
    output = build(OperatorPlan(**fields, settings=settings, output=b"")).output_schema.serialize().to_pybytes()
    topology = Topology(
        shards=tuple(ShardSpec(id=u, inputs=(f"s0>{u}",), outputs=(f"{u}.0",)) for u in IDS),
        stages=(
            StageSpec(id="s0", shards=IDS, query="talkers-1", delay_ns=20_000, tick_ns=1_000),
            StageSpec(id="r0", shards=(), query="talkers-1"),
        ),
        readers=(ReaderSpec(id="r0", edges=tuple(f"{u}.0" for u in IDS)),),
    )
    return Plan(
        pipeline="talkers",
        query="talkers-1",
        topology=topology,
        operators=(OperatorPlan(**fields, settings=settings, output=output),),
        stages=(
            StagePlan(id="s0", kind="source", feeds=(("talkers", 0),)),
            StagePlan(id="r0", kind="sink", reads=("talkers",)),
        ),
    )


class GuestProgram:
    """A Spark program, and what it may find."""

    def __init__(self, spark: Any, nodes: Nodes) -> None:
        spark.dataSource.register(HoldfastDataSource)
        self.spark = spark
        self.nodes = nodes

    def begin(self) -> None:
        self.nodes.begin()
        (self.nodes.dir / "closed").unlink()

    def options(self, **changed: str) -> dict[str, str]:
        return {"run": str(self.nodes.dir), "stream": "talkers", **changed}

    def read(self) -> list[Rows]:
        return by_shard(self.spark.read.format("holdfast").options(**self.options()).load().toArrow())

    def ends(self) -> dict[str, int]:
        """Where each edge ends now."""
        found: dict[str, int] = {}
        for name in self.nodes.alive():
            for shard in self.nodes.status(name)["shards"].values():
                if shard["role"] == "primary":
                    found.update((edge, queue["next"]) for edge, queue in shard["outputs"].items())
        return found

    def acks(self) -> list[dict[str, int]]:
        """Of each edge: who holds retention, from where on."""
        shards = [u for name in self.nodes.alive() for u in self.nodes.status(name)["shards"].values()]
        return [queue["acks"] for u in shards if u["role"] == "primary" for queue in u["outputs"].values()]

    def acked(self) -> list[int]:
        return [acks["r0"] for acks in self.acks()]

    def readers(self) -> set[str]:
        return {consumer for acks in self.acks() for consumer in acks}

    def assert_exact(self, found: list[Rows], *, whole: bool) -> None:
        """Every window between the first and the last one that was found, and each row of it once."""
        available = pa.Table.from_batches([rows(0, self.nodes.available(), RATE)])
        for mine, right in zip(found, by_shard(windows(available)), strict=True):
            assert mine
            first = 0 if whole else mine[0][0]
            assert mine == [row for row in right if first <= row[0] <= mine[-1][0]]


def windows(table: pa.Table) -> pa.Table:
    """What the shards make of these rows, by hand."""
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    columns = (table["ts"].cast(pa.int64()), table["key"], table["value"])
    for at, key, value in zip(*(c.to_pylist() for c in columns), strict=True):
        counts[at // WINDOW_US, key] += 1
        totals[at // WINDOW_US, key] += value
    made = [((w + 1) * WINDOW_US, key, n, totals[w, key]) for (w, key), n in counts.items()]
    return pa.table(dict(zip(("window_end", "key", "n", "total"), map(list, zip(*made, strict=True)), strict=True)))


def by_shard(table: pa.Table) -> list[Rows]:
    found: list[Rows] = [[] for _ in range(SHARDS)]
    for batch in table.combine_chunks().to_batches():
        columns = (batch["window_end"].cast(pa.int64()), batch["key"], batch["n"], batch["total"])
        made = zip(*(c.to_pylist() for c in columns), strict=True)
        for shard, row in zip(shard_numbers(batch, ("key",), SHARDS), made, strict=True):
            found[shard].append(row)
    return [sorted(each) for each in found]


def a_run(home: Path) -> Nodes:
    """Nodes that are not started yet."""
    nodes = Nodes(home, talkers_plan(), nodes=3, rate=RATE)
    run_json = {
        "pipeline": "talkers", "source": "", "cwd": str(home), "endpoints": nodes.endpoints,
        "secret_file": str(home / "secret"),
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps(run_json))
    return nodes


@pytest.fixture
def guest(spark, tmp_path: Path) -> Iterator[GuestProgram]:
    nodes = a_run(tmp_path / "run")
    (nodes.dir / "hold").touch()  # the sink takes nothing until it is let
    (nodes.dir / "closed").write_text("0")  # and no row comes before `begin`
    try:
        nodes.start()
        nodes.wait_up()
        nodes.until("the source", lambda: max(nodes.status(n)["ledgers"]["s0"]["batch"] for n in nodes.names) >= 0, 60)
        yield GuestProgram(spark, nodes)
    finally:
        nodes.close()


def test_a_guest_reads_exactly_what_is_retained_while_the_run_goes_on(guest: GuestProgram):
    nodes = guest.nodes
    frame = guest.spark.read.format("holdfast").options(**guest.options()).load()
    types = {"window_start": "timestamp", "window_end": "timestamp", "key": "bigint", "n": "bigint", "total": "bigint"}
    assert dict(frame.dtypes) == types
    assert frame.collect() == []  # nothing was made yet
    guest.begin()
    nodes.until("some windows", lambda: min(guest.ends().values(), default=0) > 100)

    before = guest.ends()
    found = guest.read()
    guest.assert_exact(found, whole=True)
    assert sum(map(len, found)) > sum(before.values()) / 2  # the rest are watermarks

    reader = HoldfastDataSource(guest.options()).reader(frame.schema)
    planned = reader.partitions()
    (nodes.dir / "hold").unlink()
    nodes.until("the sink to take all that", lambda: all(ack > max(before.values()) for ack in guest.acked()))
    (nodes.dir / "hold").touch()
    batches = [batch for part in planned for batch in reader.read(part)]
    guest.assert_exact(by_shard(pa.Table.from_batches(batches)), whole=True)
    nodes.until("the lease to be let go of", lambda: guest.readers() == {"r0"}, 10)

    behind = guest.ends()
    nodes.until("more windows", lambda: all(end > behind[edge] + 100 for edge, end in guest.ends().items()))
    home = nodes.status()["places"]["talkers-0"]["primary"]
    nodes.kill(home.partition("#")[0])
    guest.assert_exact(guest.read(), whole=False)
    (nodes.dir / "hold").unlink()
    nodes.finish()


def test_a_guest_takes_what_is_there_in_batches_of_a_limited_size(guest: GuestProgram, tmp_path: Path):
    nodes = guest.nodes
    guest.begin()
    nodes.until("many windows", lambda: min(guest.ends().values(), default=0) > 1_500)
    before = guest.ends()
    stream = guest.spark.readStream.format("holdfast").options(**guest.options(max_rows="1000")).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))

    def read_on() -> list[int]:
        query = writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return [progress["numInputRows"] for progress in query.recentProgress]

    sizes = read_on()
    assert len(sizes) >= 3
    assert max(sizes) <= 1000
    found = by_shard(guest.spark.read.parquet(str(tmp_path / "out")).toArrow())
    guest.assert_exact(found, whole=True)
    assert sum(map(len, found)) > sum(before.values()) / 2
    sizes = read_on()  # from where it was
    assert sum(sizes) > 0
    more = by_shard(guest.spark.read.parquet(str(tmp_path / "out")).toArrow())
    guest.assert_exact(more, whole=True)
    assert sum(map(len, more)) == sum(map(len, found)) + sum(sizes)


def change_offsets(checkpoint: Path, change: Callable[[dict], None]) -> None:
    """Of the last batch; Spark's checksum of it goes."""
    last = max((f for f in (checkpoint / "offsets").iterdir() if f.name.isdecimal()), key=lambda f: int(f.name))
    *head, line = last.read_text().splitlines()
    offset = json.loads(line)
    change(offset)
    last.write_text("\n".join([*head, json.dumps(offset, separators=(",", ":"))]))
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_guest_with_the_checkpoint_of_another_run_fails_and_no_node_does(guest: GuestProgram, tmp_path: Path):
    nodes, checkpoint = guest.nodes, tmp_path / "checkpoint"
    guest.begin()
    nodes.until("some windows", lambda: min(guest.ends().values(), default=0) > 100)
    stream = guest.spark.readStream.format("holdfast").options(**guest.options()).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))

    def read_on() -> None:
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    read_on()
    change_offsets(checkpoint, lambda offset: offset.update(run="talkers-0"))
    with pytest.raises(Exception, match="these offsets are of another run of the pipeline"):
        read_on()

    def error_of(less: int) -> str:
        """Empty where a block ends there, as it does before each that is a watermark alone: then all is well."""

        def move(offset: dict) -> None:
            offset["run"] = "talkers-1"
            offset["talkers-0.0"][0] -= less

        change_offsets(checkpoint, move)
        try:
            read_on()
        except StreamingQueryException as error:
            return str(error)
        return ""

    said = next(filter(None, (error_of(less) for less in range(1, 30))), "")  # further back, where blocks have rows
    assert "these offsets are of another run of the pipeline" in said
    assert nodes.alive() == nodes.names
    (nodes.dir / "hold").unlink()
    nodes.finish()


def test_of_two_queries_with_one_name_the_later_reads_on_and_the_earlier_says_why_not(
    guest: GuestProgram, tmp_path: Path
):
    guest.begin()
    frames = [
        guest.spark.readStream.format("holdfast").options(**guest.options(**name)).load()
        for name in ({"consumer": "twin"}, {})
    ]
    running = []

    def start(frame: Any) -> Any:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(len(running))))
        running.append(writer.start())
        guest.nodes.until("rows", lambda: rows_read(running[-1]) > 0, 60)
        return running[-1]

    def rows_read(query: Any) -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    try:
        earlier, later = start(frames[0]), start(frames[0])
        with pytest.raises(Exception, match="another program reads as consumer 'twin'"):
            earlier.awaitTermination(60)
        before = rows_read(later)
        guest.nodes.until("more rows", lambda: rows_read(later) > before, 60)
        two = start(frames[1]), start(frames[1])  # without a name, each has its own
        before, behind = map(rows_read, two)
        guest.nodes.until("rows of both", lambda: rows_read(two[0]) > before and rows_read(two[1]) > behind, 60)
        assert [q.isActive for q in running] == [False, True, True, True]
    finally:
        for query in running:
            query.stop()


def test_what_cannot_be_read_is_one_clear_error(spark, tmp_path: Path):
    guest = GuestProgram(spark, a_run(tmp_path / "run"))

    def said(**changed: str) -> str:
        with pytest.raises(Exception, match="holdfast") as error:
            guest.spark.read.format("holdfast").options(**guest.options(**changed)).load().collect()
        return str(error.value)

    assert "pipeline 'talkers' has no stream 'listeners'" in said(stream="listeners")
    assert "There are talkers." in said(stream="listeners")
    assert "the run cannot be found" in said(run=str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in said(run=str(tmp_path / "nowhere"))
    assert "option 'max_rows' must be a number" in said(max_rows="many")
    assert "which stream?" in said(stream="")
