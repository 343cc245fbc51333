"""Pipelines with a mistake (`support/bad_pipelines.py`): one line that says what is wrong and where, exit code 2.

`holdfast run` plans in a process of its own, which starts a JVM. Here the program of that process is called instead,
with one Spark for all of them. What must be a process (a file that never ends, that kills itself) is one, and is few.
"""

from __future__ import annotations

import json
import logging
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bad_pipelines import BAD, PRELUDE
from support.nodes import PATHS

from holdfast.cli import planning, start
from holdfast.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """A session as the planner has it, for the whole table."""
    from pyspark.sql import SparkSession

    from holdfast.spark.session import session

    others = SparkSession.getActiveSession() is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", PATHS)  # Spark's Python workers need it, too
        spark = session("plan", master="local[1]", conf={})
    spark.sparkContext.setLogLevel("OFF")
    logging.disable(logging.CRITICAL)  # PySpark tells errors there, too; in the planner's own process nobody sees it
    yield spark
    logging.disable(logging.NOTSET)
    if not others:
        spark.stop()


@pytest.fixture
def around(shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with a source, in which `holdfast run` plans in this process, and starts nothing."""
    import holdfast.spark.session as sessions

    def planned(arguments: list[str], *, given: str, **_: Any) -> subprocess.CompletedProcess[str]:
        try:
            code, answer = planning.answer_of(arguments[2:], json.loads(given))
        except BaseException:
            return subprocess.CompletedProcess(arguments, 1, "", traceback.format_exc())
        return subprocess.CompletedProcess(arguments, code, json.dumps(answer), "")

    def taken(*_: Any, **__: Any) -> None:
        raise AssertionError("a bad pipeline was taken for a good one")

    monkeypatch.setattr(sessions, "session", lambda *_, **__: shared)
    monkeypatch.setattr(planning, "run_alone", planned)
    monkeypatch.setattr(start, "run_alone", taken)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path


def refused(file: Path, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one line, besides those that say what is being planned."""
    before = sorted(str(p) for p in file.parent.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["run", file.name])
    said = capsys.readouterr().err.strip().splitlines()
    told = [line for line in said if not line.startswith(f"planning {file.name}")]  # again after ten seconds
    assert end.value.code == code, told
    assert len(told) == 1, told
    assert told[0].startswith("error: "), told
    assert "Traceback" not in told[0]
    left = sorted(str(p) for p in file.parent.rglob("*") if "__pycache__" not in str(p))
    assert left == before, f"something was left behind: {set(left) - set(before)}"
    return told[0]


@pytest.mark.parametrize(("program", "says"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_pipeline_is_refused_with_one_line(program, says, around, shared, capsys):
    file = around / "bad.py"
    file.write_text(f"{PRELUDE}{program}\n")
    told = refused(file, capsys)
    for piece in says:
        assert piece in told, told
    assert "cannot be planned" not in told, told
    assert shared.streams.active == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.py", b"", "empty.py makes no pipeline"),
        ("latin.py", b"x = 'caf\xe9'\n", "latin.py is not valid Python"),
        ("binary.py", bytes(range(256)), "binary.py is not valid Python"),
        ("zeros.py", b"x = 1\0\n", "zeros.py is not valid Python"),
        ("named.txt", b"import holdfast", "named.txt cannot be loaded"),
        ("notebook.ipynb", b"{}", "notebook.ipynb cannot be loaded"),
        ("noname", b"import holdfast", "noname cannot be loaded"),
    ],
)
def test_a_file_that_is_no_program_is_refused(name, content, says, around, capsys):
    (around / name).write_bytes(content)
    assert says in refused(around / name, capsys)


def test_a_directory_or_a_file_that_may_not_be_read_is_refused(around, capsys):
    (around / "folder.py").mkdir()
    assert "no run in folder.py" in refused(around / "folder.py", capsys)
    (around / "gone.py").symlink_to("nowhere")
    assert "no file gone.py" in refused(around / "gone.py", capsys)


def test_a_good_one_would_have_been_taken(around, capsys):
    (around / "good.py").write_text(PRELUDE + "out(counted(read()))\n")
    with pytest.raises(AssertionError, match="taken for a good one"):
        main(["run", "good.py"])


@pytest.mark.parametrize(
    ("program", "limit_s", "code", "says"),
    [
        ("while True: pass", 3, 1, "takes longer than 3 s"),
        ("import os; os._exit(7)", 60, 2, "bad.py cannot be planned · exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", 60, 2, "bad.py cannot be planned · it was ended by signal 11"),
        ("print('{' * 9); import sys; sys.stdin.close(); sys.stdout.close()", 60, 2, "makes no pipeline"),
    ],
)
def test_a_file_that_ends_its_process_or_never_ends_is_refused(
    program, limit_s, code, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "PLAN_LIMIT_S", limit_s)
    (tmp_path / "bad.py").write_text(program + "\n")
    assert says in refused(tmp_path / "bad.py", capsys, code)


def test_the_table_is_as_long_as_it_says():
    assert len(BAD) >= 100
    assert len({name for name, *_ in BAD}) == len(BAD)
