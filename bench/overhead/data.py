"""Input of the throughput runs: parquet files with a known number of rows over a known number of keys."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "ts timestamp, src long, bytes long"
START_US = 1_700_000_000_000_000
#: Event time that one file covers.
FILE_US = 1_000_000


def write_files(directory: Path, *, files: int, rows: int, keys: int) -> None:
    """`files` files of `rows` rows each, one second of event time per file; keys drawn evenly."""
    directory.mkdir(parents=True)
    for number in range(files):
        rng = np.random.default_rng(number)
        micros = START_US + number * FILE_US + np.sort(rng.integers(0, FILE_US, rows))
        table = pa.table(
            {
                "ts": pa.array(micros).cast(pa.timestamp("us", tz="UTC")),
                "src": rng.integers(0, keys, rows),
                "bytes": rng.integers(40, 1500, rows),
            }
        )
        pq.write_table(table, directory / f"{number:05d}.parquet")


def write_plain_files(directory: Path, *, files: int, rows: int, keys: int, sets: int = 20) -> None:
    """The same for a long run, written fast: neither encoded nor compressed, with the keys of `sets` files in turns."""
    directory.mkdir(parents=True)
    made = []
    for number in range(min(sets, files)):
        rng = np.random.default_rng(number)
        times = np.sort(rng.integers(0, FILE_US, rows))
        made.append((times, rng.integers(0, keys, rows), rng.integers(40, 1500, rows)))
    began = int(time.time()) - files
    for number in range(files):
        times, src, size = made[number % sets]
        micros = pa.array(START_US + number * FILE_US + times).cast(pa.timestamp("us", tz="UTC"))
        file = directory / f"{number:05d}.parquet"
        pq.write_table(
            pa.table({"ts": micros, "src": src, "bytes": size}), file, use_dictionary=False, compression="none"
        )
        os.utime(file, (began + number, began + number))  # a source takes them by their age
