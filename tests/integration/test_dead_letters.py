"""Sums that do not fit, on real nodes: set aside once each, while the node that sets them aside is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.child import read_sink
from support.nodes import Nodes
from support.plans import TOP_WINDOW_US, WINDOW_US, layered_plan
from support.source import rows

from holdfast.model.ids import name_of

pytestmark = pytest.mark.slow

BIGINT_MAX = 2**63 - 1
#: Key whose sums do not fit where a window has two rows of it.
HUGE_KEY = 7
Windows = dict[tuple[int, int], int]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "run", layered_plan(shards=2, tops=1), 4, source={"huge": HUGE_KEY})
    yield made
    made.close()


def sums(rows: list[tuple[int, int, int]], size_us: int) -> Windows:
    found: Windows = {}
    for time_us, key, value in rows:
        at = (time_us // size_us * size_us, key)
        found[at] = found.get(at, 0) + value
    return found


def held(nodes: Nodes, *shards: str) -> list[tuple[int, int, int]]:
    sink = read_sink(nodes.dir / "sink")
    table = pa.concat_tables(pa.Table.from_batches(sink[f"{shard}.0"]) for shard in shards)
    starts = table["window_start"].cast(pa.int64()).to_pylist()
    return sorted(zip(starts, table["key"].to_pylist(), table["total"].to_pylist(), strict=True))


def letters(nodes: Nodes, operator: str) -> list[dict]:
    files = sorted((nodes.dir / "dead" / operator).glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def split(windows: Windows) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """What fits, and the windows whose sum does not."""
    fits = sorted((start, key, total) for (start, key), total in windows.items() if total <= BIGINT_MAX)
    return fits, sorted(at for at, total in windows.items() if total > BIGINT_MAX)


def windows_of(found: list[dict]) -> list[tuple[int, int]]:
    at = [(json_time(letter["row"]["window_start"]), letter["row"]["key"]) for letter in found]
    return sorted(at)


def json_time(text: str) -> int:
    return pa.scalar(text).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()


def test_every_sum_that_does_not_fit_is_set_aside_once_over_a_kill_and_the_rest_is_exact(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    dead = nodes.dir / "dead"
    nodes.until("something to be set aside", lambda: list(dead.glob("u*/*.jsonl")), 60)
    busy = next(iter(dead.glob("u*/*.jsonl"))).parent.name
    nodes.kill(name_of(nodes.status()["places"][busy]["primary"]))
    before = len(list(dead.glob(f"{busy}/*.jsonl")))
    nodes.until(
        "more of it to be set aside elsewhere", lambda: len(list(dead.glob(f"{busy}/*.jsonl"))) > before + 3, 60
    )
    nodes.finish()
    total = int((nodes.dir / "closed").read_text())
    given = rows(0, total, nodes.rate, nodes.keys, HUGE_KEY)
    every = sums(
        list(zip(*(given[c].cast(pa.int64()).to_pylist() for c in ("ts", "key", "value")), strict=True)), WINDOW_US
    )
    fits, aside = split(every)
    assert aside
    assert held(nodes, "u0", "u1") == fits
    assert windows_of(letters(nodes, "u0") + letters(nodes, "u1")) == aside
    top_fits, top_aside = split(
        sums([(start + WINDOW_US - 1, key, value) for start, key, value in fits], TOP_WINDOW_US)
    )
    assert held(nodes, "v0") == top_fits
    assert windows_of(letters(nodes, "v0")) == top_aside
    told = [event for name in nodes.names for event in nodes.events(name) if event["event"] == "set-aside"]
    assert "total does not fit bigint" in told[0]["text"]
    positions = [(letter["shard"], letter["position"]) for letter in letters(nodes, busy)]
    assert len(set(positions)) == len(positions)
