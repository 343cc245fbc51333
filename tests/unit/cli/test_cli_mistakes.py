"""Whatever goes wrong ends with one line that says what and what to do: a mistake with exit code 2, the rest with 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.home import RunHome
from holdfast.cli.main import main


def fails_with(capsys, *arguments: str, code: int = 2) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    told = capsys.readouterr().err.strip()
    assert end.value.code == code, told
    assert told.startswith("error: "), told
    assert "\n" not in told
    return told


@pytest.fixture
def run_directory(tmp_path) -> Path:
    """A run whose nodes are gone."""
    home = tmp_path / "run"
    home.mkdir()
    secret = home / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    described = {
        "pipeline": "gone", "source": "gone.py", "cwd": str(tmp_path), "endpoints": {"n0": "grpc://127.0.0.1:9"},
        "secret_file": str(secret), "started": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps(described))
    return home


@pytest.mark.parametrize("arguments", [[], ["checkpoint"], ["peace"]])
def test_without_a_command_there_is_the_help_and_no_empty_error(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    told = capsys.readouterr()
    assert (end.value.code, told.err) == (2, "")
    assert "Usage: holdfast" in told.out


@pytest.mark.parametrize("command", ["status", "events", "stop", "verify"])
def test_no_run_there(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no run" in fails_with(capsys, command)
    assert "no run" in fails_with(capsys, command, str(tmp_path / "nowhere"))


def test_a_run_file_that_is_damaged(capsys, tmp_path):
    (tmp_path / "run.json").write_text('{"pipeline": 3')
    assert "cannot be read" in fails_with(capsys, "status", str(tmp_path))


def test_nodes_that_do_not_answer_are_named(capsys, run_directory):
    told = fails_with(capsys, "status", str(run_directory), code=1)
    assert "n0" in told
    assert "127.0.0.1:9" in told
    assert "0" * 64 not in told


def test_drain_of_a_node_that_is_not_there(capsys, run_directory):
    assert "no node 'n7'" in fails_with(capsys, "drain", "n7", str(run_directory))


def test_a_pipeline_file_that_is_not_there(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no file missing.py" in fails_with(capsys, "run", "missing.py")


def test_no_nodes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "--nodes" in fails_with(capsys, "run", "x.py", "--nodes", "0")


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "spark://127.0.0.1:7077,far:7077"])
def test_a_master_that_the_nodes_of_a_run_could_not_be_reached_from(master, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "holdfast submit" in fails_with(capsys, "run", "x.py", "--master", master)


@pytest.mark.parametrize("sla", ["1", "100%", "banana", "-1"])
def test_an_sla_that_makes_no_sense(sla, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails_with(capsys, "run", "x.py", f"--sla={sla}")


@pytest.mark.parametrize("latency", ["fast", "realtime", "micro_batch"])
def test_a_latency_that_there_is_not(latency, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    told = fails_with(capsys, "run", "x.py", f"--latency={latency}")
    assert "setting 'latency'" in told
    assert "'micro-batch' or 'real-time'" in told
    assert "'latency'" in fails_with(capsys, "run", "x.py", "--set", f"latency = '{latency}'", "--explain")


@pytest.mark.parametrize("within", ["300", "0 ms", "soon", "2 h", "-1 s", "5 ms"])
def test_a_recovery_time_that_makes_no_sense(within, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    assert "recover_in" in fails_with(capsys, "run", "x.py", f"--recover-in={within}")


@pytest.mark.parametrize(
    ("setting", "word"),
    [("assignor = 'best'", "assignor"), ("domains = {n9 = 'a'}", "n9"), ("domains = {n0 = 'a/'}", "empty part")],
)
def test_a_setting_of_who_backs_up_what_that_makes_no_sense(setting, word, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    assert word in fails_with(capsys, "run", "x.py", "--set", setting)


def test_a_directory_that_holds_an_earlier_run(capsys, run_directory, tmp_path):
    file = tmp_path / "x.py"
    file.write_text("")
    told = fails_with(capsys, "run", str(file), "--dir", str(run_directory))
    assert "--fresh" in told


def test_the_directory_of_a_run_is_its_owners_alone(tmp_path):
    made = RunHome(tmp_path / "runs" / "netmon", Path("netmon.py"), fresh=False)
    assert made.path.stat().st_mode & 0o777 == 0o700


def test_a_node_config_that_cannot_be_used(tmp_path):
    config = tmp_path / "node.toml"
    config.write_text('name = "n0"\ndir = "/tmp"\nhartbeat = "1 s"\n')
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.runtime.node", "--config", str(config)],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 2
    assert "hartbeat" in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_events_tell_a_story_in_the_order_of_time(capsys, run_directory):
    for node, lines in {"n0": [("2026-01-01T00:00:02.000+00:00", "second")],
                        "n1": [("2026-01-01T00:00:01.000+00:00", "first"), ("2026-01-01T00:00:03.000+00:00", "third")],
                        }.items():  # fmt: skip
        home = run_directory / "nodes" / node
        home.mkdir(parents=True)
        events = [{"time": time, "node": node, "event": "told", "text": text} for time, text in lines]
        (home / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events) + '{"torn')
    with pytest.raises(SystemExit) as end:
        main(["events", str(run_directory)])
    assert end.value.code == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in told] == ["first", "second", "third"]
