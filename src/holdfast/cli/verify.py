"""`holdfast verify`: the audit. Recomputes the results with plain Spark in batch and compares them row by row."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from holdfast.errors import ConfigError, HoldfastError, exit_code
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.plan import Plan
from holdfast.runtime.config import read_plan
from holdfast.runtime.disk.journal import write_whole

from .alone import run_alone
from .planning import last_words, own_stdout
from .progress import StepLine
from .runs import JsonOption, RunArgument, RunFile, find_run, read_run, say

VERIFY_LIMIT_S = 3600


def verify(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Was anything lost or doubled? Compares what the sinks hold with one Spark batch job over the same input.

    Late rows and bad rows that were recorded are left out. End the run with
    `holdfast stop --finish` first, which closes all windows. Exit code 0: equal;
    1: not equal, and it says what is missing or doubled.

    Examples:  holdfast stop --finish && holdfast verify
               holdfast verify holdfast-run/netmon --json
    """
    found = find_run(run)
    read_plan(found.path / "plan.json")  # before anything is said or started
    with StepLine(quiet=as_json) as progress:
        verdict = verify_run(found, tell=progress.at)
    if as_json:
        say(verdict)
    else:
        typer.echo(verdict["text"])
    raise typer.Exit(0 if verdict["holds"] else 1)


def verify_run(
    run: RunFile, told: threading.Event | None = None, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """In a process of its own, in the directory where the run was started: the user's paths mean the same there. It
    writes into a file what it is at, since its own output is its answer."""
    tell(f"recomputing {run.pipeline} with plain Spark in batch: Spark starts")
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-") as scratch:
        note = Path(scratch) / "at"

        def look() -> None:
            with suppress(OSError):
                tell(f"recomputing {run.pipeline}: {note.read_text()}")

        try:
            done = run_alone(
                ["-m", "holdfast.cli.verify", run.dir, str(note)],
                limit_s=VERIFY_LIMIT_S, told=told, cwd=run.cwd, look=look,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise HoldfastError(f"verifying {run.pipeline} takes longer than {VERIFY_LIMIT_S} s") from None
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    if "what" in answer:
        kind = ConfigError if answer["mistake"] else HoldfastError
        raise kind(answer["what"], detail=answer["detail"], hint=answer["hint"])
    if "holds" not in answer:
        raise HoldfastError(f"{run.pipeline} cannot be verified", detail=answer.get("failed") or last_words(done))
    return answer


def _check_finished(directory: Path, plan: Plan) -> None:
    """Has every sink written up to an infinite watermark?"""
    from holdfast.spark.checkpoint import last_committed, plan_of, source_offsets

    for stage in plan.stages:
        if stage.kind != "sink":
            continue
        checkpoint = directory / "checkpoints" / stage.id
        last = last_committed(checkpoint)
        offsets = source_offsets(plan_of(checkpoint, last)) if last >= 0 else []
        marks = [mark for offset in offsets if offset for _, mark in offset.values()]
        if not marks or min(marks) < WATERMARK_MAX:
            raise ConfigError(
                f"{plan.pipeline} was not finished",
                detail=f"Sink {stage.id} has not written everything: some windows are still open.",
                hint="End it with `holdfast stop --finish`, then verify.",
            )


def _teller(arguments: list[str]) -> Callable[[str], None]:
    """Leaves what this process is at where the command looks. A disk that takes nothing must not end the audit."""

    def tell(what: str) -> None:
        with suppress(OSError):
            for path in map(Path, arguments[:1]):
                write_whole(path, what.encode())

    return tell


def main() -> None:
    out = own_stdout()
    from holdfast.pipeline import load
    from holdfast.pipeline.verify import verify as recompute
    from holdfast.spark.reasons import Reason
    from holdfast.spark.session import session, settings_beside

    directory = Path(sys.argv[1])
    try:
        run = read_run(directory)
        plan = read_plan(directory / "plan.json")
        _check_finished(directory, plan)
        pipeline = load(run.file(plan.file))
        spark = session(f"verify {run.pipeline}", master="local[*]", conf=settings_beside(run.conf))
        verdict = recompute(pipeline, plan, directory, spark, tell=_teller(sys.argv[2:]))
    except HoldfastError as error:
        told = {"what": error.what, "detail": error.detail, "hint": error.hint}
        print(json.dumps({**told, "mistake": isinstance(error, ConfigError)}), file=out, flush=True)
        sys.exit(exit_code(error))
    except Exception as error:  # Spark's: input that is gone, memory that does not suffice
        traceback.print_exc()
        print(json.dumps({"failed": Reason(directory.name, error).detail}), file=out, flush=True)
        sys.exit(1)
    print(json.dumps(verdict.as_json()), file=out, flush=True)


if __name__ == "__main__":
    main()
