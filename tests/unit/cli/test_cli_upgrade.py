"""What a run takes over from a savepoint, and the flags of it, without a node."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import msgspec
import pytest
from support.plans import layered_plan

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.cli.carry import Changes, Upgrade, came_after, keep_files, move_checkpoints, new_store, unpack
from holdfast.cli.home import RunHome
from holdfast.cli.main import main
from holdfast.cli.resume import open_door
from holdfast.cli.upgrade import next_to
from holdfast.core.ready import LogBatch
from holdfast.errors import ConfigError
from holdfast.model.ids import Edge, asset_id
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import OperatorPlan, Plan, StagePlan
from holdfast.model.topology import Topology
from holdfast.pipeline.upgrades import Matching
from holdfast.runtime.stable import batches, kept
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark import checkpoint
from holdfast.store import IoService, LocalStore

POINT = Savepoint(
    name="one", made_ms=1, deployment="old-1", pipeline="p", directory="/nowhere", plan=b"", shards={}, commits={},
    reads={}, written={"out_0": 5},
)  # fmt: skip


def test_a_default_names_an_operator_and_an_aggregate():
    assert Changes.of(False, False, ["talkers.most=0", "talkers.name=null"]).defaults == {
        ("talkers", "most"): "0",
        ("talkers", "name"): "null",
    }
    with pytest.raises(ConfigError, match="cannot be read"):
        Changes.of(False, False, ["most=0"])


def test_stores_of_all_generations_are_beside_each_other():
    second = new_store("file:///mnt/netmon/", "netmon-b")
    assert second == "file:///mnt/netmon/generation/netmon-b"
    assert new_store(second, "netmon-c") == "file:///mnt/netmon/generation/netmon-c"


def test_the_directory_of_the_next_run_is_beside_that_of_the_last(tmp_path: Path):
    assert next_to(tmp_path / "netmon").name == "netmon-2"
    assert next_to(tmp_path / "netmon-2").name == "netmon-3"
    (tmp_path / "netmon-3").mkdir()
    assert next_to(tmp_path / "netmon-2").name == "netmon-4"


def test_files_of_a_savepoint_stay_inside_of_the_run(tmp_path: Path):
    def packed(name: str) -> bytes:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
        return raw.getvalue()

    unpack(packed("late/in/batch=1"), tmp_path / "run")
    assert (tmp_path / "run" / "late" / "in" / "batch=1").read_bytes() == b"hi"
    with pytest.raises(ConfigError, match="outside of its run"):
        unpack(packed("late/../../x"), tmp_path / "run")


def test_a_sink_that_goes_on_reads_the_edges_of_the_new_run_with_the_next_number(tmp_path: Path):
    """Its file sink knows the numbers of its batches: they must not begin anew."""
    operator = OperatorPlan(
        name="talkers", kind="aggregate", shards=2, mode="auto", inputs=(), settings={}, output=b""
    )  # fmt: skip
    sink = StagePlan(id="out_0", kind="sink", reads=("talkers",))
    topology = Topology(shards=(), stages=(), readers=())
    plan = Plan(pipeline="p", query="new-1", topology=topology, operators=(operator,), stages=(sink,))
    for name in ("out_0", "gone_0"):
        home = tmp_path / name
        (home / "offsets").mkdir(parents=True)
        (home / "commits").mkdir()
        (home / "metadata").write_text('{"id":"of the old run"}')
        for batch in (4, 5, 6):
            (home / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps({"talkers-0.0": [100 * batch, 9]}))
        (home / "commits" / "5").write_text("v1\n{}")
    move_checkpoints(tmp_path, POINT, plan, plan, Matching(stages=("out_0",)))
    assert not (tmp_path / "gone_0").exists()
    home = tmp_path / "out_0"
    assert json.loads((home / "metadata").read_text())["id"] == checkpoint.query_id("new-1", "out_0")
    assert checkpoint.newest_planned(home) == checkpoint.last_committed(home) == 5
    for batch in (4, 5):
        offsets = checkpoint.source_offsets(checkpoint.plan_of(home, batch))
        assert offsets == [{"talkers-0.0": [0, 9], "talkers-1.0": [0, 9]}]


def a_source_checkpoint(home: Path, *lines: str) -> None:
    (home / "offsets").mkdir(parents=True)
    (home / "commits").mkdir()
    (home / "metadata").write_text('{"id":"of the old run"}')
    for batch in (3, 4, 5):
        (home / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]).replace("BATCH", str(batch)))
    (home / "commits" / "4").write_text("v1\n{}")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_a_source_that_feeds_another_number_of_chains_goes_on_where_it_was(tmp_path: Path, before: int, after: int):
    """Spark's plan names a source once for every chain, and refuses one with another number of lines."""

    def plan_with(chains: int) -> Plan:
        feeds = tuple((f"op{i}", 0) for i in range(chains))
        outlets = tuple(name for name, _ in feeds) if chains > 1 else ()
        source = StagePlan(id="packets", kind="source", feeds=feeds, outlets=outlets)
        topology = Topology(shards=(), stages=(), readers=())
        return Plan(pipeline="p", query=f"q-{chains}", topology=topology, operators=(), stages=(source,))

    a_source_checkpoint(tmp_path / "packets", *['{"logOffset":BATCH}'] * before)
    commit = CommitRecord(query="q", batch=9, epoch=3, attempt=1, watermark=9, offsets=(4, 4), plan="")
    point = msgspec.structs.replace(POINT, commits={"packets": commit})
    move_checkpoints(tmp_path, point, plan_with(before), plan_with(after), Matching(stages=("packets",)))
    home = tmp_path / "packets"
    assert checkpoint.newest_planned(home) == checkpoint.last_committed(home) == 4
    assert checkpoint.source_offsets(checkpoint.plan_of(home, 4)) == [{"logOffset": 4}] * after


