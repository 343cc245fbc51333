"""What must be in those sinks of `ordered.py` that `verify` cannot compute, because they go by the order of arrival.

The rows are known (numbers from 0 on), and so is as much of their order as Spark promises: batch after batch.

    picked   of each key a batch has one row, so the first and the last row of a window are those with the lowest and
             the highest number
    ran      windows of four rows of a key, in whatever order its rows came inside a batch. Whatever that order was,
             every row is in one window, but for the few that came last: all sums of a key together are the sum of all
             its rows, less one to three rows of its last batch. A row that was lost, doubled, or counted in one order
             before a restart and in another one after it makes a sum that no such rows explain
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.faults.ordered import BITS, MIX, OFTEN, PER_BATCH, RATE, WINDOW_ROWS
from holdfast.pipeline.generators import EPOCH_US

_SECOND_US = 1_000_000
_SIZE_US, _STEP_US = 6 * _SECOND_US, 3 * _SECOND_US


def sink_files(folder: Path) -> list[Path]:
    """Files that count: those that Spark's own log of the sink names."""
    log = folder / "_spark_metadata"
    numbers = {int(path.name.removesuffix(".compact")): path for path in log.iterdir() if path.name[0].isdigit()}
    compact = max((n for n, path in numbers.items() if path.suffix == ".compact"), default=0)
    found = []
    for number in sorted(n for n in numbers if n >= compact):
        for line in numbers[number].read_text().splitlines()[1:]:
            found.append(folder / Path(json.loads(line)["path"]).name)
    return found


def _table(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in sink_files(folder)])


def wrong(out: Path, rows: int, rate: int = RATE, per_batch: int = PER_BATCH) -> list[str]:
    """Of a finished run that has read the numbers below `rows`: what is not as it must be; nothing: all is."""
    numbers = np.arange(rows, dtype=np.int64)
    return [*_picked(_table(out / "picks"), numbers, rate, per_batch), *_ran(_table(out / "runs"), numbers, per_batch)]


def _picked(found: pa.Table, numbers: NDArray[np.int64], rate: int, per_batch: int) -> Iterator[str]:
    expected: dict[tuple[int, int], list[int]] = {}
    at = EPOCH_US + numbers * _SECOND_US // rate
    for back in range(_SIZE_US // _STEP_US):
        starts = at // _STEP_US * _STEP_US - back * _STEP_US
        for start, number in zip(starts.tolist(), numbers.tolist(), strict=True):
            low_high = expected.setdefault((start, number % per_batch), [number, number, 0])
            low_high[1] = number
            low_high[2] += 1
    seen: set[tuple[int, int]] = set()
    starts = found["window_start"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    columns = [found[name].to_pylist() for name in ("once", "first", "last", "rows")]
    for start, once, *values in zip(starts, *columns, strict=True):
        if (start, once) in seen:
            yield f"picked: window {start} of {once} is there twice"
        seen.add((start, once))
        if expected.get((start, once)) != values:
            yield f"picked: window {start} of {once} is {values}, expected {expected.get((start, once))}"
    if len(expected) != len(seen):
        yield f"picked: {len(seen)} windows, expected {len(expected)}"


def _ran(found: pa.Table, numbers: NDArray[np.int64], per_batch: int) -> Iterator[str]:
    mixed = np.array([number * MIX % (1 << BITS) for number in numbers.tolist()], dtype=np.int64)
    keys = per_batch // OFTEN
    total, windows = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    often = found["often"].to_numpy()
    np.add.at(total, often, found["total"].to_numpy())
    np.add.at(windows, often, 1)
    for key in range(keys):
        mine = mixed[key::keys]
        left = len(mine) % WINDOW_ROWS
        if windows[key] != len(mine) // WINDOW_ROWS:
            yield f"ran: {windows[key]} windows of {key}, expected {len(mine) // WINDOW_ROWS}"
        rest = int(mine.sum()) - int(total[key])
        if not any(sum(some) == rest for some in combinations(mine[-OFTEN:].tolist(), left)):
            yield f"ran: the windows of {key} are not of its rows: {rest} is no sum of {left} of its last ones"
