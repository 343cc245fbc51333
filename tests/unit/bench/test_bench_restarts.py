"""The oracle of `bench faults --part restarts`: it takes any order inside of batches, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.faults.by_arrival import sink_files, wrong
from bench.faults.ordered import BITS, MIX, OFTEN, PER_BATCH, RATE, WINDOW_ROWS
from holdfast.pipeline.generators import EPOCH_US

BATCHES = 11


def arrivals(seed: int) -> list[int]:
    """Numbers in the order in which they come: batch after batch, each of them in any order."""
    found = []
    for batch in range(BATCHES):
        numbers = list(range(batch * PER_BATCH, (batch + 1) * PER_BATCH))
        Random(f"{seed} {batch}").shuffle(numbers)
        found += numbers
    return found


def write(folder: Path, table: pa.Table) -> None:
    """As Spark's file sink: a file that does not count, and some that do, one of them in a compacted log."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True)
    half = table.num_rows // 2
    parts = {"a": table.slice(0, half), "b": table.slice(half), "torn": table}
    for name, part in parts.items():
        pq.write_table(part, folder / f"{name}.parquet")
    (log / "0").write_text("v1\n" + json.dumps({"path": f"file://{folder}/gone.parquet"}))
    (log / "1.compact").write_text("v1\n" + json.dumps({"path": f"file://{folder}/a.parquet"}))
    (log / "2").write_text("v1\n" + json.dumps({"path": f"file://{folder}/b.parquet"}))


def picks(numbers: list[int]) -> list[dict[str, int]]:
    found: dict[tuple[int, int], dict[str, int]] = {}
    for number in numbers:
        at = EPOCH_US + number * 1_000_000 // RATE
        for start in (at // 3_000_000 * 3_000_000, at // 3_000_000 * 3_000_000 - 3_000_000):
            new = {"window_start": start, "once": number % PER_BATCH, "first": number, "last": number, "rows": 0}
            row = found.setdefault((start, number % PER_BATCH), new)
            row["last"] = number
            row["rows"] += 1
    return list(found.values())


def runs(numbers: list[int]) -> list[dict[str, int]]:
    keys, found = PER_BATCH // OFTEN, []
    waiting: dict[int, list[int]] = {}
    for number in numbers:
        mine = waiting.setdefault(number % keys, [])
        mine.append(number * MIX % (1 << BITS))
        if len(mine) == WINDOW_ROWS:
            found.append({"often": number % keys, "total": sum(mine), "rows": WINDOW_ROWS})
            mine.clear()
    return found


def sinks(out: Path, picked: list[dict[str, int]], ran: list[dict[str, int]]) -> Path:
    table = pa.Table.from_pylist(picked)
    times = table["window_start"].cast(pa.timestamp("us", "UTC"))
    write(out / "picks", table.set_column(table.schema.get_field_index("window_start"), "window_start", times))
    write(out / "runs", pa.Table.from_pylist(ran))
    return out


def test_files_that_no_log_of_the_sink_names_do_not_count(tmp_path: Path):
    write(tmp_path, pa.table({"x": [1, 2, 3]}))
    assert [path.name for path in sink_files(tmp_path)] == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_inside_of_batches_is_right(tmp_path: Path, seed: int):
    numbers = arrivals(seed)
    assert wrong(sinks(tmp_path, picks(numbers), runs(numbers)), len(numbers)) == []


def test_a_row_that_is_lost_or_doubled_or_a_batch_in_two_orders_is_found(tmp_path: Path):
    numbers, total = arrivals(1), BATCHES * PER_BATCH
    picked, ran = picks(numbers), runs(numbers)
    lost = [number for number in numbers if number != 3 * PER_BATCH + 7]
    doubled = [*numbers[:5000], numbers[4999], *numbers[5000:]]
    # one half of the windows was written before a restart, by one order, and the other half after it, by another
    other = runs(arrivals(2))
    torn = [*ran[: len(ran) // 2], *other[len(ran) // 2 :]]
    for name, case in {
        "lost": (picked, runs(lost)),
        "doubled": (picked, runs(doubled)),
        "two orders": (picked, torn),
        "one window less": (picked[1:], ran),
        "one window twice": ([picked[0], *picked], ran),
        "another first row": ([{**picked[0], "first": picked[0]["first"] + PER_BATCH}, *picked[1:]], ran),
    }.items():
        assert wrong(sinks(tmp_path / name, *case), total), name
