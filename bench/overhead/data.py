"""Input of the throughput runs: parquet files with a known number of rows over a known number of keys."""

from __future__ import annotations

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