def test_a_source_in_real_time_has_no_plan_in_its_checkpoint_and_goes_on_by_its_commit(tmp_path: Path):
    source = StagePlan(id="packets", kind="source")
    topology = Topology(shards=(), stages=(), readers=())
    plan = Plan(pipeline="p", query="q-2", topology=topology, operators=(), stages=(source,))
    (tmp_path / "packets").mkdir()
    commit = CommitRecord(
        query="q", batch=9, epoch=3, attempt=1, watermark=9, offsets=(4, 5), plan='v1\n{}\n{"t":{"0":7}}',
        positions={"t/0": 7},
    )  # fmt: skip
    point = msgspec.structs.replace(POINT, commits={"packets": commit})
    move_checkpoints(tmp_path, point, plan, plan, Matching(stages=("packets",)))
    assert json.loads((tmp_path / "packets" / "metadata").read_text())["id"] == checkpoint.query_id("q-2", "packets")


def test_a_plan_that_no_batch_has_come_of_is_not_carried_over(tmp_path: Path):
    """Its edges are those of the old run, which are not there any more."""
    stage = StagePlan(id="again_in", kind="between", reads=("talkers",))
    topology = Topology(shards=(), stages=(), readers=())
    plan = Plan(pipeline="p", query="new-1", topology=topology, operators=(), stages=(stage,))
    offsets = tmp_path / "again_in" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"talkers-7.0": [0, 9]}')
    move_checkpoints(tmp_path, POINT, plan, plan, Matching(stages=("again_in",)))
    assert checkpoint.is_new(tmp_path / "again_in")


def test_what_a_run_has_done_since_a_savepoint_is_found_in_its_log_and_in_what_its_sinks_have_planned(tmp_path: Path):
    plan = layered_plan(shards=1, tops=0)
    (stage,) = (one for one in plan.topology.stages if one.shards)
    edges = [Edge(f"{stage.id}>{shard}") for shard in stage.shards]
    service = IoService(LocalStore(tmp_path / "store"))

    def commit(batch: int) -> CommitRecord:
        found = CommitRecord(query=plan.query, batch=batch, epoch=2, attempt=0, watermark=1, offsets=(batch, 1))
        effect = LogBatch(
            ticket=0, stage=stage.id, batch=batch, epoch=2, attempt=0, parts=dict.fromkeys(edges, ()), commit=found,
            last=None,
        )  # fmt: skip
        service.run(batches.write(plan.query, effect))
        return found

    offsets = tmp_path / "checkpoints" / "r0" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "5").write_text("v1\n{}\n{}")
    point = msgspec.structs.replace(POINT, commits={stage.id: commit(7)}, written={"r0": 5})
    sinks = [asset_id("r0")]
    assert came_after(service, point, plan, tmp_path, sinks) == ""
    (offsets / "6").write_text("v1\n{}\n{}")
    assert "r0 has begun batch 6" in came_after(service, point, plan, tmp_path, sinks)
    commit(8)
    assert "has handed over batch 8" in came_after(service, point, plan, tmp_path, [])
    service.close()


