"""Thousands of scenarios at once, on Spark: one line of a CSV in, one row with the winner out.

Columns are the flags' names (sla, window, checkpoint_size, input_rate, mtbf, ...), values as people write them, empty
for unknown; any other column (a name, a team) is carried along. A line that cannot be read gives a row with the
reason in `error` and does not stop the others. Only this module of the prescriber knows Spark, and only when called.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from holdfast.errors import ConfigError

from .measure import NAMES, build, read_value
from .models import catalogue
from .recommend import front_runners

RESULT: tuple[str, ...] = (
    "winner",
    "copies",
    "rr",
    "cost",
    "checkpoint_interval",
    "runner_up",
    "runner_up_cost",
    "error",
)


def winner_row(values: Mapping[str, str | None], models: str = "exact") -> dict[str, object]:
    """The result columns for one scenario given as text."""
    row: dict[str, object] = {}
    row.update(dict.fromkeys(RESULT))
    try:
        given = {name: value for name, value in values.items() if name in NAMES and value not in (None, "")}
        scenario, choices = build({name: read_value(name, value) for name, value in given.items()})
        front = front_runners(scenario, models=models, **choices)  # type: ignore[arg-type]
    except ConfigError as error:
        row["error"] = " ".join(f"{error.what} {error.hint}".split())
        return row
    if not front:
        row["error"] = "no strategy meets the SLA within these bounds"
        return row
    first = front[0]
    row.update(winner=first.name, copies=first.copies, rr=first.rr, cost=first.cost)
    row["checkpoint_interval"] = first.checkpoint_interval
    if len(front) > 1:
        row.update(runner_up=front[1].name, runner_up_cost=front[1].cost)
    return row


def sweep_file(path: str, out: str | None = None, *, models: str = "exact", master: str = "local[*]") -> int:
    """Run the scenarios of a CSV on Spark and write the rows to `out` or stdout; returns how many there were."""
    if not Path(path).is_file():
        raise ConfigError(f"cannot read {path}: no such file")
    catalogue(models)  # a misspelt set of models must not wait for Spark to start
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("--sweep needs Spark", hint="Install holdfast[spark].")
    from holdfast.jvm import borrowed

    with borrowed("holdfast-sweep", master, {"spark.sql.execution.arrow.maxRecordsPerBatch": "64"}) as spark:
        lines = spark.read.option("header", True).csv(path)
        columns = [name for name in lines.columns if name not in RESULT]
        kept = lines.select(*columns)
        schema = ", ".join([f"`{name}` string" for name in columns] + _result_schema())
        slots = spark.sparkContext.defaultParallelism
        rows = kept.repartition(slots * 4).mapInPandas(_mapper(models), schema)
        return _write((row.asDict() for row in rows.collect()), [*columns, *RESULT], out)


def _result_schema() -> list[str]:
    kinds = {
        "copies": "int",
        "rr": "double",
        "cost": "double",
        "checkpoint_interval": "double",
        "runner_up_cost": "double",
    }
    return [f"`{name}` {kinds.get(name, 'string')}" for name in RESULT]


def _mapper(models: str):
    def rank(batches: Iterable) -> Iterator:  # pandas DataFrames, both ways
        import pandas as pd

        for batch in batches:
            texts = batch.astype(object).where(batch.notna(), None)
            found = pd.DataFrame([winner_row(values, models) for values in texts.to_dict("records")])
            found["copies"] = found["copies"].astype("Int32")
            for name in ("rr", "cost", "checkpoint_interval", "runner_up_cost"):
                found[name] = found[name].astype("float64")
            yield pd.concat([texts.reset_index(drop=True), found], axis=1)

    return rank


def _write(rows: Iterable[dict[str, object]], columns: list[str], out: str | None) -> int:
    if out is not None:
        try:
            with open(out, "w", newline="", encoding="utf-8") as stream:
                return _write_to(stream, rows, columns)
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    return _write_to(sys.stdout, rows, columns)


def _write_to(stream: TextIO, rows: Iterable[dict[str, object]], columns: list[str]) -> int:
    writer = csv.DictWriter(stream, columns)
    writer.writeheader()
    count = 0
    for row in rows:
        writer.writerow({name: "" if row[name] is None or row[name] != row[name] else row[name] for name in columns})
        count += 1
    return count
