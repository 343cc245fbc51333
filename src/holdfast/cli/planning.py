"""Plan a user's file in a process of its own: the planner needs a JVM for schemas, and it should not stay.

`python -m holdfast.cli.planning FILE DIRECTORY QUERY [run] [latency=…] [master=…]` writes `plan.json` and
`explain.txt` into the directory and one JSON object to stdout: the planner's warnings, or with exit code 2 the mistake
in the file. With `run` it also looks whether an earlier run's output is in the way. Spark's settings come as a JSON
object on stdin: they may hold keys, and command lines are public.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import msgspec

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.plan import REAL_TIME, Plan
from holdfast.pipeline import Pipeline
from holdfast.pipeline.checks import SinkFacts
from holdfast.pipeline.graph import Source
from holdfast.runtime.config import read_plan
from holdfast.spark.real_time_jar import with_jar

from .alone import run_alone

#: A few seconds, as a rule; minutes where many JVMs start on few cores. It ends functions of the user that never do.
PLAN_LIMIT_S = 600


def check_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(f"no file {file}", hint="Give the Python file that makes the pipeline.")


def plan_file(
    file: Path,
    directory: Path,
    *,
    query: str,
    conf: dict[str, str],
    runs_here: bool = False,
    latency: str = "",
    master: str = "",
    told: threading.Event | None = None,
) -> tuple[Plan, list[str]]:
    """The plan of a pipeline file, and what the planner warns of.

    conf: Spark's settings of the stages. The planner calls the user's functions, which may need the same jars.
    runs_here: it is about to run on this machine in `directory`, so that paths mean here what they mean to the stages.
    latency: of sources that do not say it. master: Spark's, if the stages run on this machine.
    """
    check_file(file)
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "holdfast.cli.planning", str(file.resolve()), str(directory), query]
    arguments += ["run"] if runs_here else []
    arguments += [f"{name}={value}" for name, value in (("latency", latency), ("master", master)) if value]
    try:
        done = run_alone(arguments, limit_s=PLAN_LIMIT_S, told=told, given=json.dumps(conf))
    except subprocess.TimeoutExpired:
        raise HoldfastError(
            f"planning {file} takes longer than {PLAN_LIMIT_S} s",
            hint="It calls your read and map functions: do they wait for something?",
        ) from None
    if done.returncode:
        answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if "what" not in answer:
            raise ConfigError(f"{file} cannot be planned", detail=last_words(done))
        raise ConfigError(answer["what"], detail=answer["detail"], hint=answer["hint"])
    return read_plan(directory / "plan.json"), json.loads(done.stdout)["warnings"]


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process died. A JVM that does not even start (a jar is missing, say) tells it before Python does."""
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    java = [line for line in lines if line.startswith('Exception in thread "main"')]
    return [f"exit code {done.returncode}", *lines[-1:], *java[:1]][-1]


def own_stdout() -> TextIO:
    """Stdout for our JSON alone: what the user's file and Spark's JVM print goes to stderr from now on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def main() -> None:
    out = own_stdout()
    code, answer = answer_of(sys.argv[1:], json.load(sys.stdin))
    print(json.dumps(answer), file=out, flush=True)
    sys.exit(code)


def answer_of(arguments: list[str], conf: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of this program, for these arguments and these settings of Spark's."""
    from holdfast.pipeline import load
    from holdfast.pipeline.explain import explain
    from holdfast.pipeline.load import digest_of
    from holdfast.pipeline.planner import Planner
    from holdfast.spark.session import session, settings_beside

    file, directory, query = Path(arguments[0]), Path(arguments[1]), arguments[2]
    given = dict(word.split("=", 1) for word in arguments[3:] if "=" in word)
    try:
        pipeline = load(file)
        latency = given.get("latency", "")
        not_real_time = _not_real_time(pipeline, latency, given.get("master", ""))
        spark = session(f"plan {pipeline.name}", master="local[1]", conf=settings_beside(conf))
        planner = Planner(pipeline, spark, latency=latency, not_real_time=not_real_time)
        made = msgspec.structs.replace(planner.plan(query), file=digest_of(file))
        if "run" in arguments[3:]:
            _check_outputs(made, planner.sinks, directory)
        (directory / "plan.json").write_bytes(msgspec.json.encode(made))
        (directory / "explain.txt").write_text(explain(pipeline, spark, latency, not_real_time))
    except HoldfastError as error:
        return 2, {"what": error.what, "detail": error.detail, "hint": error.hint}
    return 0, {"warnings": pipeline.warnings}


def _not_real_time(pipeline: Pipeline, latency: str, master: str) -> str:
    """Why no stage on this machine can be in real time, if one is to be."""
    wanted = REAL_TIME in (latency, *(source.latency for source in pipeline.graph.of(Source)))
    return with_jar({}, master)[1] if wanted and master else ""


def _check_outputs(plan: Plan, sinks: dict[str, SinkFacts], directory: Path) -> None:
    """Before anything starts: the stages look again, but by then nodes are up and rows have been read."""
    from holdfast.spark.leftovers import check_late, check_sink

    for name, facts in sinks.items():
        check_sink(name, facts, directory / "checkpoints" / name)
    for stage in plan.stages:
        if stage.late_to:
            check_late(stage.id, Path(stage.late_to) / stage.id)


if __name__ == "__main__":
    main()
