"""A running pipeline on real nodes fills every part of a row's way, and the command and `/metrics` show it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.cli.main import main
from holdfast.model.latency import PARTS

pytestmark = pytest.mark.slow


def test_every_part_of_a_rows_way_is_measured(tmp_path: Path, capsys):
    nodes = Nodes(tmp_path / "run", layered_plan(), 3, settings={"heartbeat": "500 ms", "election": "4 s"})
    described = {
        "pipeline": "layered", "source": "netmon.py", "cwd": str(tmp_path), "endpoints": nodes.endpoints,
        "deployment": nodes.plan.query, "secret_file": str(nodes.dir / "secret"),
    }  # fmt: skip
    (nodes.dir / "run.json").write_text(json.dumps(described))
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()

        def told() -> dict:
            with pytest.raises(SystemExit):
                main(["trace", str(nodes.dir), "--json"])
            return json.loads(capsys.readouterr().out or "{}").get("parts", {})

        # "plan" is of Spark's sinks: the driver process of these tests has none
        nodes.until("every part", lambda: set(told()) == set(PARTS) - {"plan"}, 120)
        parts = told()
        shards = {u.id for u in nodes.plan.topology.shards}
        nodes.until("every shard", lambda: set(told()["step"]) == shards, 60)
        assert set(parts["collect"]) == {s.id for s in nodes.plan.topology.stages if s.shards}
        for part, each in parts.items():
            for of, found in each.items():
                assert found["count"] > 0, (part, of)
                assert 0 <= found["p50_ms"] <= found["p99_ms"], (part, of)
                assert list(found["at_most"].values())[-1] == found["count"], (part, of)
        with pytest.raises(SystemExit):
            main(["trace", str(nodes.dir)])
        table = capsys.readouterr().out
        assert all(part in table for part in parts)
        (port,) = {e["port"] for e in nodes.events("n0") if e["event"] == "metrics"}
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
        assert "holdfast_latency_seconds_bucket{" in page
        assert 'part="step"' in page
        nodes.finish(120)
        assert nodes.difference() == ""
    finally:
        nodes.close()
