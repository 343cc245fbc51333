"""One directory, several starts: one of them runs, the others are refused at once and harm nobody."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.nodes import PATHS, free_ports
from support.planned import Command, run_arguments

from holdfast.cli.runs import read_run
from holdfast.runtime.net.security import make_secret

pytestmark = pytest.mark.slow

#: A node of `run` that shall listen for other machines refuses to start: what a start does that fails late.
FAILS = ("--set", 'listen = "0.0.0.0"')


def content(home: Path) -> dict[str, bytes]:
    """All that a run needs, but for what grows while it runs."""
    names = [*home.glob("*"), *home.glob("nodes/*/*")]
    return {str(p): p.read_bytes() for p in names if p.is_file() and not re.search(r"events|journal|log$", p.name)}


def refused(one: Command, first: Command, home: Path) -> None:
    code, said = one.end()
    assert code == 2, said
    assert len(said.splitlines()) == 1, said
    assert f"a run is under way in {home}" in said
    assert f"(process {first.process.pid} on " in said
    assert re.search(r"held it since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said)
    assert "holdfast stop" in said


def is_well(home: Path) -> bool:
    return "places" in read_run(home).ask("status", timeout_s=20.0)


def test_a_run_that_lives_is_not_touched_by_later_starts_fresh_or_failing(tmp_path, command):
    home = tmp_path / "run"
    first = command(*run_arguments(home, nodes=2))
    first.wait_for("running in")
    assert is_well(home)
    lives = [home / "nodes" / name / "lives" for name in ("n0", "n1")]  # one node may answer while the other starts
    first.wait_until(lambda: all(path.exists() for path in lives), "both nodes to begin their lives")
    before = content(home)
    assert {"run.json", "plan.json", "secret", "lock"} <= {Path(name).name for name in before}
    for more in ((), ("--fresh",), ("--fresh", *FAILS)):
        refused(command(*run_arguments(home, *more)), first, home)
        assert content(home) == before
    assert is_well(home)
    code, said = first.end(signal.SIGTERM)
    assert code == 0, said
    assert not (home / "lock").exists()


def test_of_starts_at_the_same_moment_one_runs_and_the_others_are_refused(tmp_path, command):
    home = tmp_path / "run"
    racing = [command(*run_arguments(home, *more)) for more in ((), ("--fresh",), ("--fresh", *FAILS))]
    for one in racing:
        one.wait_until_ended_or("running in")
    running = [one for one in racing if one.process.poll() is None]
    assert len(running) <= 1, "two runs in one directory"  # none: the one that fails had it until the others were gone
    for one in racing:
        if one not in running:
            code, said = one.end()
            assert code == 2
            assert "a run is under way in" in said or "listens nowhere else" in said, said
    if running:
        assert is_well(home)
        assert running[0].end(signal.SIGTERM)[0] == 0


def test_a_killed_run_holds_nobody_up(tmp_path, command):
    home = tmp_path / "run"
    first = command(*run_arguments(home, nodes=2))
    first.wait_for("running in")
    nodes = [child.pid for child in psutil.Process(first.process.pid).children()]
    assert nodes
    first.end(signal.SIGKILL)
    second = command(*run_arguments(home, "--fresh"))
    second.wait_for("running in")
    assert not any(psutil.pid_exists(pid) for pid in nodes)
    assert is_well(home)
    assert second.end(signal.SIGTERM)[0] == 0


def test_a_start_that_fails_leaves_what_was_there_before_it(tmp_path, command):
    home = tmp_path / "run"
    (home / "nodes" / "n7" / "logs").mkdir(parents=True)
    (home / "nodes" / "n7" / "logs" / "old.log").write_text("of an earlier start")
    (home / "mine.txt").write_text("mine")
    code, said = command(*run_arguments(home, *FAILS)).end()
    assert code == 2
    assert "n0 did not start" in said
    left = sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file())
    assert left == ["mine.txt", "nodes/n0/logs/node.log", "nodes/n7/logs/old.log"]


# --- nodes of their own


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """One file for a node on each of two machines that share a directory (here: two ports)."""
    home = tmp_path / "shared"
    home.mkdir()
    make_secret(home / "secret")
    for number, port in enumerate(free_ports(2)):
        text = f'dir = "{home}"\nmetrics_port = -1\n[endpoints]\nn0 = "grpc://127.0.0.1:{port}"\n'
        (home / f"node{number}.toml").write_text(text)
    return home


def test_two_nodes_of_one_name_do_not_both_come_up(cluster, command):
    arguments = ["node", "--name", "n0", "--json", "--config"]
    first = command(*arguments, str(cluster / "node0.toml"))
    first.wait_for('"event": "waiting"')
    events = (cluster / "nodes" / "n0" / "events.jsonl").read_text()
    code, said = command(*arguments, str(cluster / "node1.toml")).end()
    assert (code, len(said.splitlines())) == (2, 1), said
    assert f"node n0 is running already in {cluster}" in said
    assert f"(process {first.process.pid} on " in said
    assert (cluster / "nodes" / "n0" / "events.jsonl").read_text() == events
    code, said = command(*run_arguments(cluster, "--fresh")).end()  # nor does a run take their directory
    assert code == 2
    assert f"node n0 is running in {cluster}" in said
    assert (cluster / "secret").exists()
    first.end(signal.SIGKILL)
    third = command(*arguments, str(cluster / "node1.toml"))
    third.wait_for('"event": "waiting"')
    assert third.end(signal.SIGTERM)[0] == 0
    assert not (cluster / "nodes" / "n0" / "lock").exists()


# --- the lock itself

HOLDS = """
import sys, time
from pathlib import Path
from holdfast.errors import ConfigError
from holdfast.runtime.disk.lock import take
while True:
    try:
        lock = take(Path(sys.argv[1]), "a test", "taken", "")
    except ConfigError:
        continue
    mark = Path(sys.argv[2])
    with mark.open("x"):  # fails if another one holds it too
        pass
    mark.unlink()
    lock.release()
    print("held", flush=True)
"""


@pytest.mark.parametrize("processes", [3, pytest.param(12, marks=pytest.mark.long)])
def test_a_lock_that_is_taken_and_removed_by_many_is_held_by_one_at_a_time(tmp_path, processes):
    rounds = 30 * processes
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "lock"), str(tmp_path / "mark")]
    env = {**os.environ, "PYTHONPATH": PATHS}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for _ in range(processes)
    ]
    try:
        for one in started:
            for _ in range(rounds // processes):
                line = one.stdout.readline()
                assert line == "held\n", one.stderr.read()
    finally:
        for one in started:
            one.kill()
            one.communicate(timeout=30)


def test_the_file_of_a_lock_says_who_holds_it(tmp_path):
    from holdfast.runtime.disk.lock import held_by, take

    lock = take(tmp_path / "lock", "a test", "taken", "")
    told = json.loads((tmp_path / "lock").read_text())
    assert (told["what"], told["pid"]) == ("a test", os.getpid())
    assert f"a test (process {os.getpid()} on {os.uname().nodename}) has held it since" in held_by(tmp_path / "lock")
    lock.release()
    lock.release()  # a second time does nothing
    assert held_by(tmp_path / "lock") == ""
    (tmp_path / "lock").write_text("{")  # what kill -9 left holds nobody up
    take(tmp_path / "lock", "a test", "taken", "").release()
