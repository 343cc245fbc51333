"""What `checkpoint.agree` writes is what Spark takes: real queries, restarted on doctored checkpoints."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support.packets import write_json

from holdfast.errors import ConfigError
from holdfast.model.parts import CommitRecord
from holdfast.spark import checkpoint

pytestmark = pytest.mark.spark


class FileQuery:
    """A query over files that remembers what each batch held; `stop_after` fails it inside that batch."""

    def __init__(self, spark, source, directory) -> None:
        self.spark, self.source, self.directory = spark, source, directory
        self.batches: dict[int, list[int]] = {}

    def run(self, stop_after: int = 1 << 30, limit_s: float = 60.0) -> None:
        def body(frame, number):
            self.batches.setdefault(number, []).append(frame.count())
            if number >= stop_after:
                raise RuntimeError("killed here")

        rows = self.spark.readStream.schema("ts timestamp, src string, bytes long").option("maxFilesPerTrigger", 1)
        writer = rows.json(str(self.source)).writeStream.option("checkpointLocation", str(self.directory))
        query = writer.foreachBatch(body).start()
        assert str(query.id) == checkpoint.query_id("q", "s")
        if stop_after < 1 << 30:
            until = time.monotonic() + limit_s
            while query.isActive and time.monotonic() < until:
                time.sleep(0.05)
        else:
            query.processAllAvailable()
        query.stop()


def commit(directory, spark_batch: int) -> CommitRecord:
    plan = checkpoint.plan_of(directory, spark_batch)
    return CommitRecord(
        query="q", batch=9, epoch=1, attempt=1, watermark=0,
        offsets=(spark_batch, spark_batch + 1), plan=plan,
    )  # fmt: skip


@pytest.fixture
def query(spark, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for i in range(3):
        write_json(source, i, rows=10 + i)
        os.utime(source / f"{i:05d}.json", (i, i))  # the file source goes by this, in milliseconds
    checkpoint.agree(tmp_path / "ck", "s", "q", None)
    return FileQuery(spark, source, tmp_path / "ck")


def test_spark_takes_the_id_runs_again_what_does_not_count_and_skips_what_does(query, tmp_path):
    directory = query.directory
    query.run(stop_after=2)  # batch 2 was planned, and died in the middle
    assert query.batches == {0: [10], 1: [11], 2: [12]}
    assert checkpoint.last_committed(directory) == 1
    assert [o and o["logOffset"] for o in checkpoint.source_offsets(checkpoint.plan_of(directory, 2))] == [2]

    shutil.copytree(directory, tmp_path / "copy")
    checkpoint.agree(directory, "s", "q", commit(directory, 1))  # the ledger does not have it
    query.run()
    assert query.batches == {0: [10], 1: [11], 2: [12, 12]}  # once more, and the same rows

    other = FileQuery(query.spark, query.source, tmp_path / "copy")
    checkpoint.agree(other.directory, "s", "q", commit(other.directory, 2))  # the ledger has it
    write_json(other.source, 3, rows=20)
    other.run()
    assert other.batches == {3: [20]}


def test_a_commit_that_spark_wrote_reads_like_ours(query):
    query.run()
    text = (query.directory / "commits" / "0").read_text()
    assert text == 'v1\n{"nextBatchWatermarkMs":0}'
    with pytest.raises(ConfigError, match="Spark has committed batch 2, the stage's ledger ends at 1"):
        checkpoint.agree(query.directory, "s", "q", commit(query.directory, 1))


def test_without_its_list_of_files_a_stage_does_not_start(query):
    query.run()
    record = commit(query.directory, 2)
    shutil.rmtree(query.directory / "sources")
    with pytest.raises(ConfigError, match="the list of files it has read is gone"):
        checkpoint.agree(query.directory, "s", "q", record)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut", "noise"])
@pytest.mark.parametrize("name", ["offsets/0", "offsets/1", "offsets/2", "commits/1"])
def test_spark_goes_on_where_files_were_damaged_and_made_again(query, name, how):
    query.run(stop_after=2)
    last = commit(query.directory, 1)
    path = query.directory / name
    raw = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes({"emptied": b"", "cut": raw[: len(raw) // 2], "noise": bytes(range(200, 256))}[how])
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    checkpoint.agree(query.directory, "s", "q", last)
    query.run()
    assert query.batches == {0: [10], 1: [11], 2: [12, 12]}
