"""How long the output pauses when a node with Spark stages is killed (kill -9), against plain Structured Streaming.

Pipelines of two and of four stages on four nodes, with a standby of every stage. The second pair of the four has
another source (in the JVM) and another sink (files). A kill's gap is the longest pause of the sink that paused longest.
Of the four stages the killed node runs two at least: where none does, a node is killed first that does not count.

    warm    every standby is warm; then the node with the most stages is killed
    again   5 s after that, the node is killed that now runs the most stages
    cold    the node of a standby is killed, and as soon as the next standby is named, the stage's own; what `status`
            said just before stands beside what it cost

Plain Structured Streaming is killed and started again at once, as in bench/recovery, in the same run.
HOLDFAST_STAGES="4" chooses, HOLDFAST_KILLS="3" shortens.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import recovery
from bench.drivers import chosen
from bench.drivers.arm import QUERY, arrivals, options_of
from bench.harness import Report, keep_logs, scratch

DESCRIPTION = "output gap after kill -9 of a node with Spark stages, against plain Structured Streaming"
STAGES = (2, 4)
RATE = 20_000
#: Kills with warm standbys; of those, after how many another one follows; kills with a cold one; kills of plain; quiet.
SIZE, QUICK_SIZE = (10, 3, 3, 5, 8.0), (2, 1, 1, 1, 4.0)
AGAIN_S = 5.0
#: A stage that is moved for balance pauses, too, which is not what is measured here.
SETTINGS = ('balance = "1 h"',)
GOAL = 15
LIMIT_S = 180.0


class StagedRun:
    """One run, and what its sinks have got."""

    def __init__(self, home: Path, stages: int) -> None:
        from holdfast.cli.start import RunOptions, start_run

        self.home, self.stages = home, stages
        home.mkdir()
        options = options_of(home, stages, mixed=True, rate=2 * RATE // stages, shards=4) | {"keys": recovery.KEYS}
        os.environ.update(recovery._environment(options))
        self.started = start_run(QUERY, RunOptions(nodes=4, directory=home / "run", settings=SETTINGS))

    # --- who is where

    def status(self) -> dict[str, Any]:
        """On a busy machine nobody may answer in time: asked again."""
        from holdfast.cli.watch import cluster_status
        from holdfast.errors import HoldfastError

        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return cluster_status(self.started.run)
            except HoldfastError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def by_node(self) -> dict[str, list[str]]:
        """Stages by the node that runs them, the one with the most first."""
        found: dict[str, list[str]] = {}
        for asset, place in self.status()["record"]["places"].items():
            if place["stage"]:
                found.setdefault(_name(place["primary"]), []).append(asset)
        return dict(sorted(found.items(), key=lambda one: (-len(one[1]), one[0])))

    def said_s(self, held: list[str]) -> float | None:
        """What `status` says that a take-over of these stages would cost now, the largest."""
        status = self.status()
        told = [_standby(status, stage).get("take_over_s") for stage in held]
        return max((seconds for seconds in told if seconds is not None), default=None)

    def wait(self, what: str, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {limit_s:.0f} s")
            time.sleep(0.05)

    def wait_until_calm(self, quiet_s: float) -> None:
        recovery._wait_until_calm(self.started, quiet_s)

    def wait_for_second_copies(self) -> None:
        """Of shards and ledgers: one more kill costs no state."""
        no_copy = lambda: [line for line in self.status()["unprotected"] if "has no backup" in line]  # noqa: E731
        self.wait("a second copy of everything", lambda: not no_copy())

    # --- what came out

    def times(self, number: int) -> list[float]:
        """When the rows of a sink's batches were there."""
        folder = self.home / f"files-{number}" / "_spark_metadata"
        if not folder.parent.exists():
            return [line["at"] for line in arrivals(self.home, number)]
        found = []
        for entry in os.scandir(folder) if folder.exists() else ():
            if not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # Spark removes those that it has made one of
                    found.append(entry.stat().st_mtime)  # a file of Spark's own for each batch that counts
        return sorted(found)

    def sinks(self) -> range:
        return range(self.stages // 2)

    def wait_for_rows(self, since: float, count: int, limit_s: float) -> None:
        for number in self.sinks():
            self.wait(
                f"{count} batches of sink {number}",
                lambda number=number: sum(at > since for at in self.times(number)) >= count,
                limit_s,
            )

    def pauses(self, since: float, until: float) -> list[float]:
        return [recovery.pause(self.times(number), since, until) for number in self.sinks()]

    # --- kills

    def kill(self, victim: str, held: list[str], case: str, number: int) -> tuple[float, dict[str, Any]]:
        at = time.time()
        usual = [
            recovery.pause([t for t in self.times(sink) if t < at], at - recovery.AFTERMATH_S, at)
            for sink in self.sinks()
        ]
        row = {"stages": self.stages, "case": case, "kill": number, "node": victim, "held": len(held),
               "said_s": self.said_s(held), "gap_s": None, "usual_s": round(max(usual), 3)}  # fmt: skip
        at = time.time()
        self.started.nodes.kill(victim)
        return at, row

    def after(self, at: float, row: dict[str, Any], until: float | None = None) -> dict[str, Any]:
        """What the kill cost: pauses that began within the next seconds, or before `until`."""
        self.wait_for_rows(at + recovery.AFTERMATH_S, 3, recovery.RESUME_LIMIT_S)
        gaps = self.pauses(at, min(until or at + recovery.AFTERMATH_S, at + recovery.AFTERMATH_S))
        row |= {"gap_s": round(max(gaps), 3), "by_sink_s": [round(gap, 3) for gap in gaps]}
        print(f"    {row}", flush=True)
        return row

    def victim(self, at_least: int) -> tuple[str, list[str]]:
        """The node with the most stages; if it has too few, one is killed first so that another gets its stages."""
        for _ in range(4):
            name, held = next(iter(self.by_node().items()))
            if len(held) >= at_least:
                return name, held
            self.started.nodes.kill(name)
            self.wait_for_rows(time.time() + recovery.AFTERMATH_S, 3, recovery.RESUME_LIMIT_S)
            self.wait_until_calm(2.0)
        raise RuntimeError(f"no node runs {at_least} stages after four kills")


def _name(seat: str | None) -> str:
    return (seat or "").partition("#")[0]


def _standby(status: dict[str, Any], stage: str) -> dict[str, Any]:
    place = status["record"]["places"][stage]
    return status["nodes"].get(_name(place["backup"]), {}).get("drivers", {}).get(stage, {})


def _kills(cluster: StagedRun, size: tuple[int, int, int, int, float], rows: list[dict[str, Any]]) -> None:
    kills, again, cold, _, quiet_s = size
    at_least = 2 if cluster.stages >= 4 else 1
    cluster.wait_for_rows(0.0, 20, recovery.FIRST_LIMIT_S)
    for number in range(1, kills + 1):
        cluster.wait_until_calm(quiet_s)
        at, row = cluster.kill(*cluster.victim(at_least), "warm", number)
        if number > kills - again:
            time.sleep(AGAIN_S)
            cluster.wait_for_second_copies()
            second_at, second = cluster.kill(*next(iter(cluster.by_node().items())), "again", number - kills + again)
            second["after_s"] = round(second_at - at, 1)
            rows.append(cluster.after(second_at, second))
            row["gap_s"] = round(max(cluster.pauses(at, second_at - 0.1)), 3)
            row["cut"] = row["gap_s"] > second_at - at  # not over when the second kill came: it is not only the first's
            rows.append(row)
        else:
            rows.append(cluster.after(at, row))
    for number in range(1, cold + 1):
        cluster.wait_until_calm(quiet_s)
        rows.append(_kill_cold(cluster, number))


def _kill_cold(cluster: StagedRun, number: int) -> dict[str, Any]:
    """Its standby's node dies, and at once its own, before the next standby has a session."""
    for _ in range(10):
        homes, places = cluster.by_node(), cluster.status()["record"]["places"]
        keepers = {stage: _name(places[stage]["backup"]) for held in homes.values() for stage in held}
        # a standby's node that runs as little as can be: what its own death stops must not be counted
        stage = min(keepers, key=lambda stage: (len(homes.get(keepers[stage], ())), stage))
        node, keeper = _name(places[stage]["primary"]), keepers[stage]
        cluster.started.nodes.kill(keeper)

        def is_named(stage: str = stage, keeper: str = keeper) -> bool:
            status = cluster.status()
            named = _name(status["record"]["places"][stage]["backup"])
            return named not in ("", keeper) and bool(_standby(status, stage))

        cluster.wait("another standby", is_named)
        cluster.wait_for_second_copies()
        status = cluster.status()
        warmth = _standby(status, stage).get("warmth")
        if _name(status["record"]["places"][stage]["primary"]) == node and warmth != "warm":
            at, row = cluster.kill(node, [stage], "cold", number)
            return cluster.after(at, row | {"warmth": warmth})
        cluster.wait_until_calm(2.0)  # too late: it was warm already
    raise RuntimeError("no standby was found cold")


def run(quick: bool) -> Report:
    report = Report("recovery/stages", DESCRIPTION)
    size = QUICK_SIZE if quick else SIZE
    if os.environ.get("HOLDFAST_KILLS"):
        size = (int(os.environ["HOLDFAST_KILLS"]), *size[1:])
    rows: list[dict[str, Any]] = []
    with scratch("recovery-stages") as base:
        for stages in map(int, chosen("HOLDFAST_STAGES", STAGES)):
            cluster = StagedRun(base / str(stages), stages)
            try:
                _kills(cluster, size, rows)
            except Exception as error:  # what was measured before counts, and so does this
                report.notes.append(f"{stages} stages: ended early: {error}")
                report.claim(f"{stages} stages: every kill is survived", "own", "all", str(error), False)
                keep_logs(base, Path("out/bench/recovery-stages-failed").resolve())
            finally:
                cluster.started.stop()
        plain = _plain(report, base / "plain", size)
    tell(report, rows, plain)
    return report


def _plain(report: Report, home: Path, size: tuple[int, int, int, int, float]) -> list[dict[str, Any]]:
    home.mkdir()
    try:
        return recovery._plain(size[3], size[4], home)
    except RuntimeError as error:  # gaps without anything to compare them with are better than none
        report.claim("plain Structured Streaming in the same run", "own", "it runs", str(error), False)
        return []


def tell(report: Report, rows: list[dict[str, Any]], plain: list[dict[str, Any]]) -> None:
    report.data = {"plain": plain} | {
        f"{stages} stages": [{key: row.get(key) for key in _COLUMNS} for row in rows if row["stages"] == stages]
        for stages in sorted({row["stages"] for row in rows})
    }
    restart = statistics.median(row["gap_s"] for row in plain) if plain else float("nan")

    def of(stages: int, case: str) -> list[dict[str, Any]]:
        found = [row for row in rows if (row["stages"], row["case"]) == (stages, case) and not row.get("cut")]
        return sorted(found, key=lambda row: row["gap_s"])

    for stages in sorted({row["stages"] for row in rows}):
        warm = [row["gap_s"] for row in of(stages, "warm")]
        if warm:
            middle = statistics.median(warm)
            report.claim(f"gap, warm standbys, {stages} stages", "issue 14", f"<= 1/{GOAL} of plain in the median",
                         f"1/{restart / middle:.1f}: {middle:.2f} s of {restart:.1f} s, {len(warm)} kills, worst "
                         f"{warm[-1]:.2f} s (1/{restart / warm[-1]:.1f})", middle * GOAL <= restart)  # fmt: skip
        again = [row["gap_s"] for row in of(stages, "again")]
        if again:
            report.claim(f"gap of a second kill {AGAIN_S:.0f} s later, {stages} stages", "own", "<= plain, the worst",
                         f"{again[0]:.2f} to {again[-1]:.2f} s", again[-1] <= restart)  # fmt: skip
        cold = of(stages, "cold")
        if cold:
            pairs = "; ".join(f"said {row['said_s']} s, cost {row['gap_s']} s" for row in cold)
            report.claim(f"gap with a cold standby, {stages} stages", "issue 14", "<= plain, and said in advance",
                         pairs, cold[-1]["gap_s"] <= restart)  # fmt: skip
            said = [row for row in cold if row["said_s"]]
            report.claim(f"a cold take-over costs what status said, {stages} stages", "own", "half to twice of it",
                         f"{len(said)} of {len(cold)} were said",
                         len(said) == len(cold)
                         and all(0.5 <= row["gap_s"] / row["said_s"] <= 2 for row in said))  # fmt: skip
    report.plot = lambda figure: _plot(figure, rows, restart)
    report.notes.append(
        f"4 nodes, {RATE:,} rows/s in all, heartbeat 100 ms, standby_driver auto, balance off; the gap is that of"
        f" the sink that paused longest; plain: {restart:.1f} s in the median of {len(plain)}; cut: a second kill came"
        " before the first one's gap was over, so it counts for the second only"
    )


_COLUMNS = ("case", "kill", "node", "held", "warmth", "after_s", "said_s", "usual_s", "gap_s", "by_sink_s", "cut")


def _plot(figure: Any, rows: list[dict[str, Any]], restart: float) -> None:
    axes = figure.subplots()
    groups = list(dict.fromkeys((row["stages"], row["case"]) for row in rows))
    for place, group in enumerate(groups):
        mine = [row for row in rows if (row["stages"], row["case"]) == group and not row.get("cut")]
        gaps = [row["gap_s"] for row in mine if row["gap_s"]]
        axes.scatter([place] * len(gaps), gaps, s=30)
        axes.plot([place - 0.2, place + 0.2], [statistics.median(gaps)] * 2, color="black")
    axes.axhline(restart, color="tab:red", label="plain Structured Streaming, median")
    axes.axhline(restart / GOAL, color="tab:green", linestyle="--", label=f"1/{GOAL} of it")
    axes.set_xticks(range(len(groups)), [f"{stages} stages\n{case}" for stages, case in groups])
    axes.set_yscale("log")
    axes.set_ylabel("output gap, seconds (log)")
    axes.set_title("kill -9 of a node with Spark stages")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
