"""Arrow sinks on real node processes, without any JVM: killed, failing and hanging, they hold every row once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.arrow_runs import difference_of, finish, home_of, told
from support.nodes import Nodes
from support.plans import ROWS, WINDOW_US, aggregate_plan

from holdfast.model.plan import Plan, StagePlan
from holdfast.pipeline import load
from holdfast.pipeline.layout import lay_out

pytestmark = pytest.mark.slow

#: Writes a file for each batch. One that is given again must have the same rows.
PIPELINE = """
import os, pathlib, time
import pyarrow.parquet as pq
import holdfast as hf

base = pathlib.Path("{base}")
pipeline = hf.Pipeline("arrow")
given = pipeline.read(lambda spark: None, event_time="ts", watermark="20 ms", name="s0")
counts = given.window("100 ms").by("key").agg(n=hf.count(), total=hf.sum("value"), shards=2, name="u")

def keep(table, batch):
    while (base / "hang").exists():
        time.sleep(0.02)
    if (base / "fail").exists():
        raise ValueError(f"cannot take batch {batch.number}")
    path = base / "out" / f"{batch.number}.parquet"
    if path.exists():
        what = "again" if pq.read_table(path).equals(table) else "differs"
        (base / f"{what}-{batch.number}").write_text(batch.key)
    part = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
    pq.write_table(table, part)
    part.replace(path)

counts.write_arrow(keep, name="r0")
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "run", arrow_plan(tmp_path), 4, settings={"standby": True, "standby_delay": "100 ms"})
    (made.dir / "pipeline.py").write_text((tmp_path / "arrow.py").read_text())
    made.start()
    made.wait_up()
    made.begin()
    yield made
    made.close()


def arrow_plan(base: Path) -> Plan:
    file = base / "arrow.py"
    file.write_text(PIPELINE.replace("{base}", str(base)))
    (base / "out").mkdir()
    layout = lay_out(load(file))
    aggs = {"n": ["count", None, False], "total": ["sum", "value", False]}
    operator = aggregate_plan("u", [("s0", ROWS, "ts")], WINDOW_US, aggs, shards=2)
    stages = (
        StagePlan(id="s0", kind="source", feeds=(("u", 0),), delay_us=20_000, event_time="ts"),
        StagePlan(id="r0", kind="sink", reads=("u",), arrow=True),
    )
    topology = layout.topology("arrow-1")
    return Plan(pipeline="arrow", query="arrow-1", topology=topology, operators=(operator,), stages=stages)


def written(base: Path) -> dict[int, pa.Table]:
    return {int(path.stem): pq.read_table(path) for path in (base / "out").glob("*.parquet")}


def rows_written(base: Path) -> int:
    return sum(table.num_rows for table in written(base).values())


def test_the_node_of_an_arrow_sink_is_killed_twice_and_every_row_is_written_once(nodes: Nodes, tmp_path: Path):
    nodes.until("first rows", lambda: rows_written(tmp_path), 60)
    for _ in range(2):
        victim, before = home_of(nodes), rows_written(tmp_path)
        nodes.kill(victim)
        nodes.until("rows after the kill", lambda before=before: rows_written(tmp_path) > before + 50, 60)
        nodes.start(victim)
    finish(nodes)
    assert difference_of(nodes, pa.concat_tables(written(tmp_path).values())) == (0, 0)
    assert not list(tmp_path.glob("differs-*"))
    assert not any("JVM" in e["text"] for name in nodes.names for e in nodes.events(name))


def test_a_function_that_fails_is_named_and_goes_on_where_it_was(nodes: Nodes, tmp_path: Path):
    nodes.until("first rows", lambda: rows_written(tmp_path), 60)
    (tmp_path / "fail").touch()
    failed = nodes.until("word of the failure", lambda: told(nodes, "stage-failed"), 30)
    assert "stage r0: its function failed" in failed[0]["text"]
    assert "ValueError: cannot take batch" in failed[0]["detail"]
    (tmp_path / "fail").unlink()
    before = rows_written(tmp_path)
    nodes.until("rows after that", lambda: rows_written(tmp_path) > before, 60)
    finish(nodes)
    assert difference_of(nodes, pa.concat_tables(written(tmp_path).values())) == (0, 0)


def test_a_function_that_hangs_is_taken_over_and_does_no_harm_when_it_goes_on(nodes: Nodes, tmp_path: Path):
    nodes.until("first rows", lambda: rows_written(tmp_path), 60)
    victim = home_of(nodes)
    (tmp_path / "hang").touch()
    nodes.signal(victim, signal.SIGSTOP)  # its process is not stopped with it, and hangs in the function
    nodes.until("another node to run it", lambda: nodes.status()["places"]["r0"]["primary"].partition("#")[0] != victim)
    before = rows_written(tmp_path)
    (tmp_path / "hang").unlink()
    nodes.until("rows of the other", lambda: rows_written(tmp_path) > before + 50, 60)
    nodes.signal(victim, signal.SIGCONT)
    finish(nodes)
    assert difference_of(nodes, pa.concat_tables(written(tmp_path).values())) == (0, 0)
    assert not list(tmp_path.glob("differs-*"))
