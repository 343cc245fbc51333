"""Every example, its sources read by real Structured Streaming and its operators run in process, against `verify`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.inprocess import InProcess

from holdfast.pipeline import load, plan
from holdfast.pipeline.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = Path(os.environ.get("HOLDFAST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")).resolve()
#: Small and finite: (settings, batches to read, rows that the sink must have at least).
GENERATED = {
    "netmon": (
        {"HOLDFAST_RATE": "1000", "HOLDFAST_BATCH_MS": "3000", "HOLDFAST_ROWS": "20000", "HOLDFAST_LATE_EVERY": "300"},
        8,
        1000,
    ),
    "nexmark_q5": ({"HOLDFAST_RATE": "400", "HOLDFAST_BATCH_MS": "5000", "HOLDFAST_ROWS": "14000"}, 8, 10),
    "nexmark_q7": ({"HOLDFAST_RATE": "400", "HOLDFAST_BATCH_MS": "5000", "HOLDFAST_ROWS": "14000"}, 8, 3),
    "nexmark_q8": ({"HOLDFAST_RATE": "400", "HOLDFAST_BATCH_MS": "5000", "HOLDFAST_ROWS": "14000"}, 8, 50),
}
REAL = {
    "dns_tls": ({"HOLDFAST_FILE_ROWS": "1000", "HOLDFAST_ROWS": "8000"}, 100, 100),
    "taxi": ({"HOLDFAST_FILE_ROWS": "2500", "HOLDFAST_ROWS": "15000"}, 100, 100),
}


def run(name, settings, batches, least, spark, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_OUT", str(tmp_path / "out"))
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    pipeline = load(EXAMPLES / f"{name}.py")
    planned = plan(pipeline, spark)
    ours = InProcess(pipeline, planned, tmp_path / "run", spark)
    ours.run(batches)
    verdict = verify(pipeline, planned, tmp_path / "run", spark, last_batches=ours.last_batches)
    assert verdict.ok, verdict.text()
    assert all(s.comparison.rows_found >= least for s in verdict.sinks), verdict.text()
    return verdict


@pytest.mark.parametrize("name", GENERATED)
def test_generated_examples_give_what_spark_computes(name, spark, tmp_path, monkeypatch):
    verdict = run(name, *GENERATED[name], spark, tmp_path, monkeypatch)
    if name == "netmon":
        assert verdict.stages[0].late > 0, "some packets are late on purpose"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data: {DATA} is absent (set HOLDFAST_DATA)")
@pytest.mark.parametrize("name", REAL)
def test_examples_on_real_data_give_what_spark_computes(name, spark, tmp_path, monkeypatch):
    run(name, *REAL[name], spark, tmp_path, monkeypatch)
