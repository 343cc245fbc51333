"""How the size of the state changes the output gap after kill -9: a large silent state beside an operator that speaks.

Real nodes on loopback, drivers without Spark. `silent` has windows of 24 hours (four shards, 10 MB, 100 MB and 1 GB in
all), `speaks` windows of 100 ms. While keys of the silent state are rewritten at random, nodes that run a shard of
`speaks` are killed, one after the other; each comes back when everything is protected again. The gap is measured on the
stream of `speaks`. At the end all windows close, and every key is compared with what was fed.

HOLDFAST_STATE_MB="10 100" chooses other sizes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.harness import Report, scratch

DESCRIPTION = "output gap after kill -9 beside a silent state of 10 MB to 1 GB"
TESTS = Path(__file__).resolve().parents[2] / "tests"
NODES, SHARDS, SPEAKING = 4, 4, 2
#: Megabytes of silent state in all, and kills at each.
SIZES, KILLS = (10, 100, 1_000), 5
QUICK_SIZES, QUICK_KILLS = (10, 30), 2
GAP_RATIO_MAX = 1.5
QUIET_S = 3.0
#: A pause counts as the kill's if it begins up to so long after it.
AFTERMATH_S = 5.0
CALM_LIMIT_S = 300.0


def run(quick: bool) -> Report:
    report = Report("recovery/state", DESCRIPTION)
    asked = os.environ.get("HOLDFAST_STATE_MB", "").split()
    sizes = [int(size) for size in asked] or (QUICK_SIZES if quick else SIZES)
    kills: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    with scratch("recovery-state") as base:
        for size in sizes:
            found, row = _measure(base / str(size), size, QUICK_KILLS if quick else KILLS)
            kills += found
            compared.append(row)
    tell(report, kills, compared)
    return report


def _measure(home: Path, megabytes: int, kills: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One cluster with so much state: what each kill did, and whether every key was right in the end."""
    sys.path[:0] = [p for p in (str(TESTS),) if p not in sys.path]
    from support.nodes import Nodes  # pyright: ignore[reportMissingImports]
    from support.silent import KEY_BYTES, Silent, Speaker, drain, silent_plan  # pyright: ignore[reportMissingImports]

    from holdfast.runtime.client.probe import Probe
    from holdfast.runtime.net.security import Security

    plan = silent_plan(SHARDS, SPEAKING)
    nodes = Nodes(home, plan, NODES, settings={"state_limit": "4 GB"})
    opened: list[Any] = []
    rows = []
    try:
        nodes.start()
        nodes.wait_up()
        security = Security.load(home / "secret", deployment=plan.query)
        opened += [feed := Silent(plan, megabytes * 1_000_000 // KEY_BYTES, nodes.endpoints, security)]
        opened += [speaker := Speaker(plan, nodes.endpoints, security)]
        feed.fill()
        feed.start()
        speaker.start()
        opened += [probe := Probe(plan, "speaks", nodes.endpoints, security)]
        for number in range(kills):
            rows.append({"state MB": megabytes, "kill": number + 1, **_kill(nodes, probe, number)})
            print(f"    {megabytes} MB: {rows[-1]}", flush=True)
        _wait_until_calm(nodes)
        feed.stop()
        speaker.stop()
        feed.finish()
        missing, wrong, came = drain(plan, feed, nodes.endpoints, home / "secret", limit_s=600)
    finally:
        for one in reversed(opened):
            one.close()
        nodes.close()
    return rows, {"state MB": megabytes, "keys": feed.keys, "rewritten": feed.rewritten, "rows out": came,
                  "missing": missing, "wrong": wrong}  # fmt: skip


def _kill(nodes: Any, probe: Any, number: int) -> dict[str, Any]:
    """Kill a node that runs a shard of `speaks`, and wait until it is back and everything has a second copy."""
    _wait_until_calm(nodes)
    time.sleep(QUIET_S)
    homes = {u: (p["primary"] or "").partition("#")[0] for u, p in nodes.status()["places"].items()}
    speaking = sorted({home for shard, home in homes.items() if shard.startswith("speaks-")})
    victim = speaking[number % len(speaking)]
    held = sum(home == victim for shard, home in homes.items() if shard.startswith("silent-"))
    nodes.until("output before the kill", lambda: probe.gap(time.time() - QUIET_S, time.time()) > 0, CALM_LIMIT_S)
    before = _captured(nodes)
    at = time.time()
    usual = probe.gap(at - QUIET_S, at)
    nodes.kill(victim)
    nodes.until("everything to be protected", lambda: _is_protected(nodes, without=victim), CALM_LIMIT_S)
    protected_s = time.time() - at
    after = _captured(nodes)
    nodes.until("output after the kill", lambda: probe.resumed(at) and time.time() > at + AFTERMATH_S, CALM_LIMIT_S)
    gap, later = probe.gap(at, at + AFTERMATH_S), probe.gap(at, max(at + AFTERMATH_S, at + protected_s))
    nodes.start(victim)
    nodes.wait_up(victim)
    sent = sum(max(0, held - before.get(key, 0)) for key, held in after.items())
    return {"silent primaries": held, "gap s": round(gap, 3), "usual s": round(usual, 3),
            "longest until protected s": round(later, 3), "protected s": round(protected_s, 2),
            "captured MB": round(sent / 1e6, 1)}  # fmt: skip


def _is_protected(nodes: Any, *, without: str = "") -> bool:
    found = nodes.status()
    gone = without not in found["members"]
    return gone and not found["degraded"] and not any(p["joining"] for p in found["places"].values())


def _wait_until_calm(nodes: Any) -> None:
    def is_calm() -> bool:
        return len(nodes.status()["members"]) == len(nodes.names) and _is_protected(nodes)

    nodes.until("calm", is_calm, CALM_LIMIT_S)


def _captured(nodes: Any) -> dict[tuple[str, str], int]:
    """Bytes of state that each shard's copy on each living node has sent to others so far."""
    return {
        (name, shard): told["captured_bytes"]
        for name in nodes.alive()
        for shard, told in nodes.status(name)["shards"].items()
    }


# --- what it comes to


def tell(report: Report, kills: list[dict[str, Any]], compared: list[dict[str, Any]]) -> None:
    """The claims, the note and the picture of what was measured."""
    report.data |= {"state: kills": kills, "state: compared, key by key": compared}
    sizes = sorted({row["state MB"] for row in kills})

    def median(size: int, column: str) -> float:
        return statistics.median(row[column] for row in kills if row["state MB"] == size)

    small, large = sizes[0], sizes[-1]
    if large > small:
        ratio = median(large, "gap s") / median(small, "gap s")
        report.claim(f"gap at {large} MB of state, against {small} MB", "issue 12" if large >= SIZES[-1] else "own",
                     f"<= {GAP_RATIO_MAX} times",
                     f"{ratio:.2f} times ({median(large, 'gap s'):.3f} s, {median(small, 'gap s'):.3f} s)",
                     ratio <= GAP_RATIO_MAX)  # fmt: skip
    bad = sum(row["missing"] + row["wrong"] for row in compared)
    report.claim("silent state after the take-overs, key by key", "issue 12", "no key missing or wrong",
                 f"{bad} of {sum(row['keys'] for row in compared)} keys", bad == 0)  # fmt: skip
    report.plot = lambda figure: _plot(figure, kills)
    for size in sizes:
        report.notes.append(
            f"{size} MB: all protected again {median(size, 'protected s'):.2f} s after the kill, with"
            f" {median(size, 'captured MB'):.1f} MB of state sent (medians; captures of running work included)"
        )
    report.notes.append(f"{NODES} nodes on loopback; the goal of issue 12 is for 1,000 MB against 10 MB")


def _plot(figure: Any, kills: list[dict[str, Any]]) -> None:
    sizes = sorted({row["state MB"] for row in kills})
    columns = (("gap s", "output gap, seconds"), ("protected s", "seconds until all is protected"),
               ("captured MB", "MB of state sent until then"))  # fmt: skip
    for axes, (column, label) in zip(figure.subplots(1, len(columns)), columns, strict=True):
        for i, size in enumerate(sizes):
            values = [row[column] for row in kills if row["state MB"] == size]
            axes.scatter([i] * len(values), values, s=30)
        axes.set_xticks(range(len(sizes)), [f"{size} MB" for size in sizes])
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle("kill -9 beside a silent state")
