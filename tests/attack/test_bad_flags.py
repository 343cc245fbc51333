"""Sixty and more flags and values that cannot work: each ends with one line on stderr and its exit code, at once.

Nothing is planned or started here: a flag is wrong before that. `{dir}` is a directory that is empty but for the files
that `around` makes.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from holdfast.cli.main import main

#: What is called, and what its line says. Each ends with 2, a mistake of the caller's.
BAD = [
    # no command, or one that is not there
    ("nothing", "No such command"),
    ("--nothing", "No such option"),
    ("run", "Missing argument"),
    ("run ok.py --nothing", "No such option"),
    ("run ok.py more.py", "unexpected extra argument"),
    # run
    ("run missing.py", "no file missing.py"),
    ("run .", "no run in ."),
    ("run ok.py --nodes", "requires an argument"),
    ("run ok.py --nodes 0", "--nodes must be 1 to"),
    ("run ok.py --nodes -3", "--nodes must be 1 to"),
    ("run ok.py --nodes 100000", "--nodes must be 1 to"),
    ("run ok.py --nodes 99999999999999999999", "--nodes must be 1 to"),
    ("run ok.py --nodes four", "valid integer"),
    ("run ok.py --nodes 1.5", "valid integer"),
    ("run ok.py --restart soon", "valid number"),
    ("run ok.py --restart nan", "--restart"),
    ("run ok.py --restart inf", "--restart"),
    ("run ok.py --master yarn", "is not on this machine"),
    ("run ok.py --master spark://10.0.0.1:7077", "is not on this machine"),
    ("run ok.py --conf spark.key", "cannot be read"),
    ("run ok.py --conf =value", "cannot be read"),
    ("run ok.py --set heartbeat", "cannot be read"),
    ("run ok.py --set 'heartbeat = 5'", "heartbeat"),
    ("run ok.py --set 'heartbeat = \"5 parsecs\"'", "heartbeat"),
    ("run ok.py --set 'heartbeat = \"0 ms\"'", "heartbeat"),
    ("run ok.py --set 'hartbeat = \"5 ms\"'", "hartbeat"),
    ("run ok.py --set 'name = \"n9\"'", "sets this itself"),
    ("run ok.py --set 'misses = 0'", "misses"),
    ("run ok.py --set 'joins = -1'", "joins"),
    ("run ok.py --set 'mode = \"magic\"'", "magic"),
    ("run ok.py --set 'method = \"magic\"'", "magic"),
    ("run ok.py --set 'page = \"0 KB\"'", "page"),
    ("run ok.py --set 'page = \"64 MB\"'", "page"),
    ("run ok.py --set 'chunk = \"-1 MB\"'", "chunk"),
    ("run ok.py --set 'metrics_port = 70000'", "metrics_port"),
    ("run ok.py --set 'conf = 3'", "conf"),
    ("run ok.py --set 'late_keep = \"1 s\"'", "late_keep"),
    ("run ok.py --set 'late_keep_size = \"much\"'", "late_keep_size"),
    ("run ok.py --sla 1.5 --mtbf 3d", "--sla"),
    ("run ok.py --sla much", "--sla"),
    ("run ok.py --sla 99% --mtbf never", "--mtbf"),
    ("run ok.py --dir ok.py", "cannot be used"),
    ("run ok.py --dir /proc/no", "cannot be used"),
    # a run that is not there, or of which something is
    ("status nowhere", "no run in nowhere"),
    ("status ok.py", "no run in ok.py"),
    ("status cut", "cannot be read"),
    ("status empty", "cannot be read"),
    ("status binary", "cannot be read"),
    ("status list", "cannot be read"),
    ("status folder", "cannot be read"),
    ("status no-secret", "cannot read the cluster secret"),
    ("status secret-folder", "cannot read the cluster secret"),
    ("status secret-short", "secret"),
    ("status no-nodes", "names no nodes"),
    ("status bad-endpoint", "n0"),
    ("events nowhere", "no run in nowhere"),
    ("events cut --kind nothing", "cannot be read"),
    ("stop nowhere", "no run in nowhere"),
    ("stop folder --finish", "cannot be read"),
    ("stop no-secret --limit long", "valid number"),
    ("verify nowhere", "no run in nowhere"),
    ("verify cut", "cannot be read"),
    ("verify no-plan", "plan"),
    ("drain", "Missing argument"),
    ("drain n0 nowhere", "no run in nowhere"),
    ("drain n9 no-secret", "no node 'n9'"),
    ("mode nowhere none", "no run"),
    # nodes of their own
    ("node", "a node needs a file with its settings, or a run to join"),
    ("node --config missing.toml", "cannot read the node's config"),
    ("node --config .", "cannot read the node's config"),
    ("node --config ok.py", "not valid TOML"),
    ("node --config binary.toml", "not valid TOML"),
    ("node --config empty.toml", "cannot be used"),
    ("node --config other.toml", "not among the endpoints"),
    ("node --config typed.toml", "cannot be used"),
    ("submit ok.py --config missing.toml", "cannot read the node's config"),
    ("submit ok.py --config empty.toml", "cannot be used"),
    ("submit missing.py --config one.toml", "no file missing.py"),
    # the others
    ("demo --seconds 1", "--seconds"),
    ("demo --nodes 2", "--nodes"),
    ("demo --nodes 5000", "--nodes"),
    ("demo --kills -1", "--kills"),
    ("sim --seeds x", "valid integer"),
    ("prescribe", "sla"),
    ("prescribe --sla 99% --window long", "window"),
    ("prescribe --sla 99% --input-rate 2MB/s --mtbf 30d --window 1h --shards 0", "shard"),
    ("prescribe --file missing.toml", "missing.toml"),
    ("prescribe --file ok.py", "ok.py"),
    ("prescribe --out here.csv", "--out belongs to --sweep"),
    ("prescribe --sweep missing.csv", "missing.csv"),
]


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command is called: a file of a pipeline, runs of which something is broken, configs that are wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.py").write_text("this is (not Python\n")
    run = {"pipeline": "x", "source": "x.py", "cwd": ".", "endpoints": {"n0": "grpc://127.0.0.1:9"}}
    text = json.dumps(run)
    for name, raw in {
        "cut": text[:20].encode(),
        "empty": b"",
        "binary": b"\xff\xfe\0",
        "list": b"[]",
        "no-nodes": json.dumps({**run, "endpoints": {}, "secret_file": str(tmp_path / "secret")}).encode(),
        "no-secret": json.dumps({**run, "secret_file": str(tmp_path / "nothing")}).encode(),
        "secret-folder": json.dumps({**run, "secret_file": str(tmp_path)}).encode(),
        "secret-short": json.dumps({**run, "secret_file": str(tmp_path / "short")}).encode(),
        "no-plan": json.dumps({**run, "secret_file": str(tmp_path / "secret")}).encode(),
        "bad-endpoint": json.dumps(
            {**run, "endpoints": {"n0": "nowhere"}, "secret_file": str(tmp_path / "secret")}
        ).encode(),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(raw)
    (tmp_path / "folder" / "run.json").mkdir(parents=True)
    for name, secret in (("short", "x"), ("secret", "0" * 64)):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    here = f'dir = "{tmp_path}"\n[endpoints]\nn0 = "grpc://127.0.0.1:9"\n'
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\0")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "other.toml").write_text('name = "n7"\n' + here)
    (tmp_path / "typed.toml").write_text('name = 7\nstandby = "yes"\n' + here)
    (tmp_path / "one.toml").write_text('name = "n0"\n' + here)
    return tmp_path


@pytest.mark.parametrize(("called", "says"), BAD, ids=[called for called, _ in BAD])
def test_a_flag_that_cannot_work_ends_with_one_line_and_its_exit_code(called, says, around, capsys):
    with pytest.raises(SystemExit) as end:
        main(shlex.split(called))
    told = capsys.readouterr().err.strip()
    assert end.value.code == 2, told
    assert told.startswith("error: "), told
    assert "\n" not in told, told
    assert says in told, told


def test_the_table_is_as_long_as_it_says():
    assert len(BAD) >= 60
