"""Packets in files: seeded, a few of them late, written whole or not at all, as a source wants them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

#: A pipeline over such files, from `{base}/in` to `{base}/out`.
TALKERS = """
import holdfast as hf

pipeline = hf.Pipeline("netmon")
packets = pipeline.read(
    lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
    .option("maxFilesPerTrigger", 4).json("{base}/in"),
    event_time="ts", watermark="2 seconds")
packets.window("10 seconds", every="1 second").by("src").agg(
    packets=hf.count(), bytes=hf.sum("bytes"), shards=4, name="talkers").write(
    lambda df: df.writeStream.format("parquet").option("path", "{base}/out"))
"""
START_US = 1_700_000_000_000_000
SECOND = 1_000_000


def packets(number: int, rows: int = 400, seed: int = 7) -> list[dict]:
    """File `number`: one second of event time; one row in a hundred is seven seconds late."""
    rng = Random(f"{seed}/{number}")
    found = []
    for _ in range(rows):
        late = 7 * SECOND if rng.random() < 0.01 else 0
        ts = START_US + number * SECOND + rng.randrange(SECOND) - late
        found.append({"ts": ts, "src": f"h{int(rng.random() ** 3 * 60)}", "bytes": rng.randrange(1500)})
    return found


def write_json(directory: Path, number: int, **more) -> None:
    def line(row: dict) -> str:
        seconds, micros = divmod(row["ts"], SECOND)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return json.dumps({**row, "ts": f"{stamp}.{micros:06d}Z"})

    part = directory / f".{number:05d}.json"
    part.write_text("\n".join(line(row) for row in packets(number, **more)) + "\n")
    part.rename(directory / f"{number:05d}.json")


def write_parquet(directory: Path, number: int, types: dict | None = None, **more) -> Path:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.string()), ("bytes", pa.int64())])
    table = pa.Table.from_pylist(packets(number, **more), schema)
    for name, type_ in (types or {}).items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table[name].cast(type_))
    part = directory / f".{number:05d}.parquet"
    pq.write_table(table, part)
    return part.rename(directory / f"{number:05d}.parquet")


class Traffic:
    """Writes a file every so often until it is stopped."""

    def __init__(self, directory: Path, every_s: float = 0.3) -> None:
        self.directory = directory
        self.every_s = every_s
        self.number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            write_json(self.directory, self.number)
            self.number += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