@pytest.mark.parametrize("did", ["nothing", "a batch", "nothing, and another run was first"])
def test_a_start_that_failed_gives_the_sinks_back_only_if_nothing_was_written(tmp_path: Path, did: str):
    """Else rows that the new run has written would be written again by the old one, or skipped."""
    plan = layered_plan(shards=1, tops=0)
    (stage,) = (one for one in plan.topology.stages if one.shards)
    old = IoService(LocalStore(tmp_path / "store"))
    told: list[str] = []
    home = RunHome(tmp_path / "run", tmp_path / "p.py")
    settings = {"store": f"file://{tmp_path / 'store'}", "conf": {}}
    work = Upgrade(tmp_path / "p.py", home, settings, Changes(), told.append, None)
    work._plan, work.has_begun = plan, True
    old.run(savepoints.go_on_from("another" if "another" in did else work._query))
    door = open_door(work._settings, home.path)
    if did == "a batch":
        commit = CommitRecord(query=plan.query, batch=0, epoch=2, attempt=0, watermark=1, offsets=(0, 1))
        parts = {Edge(f"{stage.id}>{shard}"): () for shard in stage.shards}
        effect = LogBatch(
            ticket=0, stage=stage.id, batch=0, epoch=2, attempt=0, parts=parts, commit=commit, last=None
        )  # fmt: skip
        door.service().run(batches.write(plan.query, effect))
    work._take_back(old, POINT, [asset_id("r0")])
    work.undo()
    expected = {"nothing": "", "a batch": work._query}.get(did, "another")
    assert old.run(savepoints.successor()) == expected
    assert work.has_begun == (tmp_path / "run").exists() == (did == "a batch")
    assert told == ([f"the new run has begun: `holdfast run {tmp_path}/run` goes on with it"] if work.has_begun else [])
    door.close()
    old.close()


def test_a_run_that_loses_its_disks_right_after_it_began_finds_lists_of_files_and_sinks_in_its_store(tmp_path: Path):
    """A store that is not a folder has nothing but what is put there."""
    plan = layered_plan(shards=1, tops=0)
    home, door = tmp_path / "run", StoreDoor(lambda: LocalStore(tmp_path / "store"))
    files = {
        "checkpoints/s0/sources/0/3": "v1", "checkpoints/r0/metadata": "{}", "checkpoints/r0/offsets/4": "v1\n{}\n{}",
        "checkpoints/r0/commits/4": "v1\n{}", "late/s0/batch=2": "late", "dead/u0/x": "dead",
    }  # fmt: skip
    for path, text in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    keep_files(door, home, plan)
    service = door.service()
    there = service.run(kept.list_files(plan.query))
    assert set(there) == {"checkpoints/s0/sources/0/3", "late/s0/batch=2", "dead/u0/x"}
    known = service.run(kept.last_plan(plan.query, asset_id("r0")))
    assert known is not None
    assert (known.batch, known.committed) == (4, 4)
    door.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "x.py", "--allow-new"], "belong to --from"),
        (["run", "x.py", "--default", "a.b=1"], "belong to --from"),
        (["run", "x.py", "--from", "one", "--resume", "file:///x"], "--from starts a new run"),
        (["run", "x.py", "--from", "one"], "--from needs --store"),
        (["run", "x.py", "--from", "a/b", "--store", "file:///x"], "cannot be the name"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("")
    with pytest.raises(SystemExit) as end:
        main(arguments)
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert said in told
    assert len(told.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]
