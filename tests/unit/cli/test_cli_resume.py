"""`holdfast run DIRECTORY --resume URL`: a run's directory made again from its store, or one clear line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.plans import layered_plan

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.tenure import claim
from holdfast.cli import resume
from holdfast.cli.main import main
from holdfast.cli.resume import FILES, check_kept, check_unused, link_files, raised, rebuild
from holdfast.cli.runs import made_in
from holdfast.core.ready import LogBatch
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model import found
from holdfast.model.ids import Edge, Name, asset_id, ledger_of
from holdfast.model.parts import CommitRecord, SinkPlan
from holdfast.model.plan import Plan
from holdfast.model.record import first_record
from holdfast.pipeline.origins import Origins, read_origins
from holdfast.runtime.disk.journal import Journal
from holdfast.runtime.stable import batches, description, kept
from holdfast.runtime.stable.description import RunDescription
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark.checkpoint import sink_plan
from holdfast.store.local import LocalStore
from holdfast.store.plan import Steps, run_alone

PLAN = layered_plan(shards=2, tops=1)
NAMES = (Name("n0"), Name("n1"), Name("n2"))
STAGE, SHARD = asset_id("s0"), asset_id("u0")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def put(store: Path, plan: Steps[Any]) -> Any:
    return run_alone(LocalStore(store), plan)


def describe(store: Path, **changed: Any) -> None:
    told = RunDescription(
        deployment=PLAN.query, pipeline=PLAN.pipeline, source="/gone/mine.py", cwd="/", names=NAMES,
        plan=msgspec.json.encode(PLAN), file=b"# mine\n", explain="it does\n", settings={"standby": False}, conf=(),
    )  # fmt: skip
    put(store, description.put_description(msgspec.structs.replace(told, **changed)))


def commit_of(batch: int, epoch: int, attempt: int) -> CommitRecord:
    query = PLAN.topology.stage[STAGE].query
    return CommitRecord(
        query=query, batch=batch, epoch=epoch, attempt=attempt, watermark=batch, offsets=(batch, batch + 1)
    )


def log(store: Path, batch: int, epoch: int, attempt: int) -> None:
    parts: dict[Edge, Any] = {Edge(f"s0>{shard}"): () for shard in PLAN.topology.stage[STAGE].shards}
    commit = commit_of(batch, epoch, attempt)
    last = commit_of(batch - 1, epoch, attempt)
    effect = LogBatch(
        ticket=1, stage=STAGE, batch=batch, epoch=epoch, attempt=attempt, parts=parts, commit=commit, last=last
    )
    put(store, batches.write(PLAN.query, effect))


def settings(store: Path, **conf: str) -> dict[str, Any]:
    return {"store": f"file://{store}", "conf": conf}


def rebuilt(home: Path, store: Path) -> tuple[RunDescription, Plan, dict[str, Any]]:
    home.mkdir()
    return rebuild(home, settings(store), lambda line: None)


def test_every_node_finds_the_record_and_holders_find_the_ledgers(tmp_path, store):
    describe(store)
    record = msgspec.structs.replace(first_record(PLAN.topology, NAMES), version=7, term=3)
    put(store, description.put_record(PLAN.query, record))
    put(store, claim(SHARD, PLAN.query, epoch=12, holder="n0#1"))
    for batch, epoch, attempt in ((8, 2, 3), (9, 2, 4), (9, 5, 1), (9, 5, 2)):
        log(store, batch, epoch, attempt)
    home = tmp_path / "run"
    known, plan, after_settings = rebuilt(home, store)
    assert (known.settings, plan) == ({"standby": False}, PLAN)
    assert after_settings == {"standby": False, "conf": {}, "store": f"file://{store}"}
    assert (home / "pipeline.py").read_bytes() == b"# mine\n"
    holders = 0
    for name in NAMES:
        on_disk = found.read(Journal(home / "nodes" / name / "journal").content)
        after = on_disk.record
        assert (on_disk.life, after.version, after.term, on_disk.vote.term) == (1, 8, 4, 4)
        assert after.places[SHARD].epoch > 12
        assert after.places[STAGE].epoch > 5
        for page in on_disk.ledgers.values():
            assert (page.since, page.page.commit) == (8, commit_of(9, 5, 2))
            holders += 1
        assert set(on_disk.ledgers) <= {ledger_of(STAGE)}
    assert holders == len(first_record(PLAN.topology, NAMES).places[ledger_of(STAGE)].holders)


def test_a_run_that_died_before_its_first_record_was_there_begins_with_the_first(tmp_path, store):
    describe(store)
    rebuilt(tmp_path / "run", store)
    after = found.read(Journal(tmp_path / "run" / "nodes" / "n1" / "journal").content).record
    assert after.places == raised(first_record(PLAN.topology, NAMES), NAMES, {}).places
    assert all(protection.is_stored for protection in after.protection.values())


def test_a_run_does_not_go_on_if_an_operator_has_nothing_in_the_store_and_nothing_else_either():
    def made(mode: str) -> Plan:
        (operator, *others) = PLAN.operators
        unkept = msgspec.structs.replace(operator, checkpoint="none", mode=mode)
        return msgspec.structs.replace(PLAN, operators=(unkept, *others))

    given = {"store": "file:///somewhere", "conf": {}}
    check_kept(PLAN, given, has_disks=False)
    check_kept(made("none"), given, has_disks=True)  # its shards start empty, and mark the gap
    for mode, has_disks in (("none", False), ("passive", False), ("passive", True)):
        with pytest.raises(ConfigError, match=f"the state of {PLAN.operators[0].name} is lost"):
            check_kept(made(mode), given, has_disks=has_disks)


def test_files_are_in_a_store_that_is_a_folder_and_found_there_again(tmp_path, store):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        link_files(tmp_path / name, f"file://{store}", "p-1")
    for name in FILES:
        (tmp_path / "first" / name / "x").write_text(name)
        assert (tmp_path / "second" / name / "x").read_text() == name
    assert store.stat().st_mode & 0o077 == 0
    shutil.rmtree(store)
    assert {path.name for path in made_in(tmp_path / "first")} == set(FILES)  # `--fresh` finds them


def test_files_and_sinks_come_back_from_a_store_that_is_not_a_folder(tmp_path, store, monkeypatch):
    describe(store)
    for path, text in (("checkpoints/s0/sources/0/0", "v1"), ("late/s0/.batch=3.epoch=2.tmp", "late")):
        put(store, kept.put_file(PLAN.query, path, text.encode()))
    plan = SinkPlan(batch=5, committed=4, metadata="whose", plans={4: "four", 5: "five"}, gaps={"u0.0@7.json": "{}"})
    put(store, kept.put_plan(PLAN.query, asset_id("r0"), plan))
    # as S3 would be: the same objects, but nothing of it is a directory for anybody
    monkeypatch.setattr(resume, "open_door", lambda settings, scratch: StoreDoor(lambda: LocalStore(store)))
    home = tmp_path / "run"
    home.mkdir()
    rebuild(home, {"store": "s3://bucket/netmon", "conf": {}}, lambda line: None)
    assert (home / "checkpoints/s0/sources/0/0").read_text() == "v1"
    assert (home / "late/s0/.batch=3.epoch=2.tmp").read_text() == "late"
    assert sink_plan(home / "checkpoints" / "r0", home / "gaps" / "r0") == plan
    assert not any(path.is_symlink() for path in home.iterdir())


def test_a_file_that_would_lie_outside_of_the_run_is_refused(tmp_path, store, monkeypatch):
    describe(store)
    put(store, kept.put_file(PLAN.query, "late/../../outside", b"x"))
    monkeypatch.setattr(resume, "open_door", lambda settings, scratch: StoreDoor(lambda: LocalStore(store)))
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="a file that is none of this run"):
        rebuild(tmp_path / "run", {"store": "s3://bucket/netmon", "conf": {}}, lambda line: None)
    assert not (tmp_path / "outside").exists()


def test_the_store_of_a_run_is_not_given_to_another_even_before_its_first_checkpoint(tmp_path, store):
    describe(store)
    with pytest.raises(ConfigError, match="checkpoints of another run") as told:
        check_unused(settings(store), tmp_path)
    assert PLAN.query in told.value.detail


def refused(capsys, home: Path, *more: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["run", str(home), *more])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    return said.strip().splitlines()[-1]


def test_a_store_without_a_run_is_refused_and_nothing_is_left(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    said = refused(capsys, tmp_path / "run", "--resume", f"file://{tmp_path}/empty")
    assert "is not the store of a run" in said
    assert not (tmp_path / "run").exists()


def test_settings_of_spark_that_are_not_in_the_store_are_named(tmp_path, capsys, store):
    describe(store, conf=("spark.hadoop.key", "spark.jars"))
    said = refused(capsys, tmp_path / "run", "--resume", f"file://{store}", "--conf", "spark.jars=x.jar")
    assert "They are spark.hadoop.key." in said
    assert not (tmp_path / "run").exists()


def test_a_directory_that_is_there_is_not_written_over(tmp_path, capsys, store):
    describe(store)
    home = tmp_path / "run"
    home.mkdir()
    (home / "run.json").write_text("{}")
    assert "holds an earlier run" in refused(capsys, home, "--resume", f"file://{store}")
    assert [path.name for path in home.iterdir()] == ["run.json"]


def test_a_pipeline_file_that_is_there_is_not_written_over(tmp_path, capsys, store):
    describe(store)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pipeline.py").write_text("# newer\n")
    assert "would write over" in refused(capsys, tmp_path / "run", "--resume", f"file://{store}")
    assert (tmp_path / "run" / "pipeline.py").read_text() == "# newer\n"
    assert "is a file" in refused(capsys, tmp_path / "run" / "pipeline.py", "--resume", f"file://{store}")


def test_relative_paths_must_begin_where_they_did(tmp_path, capsys, store):
    describe(store, cwd=str(tmp_path / "gone"))
    said = refused(capsys, tmp_path / "run", "--resume", f"file://{store}")
    assert f"{tmp_path}/gone is not there" in said


def test_a_setting_that_would_have_no_effect_is_refused(tmp_path, capsys, store):
    describe(store)
    said = refused(capsys, tmp_path / "run", "--resume", f"file://{store}", "--set", "misses = 5")
    assert "--set misses cannot be given" in said


def test_records_of_another_run_do_not_count(store):
    put(store, description.put_record("other", first_record(PLAN.topology, NAMES)))
    assert put(store, description.last_record(PLAN.query)) is None


@pytest.mark.parametrize(
    "more", [("--nodes", "5"), ("--fresh",), ("--store", "file:///x"), ("--sla", "99.9%")], ids=str
)
def test_a_flag_that_would_change_the_run_is_refused(tmp_path, capsys, store, more):
    describe(store)
    assert "goes on with the settings" in refused(capsys, tmp_path / "run", "--resume", f"file://{store}", *more)


def test_what_is_damaged_is_named(tmp_path, store):
    describe(store)
    path = store / description.DESCRIPTION
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    with pytest.raises(HoldfastError, match="run/description is damaged"):
        rebuilt(tmp_path / "run", store)


def from_savepoint(store: Path, **changed: Any) -> bytes:
    came = Origins(
        savepoint="one", deployment="old-1", directory="/old", store=f"file://{store}", sinks=("r0",)
    )  # fmt: skip
    return msgspec.json.encode(msgspec.structs.replace(came, **changed))


def test_a_run_that_took_over_sinks_goes_on_without_its_disks_and_knows_where_it_came_from(tmp_path, store):
    old = tmp_path / "old-store"
    put(old, savepoints.go_on_from(PLAN.query))
    describe(store, origins=from_savepoint(old, changed={"u1": "it was new"}))
    rebuilt(tmp_path / "run", store)
    found = read_origins(tmp_path / "run")
    assert found is not None
    assert (found.savepoint, found.changed) == ("one", {"u1": "it was new"})
    shutil.rmtree(old)  # what the run came from may be deleted some day
    rebuilt(tmp_path / "again", store)


@pytest.mark.parametrize("other", ["", "another-1"])
def test_a_run_whose_upgrade_was_killed_before_it_began_does_not_go_on(tmp_path, capsys, store, other):
    """The old run may have: both would write to the same sinks."""
    old = tmp_path / "old-store"
    if other:
        put(old, savepoints.go_on_from(other))
    describe(store, origins=from_savepoint(old))
    said = refused(capsys, tmp_path / "run", "--resume", f"file://{store}")
    assert "never began" in said
    assert ("still those of another-1" if other else "`holdfast run /old` goes on") in said
    assert not (tmp_path / "run").exists()
