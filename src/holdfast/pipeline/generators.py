"""Streams for the examples: every row a function of its number, so that a replay gives exactly the same rows.

Both generators stand on Spark's rate-micro-batch source, whose `value` counts 0, 1, 2, … and is replayed by offset.
They are column expressions (no Python per row) in integers and hashes; doubles are only multiplied, since the JVM
may compute sin or pow differently once it has compiled them.

    traffic   packets as in cooperative-ha §8.1: type 1 at 2.0K tuples/s on average (std 0.7K), highly skewed sources;
              type 2 at a constant 100/s, sources uniform over 100
    nexmark   persons, auctions and bids, 1:3:46 of every 50 events

`split_files` cuts real data into many small files, so that a file stream of it has many batches.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ConfigError
from holdfast.pipeline.graph import Frame, Session

#: 2026-01-01 00:00 UTC: generated streams begin here.
EPOCH_US = 1_767_225_600_000_000

#: Events of one round, by kind, as in the Nexmark suite.
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS


def setting(name: str, default: int) -> int:
    """A whole number from the environment: HOLDFAST_RATE, HOLDFAST_ROWS, …"""
    text = os.environ.get(name, "")
    try:
        value = int(text) if text else default
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not a whole number") from error
    if value < 0:
        raise ConfigError(f"{name}={text!r} is negative")
    return value


def output(name: str) -> str:
    """Where an example writes: under HOLDFAST_OUT, or ./out."""
    return str(Path(os.environ.get("HOLDFAST_OUT") or "out").absolute() / name)


def numbers(spark: Session, *, rate: int, batch_ms: int, rows: int = 0) -> Frame:
    """The column `value` = 0, 1, 2, …: `rate` of them a second if a batch is triggered every `batch_ms`. `rows` > 0:
    only so many; the batches after that are empty."""
    per_batch = max(1, rate * batch_ms // 1000)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_batch)
    counted = source.option("advanceMillisPerBatch", batch_ms).load().select("value")
    return counted.where(f"value < {rows}") if rows else counted


def _hash(seed: int, column: str = "value", below: int = 1 << 40) -> str:
    return f"pmod(xxhash64({column}, {seed}L), {below}L)"


# -- network traffic --------------------------------------------------------------------------------------------------

#: Type 1 rows for one of type 2: 2,000 and 100 a second.
_TYPE_2_EVERY = 21
SOURCES = 5_000


def traffic(
    spark: Session, *, rate: int = 2_100, batch_ms: int = 250, rows: int = 0, late_every: int = 10_000
) -> Frame:
    """Packets: ts timestamp, src string, bytes long, kind int.

    Every two seconds' worth of rows is dealt unevenly to its two seconds (20 to 80%, by a hash): the rate per second
    then has a standard deviation of about 35% of its mean. Rows come up to 0.2 s out of order, and one in
    `late_every` four seconds late (0: none).
    """
    group = 2 * rate
    late = f"if({_hash(5, below=late_every)} = 0, 4000000L, 0L)" if late_every else "0L"
    first = f"({group}L * (200 + {_hash(1, 'g', 601)}) div 1000)"
    second = f"1000000L + (p - {first}) * 1000000L div ({group}L - {first})"
    instant = f"g * 2000000L + if(p < {first}, p * 1000000L div {first}, {second})"
    skew = f"cast({_hash(3)} as double) / {1 << 40}D"
    return (
        numbers(spark, rate=rate, batch_ms=batch_ms, rows=rows)
        .selectExpr("value", f"value div {group}L as g", f"value % {group}L as p", f"{skew} as u")
        .selectExpr(
            f"timestamp_micros({EPOCH_US}L + {instant} - {_hash(4, below=200_000)} - {late}) as ts",
            f"if(value % {_TYPE_2_EVERY} = 0, 2, 1) as kind",
            f"if(value % {_TYPE_2_EVERY} = 0, concat('10.2.0.', {_hash(2, below=100)}), concat('10.1.', "
            f"cast(floor({SOURCES} * u * u * u * u * u * u) as int) div 256, '.', "
            f"cast(floor({SOURCES} * u * u * u * u * u * u) as int) % 256)) as src",
            f"if({_hash(6, below=20)} = 0, 0L, 40L + {_hash(7, below=1461)}) as bytes",
        )
    )


# -- Nexmark ----------------------------------------------------------------------------------------------------------


def nexmark(spark: Session, *, rate: int = 10_000, batch_ms: int = 250, rows: int = 0) -> Frame:
    """Events as one stream: value (the event's number), ts (from that number), n (the round), kind."""
    kind = f"case when r < {PERSONS} then 'person' when r < {PERSONS + AUCTIONS} then 'auction' else 'bid' end"
    return (
        numbers(spark, rate=rate, batch_ms=batch_ms, rows=rows)
        .selectExpr("value", f"value div {ROUND}L as n", f"value % {ROUND}L as r")
        .selectExpr(
            "value", "n", "r", f"timestamp_micros({EPOCH_US}L + value * 1000000L div {rate}L) as ts", f"{kind} as kind"
        )
    )


def persons(events: Frame) -> Frame:
    """ts, id, name, city."""
    return events.where("kind = 'person'").selectExpr(
        "ts",
        "1000L + n as id",
        f"concat('person-', {_hash(11, below=10_000)}) as name",
        f"concat('city-', {_hash(12, below=100)}) as city",
    )


def auctions(events: Frame) -> Frame:
    """ts, id, seller, category, reserve. Most sellers are among the last hundred persons, some among the last ten."""
    recent = f"if({_hash(21, below=4)} = 0, {_hash(22, below=10)}, {_hash(23, below=100)})"
    return events.where("kind = 'auction'").selectExpr(
        "ts",
        f"1000L + n * {AUCTIONS} + r - {PERSONS} as id",
        f"1000L + greatest(0L, n - {recent}) as seller",
        f"10L + {_hash(24, below=5)} as category",
        f"100L + {_hash(25, below=10_000)} as reserve",
    )


def bids(events: Frame) -> Frame:
    """ts, auction, bidder, price. Half of the bids go to the hot auction of the moment, as in the suite."""
    last = f"(n * {AUCTIONS} + {AUCTIONS - 1})"
    auction = f"if({_hash(31, below=2)} = 0, {last} div 100 * 100, greatest(0L, {last} - {_hash(32, below=100)}))"
    scale = f"element_at(array(1L, 10L, 100L, 1000L), 1 + cast({_hash(34, below=4)} as int))"
    return events.where("kind = 'bid'").selectExpr(
        "ts",
        f"1000L + {auction} as auction",
        f"1000L + greatest(0L, n - {_hash(33, below=1_000)}) as bidder",
        f"(100L + {_hash(35, below=9_900)}) * {scale} as price",
    )


# -- real data --------------------------------------------------------------------------------------------------------


def real_data(name: str) -> Path:
    """A file of real events: in HOLDFAST_DATA, or in shared/data beside or above the project."""
    given = os.environ.get("HOLDFAST_DATA")
    here = Path(__file__).resolve()
    around = [Path("../shared/data"), *(p / "shared" / "data" for p in here.parents)]
    folders = [Path(given)] if given else around
    for folder in folders:
        if (folder / f"{name}.parquet").is_file():
            return (folder / f"{name}.parquet").resolve()
    raise ConfigError(
        f"no real data: {name}.parquet is not there",
        detail=f"Looked in {given or 'shared/data, beside and above the project'}.",
        hint="Set HOLDFAST_DATA to the directory that has it. Netmon and the Nexmark examples need no data.",
    )


def split_files(name: str, *, rows_per_file: int, rows: int = 0) -> str:
    """A directory with the rows of a real file in many small ones, in order; made once, and found again by others.

    Their times of modification rise by a second each: Spark's file stream takes files in that order.
    """
    source = real_data(name)
    root = Path(os.environ.get("HOLDFAST_OUT") or "out").absolute()
    target = root / "in" / f"{name}-{rows_per_file}-{rows}"
    if target.is_dir():
        return str(target)
    table = pq.read_table(source)
    table = table.slice(0, rows) if rows else table
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    for number, start in enumerate(range(0, table.num_rows, rows_per_file)):
        file = fresh / f"part-{number:05d}.parquet"
        pq.write_table(_plain(table.slice(start, rows_per_file)), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    try:
        fresh.rename(target)  # whole, or not at all: several stages may be loading this file at once
    except OSError:
        if not target.is_dir():
            raise
        for file in fresh.iterdir():
            file.unlink()
        fresh.rmdir()
    return str(target)


def _plain(table: pa.Table) -> pa.Table:
    """Without pandas' metadata and large strings."""
    fields = [pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(fields))
