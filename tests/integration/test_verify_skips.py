"""The audit of a run of which a batch was skipped: its rows are not expected, and each of them was read."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.inprocess import InProcess
from test_pipeline_verify import START, read, write_files

import holdfast as hf
from holdfast.pipeline import plan
from holdfast.pipeline.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def letter(row, reason="skipped by hand: another schema"):
    return json.dumps({"shard": "sums-0", "position": 0, "what": "input row", "reason": reason, "row": row}) + "\n"


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory):
    """A run that never took three rows of its last file, two of which are the same."""
    home = tmp_path_factory.mktemp("skips")
    write_files(home / "in")
    pipeline, out = hf.Pipeline("sums"), str(home / "out")
    stream = read(pipeline, home / "in")
    stream.window("10 s").by("k").agg(n=hf.count(), s=hf.sum("v"), name="sums").write(
        lambda df: df.writeStream.format("parquet").option("path", out), name="out"
    )
    made = plan(pipeline, spark)
    InProcess(pipeline, made, home / "run", spark).run(100)
    last = sorted((home / "in").iterdir())[-1]
    table = pq.read_table(last)
    at = START + dt.timedelta(seconds=58)
    more = [{"ts": at, "k": k, "v": v, "x": 0.5} for k, v in (("k1", 40), ("k1", 40), ("k2", 7))]
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist(more, schema=table.schema)]), last)
    folder = home / "run" / "dead" / "sums"
    folder.mkdir(parents=True)
    rows = [{"ts": at.isoformat(), "k": row["k"], "v": str(row["v"])} for row in more]
    return lambda lines: _verdict((folder / "sums-0@0.jsonl"), lines, (pipeline, made, home / "run", spark)), rows


def _verdict(path, lines, given):
    path.write_text("".join(lines))
    return verify(*given)


def test_rows_that_were_skipped_are_not_expected_and_are_counted(ran):
    verdict_of, rows = ran
    verdict = verdict_of([letter(row) for row in rows])
    assert verdict.ok, verdict.text()
    assert "operator sums: 3 rows were skipped by hand (dead/sums)" in verdict.text()
    assert verdict.as_json()["rows_skipped"] == 3


def test_a_row_that_is_neither_in_a_result_nor_in_a_letter_is_missed(ran):
    verdict_of, rows = ran
    assert not verdict_of([letter(row) for row in rows[1:]]).ok
    assert not verdict_of([]).ok


def test_a_letter_of_a_row_that_was_never_read_is_strange(ran):
    verdict_of, rows = ran
    verdict = verdict_of([letter(row) for row in (*rows, {**rows[0], "k": "nobody"})])
    assert not verdict.ok
    assert "4 rows were skipped by hand (dead/sums), 1 of them were never read" in verdict.text()


def test_groups_of_rows_cannot_be_taken_away_and_that_is_said(ran):
    verdict_of, rows = ran
    verdict = verdict_of([letter({**rows[0], "pane_start": rows[0]["ts"]})])
    assert not verdict.ok
    assert verdict.sinks[0].not_compared == "1 groups of rows were skipped by hand in sums; they are in dead/sums"
