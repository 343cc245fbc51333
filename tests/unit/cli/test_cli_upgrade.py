"""What a run takes over from a savepoint, and the flags of it, without a node."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from holdfast.checkpoint.savepoint import Savepoint
from holdfast.cli.carry import Changes, move_checkpoints, new_store, unpack
from holdfast.cli.main import main
from holdfast.cli.upgrade import next_to
from holdfast.errors import ConfigError
from holdfast.model.plan import OperatorPlan, Plan, StagePlan
from holdfast.model.topology import Topology
from holdfast.pipeline.upgrades import Matching
from holdfast.spark import checkpoint

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
    move_checkpoints(tmp_path, POINT, plan, Matching(stages=("out_0",)))
    assert not (tmp_path / "gone_0").exists()
    home = tmp_path / "out_0"
    assert json.loads((home / "metadata").read_text())["id"] == checkpoint.query_id("new-1", "out_0")
    assert checkpoint.newest_planned(home) == checkpoint.last_committed(home) == 5
    for batch in (4, 5):
        offsets = checkpoint.source_offsets(checkpoint.plan_of(home, batch))
        assert offsets == [{"talkers-0.0": [0, 9], "talkers-1.0": [0, 9]}]


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
