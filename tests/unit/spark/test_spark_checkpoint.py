"""Spark's checkpoint is made to agree with the ledger, which is the truth. Files as Spark 4.3 writes them."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import ConfigError
from holdfast.model.parts import CommitRecord
from holdfast.spark import checkpoint

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1794794162912,"conf":{}}'
COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


def plan(offset: str) -> str:
    return f"v1\n{SETTINGS}\n{offset}"


def commit(spark_batch: int, text: str, batch: int = 0) -> CommitRecord:
    return CommitRecord(
        query="q", batch=batch, epoch=1, attempt=1, watermark=5,
        offsets=(spark_batch, spark_batch + 1), plan=text,
    )  # fmt: skip


class Files:
    """A checkpoint directory."""

    def __init__(self, path) -> None:
        self.path = path
        checkpoint.claim(path, "s", "q")

    def put(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def ran(self, last: int, planned: bool = False) -> None:
        for k in range(last + 1 + planned):
            self.put(f"offsets/{k}", plan(f'{{"offset":{k}}}'))
            if k <= last:
                self.put(f"commits/{k}", COMMITTED)

    def names(self, log: str) -> list[str]:
        return sorted(p.name for p in (self.path / log).glob("*")) if (self.path / log).exists() else []

    def agree(self, record: CommitRecord | None) -> None:
        checkpoint.agree(self.path, "s", "q", record)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "ck")


def test_a_new_checkpoint_gets_the_id_of_its_query_and_keeps_it(tmp_path):
    checkpoint.agree(tmp_path / "ck", "s", "q", None)
    found = json.loads((tmp_path / "ck" / "metadata").read_text())
    assert found == {"id": checkpoint.query_id("q", "s")}
    checkpoint.agree(tmp_path / "ck", "s", "q", None)


@pytest.mark.parametrize(("query", "stage"), [("other", "s"), ("q", "t")])
def test_a_foreign_query_id_is_an_error_and_nothing_is_reset(files, query, stage):
    files.ran(2)
    with pytest.raises(ConfigError) as caught:
        checkpoint.agree(files.path, stage, query, None)
    assert caught.value.what == f"stage {stage}: its Spark checkpoint belongs to another query"
    assert files.names("commits") == ["0", "1", "2"]


def test_batches_without_an_owner_are_an_error(files):
    files.ran(1)
    (files.path / "metadata").unlink()
    with pytest.raises(ConfigError, match="does not say whose"):
        files.agree(None)


def test_damaged_metadata_is_an_error_that_names_the_file(files):
    files.put("metadata", "{")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        files.agree(None)
    assert str(files.path / "metadata") in caught.value.detail


def test_where_both_agree_nothing_is_touched(files):
    files.ran(3)
    before = {p: p.stat().st_mtime_ns for p in files.path.rglob("*") if p.is_file()}
    files.agree(commit(3, plan('{"offset":3}')))
    assert {p: p.stat().st_mtime_ns for p in files.path.rglob("*") if p.is_file()} == before


def test_a_batch_that_the_ledger_has_and_spark_has_not_committed_is_committed(files):
    files.ran(2, planned=True)
    files.agree(commit(3, plan('{"offset":3}')))
    assert (files.path / "commits" / "3").read_text() == COMMITTED


def test_a_batch_that_is_planned_and_does_not_count_is_left_to_run_as_it_was_planned(files):
    files.ran(2, planned=True)
    files.agree(commit(2, plan('{"offset":2}')))
    assert files.names("offsets") == ["0", "1", "2", "3"]
    assert files.names("commits") == ["0", "1", "2"]


def test_a_plan_that_differs_is_rewritten_and_what_was_planned_on_it_goes(files):
    """An overtaken driver wrote its own plan of batch 3, and even of batch 4."""
    files.ran(2)
    files.put("offsets/3", plan('{"offset":33}'))
    files.put("offsets/4", plan('{"offset":44}'))
    files.agree(commit(3, plan('{"offset":3}')))
    assert (files.path / "offsets" / "3").read_text() == plan('{"offset":3}')
    assert files.names("offsets") == ["0", "1", "2", "3"]
    assert files.names("commits") == ["0", "1", "2", "3"]


def test_a_lost_checkpoint_is_made_again_where_offsets_say_all(tmp_path):
    checkpoint.agree(tmp_path / "ck", "s", "q", commit(7, plan('{"offset":7}')))
    assert (tmp_path / "ck" / "offsets" / "7").read_text() == plan('{"offset":7}')
    assert checkpoint.last_committed(tmp_path / "ck") == 7


def test_the_file_sources_list_must_be_there_or_every_file_would_be_read_again(files):
    files.ran(1)
    with pytest.raises(ConfigError, match="the list of files it has read is gone"):
        files.agree(commit(1, plan('{"logOffset":4}')))


@pytest.mark.parametrize("names", [["0", "1", "2", "3", "4"], ["4.compact"], ["2.compact", "3", "4"]])
def test_the_file_sources_list_may_be_compacted(files, names):
    files.ran(0)
    files.put("offsets/1", plan('{"logOffset":4}'))
    for name in names:
        files.put(f"sources/0/{name}", 'v1\n{"path":"file:///a","timestamp":1,"batchId":0}')
    files.agree(commit(1, plan('{"logOffset":4}')))
    assert checkpoint.last_committed(files.path) == 1


def test_spark_is_never_ahead_of_the_ledger(files):
    files.ran(5)
    with pytest.raises(ConfigError) as caught:
        files.agree(commit(3, plan('{"offset":3}')))
    assert caught.value.what == "stage s: Spark has committed batch 5, the stage's ledger ends at 3"
    with pytest.raises(ConfigError):
        files.agree(None)


def test_batches_of_the_stages_own_before_the_first_of_sparks_change_nothing(files):
    files.put("offsets/0", plan('{"offset":0}'))
    files.agree(commit(-1, "", batch=4))
    assert files.names("offsets") == ["0"]
    assert files.names("commits") == []


def test_temporary_files_and_checksums_of_spark_are_no_batches(files):
    files.ran(1)
    files.put("offsets/.2.abc.tmp", "half")
    files.put("commits/.1.crc", "x")
    files.agree(commit(1, plan('{"offset":1}')))
    assert checkpoint.last_committed(files.path) == 1


def test_what_was_planned_last_is_known_of_all_sources(tmp_path):
    assert checkpoint.last_planned(tmp_path) == {}
    (tmp_path / "offsets").mkdir()
    for batch, ends in ((9, (3, 4)), (10, (5, 6))):
        lines = [json.dumps({f"u{i}.0": [end, 0]}) for i, end in enumerate(ends)]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines, "-", "7"]))
    assert checkpoint.last_planned(tmp_path) == {"u0.0": [5, 0], "u1.0": [6, 0]}
    (tmp_path / "offsets" / "11").write_text("v1\n{}\n{")
    with pytest.raises(ConfigError, match="cannot be read"):
        checkpoint.last_planned(tmp_path)


def test_offsets_of_several_sources_are_read_apart():
    assert checkpoint.source_offsets(plan('{"offset":1}') + '\n-\n{"a":[1,2]}') == [{"offset": 1}, None, {"a": [1, 2]}]


def test_a_sinks_checkpoint_is_made_again_as_it_was(tmp_path):
    files, gaps = Files(tmp_path / "a"), tmp_path / "gaps"
    assert checkpoint.sink_plan(files.path, gaps) is None
    files.ran(4, planned=True)
    gaps.mkdir()
    (gaps / "u0.0@7.json").write_text("{}")
    known = checkpoint.sink_plan(files.path, gaps)
    assert known is not None
    assert (known.batch, known.committed, sorted(known.plans)) == (5, 4, [4, 5])
    again = tmp_path / "b"
    checkpoint.make_again(again, tmp_path / "gaps-b", known)
    assert checkpoint.sink_plan(again, tmp_path / "gaps-b") == known
    checkpoint.claim(again, "s", "q")  # it is still the same query's
    with pytest.raises(ConfigError, match="belongs to another query"):
        checkpoint.claim(again, "s", "another")
    assert checkpoint.last_planned(again) == {"offset": 5}


def test_the_first_plan_of_a_batch_is_the_only_one(files):
    """Of two lives of an Arrow sink the second takes what the first has planned: one number, the same rows."""
    assert checkpoint.plan_batch(files.path, 0, {"u-0.0": [5, 1]}) == {"u-0.0": [5, 1]}
    assert checkpoint.plan_batch(files.path, 0, {"u-0.0": [9, 2]}) == {"u-0.0": [5, 1]}
    assert checkpoint.last_committed(files.path) == -1
    checkpoint.commit_batch(files.path, 0)
    checkpoint.commit_batch(files.path, 0)
    assert (checkpoint.last_committed(files.path), checkpoint.newest_planned(files.path)) == (0, 0)
    assert checkpoint.last_planned(files.path) == {"u-0.0": [5, 1]}


def test_files_of_old_batches_are_removed(files):
    for batch in range(10):
        checkpoint.plan_batch(files.path, batch, {"u-0.0": [batch, 1]})
        checkpoint.commit_batch(files.path, batch)
    checkpoint.forget_batches(files.path, 7)
    assert files.names("offsets") == files.names("commits") == ["7", "8", "9"]


@pytest.mark.parametrize("damage", ["", "v1", f"v1\n{SETTINGS}", f"v1\n{SETTINGS}\n{{"])
def test_a_plan_of_an_arrow_sink_that_is_damaged_is_an_error(files, damage):
    checkpoint.plan_batch(files.path, 3, {"u-0.0": [5, 1]})
    files.put("offsets/3", damage)
    with pytest.raises(ConfigError, match="where batch 3 ends is not known"):
        checkpoint.planned_batch(files.path, 3)
