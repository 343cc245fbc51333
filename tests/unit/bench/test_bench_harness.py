"""A bench that fails leaves behind what it takes to see why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # the benches are no part of the package

from bench.harness import scratch


def test_a_bench_that_fails_keeps_its_logs_and_says_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "out" / "bench" / "some-failed"
    kept.mkdir(parents=True)
    (kept / "older.log").write_text("of the failure before")
    made = ["plain/plain.log", "shards/run/nodes/n0/events.jsonl", "shards/run/nodes/n0/logs/s0.1"]

    def fail() -> None:
        with scratch("some") as base:
            for name in [*made, "shards/run/secret", "shards/run/checkpoints/s0/offsets/0"]:
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_text(name)
            raise RuntimeError(f"no output within 120 s in {base}")

    with pytest.raises(RuntimeError, match="no output") as failed:
        fail()
    assert not Path(str(failed.value).rpartition(" ")[2]).exists()
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()) == made
    assert (kept / made[0]).read_text() == made[0]
    assert failed.value.__notes__ == [f"What was logged is kept in {kept}."]


def test_a_bench_that_ends_well_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with scratch("some") as base:
        (base / "plain.log").write_text("all is well")
    assert not base.exists()
    assert list(tmp_path.iterdir()) == []
