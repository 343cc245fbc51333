"""`holdfast run DIRECTORY`: what cannot go on is refused with the reason, and stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.plans import layered_plan

from holdfast.checkpoint.tenure import claim
from holdfast.cli.main import main
from holdfast.cli.start import go_on
from holdfast.model.ids import asset_id
from holdfast.runtime.config import make_config
from holdfast.runtime.net.security import make_secret
from holdfast.store.local import LocalStore
from holdfast.store.plan import run_alone

STORE = {"store": "file:///nowhere", "conf": {}}


def a_run(home: Path, **changed: Any) -> Path:
    home.mkdir()
    make_secret(home / "secret")
    described = {
        "pipeline": "p", "source": str(home / "mine.py"), "cwd": str(home), "endpoints": {"n0": "grpc://127.0.0.1:9"},
        "secret_file": str(home / "secret"), "deployment": "p-1", "dir": str(home),
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps({**described, **changed}))
    (home / "plan.json").write_text("{")
    return home


def refused(capsys, home: Path, *more: str) -> str:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as end:
        main(["run", str(home), *more])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert len(said.strip().splitlines()) == 1, said
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    return said


def test_a_run_without_a_store_has_nothing_to_go_on_from(tmp_path, capsys):
    assert "It had no store" in refused(capsys, a_run(tmp_path / "run"))


def test_a_run_that_has_finished_does_not_go_on(tmp_path, capsys):
    home = a_run(tmp_path / "run", settings=STORE)
    event = {
        "number": 1,
        "time": "2026-01-01T00:00:00.000+00:00",
        "node": "run",
        "event": "finished",
        "text": "It has.",
    }
    (home / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert "has finished" in refused(capsys, home)


def test_a_directory_that_is_not_of_a_run_is_named(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    assert "no run in" in refused(capsys, tmp_path / "other")


@pytest.mark.parametrize(
    "more", [("--nodes", "5"), ("--fresh",), ("--store", "file:///x"), ("--sla", "99.9%")], ids=str
)
def test_a_flag_that_would_change_it_is_refused(tmp_path, capsys, more):
    home = a_run(tmp_path / "run", settings=STORE)
    assert "goes on with the settings that it had" in refused(capsys, home, *more)


def test_a_plan_that_cannot_be_read_stops_it_and_nothing_is_removed(tmp_path, capsys):
    assert "the plan cannot be read" in refused(capsys, a_run(tmp_path / "run", settings=STORE))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nowhere", "is not the URL of a store"),
        ("ftp://x/y", "no store is known for ftp://"),
        ("file://relative", "is not a folder of this machine"),
        ("s3://user:word@bucket/x", "has a password"),
    ],
)
def test_a_store_that_cannot_be_is_refused_before_anything_is_made(tmp_path, capsys, url, says):
    file = tmp_path / "p.py"
    file.write_text("# never planned\n")
    with pytest.raises(SystemExit) as end:
        main(["run", str(file), "--dir", str(tmp_path / "run"), "--store", url])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert says in said
    assert "word" not in said.replace("password", "")
    assert not (tmp_path / "run").exists()


MODEL = """
[store]
switch = "a"
receive = 6
[switches.a]
[switches.b]
uplink = "a"
up = 4
down = 5
[racks.r1]
switch = "b"
send = 1
receive = 0
[servers]
n0 = { rack = "r1" }
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MODEL.replace("[switches.a]", '[switches.a]\nuplink = "b"\nup = 1\ndown = 1'), "loop"),
        (MODEL.replace("up = 4\n", ""), "has no capacity 'up'"),
        (MODEL.replace("n0 =", "n7 ="), "does not know n0"),
        ("", "no switches"),
        (None, "cannot be read"),
    ],
)
def test_a_network_model_that_cannot_be_is_refused_before_anything_is_made(tmp_path, capsys, text, says):
    file, model = tmp_path / "p.py", tmp_path / "model.toml"
    file.write_text("# never planned\n")
    if text is not None:
        model.write_text(text)
    arguments = ["--dir", str(tmp_path / "run"), "--nodes", "1", "--store", f"file://{tmp_path}/store"]
    with pytest.raises(SystemExit) as end:
        main(["run", str(file), *arguments, "--set", f'network_model = "{model}"'])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "store").exists()


def test_a_new_run_does_not_take_the_store_of_another(tmp_path, capsys):
    store = tmp_path / "store"
    run_alone(LocalStore(store), claim(asset_id("talkers-0"), "other-1", epoch=1, holder="n0#1"))
    file = tmp_path / "p.py"
    file.write_text("# never planned\n")
    with pytest.raises(SystemExit) as end:
        main(["run", str(file), "--dir", str(tmp_path / "run"), "--store", f"file://{store}"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "has checkpoints of another run" in said
    assert "talkers-0" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", [("savepoint", "one", "HOME"), ("stop", "HOME", "--checkpoint"), ("upgrade", "HOME", "FILE")], ids=str
)
def test_a_clean_point_without_the_state_of_an_operator_is_refused_at_once(tmp_path, capsys, words):
    """It would never come: nothing of that operator is in the store."""
    plan = layered_plan(shards=1, tops=0)
    operators = tuple(replace(one, mode="none", checkpoint="none") for one in plan.operators)
    home = a_run(tmp_path / "run", settings={"store": f"file://{tmp_path}/store", "conf": {}})
    (home / "plan.json").write_bytes(msgspec.json.encode(replace(plan, operators=operators)))
    (tmp_path / "p.py").write_text("")
    told = {"HOME": str(home), "FILE": str(tmp_path / "p.py")}
    with pytest.raises(SystemExit) as end:
        main([told.get(word, word) for word in words])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert "needs the state of every operator in the store" in said
    assert "Of u0 nothing is there" in said


def test_labels_of_nodes_that_have_left_are_left_out(tmp_path, monkeypatch):
    """run.json forgets a node that leaves, its settings still have its domain: no node would start with them."""
    ends = {"n0": "grpc://127.0.0.1:9", "n2": "grpc://127.0.0.1:10"}
    labels = {"n0": "a/1", "n1": "a/2", "n2": "b/1"}
    home = a_run(tmp_path / "run", endpoints=ends, settings={**STORE, "domains": labels})
    (home / "plan.json").write_bytes(msgspec.json.encode(layered_plan()))
    given: list[Any] = []
    for check in ("has_finished", "check_not_followed", "check_began", "check_kept"):
        monkeypatch.setattr(f"holdfast.cli.start.{check}", lambda *found, **more: False)
    monkeypatch.setattr("holdfast.cli.start.restart_nodes", lambda *found: given.extend(found))
    go_on(home)
    names, settings = given[4:6]
    assert (names, settings["domains"]) == (["n0", "n2"], {"n0": "a/1", "n2": "b/1"})
    make_config({**settings, "name": "n0", "dir": str(home), "endpoints": ends})
