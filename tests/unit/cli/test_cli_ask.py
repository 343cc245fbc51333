"""What a command says if no node does what it asks: none can be reached, or one refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.runs import read_run
from holdfast.errors import InputError, SaidNoError
from holdfast.runtime.net.security import make_secret


def a_run(home: Path, endpoints: dict[str, str]) -> Path:
    make_secret(home / "secret")
    described = {
        "pipeline": "p", "source": str(home / "mine.py"), "cwd": str(home), "endpoints": endpoints,
        "secret_file": str(home / "secret"), "started": "2026-01-01T00:00:00+00:00", "deployment": "p-1",
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps(described))
    return home


def test_a_run_that_nobody_answers_for_is_said_in_one_short_line(tmp_path, capsys):
    """Every node was named twice, with the path of its socket and with the error of the transport."""
    home = a_run(tmp_path, {"n0": "grpc+unix:///tmp/none/n0.sock", "n1": "grpc://127.0.0.1:10"})
    with pytest.raises(SystemExit) as end:
        main(["status", str(home)])
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert "no node of p answers · None of n0, n1 (grpc://127.0.0.1:10) can be reached. · Is it running?" in said
    assert said.count("n1") == 1


def test_what_a_node_refuses_is_said_in_its_own_words(tmp_path, node):
    """`holdfast mode` asked whether the run was running, and dropped the reason and the way out."""

    def no(body: dict) -> dict:
        raise InputError("u0 cannot be in mode 'replay'", detail="It is a join.", hint="Choose passive.")

    home = a_run(tmp_path, node(tmp_path, protect=no))
    with pytest.raises(SaidNoError) as refused:
        read_run(home).ask("protect", {})
    said = refused.value
    assert (said.what, said.detail, said.hint) == ("u0 cannot be in mode 'replay'", "It is a join.", "Choose passive.")
