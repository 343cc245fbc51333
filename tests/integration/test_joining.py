"""A node that no file of the others names joins a running pipeline under load, and one leaves for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.nodes import PATHS, TESTS, Nodes, free_ports
from support.plans import layered_plan

from holdfast.cli.home import RunHome
from holdfast.cli.main import main
from holdfast.cli.runs import RunFile
from holdfast.cli.start import LocalRun
from holdfast.errors import LEFT
from holdfast.runtime.client.local import LocalNodes
from holdfast.runtime.net.security import make_secret

pytestmark = pytest.mark.slow

#: How soon a failure is noticed is not what this is about, and many processes share two cores here.
SETTINGS = {"heartbeat": "500 ms", "election": "4 s"}
ENTRY = "from holdfast.cli.main import entry; entry()"


class JoinableRun:
    """A run of three nodes with a `run.json`, and nodes that join it by the command."""

    def __init__(self, home: Path) -> None:
        self.nodes = Nodes(home / "run", layered_plan(), 3, settings=SETTINGS)
        self.config = home / "joins.toml"
        command = json.dumps([sys.executable, str(TESTS / "support" / "child.py")])
        given = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SETTINGS.items())
        self.config.write_text(f"child_command = {command}\n{given}")
        described = {
            "pipeline": "layered", "source": "netmon.py", "cwd": str(home), "endpoints": self.nodes.endpoints,
            "deployment": self.nodes.plan.query, "secret_file": str(self.nodes.dir / "secret"),
        }  # fmt: skip
        (self.nodes.dir / "run.json").write_text(json.dumps(described))
        self.log = home / "joined.log"

    def begin(self) -> Nodes:
        self.nodes.start()
        self.nodes.wait_up()
        self.nodes.begin()
        self.nodes.until("the first rows", (self.nodes.dir / "sink" / "commit-0").exists, 120)
        return self.nodes

    def join(self, name: str, port: int) -> subprocess.Popen:
        command = [sys.executable, "-c", ENTRY, "node", name, "--join", str(self.nodes.dir), "--config"]
        command += [str(self.config), "--endpoint", f"grpc://127.0.0.1:{port}"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": PATHS})
        self.nodes.processes[name] = process
        self.nodes.caller.endpoints[name] = f"grpc://127.0.0.1:{port}"
        return process

    def until_member(self, name: str, *, is_one: bool = True) -> None:
        def look() -> bool:
            assert not is_one or self.nodes.processes[name].poll() is None, self.log.read_text()
            return (name in self.nodes.status().get("members", {name: not is_one} if not is_one else {})) is is_one

        self.nodes.until(f"{name} to be a member: {is_one}", look, 120)

    def endpoints(self) -> dict[str, str]:
        return json.loads((self.nodes.dir / "run.json").read_text())["endpoints"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[JoinableRun]:
    made = JoinableRun(tmp_path)
    yield made
    made.nodes.close()


def call(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    told = capsys.readouterr()
    return int(end.value.code or 0), told.out + told.err


def test_a_node_joins_under_load_takes_over_and_another_leaves_for_good(run: JoinableRun, capsys):
    nodes = run.begin()
    run.join("n3", free_ports(1)[0])
    run.until_member("n3")
    assert "n3" in run.endpoints()
    # an old node is killed: everything that it ran goes on elsewhere, and the new one gets its share without a word
    nodes.kill("n1")
    run.until_member("n1", is_one=False)

    def share() -> list[str]:
        places = nodes.status()["places"]
        return [a for a, p in places.items() if any(str(p[s]).startswith("n3") for s in ("primary", "backup"))]

    nodes.until("the new node to hold something", share, 60)
    # its file does not name n3: it learns of it from the record on its disk, or from the others
    nodes.start("n1")
    nodes.wait_up("n1")
    run.until_member("n1")
    # nobody can join under a name that is taken, with another plan, or from another deployment
    told = call(capsys, "node", "n2", "--join", str(nodes.dir), "--endpoint", "grpc://127.0.0.1:9")
    assert told[0] == 2 or "n2 is running already" in told[1]
    code, text = call(capsys, "leave", "n2", str(nodes.dir), "--json")
    assert code == 0, text
    assert nodes.processes["n2"].wait(30) == LEFT
    assert "n2" not in run.endpoints()
    nodes.start("n2")  # somebody starts it all the same: it hears that it has left, and ends
    assert nodes.processes["n2"].wait(120) == LEFT
    assert "n2" not in nodes.status()["members"]
    run.join("n2", int(nodes.endpoints["n2"].rpartition(":")[2]))  # let in again, where it was before
    run.until_member("n2")
    nodes.finish(120)
    assert nodes.difference() == ""


def test_who_may_not_join_is_told_why(run: JoinableRun, tmp_path: Path, capsys):
    nodes = run.begin()
    port = free_ports(1)[0]
    there, at = str(nodes.dir), f"grpc://127.0.0.1:{port}"
    described = json.loads((nodes.dir / "run.json").read_text())

    def elsewhere(name: str, **changed) -> str:
        home = tmp_path / name
        home.mkdir()
        (home / "plan.json").write_bytes((nodes.dir / "plan.json").read_bytes())
        (home / "run.json").write_text(json.dumps({**described, **changed}))
        return str(home)

    make_secret(tmp_path / "wrong")
    other = elsewhere("plan")
    plan = json.loads((nodes.dir / "plan.json").read_text())
    (Path(other) / "plan.json").write_text(json.dumps({**plan, "pipeline": "another"}))
    cases = {
        "there is a node n1 already": ["n1", "--join", elsewhere("name")],
        "has another plan": ["n3", "--join", other],
        "wrong secret": ["n3", "--join", elsewhere("secret", secret_file=str(tmp_path / "wrong"))],
        "another deployment": ["n3", "--join", elsewhere("deployment", deployment="other-1")],
        "a node that joins needs a name": ["--join", there],
        "no run in": ["n3", "--join", str(tmp_path / "nowhere")],
    }
    for text, arguments in cases.items():
        code, said = call(capsys, "node", *arguments, "--endpoint", at)
        assert code in (1, 2), said
        assert text in said
        assert len(said.strip().splitlines()) == 1, said
    # no majority: nobody can decide anything
    nodes.kill("n1")
    nodes.kill("n2")
    nodes.until("n0 to say that it waits", lambda: nodes.status("n0")["waits_for"], 60)
    code, said = call(capsys, "node", "n3", "--join", there, "--endpoint", at)
    assert code == 1
    assert "n3 is not let in: the record cannot be changed now" in said
    assert "n3" not in run.endpoints()


def test_a_node_joins_a_run_on_this_machine_by_a_socket_and_ends_with_it(tmp_path: Path):
    """As a stranger does: no file, no port, and the end of `holdfast run` is its end, too."""
    home, plan = RunHome(tmp_path / "run"), layered_plan()
    directory = home.path
    (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
    (directory / "test.json").write_text(json.dumps({"rate": 200, "keys": 10, "trigger_ms": 200}))
    (directory / "began").write_text(str(time.time()))
    settings = {**SETTINGS, "child_command": [sys.executable, str(TESTS / "support" / "child.py")]}
    nodes = LocalNodes(
        directory, ["n0", "n1"], deployment=plan.query, settings=settings, environment={"PYTHONPATH": PATHS}
    )
    described = RunFile(
        pipeline="layered", source="netmon.py", cwd=str(tmp_path), endpoints=nodes.endpoints, deployment=plan.query,
        secret_file=str(nodes.secret_file), settings=settings, dir=str(directory),
    )  # fmt: skip
    (directory / "run.json").write_bytes(msgspec.json.encode(described))
    started = LocalRun(described, plan, nodes, [], home)
    command = [sys.executable, "-c", ENTRY, "node", "n2", "--join", str(directory)]
    process: subprocess.Popen | None = None
    try:
        nodes.start()
        with (tmp_path / "joined.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": PATHS})
        deadline = time.monotonic() + 180
        while "n2" not in described.ask_all("status").get("n0", {}).get("members", {}):
            assert process.poll() is None, (tmp_path / "joined.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert described.endpoints["n2"] == nodes.endpoints["n0"].replace("n0.sock", "n2.sock")
    finally:
        started.stop()
        code = process.wait(60) if process is not None else None
    assert code == 0
