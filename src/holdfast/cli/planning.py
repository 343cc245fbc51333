"""Plan a user's file in a process of its own: the planner needs a JVM for schemas, and it should not stay.

`python -m holdfast.cli.planning FILE DIRECTORY` writes `plan.json` and `explain.txt` into the directory; a mistake in
the file ends with its one line on stderr and exit code 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.plan import Plan

PLAN_LIMIT_S = 180


def check_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(f"no file {file}", hint="Give the Python file that makes the pipeline.")


def plan_file(file: Path, directory: Path, *, query: str) -> tuple[Plan, list[str]]:
    """The plan of a pipeline file, and what the planner warns of."""
    check_file(file)
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "holdfast.cli.planning", str(file.resolve()), str(directory), query]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PLAN_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"planning {file} takes longer than {PLAN_LIMIT_S} s",
            hint="It calls your read and map functions: do they wait for something?",
        ) from None
    if done.returncode:
        told = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if "what" not in told:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ConfigError(f"{file} cannot be planned", detail=last[0])
        raise ConfigError(told["what"], detail=told["detail"], hint=told["hint"])
    return read_plan(directory), json.loads(done.stdout)["warnings"]


def read_plan(directory: Path) -> Plan:
    try:
        return msgspec.json.decode((directory / "plan.json").read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"no plan in {directory}", detail=str(error)) from None


def main() -> None:
    from holdfast.pipeline import explain, load, plan
    from holdfast.spark.session import session

    file, directory, query = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        pipeline = load(file)
        spark = session(f"plan {pipeline.name}", master="local[1]")
        made = plan(pipeline, spark, query=query)
        (directory / "plan.json").write_bytes(msgspec.json.encode(made))
        (directory / "explain.txt").write_text(explain(pipeline, spark))
    except HoldfastError as error:
        print(json.dumps({"what": error.what, "detail": error.detail, "hint": error.hint}))
        sys.exit(2)
    print(json.dumps({"warnings": pipeline.warnings}))


if __name__ == "__main__":
    main()
