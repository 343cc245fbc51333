"""What commands do to a run that lives, has ended, or never began: its directory, its processes, its nodes' answers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.plans import layered_plan

from holdfast.cli import cluster, control
from holdfast.cli import run as run_module
from holdfast.cli import start as start_module
from holdfast.cli.control import finish_run
from holdfast.cli.home import RunHome
from holdfast.cli.main import main
from holdfast.cli.runs import process_started, read_run
from holdfast.cli.start import RunOptions, start_run
from holdfast.cli.watch import cluster_status, gap_lines, nodes_table, percent, shards_of, status_view, unprotected
from holdfast.errors import ConfigError, HoldfastError, PeerError
from holdfast.model.parts import GapFound
from holdfast.model.plan import Plan, to_core
from holdfast.pipeline.gaps import all_gaps
from holdfast.runtime.net.security import make_secret


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capsys.readouterr()
    return end.value.code, out, err


def a_run(home: Path, **changed: Any) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    make_secret(home / "secret")
    described = {
        "pipeline": "p", "source": str(home / "mine.py"), "cwd": str(home), "endpoints": {"n0": "grpc://127.0.0.1:9"},
        "secret_file": str(home / "secret"), "started": "2026-01-01T00:00:00+00:00", "deployment": "p-1",
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps({**described, **changed}))
    return home


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


# --- run --fresh


def fresh(directory: Path, file: Path) -> None:
    home = RunHome(directory, file, fresh=True)
    home.begin()
    home.release()


def test_fresh_removes_what_a_run_made_and_nothing_else(tmp_path):
    home = a_run(tmp_path / "home", source=str(tmp_path / "home" / "pipeline.py"))
    (home / "nodes" / "n0").mkdir(parents=True)
    (home / "checkpoints" / "s").mkdir(parents=True)
    for name in ("plan.json", "events.jsonl", "pipeline.py", "thesis.txt"):
        (home / name).write_text(name)
    fresh(home, home / "pipeline.py")
    assert sorted(p.name for p in home.iterdir()) == ["pipeline.py", "thesis.txt"]


def test_fresh_leaves_a_run_alone_that_is_supervised(tmp_path):
    held = RunHome(tmp_path / "home", tmp_path / "x.py", fresh=False)
    home = a_run(tmp_path / "home")
    with pytest.raises(ConfigError, match="a run is under way") as refused:
        fresh(home, tmp_path / "x.py")
    held.release()
    assert "holdfast stop" in refused.value.hint
    assert (home / "run.json").exists()


def test_fresh_leaves_a_run_alone_whose_node_answers(tmp_path, node):
    home = tmp_path / "home"
    a_run(home, endpoints=node(home, ping={"name": "n0"}))
    with pytest.raises(ConfigError, match="p is running"):
        fresh(home, tmp_path / "x.py")


def test_without_fresh_files_of_the_user_are_not_written_over(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="write over") as refused:
        RunHome(tmp_path, tmp_path / "x.py", fresh=False)
    assert "checkpoints" in refused.value.detail


# --- stop


def test_stop_of_a_run_that_has_ended_says_so(tmp_path, capsys):
    code, _, err = call(capsys, "stop", str(a_run(tmp_path)))
    assert code == 1
    assert "p is not running" in err


def test_stop_never_ends_a_process_that_only_has_the_number_of_the_old_one(tmp_path, capsys, sleeper):
    started = process_started(sleeper.pid)
    home = a_run(tmp_path, supervisor=sleeper.pid, supervisor_started=started - 1)
    assert call(capsys, "stop", str(home))[0] == 1
    assert sleeper.poll() is None


def test_stop_ends_the_process_that_watches_over_the_nodes_and_waits_for_it(tmp_path, capsys, sleeper):
    home = a_run(tmp_path, supervisor=sleeper.pid, supervisor_started=process_started(sleeper.pid))
    code, out, _ = call(capsys, "stop", str(home))
    assert code == 0, out
    assert sleeper.poll() is not None


def test_stop_of_another_users_run_is_one_line(tmp_path, capsys, monkeypatch, sleeper):
    def refused(pid: int, sign: int) -> None:  # never a real process of somebody else: it might be allowed
        raise PermissionError(1, "Operation not permitted")

    home = a_run(tmp_path, supervisor=sleeper.pid, supervisor_started=process_started(sleeper.pid))
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.cli.control.os.kill", refused)
        code, _, err = call(capsys, "stop", str(home))
    assert code == 1
    assert "another user" in err
    assert len(err.splitlines()) == 1


def test_a_process_is_known_by_its_start(sleeper):
    assert process_started(sleeper.pid) > process_started(1) >= 0
    sleeper.kill()
    while sleeper.poll() is None:
        pass
    assert process_started(sleeper.pid) == 0


# --- run --set


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('hartbeat = "1 s"', "hartbeat"),
        ('heartbeat = "1 parsec"', "parsec"),
        ("heartbeat", "cannot be read"),
        ('heartbeat = "1 s', "cannot be read"),
        ("misses = 'many'", "misses"),
        ('name = "n7"', "sets this itself"),
        ("metrics_port = 1", "sets this itself"),
        ("[endpoints]\nn0 = 'x'", "sets this itself"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_made(setting, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    code, _, err = call(capsys, "run", "x.py", "--set", setting)
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.py"]


def test_settings_win_over_flags_and_spark_settings_are_merged():
    options = RunOptions(standby=True, conf=("a=1", "b=1"), settings=("standby = false", 'conf = {b = "2"}'))
    found = start_module.node_settings(options)
    assert found["standby"] is False
    assert found["conf"] == {"a": "1", "b": "2"}


def test_a_start_that_fails_says_why_at_once_and_leaves_no_run(tmp_path, monkeypatch):
    def planned(file: Path, directory: Path, **_: Any) -> Any:  # the planner would need a JVM
        (directory / "plan.json").write_text("{}")
        return layered_plan(shards=1, tops=0), []

    monkeypatch.setattr(start_module, "plan_file", planned)
    monkeypatch.setattr(start_module, "warm", lambda directory, told: None)
    file, home = tmp_path / "x.py", tmp_path / "home"
    file.write_text("")
    for _ in range(2):  # what the first left is not in the way of the second
        with pytest.raises(HoldfastError, match="n0 did not start") as failed:
            start_run(file, RunOptions(nodes=1, directory=home, settings=('listen = "0.0.0.0"',)))
        assert "listens nowhere else" in failed.value.detail
        assert [p.name for p in home.iterdir()] == ["nodes"]
        assert "listens nowhere else" in (home / "nodes" / "n0" / "logs" / "node.log").read_text()


# --- status


def test_nodes_that_still_prepare_are_told_as_such(tmp_path, node, capsys):
    a_run(tmp_path, endpoints=node(tmp_path, status={"name": "n0", "waiting": True}))
    with pytest.raises(PeerError, match="are preparing"):
        cluster_status(read_run(tmp_path))
    code, _, err = call(capsys, "status", str(tmp_path))
    assert code == 1
    assert "n0" in err


def test_status_merges_the_figures_of_every_shards_primary(tmp_path, node):
    seats = {"joining": None, "epoch": 3, "stage": False, "mode": "passive", "wants_backup": True}
    places = {
        "u0": {"primary": "n0#1", "backup": None, **seats},
        "u1": {"primary": None, "backup": None, **seats},
        "s0.ledger": {"primary": "n0#1", "backup": None, **seats},
        "s0": {"primary": "n0#1", "backup": None, **seats, "stage": True},
    }
    shard = {"failed": "", "rows_in": 7, "rows_out": 5, "outputs": {}, "state_bytes": 10, "watermark_us": 0}
    answer = {
        "name": "n0", "version": 4, "members": {"n0": 1}, "places": places, "draining": [], "coordinator": "n0#1",
        "shards": {"u0": shard},
        "ledgers": {"s0": {"batch": 6, "late": 12, "bad": 3, "watermark_us": 96_432_000_000_000_000}},
    }  # fmt: skip
    a_run(tmp_path, endpoints=node(tmp_path, status=answer))
    status = cluster_status(read_run(tmp_path))
    assert sorted(status["shards"]) == ["u0", "u1"]
    assert status["shards"]["u0"]["rows_in"] == 7
    assert status["shards"]["u0"]["primary"] == "n0#1"
    lost = {"primary": None, "backup": None, "joining": None, "epoch": 3, "mode": "passive"}
    assert status["shards"]["u1"] == {**lost, "backup_load_percent": None, "stands_in": False}
    assert status["unprotected"] == ["s0.ledger has no backup", "u0 has no backup", "u1 has no backup"]
    assert status["stages"]["s0"]["bad"] == 3
    shown = Console(file=io.StringIO(), width=200)
    shown.print(status_view("p", status))
    text = shown.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "5025-10-23 02:40:00 │   12 │   3" in text
    assert "the watermark of s0 is" in text
    assert "ahead of the clock: rows before it are late" in text


def test_status_shows_what_gaps_have_cost(tmp_path):
    for number in range(5):
        gap = GapFound(consumer="out", edge="u0.0", position=number, start=to_core(0), to=to_core(number * 10**6))
        (tmp_path / gap.key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / gap.key).write_bytes(msgspec.json.encode(gap))
    lines = gap_lines([msgspec.to_builtins(gap) for gap in all_gaps(tmp_path)])
    assert lines[0] == "2 earlier gaps"
    between = "1970-01-01 00:00:00 and 1970-01-01 00:00:04"
    assert lines[-1] == f"out: windows of u0.0 between {between} may be missing (mode none)"
    assert (len(lines), gap_lines([])) == (4, [])


def test_status_shows_loads_in_percent_of_a_core():
    nodes = {
        "n0": {
            "shards": {"u0": {"role": "primary", "load_percent": 31.4}, "u1": {"role": "backup", "load_percent": 2.04}},
            "recovery": {
                "segments": {
                    "n1": {"expected_ms": 4.2, "shards": ["u0"]},
                    "n2": {"expected_ms": 1_312.6, "shards": ["u2", "u3"]},
                }
            },
        },
        "n1": {
            "shards": {"u1": {"role": "joining", "load_percent": None}, "u4": {"role": "twin"}},
            "stage_load_percent": {"s0": 140.2, "r0": 9.5},
            "stage_memory_bytes": {"s0": 512_000_000, "r0": 300_000_000},
        },
    }
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(nodes_table({"nodes": nodes}))
    rows = [line.split("│")[1:-1] for line in console.export_text().splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["n0", "1", "1", "33%", "-", "-", "1,313 ms on n2 (2 shards), 4 ms on n1 (1 shard)"],
        ["n1", "0", "2", "-", "150%", "812 MB", "-"],
    ]
    seats = {"primary": "n1#1", "backup": "n0#1", "joining": None, "epoch": 1, "mode": "passive", "stage": False}
    assert shards_of({"u1": seats}, nodes)["u1"]["backup_load_percent"] == 2.04
    assert [percent(load) for load in (None, 0.0, 9.94, 10.0, 99.6)] == ["-", "0.0%", "9.9%", "10%", "100%"]


def test_status_says_what_one_more_failure_would_hit():
    whole = {"primary": "n0#1", "backup": "n1#1", "joining": None, "epoch": 3, "stage": False, "wants_backup": True}
    places = {"u0": whole, "u1": {**whole, "joining": "n2#1"}, "s0": {**whole, "stage": True}, "s0.ledger": whole}
    places["u2"] = {**whole, "backup": None, "wants_backup": False}  # in mode none: that is as it shall be

    def reasons(**nodes) -> list[str]:
        return unprotected(places, nodes)

    starting, ready = (
        {"n1": {"drivers": {"s0": {"warmth": warmth, "take_over_s": cost}}}}
        for warmth, cost in (("planned", 4.0), ("warm", 0.6))
    )
    assert reasons(**ready) == ["u1 has no backup"]
    assert reasons(**starting) == ["the standby of s0 on n1 is planned, 4 s", "u1 has no backup"]
    assert reasons() == ["the standby of s0 on n1 is cold", "u1 has no backup"]
    assert reasons(n0={"finished": ["s0"]}) == ["u1 has no backup"]


# --- mode


def a_node_in_mode(mode: str, asked: list[dict]) -> dict[str, Any]:
    """Answers of a node that changes the mode of its only shard when it is told to."""
    place = {"primary": "n0#1", "backup": None, "joining": None, "epoch": 1, "stage": False, "wants_backup": True}
    now = {"mode": mode}

    def status(body: dict) -> dict:
        places = {"talkers-0": {**place, **now}}
        return {"version": 1, "members": {"n0": 1}, "places": places, "draining": [], "coordinator": "n0"}

    def protect(body: dict) -> dict:
        asked.append(body)
        now["mode"] = body["mode"]
        return body

    return {"status": status, "protect": protect}


def test_mode_switches_an_operator_and_says_what_that_means(capsys, tmp_path, node):
    asked: list[dict] = []
    a_run(tmp_path, endpoints=node(tmp_path, **a_node_in_mode("passive", asked)))
    code, out, _ = call(capsys, "mode", "talkers", "none", str(tmp_path))
    assert (code, asked) == (0, [{"operator": "talkers", "mode": "none"}])
    assert out.startswith("talkers is in mode none (")
    assert "no second node holds a copy" in out
    code, out, _ = call(capsys, "mode", "talkers", "passive", str(tmp_path), "--json")
    assert (code, json.loads(out)["shards"]) == (0, ["talkers-0"])


@pytest.mark.parametrize(
    ("operator", "mode", "says"),
    [
        ("walkers", "none", "error: no operator is named 'walkers' · There are talkers."),
        ("talkers", "turbo", "error: no mode is named 'turbo' · There are none, replay, passive, hybrid, active."),
    ],
)
def test_a_mistake_in_mode_is_one_line_and_changes_nothing(capsys, tmp_path, node, operator, mode, says):
    asked: list[dict] = []
    a_run(tmp_path, endpoints=node(tmp_path, **a_node_in_mode("passive", asked)))
    code, _, err = call(capsys, "mode", operator, mode, str(tmp_path))
    assert (code, err.strip(), asked) == (2, says, [])


def test_a_mode_that_does_not_come_into_force_is_an_error(capsys, tmp_path, node):
    answers = {**a_node_in_mode("none", []), "protect": {}}
    a_run(tmp_path, endpoints=node(tmp_path, **answers))
    code, _, err = call(capsys, "mode", "talkers", "passive", str(tmp_path), "--limit", "0.3")
    assert code == 1
    assert "1 shard of talkers not in mode passive" in err


# --- submit

PLAN = layered_plan(shards=1, tops=0)


def submit(capsys, monkeypatch, home: Path, directory: Path, endpoints: dict[str, str]) -> tuple[int, str, str]:
    config = home / "cluster.toml"
    lines = [f'dir = "{directory}"', f'secret_file = "{home}/secret"', "[endpoints]"]
    config.write_text("\n".join([*lines, *(f'{name} = "{endpoint}"' for name, endpoint in endpoints.items())]))
    planned = msgspec.structs.replace(PLAN, query="a-new-one")
    monkeypatch.setattr(cluster, "plan_file", lambda file, scratch, **_: (planned, []))  # it would need a JVM
    return call(capsys, "submit", str(config), "--config", str(config))


def two_nodes(node, home: Path, running: Plan, sent: list[dict]) -> dict[str, str]:
    """n0 waits, n1 runs a pipeline."""

    def take(body: dict) -> dict:
        sent.append(body)
        return {"told": ["n0", "n1"]}

    waits = node(home, ping={}, submit=take)
    return waits | node(home, "n1", ping={}, submit=take, plan=msgspec.json.encode(running))


def test_a_second_submit_sends_what_runs_already_to_nodes_that_still_wait(tmp_path, node, capsys, monkeypatch):
    sent: list[dict] = []
    endpoints = two_nodes(node, tmp_path, PLAN, sent)
    run_json = a_run(tmp_path / "run") / "run.json"
    before = run_json.read_text()
    code, out, err = submit(capsys, monkeypatch, tmp_path, tmp_path / "run", endpoints)
    assert code == 0, err
    assert "runs on n1 already, now on n0 too" in out
    assert [body["plan"]["query"] for body in sent] == [PLAN.query]
    assert run_json.read_text() == before


def test_a_second_submit_of_something_else_is_refused_and_nobody_is_told(tmp_path, node, capsys, monkeypatch):
    for changed in (
        layered_plan(shards=2, tops=0),
        msgspec.structs.replace(PLAN, pipeline="other"),
    ):
        sent: list[dict] = []
        endpoints = two_nodes(node, tmp_path, changed, sent)
        code, _, err = submit(capsys, monkeypatch, tmp_path, tmp_path / "run", endpoints)
        assert code == 2
        assert f"n1 runs {changed.pipeline!r} ({changed.query})" in err
        assert sent == []


def test_a_submit_that_one_node_refuses_is_not_tried_on_the_next(tmp_path, node, capsys, monkeypatch):
    def refuse(body: dict) -> dict:
        raise ConfigError("n0 runs another pipeline")

    sent: list[dict] = []
    endpoints = node(tmp_path, ping={}, submit=refuse) | node(tmp_path, "n1", ping={}, submit=sent.append)
    code, _, err = submit(capsys, monkeypatch, tmp_path, tmp_path / "run", endpoints)
    assert code == 1
    assert err.startswith("error: n0 runs another pipeline")
    assert sent == []


def test_a_submit_that_was_taken_is_no_failure_where_the_directory_cannot_be_made(tmp_path, node, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    endpoints = node(tmp_path, ping={}, submit={"told": ["n0"]})
    code, out, err = submit(capsys, monkeypatch, tmp_path, tmp_path / "file" / "run", endpoints)
    assert code == 0, err
    assert "runs on n0" in out
    assert "was submitted" in err


# --- what is shown, and the demo


def test_brackets_in_plans_warnings_and_paths_are_shown_as_they_are(tmp_path):
    run = read_run(a_run(tmp_path / "a[b]"))
    (run.path / "explain.txt").write_text("agg [sum] -> [bold]x[/nothing]")
    console = Console(file=io.StringIO(), width=300)
    run_module._tell_start(SimpleNamespace(run=run, warnings=["column [key] is wide"]), console, as_json=False)
    told = console.file.getvalue()
    for text in ("agg [sum] -> [bold]x[/nothing]", "column [key] is wide", "a[b]"):
        assert text in told


def test_a_second_demo_in_one_directory_is_told_what_it_can_do(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    code, _, err = call(capsys, "demo", "--dir", str(tmp_path))
    assert code == 2
    assert "earlier demo" in err
    assert "--fresh" not in err


def test_waiting_for_the_end_can_be_given_up(tmp_path, node):
    place = {"primary": "n0#1", "backup": None, "joining": None, "epoch": 1, "stage": True}
    status = {"name": "n0", "places": {"s0": place}, "finished": []}
    a_run(tmp_path, endpoints=node(tmp_path, status=status, finish={"told": ["n0"]}))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
    told = threading.Event()
    with pytest.raises(HoldfastError, match="did not finish"):
        finish_run(read_run(tmp_path), limit_s=0.0, told=told)
    told.set()
    finish_run(read_run(tmp_path), limit_s=60.0, told=told)


def test_nodes_that_are_too_busy_to_answer_for_a_moment_do_not_end_a_finish(tmp_path, node, monkeypatch):
    a_run(tmp_path, endpoints=node(tmp_path, finish={"told": ["n0"]}))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
    monkeypatch.setattr(control, "LOOK_S", 0.0)
    silent = HoldfastError("no node answers")

    def finish_with(*looks: Any) -> list[str]:
        answers, said = iter(looks), []
        (tmp_path / "events.jsonl").unlink(missing_ok=True)  # where it says that it has finished

        def look(run: Any) -> list[str]:
            answer = next(answers)
            if isinstance(answer, HoldfastError):
                raise answer
            return answer

        monkeypatch.setattr(control, "unfinished", look)
        finish_run(read_run(tmp_path), limit_s=60.0, tell=said.append)
        return said

    waits = ["waiting for s0 to finish", "no node answers: waiting for it to", "waiting for s0 to finish"]
    assert finish_with(["s0"], silent, silent, ["s0"], []) == waits
    with pytest.raises(HoldfastError, match="no node answers"):
        finish_with(silent, [])  # nobody ever did
    monkeypatch.setattr(control, "SILENCE_S_MAX", 0.0)
    with pytest.raises(HoldfastError, match="no node answers"):
        finish_with(["s0"], silent, [])
