"""Mode none on real nodes: the node of an operator that nobody backs up is killed, and results are exact or absent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from support.child import read_sink
from support.nodes import Nodes
from support.plans import TOP_WINDOW_US, WINDOW_US, layered_plan
from support.source import rows

from holdfast.model.ids import name_of
from holdfast.model.plan import Plan, to_micros
from holdfast.pipeline.gaps import gaps_of

pytestmark = pytest.mark.slow

#: (start, key) of a window, and what it says: count and sum.
Windows = dict[tuple[int, int], tuple[int, int]]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    plan = layered_plan(shards=2, tops=1)
    unprotected = [replace(o, mode="none" if o.name.startswith("u") else "passive") for o in plan.operators]
    made = Nodes(tmp_path / "run", _with(plan, unprotected), 4)
    yield made
    made.close()


def _with(plan: Plan, operators: list) -> Plan:
    return replace(plan, operators=tuple(operators))


def wait_for_batches(nodes: Nodes, count: int) -> None:
    """Let the sink go on for a while."""
    sink = nodes.dir / "sink"
    before = len(list(sink.glob("commit-*")))
    nodes.until("the sink to go on", lambda: len(list(sink.glob("commit-*"))) >= before + count, 60)


def windows_of(times: list[int], keys: list[int], values: list[tuple[int, int]], size_us: int) -> Windows:
    found: Windows = {}
    for time_us, key, (n, total) in zip(times, keys, values, strict=True):
        at = (time_us // size_us * size_us, key)
        found[at] = (found.get(at, (0, 0))[0] + n, found.get(at, (0, 0))[1] + total)
    return found


def held(nodes: Nodes, shard: str) -> tuple[Windows, int]:
    """What the sink has of a shard, and how many rows that is."""
    table = pa.Table.from_batches(read_sink(nodes.dir / "sink")[f"{shard}.0"])
    starts = table["window_start"].cast(pa.int64()).to_pylist()
    keys, counts, totals = (table[name].to_pylist() for name in ("key", "n", "total"))
    return dict(zip(zip(starts, keys, strict=True), zip(counts, totals, strict=True), strict=True)), table.num_rows


def expected(nodes: Nodes) -> dict[str, Windows]:
    """What a run without a failure gives. A key is always in the same shard."""
    given = rows(0, int((nodes.dir / "closed").read_text()), nodes.rate, nodes.keys)
    times, keys = given["ts"].cast(pa.int64()).to_pylist(), given["key"].to_pylist()
    every = windows_of(times, keys, [(1, value) for value in given["value"].to_pylist()], WINDOW_US)
    shard_of = {key: shard for shard in ("u0", "u1") for _, key in held(nodes, shard)[0]}
    found = {shard: {at: v for at, v in every.items() if shard_of[at[1]] == shard} for shard in ("u0", "u1")}
    ends = [start + WINDOW_US - 1 for start, _ in every]
    found["v0"] = windows_of(ends, [key for _, key in every], list(every.values()), TOP_WINDOW_US)
    return found


def test_a_killed_node_of_an_unprotected_operator_leaves_a_gap_and_nothing_wrong(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    wait_for_batches(nodes, 20)
    victim = name_of(nodes.status()["places"]["u0"]["primary"])
    nodes.kill(victim)
    landed = lambda: [e for n in nodes.alive() for e in nodes.events(n) if e["event"] == "started-empty"]  # noqa: E731
    nodes.until("u0 to start empty elsewhere", landed)
    wait_for_batches(nodes, 20)
    nodes.finish()
    right = expected(nodes)
    gaps = gaps_of(nodes.dir, "r0")
    assert {gap.edge for gap in gaps} == {"u0.0", "v0.0"}
    for shard, size_us in (("u0", WINDOW_US), ("u1", WINDOW_US), ("v0", TOP_WINDOW_US)):
        found, count = held(nodes, shard)
        assert len(found) == count  # none twice
        assert {at: right[shard].get(at) for at in found} == found  # none wrong
        spans = [(to_micros(gap.start), to_micros(gap.to)) for gap in gaps if gap.edge == f"{shard}.0"]
        missing = [start for start, _ in right[shard] if (start, _) not in found]
        assert all(any(start + size_us > low and start < high for low, high in spans) for start in missing)
        assert bool(missing) == (shard != "u1")
        assert max(found)[0] > max(missing, default=0)  # it went on
