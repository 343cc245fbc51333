"""`holdfast run --fresh` removes the earlier run last, when nothing more can be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.plans import layered_plan

from holdfast.cli import start as start_module
from holdfast.cli.main import main
from holdfast.errors import ConfigError
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


@pytest.mark.parametrize("refused", ["the plan", "the kernels", "the store"])
def test_fresh_leaves_the_earlier_run_as_it_was_until_the_new_one_is_checked(tmp_path, capsys, monkeypatch, refused):
    """What it wrote is often the reason: `verify` and `events` of it are needed then."""

    def planned(file: Path, directory: Path, **_: Any) -> Any:
        (directory / "plan.json").write_text("{}")
        if refused == "the plan":
            raise ConfigError("sink out_0: out holds what an earlier run wrote")
        return layered_plan(shards=1, tops=0), []

    def warmed(directory: Path, told: Any) -> None:
        if refused == "the kernels":
            raise ConfigError("the operators of this pipeline cannot be made")

    monkeypatch.setattr(start_module, "plan_file", planned)
    monkeypatch.setattr(start_module, "warm", warmed)
    home, file = a_run(tmp_path / "home"), tmp_path / "x.py"
    file.write_text("")
    (home / "checkpoints" / "out_0").mkdir(parents=True)
    for name in ("plan.json", "events.jsonl", "pipeline.py"):
        (home / name).write_text("of the earlier run")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    (tmp_path / "taken").write_text("")
    store = ("--store", f"file://{tmp_path}/taken/store") if refused == "the store" else ()
    code, _, err = call(capsys, "run", str(file), "--dir", str(home), "--fresh", *store)
    assert code == 2, err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and path.name != "lock"} == before
    assert (home / "checkpoints" / "out_0").is_dir()
