"""Rows of a Spark program of one's own, through a port: real nodes, a real Spark that is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.child import read_sink
from support.nodes import PATHS, TESTS, Nodes
from support.plans import ROWS

from holdfast.cli.control import finish_run
from holdfast.cli.runs import read_run
from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.operators import build

pytestmark = [pytest.mark.spark, pytest.mark.long]

WINDOW_S = 10
SHARDS = 2


def port_plan() -> Plan:
    """Counts by key in windows of 10 s, of rows that come through port `packets`; a sink without Spark reads them."""
    rows = ROWS.serialize().to_pybytes()
    given = InputPlan(source="packets", schema=rows, by=("key",), event_time="ts", partial=True)
    settings = {
        "size_us": WINDOW_S * 1_000_000, "step_us": WINDOW_S * 1_000_000, "by": ["key"], "overflow": "error",
        "aggs": {"n": ["count", None, False], "total": ["sum", "value", False]},
    }  # fmt: skip
    fields = {"name": "talkers", "kind": "aggregate", "shards": SHARDS, "mode": "passive", "inputs": (given,)}
    made = OperatorPlan(**fields, settings=settings, output=b"")
    output = build(made).output_schema.serialize().to_pybytes()
    shards = tuple(f"talkers-{i}" for i in range(SHARDS))
    topology = Topology(
        shards=tuple(ShardSpec(id=u, inputs=(f"packets>{u}",), outputs=(f"{u}.0",)) for u in shards),
        stages=(
            StageSpec(id="packets", shards=shards, query="port-1", delay_ns=2_000_000, tick_ns=1_000, foreign=True),
            StageSpec(id="r0", shards=(), query="port-1"),
        ),
        readers=(ReaderSpec(id="r0", edges=tuple(f"{u}.0" for u in shards)),),
    )
    port = StagePlan(id="packets", kind="port", feeds=(("talkers", 0),), delay_us=2_000_000, event_time="ts", rows=rows)
    return Plan(
        pipeline="port",
        query="port-1",
        topology=topology,
        operators=(OperatorPlan(**fields, settings=settings, output=output),),
        stages=(port, StagePlan(id="r0", kind="sink", reads=("talkers",))),
    )


class PortProgram:
    def __init__(self, base: Path, how: str) -> None:
        command = [sys.executable, str(TESTS / "support" / "port_program.py"), str(base), how]
        env = {**os.environ, "PYTHONPATH": PATHS, "PYSPARK_PYTHON": sys.executable}
        self.log = base / f"program-{how}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=env, text=True, start_new_session=True
            )

    def kill(self) -> None:
        """The program and its JVM, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def output(self, limit_s: float) -> str:
        said, _ = self.process.communicate(timeout=limit_s)
        assert self.process.returncode == 0, self.log.read_text()[-3000:]
        return said


def add_file(base: Path, number: int, rows: list[tuple[int, int, int]]) -> None:
    """(second, key, value); at once and whole, as Spark's file source wants it."""
    lines = [json.dumps({"ts": datetime.fromtimestamp(s, UTC).isoformat(), "key": k, "value": v}) for s, k, v in rows]
    (base / f"{number}.new").write_text("\n".join(lines))
    time.sleep(0.01)  # files are taken by age
    os.replace(base / f"{number}.new", base / "in" / f"{number}.json")


def test_a_program_that_is_killed_and_started_again_hands_every_row_over_once(tmp_path):
    (tmp_path / "in").mkdir()
    files = [[(100 + 20 * f + i % 20, i % 7, i) for i in range(300)] for f in range(3)]
    late = [(50, 1, 1), (51, 2, 2)]
    nodes = Nodes(tmp_path / "run", port_plan(), nodes=3)
    run_json = {
        "pipeline": "port", "source": "", "cwd": str(tmp_path), "endpoints": nodes.endpoints,
        "secret_file": str(tmp_path / "run" / "secret"),
    }  # fmt: skip
    (tmp_path / "run" / "run.json").write_text(json.dumps(run_json))
    programs: list[PortProgram] = []
    try:
        nodes.start()
        nodes.wait_up()
        add_file(tmp_path, 0, files[0])
        add_file(tmp_path, 1, files[1])
        programs.append(PortProgram(tmp_path, "stay"))
        nodes.until("two batches", lambda: ledger_of(nodes) >= 1, 240)
        programs[0].kill()
        for done in ("1", ".1.crc"):  # as if it had died before Spark noted the second one: it runs it again
            (tmp_path / "checkpoint" / "commits" / done).unlink(missing_ok=True)
        nodes.kill("n1")  # and a node, meanwhile
        add_file(tmp_path, 2, [*files[2], *late])
        programs.append(PortProgram(tmp_path, "once"))
        said = {a["attempt"]: a["said"] for a in map(json.loads, programs[1].output(300).splitlines())}
        assert "port packets is written by another query" in said["another checkpoint"]
        assert "'value' is missing, declared int64" in said["another schema"]
        assert "a batch write needs its number" in said["a batch without a number"]
        assert "port packets is written by another query" in said["a batch of another writer"]
        assert ledger_of(nodes) == 2
        finish_run(read_run(tmp_path / "run"), limit_s=60)
        found = pa.Table.from_batches([b for batches in read_sink(nodes.dir / "sink").values() for b in batches])
        seconds = [t // 1_000_000 for t in found["window_start"].cast(pa.int64()).to_pylist()]
        held = sorted(zip(seconds, *(found[c].to_pylist() for c in ("key", "n", "total")), strict=True))
        assert held == expected([row for rows in files for row in rows])
        recorded = pq.read_table(tmp_path / "run" / "late" / "packets" / "batch=2.parquet")
        assert sorted(recorded["value"].to_pylist()) == [1, 2]
    finally:
        for program in programs:
            if program.process.poll() is None:
                program.kill()
        nodes.close()


def ledger_of(nodes: Nodes) -> int:
    return max(nodes.status(n)["ledgers"]["packets"]["batch"] for n in nodes.alive())


def expected(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for second, key, value in rows:
        counts[second // WINDOW_S * WINDOW_S, key] += 1
        totals[second // WINDOW_S * WINDOW_S, key] += value
    return sorted((start, key, n, totals[start, key]) for (start, key), n in counts.items())
