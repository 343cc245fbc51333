"""Nodes of their own through the commands alone (node, submit, status, stop), with the file of docs/running.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.nodes import PATHS, TESTS, free_ports
from support.plans import layered_plan
from support.tls import make_tls

from holdfast.cli import cluster
from holdfast.cli.main import main
from holdfast.runtime.net.security import make_secret

pytestmark = pytest.mark.slow

NAMES = ["n0", "n1", "n2"]


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen]]:
    found: dict[str, subprocess.Popen] = {}
    yield found
    for process in found.values():
        process.kill()
        process.wait(10)


def documented(home: Path) -> Path:
    """The file of docs/running.md, with paths and addresses of this machine, and a child that needs no Spark."""
    text = re.findall(r"```toml\n(# cluster\.toml\n.*?)```", (TESTS.parent / "docs" / "running.md").read_text(), re.S)[
        0
    ]
    make_secret(home / "secret-of-all")
    ca, cert, key = make_tls(home)
    changes = {
        "/mnt/shared/netmon": home / "run", "/etc/holdfast/secret": home / "secret-of-all", "/etc/holdfast/ca.pem": ca,
        "/etc/holdfast/node.pem": cert, "/etc/holdfast/node.key": key,
        **{f"10.0.0.{i}:7100": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)},
    }  # fmt: skip
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, str(new))
    command = json.dumps([sys.executable, str(TESTS / "support" / "child.py")])
    (home / "cluster.toml").write_text(f"child_command = {command}\n{text}")
    return home / "cluster.toml"


def call(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    told = capsys.readouterr()
    return end.value.code, told.out if end.value.code == 0 else told.err


def test_nodes_wait_get_a_pipeline_tell_of_it_and_stop(tmp_path, capsys, monkeypatch, processes):
    config, run = documented(tmp_path), tmp_path / "run"
    for name in NAMES:
        entry = "from holdfast.cli.main import entry; entry()"
        command = [sys.executable, "-c", entry, "node", "--config", str(config), "--name", name, "--json"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": PATHS}
            processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def logs() -> str:
        return "\n".join((tmp_path / f"{name}.log").read_text() for name in NAMES)

    deadline = time.monotonic() + 60
    while logs().count('"event": "waiting"') < len(NAMES):
        assert time.monotonic() < deadline, logs()
        time.sleep(0.05)
    (run / "test.json").write_text(json.dumps({"rate": 2_000, "keys": 50, "trigger_ms": 30}))
    (run / "began").write_text(str(time.time()))
    file = tmp_path / "netmon.py"
    file.write_text("# planned already\n")
    # the planner alone needs a JVM, and it is not what this is about
    monkeypatch.setattr(cluster, "plan_file", lambda file, scratch, **_: (layered_plan(shards=2, tops=0), []))
    code, told = call(capsys, "submit", str(file), "--config", str(config), "--json")
    assert code == 0, told
    assert json.loads(told)["nodes"] == NAMES
    deadline = time.monotonic() + 60
    while True:  # from the first moment on an answer, or that they prepare
        code, told = call(capsys, "status", str(run), "--json")
        assert code == 0 or "are preparing" in told, told
        if code == 0:
            status = json.loads(told)
            if all(shard.get("rows_in") for shard in status["shards"].values()):
                break
        assert time.monotonic() < deadline, told + logs()
        time.sleep(0.1)
    assert sorted(status["shards"]) == ["u0", "u1"]
    assert call(capsys, "status", str(run))[0] == 0
    again = msgspec.structs.replace(layered_plan(shards=2, tops=0), query="again")
    monkeypatch.setattr(cluster, "plan_file", lambda file, scratch, **_: (again, []))
    code, told = call(capsys, "submit", str(file), "--config", str(config), "--json")
    assert code == 0, told
    assert json.loads(told)["already"] == NAMES
    assert json.loads(told)["query"] == layered_plan().query
    monkeypatch.setattr(cluster, "plan_file", lambda file, scratch, **_: (layered_plan(shards=3, tops=0), []))
    code, told = call(capsys, "submit", str(file), "--config", str(config))
    assert code == 2
    assert "run another pipeline" in told
    code, told = call(capsys, "events", str(run), "--kind", "started")
    assert code == 0
    assert len(told.splitlines()) == len(NAMES)
    code, told = call(capsys, "stop", str(run))
    assert code == 0, told
    for name, process in processes.items():
        assert process.wait(30) == 0, name
    code, told = call(capsys, "stop", str(run))
    assert code == 1
    assert "is not running" in told
