"""`holdfast node NAME --join RUN`: what it asks for, what it starts with, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.plans import layered_plan
from test_cli_runs import a_run, call

from holdfast.cli.join import join_run
from holdfast.cli.runs import change_nodes, read_run
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.plan import digest
from holdfast.runtime.config import NodeConfig, make_config
from holdfast.runtime.node.joining import has_joined

AT = "grpc://127.0.0.1:7104"


def a_cluster(tmp_path: Path, node: Any, asked: list[dict], **changed: Any) -> Path:
    def let_in(body: dict) -> dict:
        asked.append(body)
        return {"endpoints": {**endpoints, "n1": "grpc://127.0.0.1:9", body["name"]: body["address"]}}

    endpoints = node(tmp_path, ping={"name": "n0"}, **{"let_in": let_in, **changed})
    home = a_run(tmp_path, endpoints=endpoints)
    (home / "plan.json").write_bytes(msgspec.json.encode(layered_plan()))
    return home


def test_it_asks_with_its_plan_and_starts_with_what_the_run_has(tmp_path, node):
    asked: list[dict] = []
    home = a_cluster(tmp_path, node, asked)
    config = join_run("n4", home, None, AT, None)
    plan = layered_plan()
    assert asked == [{"name": "n4", "address": AT, "plan": digest(plan), "known": False}]
    assert (config.name, config.join, config.dir, config.endpoints["n4"]) == ("n4", True, str(home), AT)
    assert sorted(config.endpoints) == ["n0", "n1", "n4"]
    assert config.secret_file == str(home / "secret")
    run = read_run(home)
    assert run.endpoints["n4"] == AT
    assert run.metrics["n4"].endswith("/metrics")


def test_its_directory_says_that_it_joined_before_run_json_names_it(tmp_path, node, monkeypatch):
    """A run that goes on starts whom run.json names: were it started as one of the first, it could decide alone."""
    seen: list[NodeConfig] = []

    def look(directory: Path, name: str, endpoint: str, metrics: str) -> None:
        seen.append(make_config({"name": name, "dir": str(directory), "endpoints": {"n0": AT, name: endpoint}}))
        assert (has_joined(seen[0]), has_joined(msgspec.structs.replace(seen[0], name="n0"))) == (True, False)

    home = a_cluster(tmp_path, node, [])
    monkeypatch.setattr("holdfast.cli.join.change_nodes", look)
    join_run("n4", home, None, AT, None)
    assert [config.join for config in seen] == [False]


def test_settings_are_those_of_the_run_or_of_its_own_file(tmp_path, node):
    home = a_cluster(tmp_path, node, [])
    (home / "run.json").write_text(
        json.dumps({**json.loads((home / "run.json").read_text()), "settings": {"heartbeat": "70 ms"}})
    )
    assert join_run("n4", home, None, AT, None).heartbeat == "70 ms"
    file = tmp_path / "own.toml"
    file.write_text(f'heartbeat = "80 ms"\nmetrics_port = -1\n[endpoints]\nn5 = "{AT}"\n')
    config = join_run("n5", home, file, "", None)
    assert (config.heartbeat, config.endpoints["n5"]) == ("80 ms", AT)
    assert "n5" not in read_run(home).metrics


def test_without_an_endpoint_it_has_a_socket_beside_those_of_the_others(tmp_path, node):
    home = a_cluster(tmp_path, node, [])
    with pytest.raises(ConfigError, match="where shall n4 listen") as refused:
        join_run("n4", home, None, "", None)
    assert "--endpoint" in refused.value.hint
    run = read_run(home)
    run.endpoints = {"n0": "grpc+unix:///tmp/holdfast-x/n0.sock"}
    from holdfast.cli.join import _socket

    assert _socket(run, "n4") == "grpc+unix:///tmp/holdfast-x/n4.sock"


def test_who_comes_back_says_that_it_was_here(tmp_path, node):
    asked: list[dict] = []
    home = a_cluster(tmp_path, node, asked)
    (home / "nodes" / "n4").mkdir(parents=True)
    (home / "nodes" / "n4" / "journal").touch()
    join_run("n4", home, None, AT, None)
    assert asked[0]["known"]


def test_a_refusal_leaves_the_run_as_it_was(tmp_path, node):
    def no(body: dict) -> dict:
        raise ConfigError("there is a node n4 already", detail="It listens elsewhere.")

    home = a_cluster(tmp_path, node, [], let_in=no)
    before = (home / "run.json").read_bytes()
    with pytest.raises(HoldfastError, match="n4 is not let in: there is a node n4 already"):
        join_run("n4", home, None, AT, None)
    assert (home / "run.json").read_bytes() == before
    assert not (home / "nodes").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["n4"], "a file with its settings, or a run to join"),
        (["n4", "--endpoint", AT], "--endpoint belongs to --join"),
        (["--join", "{home}"], "a node that joins needs a name"),
        (["n4", "--join", "{home}", "--dir", "x"], "--dir and --join"),
        (["n4", "--join", "{home}/nowhere"], "no run in"),
        (["n4", "--join", "{home}", "--endpoint", "nonsense"], "endpoint of 'n4' cannot be used"),
        (["n4", "--join", "{home}", "--config", "{home}/none.toml"], "cannot read the node's config"),
    ],
)
def test_mistakes_are_one_line(arguments, why, capsys, tmp_path, node):
    home = a_cluster(tmp_path, node, [])
    code, _, err = call(capsys, "node", *(a.replace("{home}", str(home)) for a in arguments))
    assert code == 2, err
    assert why in err
    assert len(err.strip().splitlines()) == 1


def test_run_json_forgets_who_has_left(tmp_path):
    home = a_run(tmp_path)
    change_nodes(home, "n4", AT, "http://127.0.0.1:1/metrics")
    run = read_run(home)
    change_nodes(home, "n4", "")
    run.look_again()
    assert sorted(run.endpoints) == ["n0"]
    assert run.metrics == {}
    assert not (home / "run.json.lock").exists()
