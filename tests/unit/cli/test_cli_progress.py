"""What a command is at, on stderr: a line that renews itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.plans import layered_plan

from holdfast.cli import alone, control, progress
from holdfast.cli.main import main
from holdfast.cli.progress import StepLine
from holdfast.cli.verify import verify_run
from holdfast.errors import HoldfastError
from holdfast.runtime.net.security import make_secret


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "RENEW_S", 0.02)
    monkeypatch.setattr(progress, "AGAIN_S", 0.1)
    monkeypatch.setattr(progress, "SHOWN_FROM_S", 0.0)


def output(terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=60, force_terminal=terminal, _environ={"TERM": "xterm" if terminal else ""}), file


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_into_a_pipe_every_step_is_a_line_and_one_that_lasts_is_told_again():
    console, file = output(terminal=False)
    with StepLine(console) as shown:
        shown.at("planning x.py")
        wait_for(lambda: file.getvalue().count("planning x.py (0 s)\n") >= 3)
        shown.at("starting 4 nodes")
    assert file.getvalue().endswith("starting 4 nodes (0 s)\n")
    assert "\r" not in file.getvalue()


def test_into_a_pipe_what_is_over_at_once_says_nothing():
    console, file = output(terminal=False)
    with StepLine(console) as shown:
        shown.now("1 of 2 schedules")
        shown.now("2 of 2 schedules")
    assert file.getvalue() == ""
    with StepLine(console) as shown:
        shown.now("draining n2, which still holds u0")
        wait_for(lambda: "which still holds u0" in file.getvalue())


@pytest.mark.parametrize("keeps", [False, True])
def test_on_a_terminal_one_line_renews_itself_and_is_never_longer_than_the_screen(keeps):
    console, file = output(terminal=True)
    with StepLine(console, keeps=keeps) as shown:
        shown.at("draining n2")
        wait_for(lambda: file.getvalue().count("\rdraining n2 (0 s)\x1b[K") >= 3)
        shown.now("x" * 100)
        wait_for(lambda: "x" * 59 in file.getvalue())
    assert file.getvalue().endswith("\n" if keeps else "\r\x1b[K")
    assert file.getvalue().count("\n") == int(keeps)
    assert keeps or "x" * 60 not in file.getvalue()


def test_a_machine_that_reads_gets_none():
    console, file = output(terminal=False)
    with StepLine(console, quiet=True) as shown:
        shown.at("planning x.py")
        time.sleep(0.2)
    assert file.getvalue() == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_a_drain_says_what_the_node_still_holds(tmp_path, node, capsys, monkeypatch, as_json):
    monkeypatch.setattr(control, "LOOK_S", 0.15)
    looks = iter(range(100))
    seats = {"joining": None, "epoch": 3, "stage": False, "mode": "passive", "wants_backup": True}

    def status(body: dict) -> dict[str, Any]:
        held = "n0#1" if next(looks) < 4 else "n1#1"
        places = {"u0": {"primary": held, "backup": None, **seats}}
        told = {"version": 1, "members": {"n0": 1}, "places": places, "draining": [], "coordinator": "n0#1"}
        return {"name": "n0", **told}

    make_secret(tmp_path / "secret")
    described = {"pipeline": "p", "source": "", "cwd": "", "deployment": "p-1", "secret_file": str(tmp_path / "secret")}
    (tmp_path / "run.json").write_text(json.dumps({**described, "endpoints": node(tmp_path, status=status, drain={})}))
    with pytest.raises(SystemExit) as end:
        main(["drain", "n0", str(tmp_path), *(["--json"] if as_json else [])])
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    assert ("draining n0, which still holds u0" in err) is not as_json
    assert out.startswith("{" if as_json else "n0 is empty")


def test_verify_says_what_its_process_is_at(tmp_path, monkeypatch):
    """Whose stdout is its answer."""
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
    (tmp_path / "run.json").write_text(
        json.dumps({"pipeline": "p", "source": "", "cwd": str(tmp_path), "endpoints": {}})
    )
    child = tmp_path / "child.py"
    child.write_text(
        "import sys, time\nfrom pathlib import Path\nPath(sys.argv[1]).write_text('comparing sink out_0 row by row')\n"
        "while not Path('seen').exists(): time.sleep(0.01)\n"
    )
    run_alone = alone.run_alone
    monkeypatch.setattr(
        "holdfast.cli.verify.run_alone", lambda given, **more: run_alone([str(child), given[3]], **more)
    )
    said: list[str] = []

    def tell(what: str) -> None:
        said.append(what)
        if "comparing" in what:
            Path(tmp_path / "seen").touch()

    from holdfast.cli.runs import read_run

    with pytest.raises(HoldfastError, match="cannot be verified"):  # it answers nothing
        verify_run(read_run(tmp_path), tell=tell)
    assert said[0] == "recomputing p with plain Spark in batch: Spark starts"
    assert "recomputing p: comparing sink out_0 row by row" in said
