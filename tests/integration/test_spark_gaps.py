"""A gap on its way through a stage of Spark: an unprotected operator loses its node, and another operator reads it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.cli.control import finish_run
from holdfast.cli.start import RunOptions, start_run
from holdfast.cli.verify import verify_run
from holdfast.cli.watch import cluster_status
from holdfast.errors import HoldfastError
from holdfast.model.ids import name_of
from holdfast.pipeline.gaps import gaps_of

PIPELINE = """
import holdfast as hf
from holdfast.pipeline.generators import traffic

pipeline = hf.Pipeline("gapped")
packets = pipeline.read(lambda spark: traffic(spark, rate=1000, batch_ms=300, rows=0, late_every=0),
                        event_time="ts", watermark="1 second", trigger="300 ms", name="packets")
talkers = packets.window("1 second").by("src").agg(packets=hf.count(), shards=2, mode="none", name="talkers")
tops = (talkers.map(lambda df: df.where("packets > 0")).window("3 seconds").by("src")
        .agg(most=hf.max("packets"), windows=hf.count(), shards=2, mode="passive", name="tops"))
tops.write(lambda df: df.writeStream.format("parquet").option("path", "{base}/out"), name="out")
"""


def output_rows(run) -> int:
    try:
        nodes = cluster_status(run)["nodes"].values()
    except HoldfastError:
        return 0
    return sum(s.get("rows_out", 0) for node in nodes for name, s in node["shards"].items() if name.startswith("tops"))


def wait(condition, what: str, limit_s: float = 180.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"waited {limit_s:g} s for {what}"
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.spark
def test_a_gap_goes_through_a_stage_between_operators_and_nothing_outside_of_it_is_wrong(tmp_path: Path):
    source = tmp_path / "gapped.py"
    source.write_text(PIPELINE.replace("{base}", str(tmp_path)))
    started = start_run(source, RunOptions(nodes=4, directory=tmp_path / "run", standby=False))
    try:
        wait(lambda: output_rows(started.run) > 0, "rows of the second operator")
        places = cluster_status(started.run)["record"]["places"]
        talkers = next(place for asset, place in places.items() if asset.startswith("talkers-"))
        started.nodes.kill(name_of(talkers["primary"]))
        wait(lambda: gaps_of(tmp_path / "run", "out"), "the sink to come past the gap")
        before = output_rows(started.run)
        wait(lambda: output_rows(started.run) > before, "rows behind the gap")
        finish_run(started.run, limit_s=300.0)
    finally:
        started.stop()
    verdict = verify_run(started.run)
    assert verdict["holds"], verdict["text"]
    assert verdict["rows_out"] > 0
    print(verdict["text"])
