"""One arm of `drivers` or of its part `delay`: a run of whichever tree PYTHONPATH names, measured from outside.

    PYTHONPATH=TREE/src:ROOT python -m bench.drivers.arm '{"what": "drivers", "home": DIR, "stages": 4, …}'

Prints what it found as JSON, in its last line. It uses only what the trees that are compared have in common.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from holdfast.cli.watch import cluster_status
from holdfast.errors import HoldfastError

try:
    from holdfast.cli.start import LocalRun, RunOptions, start_run
except ModuleNotFoundError:  # the tree of before had it elsewhere
    from holdfast.cli.run import LocalRun, RunOptions, start_run  # type: ignore[no-redef]

QUERY = Path(__file__).with_name("query.py")
FIRST_LIMIT_S = 300.0
#: JVMs of standbys practise for a minute or two after they are warm: the idle minute begins when two spans of this
#: length take about the same CPU, or after the limit.
SETTLE_S, SETTLE_LIMIT_S, SETTLED = 10.0, 180.0, 0.8
LOOK_S = 0.5
#: Batches before that do not count: a JVM compiles what it runs for a while.
WARM_ARRIVALS = 100


def options_of(home: Path, stages: int, *, mixed: bool = False, rate: int = 2_000, shards: int = 2) -> dict[str, Any]:
    """What `query.py` reads."""
    return {
        "start_us": int(time.time() * 1_000_000),
        "rate": rate,
        "keys": 500,
        "window": "200 milliseconds",
        "delay": "200 milliseconds",
        "shards": shards,
        "stages": stages,
        "mixed": mixed,
        "out": str(home),
        "pause": str(home / "pause"),
    }


def started_at(told: dict[str, float]) -> Callable[[str], None]:
    """For `start_run`: notes when the nodes are started. Planning and compiling before that is the same everywhere."""

    def tell(line: str) -> None:
        if line.startswith("starting"):
            told["at"] = time.time()

    return tell


def arrivals(home: Path, number: int) -> list[dict[str, float]]:
    try:
        lines = (home / f"arrivals-{number}.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


# --- what it costs ----------------------------------------------------------------------------------------------------


def family() -> list[psutil.Process]:
    """Every process of the run: all below this one."""
    return psutil.Process().children(recursive=True)


def is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "java"
    return False


def memory() -> dict[str, Any]:
    """Resident megabytes of all processes, and of the JVMs; `shared_out`: with what they share counted once."""
    resident, jvms, parts, count = 0, 0, 0, 0
    for process in family():
        with contextlib.suppress(psutil.Error):
            full = process.memory_full_info()
            resident += full.rss
            parts += full.pss
            if is_jvm(process):
                count += 1
                jvms += full.rss
    return {"jvms": count, "rss_mb": resident // 2**20, "rss_jvms_mb": jvms // 2**20, "shared_out_mb": parts // 2**20}


class CpuSum:
    """CPU seconds of the run so far; a process that has ended keeps what it had."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def look(self) -> float:
        for process in family():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process.pid] = times.user + times.system
        return sum(self._seen.values())


def is_warm(started: LocalRun) -> bool:
    """Every stage has a standby, all of them are warm, and every shard has a backup."""
    try:
        status = cluster_status(started.run)
    except HoldfastError:
        return False
    stages = [place for place in status["record"]["places"].values() if place["stage"]]
    return all(place["backup"] for place in stages) and not status["unprotected"]


def start(asked: dict[str, Any], options: dict[str, Any], told: dict[str, float]) -> LocalRun:
    os.environ["HOLDFAST_BENCH"] = json.dumps(options)
    home = Path(asked["home"])
    settings = tuple(asked.get("settings", ()))
    run = RunOptions(nodes=asked["nodes"], directory=home / "run", standby=asked["standby"], settings=settings)
    return start_run(QUERY, run, started_at(told))


def _settle(cpu: CpuSum) -> float:
    """Wait until CPU use has come down; how long that took."""
    began, used = time.monotonic(), [cpu.look()]
    while time.monotonic() - began < SETTLE_LIMIT_S:
        time.sleep(SETTLE_S)
        used.append(cpu.look())
        spans = [b - a for a, b in itertools.pairwise(used)]
        if len(spans) > 2 and spans[-1] >= SETTLED * spans[-2]:
            break
    return round(time.monotonic() - began, 1)


def costs(asked: dict[str, Any]) -> dict[str, Any]:
    """JVMs, memory, CPU of an idle minute, seconds to the first row and until everything is warm."""
    home, stages = Path(asked["home"]), asked["stages"]
    told: dict[str, float] = {}
    started = start(asked, options_of(home, stages), told)
    found: dict[str, Any] = {"jvms_most": 0, "first_row_s": None, "all_rows_s": None, "warm_s": None}
    try:
        limit = time.time() + FIRST_LIMIT_S + asked["warm_limit_s"]
        while time.time() < limit and found["warm_s"] is None:
            found["jvms_most"] = max(found["jvms_most"], sum(map(is_jvm, family())))
            firsts = [seen[0]["at"] for number in range(stages // 2) if (seen := arrivals(home, number))]
            if firsts and found["first_row_s"] is None:
                found["first_row_s"] = round(min(firsts) - told["at"], 1)
                limit = time.time() + asked["warm_limit_s"]
            if len(firsts) == stages // 2 and found["all_rows_s"] is None:
                found["all_rows_s"] = round(max(firsts) - told["at"], 1)
            if found["all_rows_s"] is not None and is_warm(started):
                found["warm_s"] = round(time.time() - told["at"], 1)
            time.sleep(LOOK_S)
        if found["first_row_s"] is None:
            raise RuntimeError(f"no row within {FIRST_LIMIT_S + asked['warm_limit_s']:.0f} s")
        found |= memory()
        (home / "pause").touch()
        cpu = CpuSum()
        found["settled_s"] = _settle(cpu)
        before, began = cpu.look(), time.monotonic()
        time.sleep(asked["idle_s"])
        used, passed = cpu.look() - before, time.monotonic() - began
        found |= {"idle_cpu_s_a_minute": round(60.0 * used / passed, 2), "load": round(os.getloadavg()[0], 1)}
    finally:
        started.stop()
    return found


# --- how late rows are ------------------------------------------------------------------------------------------------


def delays(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the end of a window to its arrival at the sink, of every arrival, for a while."""
    home = Path(asked["home"])
    options = options_of(home, asked["stages"], rate=asked["rate"], shards=8) | {"keys": 5_000}
    options |= {"window": "100 milliseconds", "arrow": asked.get("arrow", False)}
    started = start(asked, options, {})
    pairs = range(asked["stages"] // 2)
    try:
        limit = time.time() + FIRST_LIMIT_S
        while min(len(arrivals(home, number)) for number in pairs) < WARM_ARRIVALS:
            if time.time() > limit:
                raise RuntimeError(f"not {WARM_ARRIVALS} arrivals within {FIRST_LIMIT_S:.0f} s")
            time.sleep(LOOK_S)
        began = time.time()
        time.sleep(asked["seconds"])
        seen = [line for number in pairs for line in arrivals(home, number) if line["at"] > began]
    finally:
        started.stop()
    return {"delays_s": sorted(round(line["at"] - line["end"], 4) for line in seen)}


def main() -> None:
    asked = json.loads(sys.argv[1])
    Path(asked["home"]).mkdir(parents=True)
    found = {"drivers": costs, "delay": delays}[asked["what"]](asked)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
