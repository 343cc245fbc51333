"""`holdfast bad`: rows that stages have set aside because no operator can hold them, and how many may be."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from holdfast.errors import ConfigError
from holdfast.pipeline.recorded import recorded
from holdfast.runtime.config import read_plan

from .runs import JsonOption, RunArgument, RunFile, find_run, say
from .tables import table_console


def bad(
    run: RunArgument = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage; needed with --max.")] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=0, help="How many rows it may set aside in all, from now on.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rows that stages have set aside, by operator and reason; or let a stage set aside more of them.

    A stage that would set aside more than it may (bad_rows_max) fails, and is
    started again and again. With a higher limit its batch goes through, and
    nothing is lost or doubled. The rows themselves are in DIR/bad/STAGE.

    Examples:  holdfast bad
               holdfast bad --stage talkers_in --max 5000
    """
    found = find_run(run)
    stages = {s.id: s for s in read_plan(found.path / "plan.json").stages if s.kind != "sink"}
    if stage is not None and stage not in stages:
        raise ConfigError(f"no stage {stage!r} hands rows over", hint=f"There are {', '.join(sorted(stages))}.")
    if most is not None:
        from holdfast.spark.aside import set_bad_rows_max

        if stage is None:
            raise ConfigError("--max needs --stage", hint=f"It is one of {', '.join(sorted(stages))}.")
        set_bad_rows_max(found.path, stage, most)
    shown = [stages[name] for name in sorted(stages) if stage in (None, name)]
    told = {one.id: {"bad_rows_max": _limit(found, one), "rows": _rows(found, one.id)} for one in shown}
    if as_json:
        say(told)
        return
    table = Table()
    for column in ("stage", "may set aside", "rows", "operator", "reason", "for example, batch"):
        table.add_column(column, justify="right" if column in ("may set aside", "rows") else "left", overflow="fold")
    for name, one in told.items():
        for row in one["rows"] or [{"rows": 0, "operator": "-", "reason": "-", "batch": "-"}]:
            cells = (f"{row['rows']:,}", row["operator"], row["reason"], str(row["batch"]))
            table.add_row(name, f"{one['bad_rows_max']:,}", *cells)
    table_console().print(table)


def _limit(run: RunFile, stage: Any) -> int:
    from holdfast.spark.aside import bad_rows_max

    return bad_rows_max(run.path, stage)


def _rows(run: RunFile, stage: str) -> list[dict[str, Any]]:
    """How many rows of batches that count were set aside, by operator and reason, and a batch that has some."""
    import pyarrow.parquet as pq

    from holdfast.spark.bad import OPERATOR, REASON

    counted: dict[tuple[str, str], dict[str, Any]] = {}
    for first, _, file in recorded(run.path / "bad" / stage):
        for counts in (
            pq.read_table(file, columns=[OPERATOR, REASON])
            .group_by([OPERATOR, REASON])
            .aggregate([([], "count_all")])
            .to_pylist()
        ):
            key = (counts[OPERATOR], counts[REASON])
            row = {"operator": key[0], "reason": key[1], "rows": 0, "batch": str(first)}
            counted.setdefault(key, row)["rows"] += counts["count_all"]
    return list(counted.values())
