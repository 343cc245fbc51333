"""Options of `format("holdfast-state")`, and what its tasks read: each mistake is one clear error. (Needs no JVM.)"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from support.stored_states import StoredRun, rows

from holdfast.errors import ConfigError, CorruptPageError
from holdfast.spark import HoldfastStateSource
from holdfast.spark.state_source import ShardWanted


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> StoredRun:
    found = StoredRun(tmp_path_factory.mktemp("states"))
    found.feed("blocks", rows(100))
    for _ in range(2):
        found.checkpoint_all("blocks")
    found.feed("alone", rows(100))  # without a key: its second shard has no rows, and so no checkpoint
    found.checkpoint("alone-0")
    return found


def _partitions(of: StoredRun, **options):
    given = {"run": str(of.directory), **options}
    return _reader({name: value for name, value in given.items() if value}).partitions()


def _reader(options):
    return HoldfastStateSource(options).reader(None)


def _planned(partitions) -> list[tuple[str, int, bool]]:
    found = [msgspec.json.decode(one.raw, type=ShardWanted) for one in partitions]
    return [(one.shard, one.sequence, one.firm) for one in found]


def test_one_task_reads_one_shard_that_has_checkpoints(run):
    assert _planned(_partitions(run, operator="blocks")) == [("blocks-0", 2, False), ("blocks-1", 2, False)]
    assert _planned(_partitions(run, operator="alone")) == [("alone-0", 1, False)]
    assert _planned(_partitions(run, shard="blocks-1")) == [("blocks-1", 2, False)]
    assert _planned(_partitions(run, operator="blocks", shard="blocks-1", sequence="1")) == [("blocks-1", 1, True)]
    url = f"{run.store.url}/checkpoint/blocks-0-1"
    assert _planned(_partitions(run, checkpoint=url)) == [("blocks-0", 1, True)]


def test_a_plan_and_a_store_do_in_place_of_a_run(run):
    plan = str(run.directory / "plan.json")
    options = {"run": "", "plan": plan, "store": run.store.url, "store_conf": '{"some.key": "Value"}'}
    (partition,) = _partitions(run, **options, shard="alone-0")
    wanted = msgspec.json.decode(partition.raw, type=ShardWanted)
    assert wanted.store.store_conf == {"some.key": "Value"}
    found = pa.Table.from_batches(_reader({**options, "shard": "alone-0"}).read(partition))
    assert set(found.column("shard").to_pylist()) == {"alone-0"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"run": ""}, "which pipeline"),
        ({"run": "/nowhere", "operator": "blocks"}, "the plan cannot be read"),
        ({}, "which operator"),
        ({"run": "", "plan": "PLAN", "operator": "blocks"}, "which store"),
        ({"store": "/var/holdfast", "operator": "blocks"}, "is not the URL of a store"),
        ({"store_conf": "key=value", "operator": "blocks"}, "store_conf cannot be read"),
        ({"operator": "nobody"}, "has no operator 'nobody'"),
        ({"shard": "blocks-7"}, "has no shard 'blocks-7'"),
        ({"operator": "alone", "shard": "blocks-0"}, "operator 'alone' has no shard 'blocks-0'"),
        ({"operator": "blocks", "sequence": "1"}, "sequence 1 of which shard"),
        ({"shard": "blocks-0", "sequence": "one"}, "must be a number"),
        ({"shard": "blocks-0", "sequence": "9"}, "blocks-0 has no checkpoint 9"),
        ({"checkpoint": "file:///var/holdfast/blocks-0-1"}, "this is not a checkpoint"),
        ({"checkpoint": "file:///s/checkpoint/blocks-0-1", "sequence": "1"}, "says sequence already"),
        ({"operator": "pairs"}, "has no checkpoints of pairs-0 or pairs-1"),
        ({"store": "file:///nowhere", "operator": "blocks"}, "has no checkpoints of blocks-0 or blocks-1"),
    ],
)
def test_an_option_that_is_missing_or_wrong_is_one_clear_error(run, options, error):
    plan = str(run.directory / "plan.json")
    with pytest.raises(ConfigError, match=error):
        _partitions(run, **{name: plan if value == "PLAN" else value for name, value in options.items()})


def test_checkpoints_of_another_pipeline_are_refused(run, tmp_path):
    other = StoredRun(tmp_path / "other", deployment="states-2")
    with pytest.raises(ConfigError, match="are of another pipeline") as error:
        _partitions(other, store=run.store.url, operator="blocks")
    assert "'states-1'" in error.value.detail
    assert "'states-2'" in error.value.detail


def test_a_plan_whose_operator_has_changed_is_refused(run, tmp_path):
    """The name of a deployment does not say that nobody has edited its plan."""
    operators = msgspec.to_builtins(run.plan.operators)
    for operator in operators:
        operator["settings"] = {**operator["settings"], "size": 10}
    changed = tmp_path / "plan.json"
    plan = {**msgspec.json.decode((run.directory / "plan.json").read_bytes()), "operators": operators}
    changed.write_bytes(msgspec.json.encode(plan))
    options = {"plan": str(changed), "run": str(run.directory), "shard": "blocks-0"}
    reader = _reader(options)
    (partition,) = reader.partitions()
    with pytest.raises(ConfigError, match="is of another operator"):
        list(reader.read(partition))


def test_a_damaged_page_is_an_error_and_no_row_comes(tmp_path):
    run = StoredRun(tmp_path / "run")
    run.feed("alone", rows(50))
    run.checkpoint("alone-0")
    pages = run.directory / "store" / "checkpoint" / "alone-0-1" / "pages-0"
    raw = bytearray(pages.read_bytes())
    raw[300] ^= 1
    pages.write_bytes(raw)
    reader = _reader({"run": str(run.directory), "operator": "alone"})
    (partition,) = reader.partitions()
    with pytest.raises(CorruptPageError, match="pages-0 has a damaged page"):
        next(reader.read(partition))


def test_a_checkpoint_that_was_collected_after_planning_gives_the_newest(tmp_path):
    run = StoredRun(tmp_path / "run")
    run.feed("alone", rows(50))
    run.checkpoint("alone-0")
    reader = _reader({"run": str(run.directory), "operator": "alone"})
    (loose,) = reader.partitions()
    (firm,) = _partitions(run, shard="alone-0", sequence="1")
    run.checkpoint("alone-0")
    run.collect("alone-0", keep=1)
    assert {n for batch in reader.read(loose) for n in batch.column("sequence").to_pylist()} == {2}
    with pytest.raises(ConfigError, match="alone-0 has no checkpoint 1"):
        list(reader.read(firm))


def test_closed_windows_are_gone_and_an_older_checkpoint_still_has_them(tmp_path):
    run = StoredRun(tmp_path / "run")
    run.feed("alone", rows(50))
    run.checkpoint("alone-0")
    run.ops["alone-0"].on_watermark(0)
    run.checkpoint("alone-0")
    first = {}
    for url in (f"{run.store.url}/checkpoint/alone-0-1", f"{run.store.url}/checkpoint/alone-0-2/"):
        reader = _reader({"run": str(run.directory), "checkpoint": url})
        (partition,) = reader.partitions()
        (batch,) = reader.read(partition)
        first |= {batch.column("sequence")[0].as_py(): min(batch.column("pane_start").cast(pa.int64()).to_pylist())}
    assert first == {1: -30_000_000, 2: 0}
