"""`holdfast log`: what nodes have on disk is shown, read from any point, followed, verified; mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from support.plans import layered_plan
from test_cli_runs import a_run, call

from holdfast.core.ready import Done, Spill
from holdfast.model.block import Block, shard_block
from holdfast.model.ids import Edge
from holdfast.model.plan import to_core
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.net.rows import ArrowRows

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC


def blocks(count: int) -> tuple[Block, ...]:
    made: list[Block] = []
    for i in range(count):
        rows = ArrowRows([pa.record_batch({"k": [f"key{i}", f"key{i}"], "n": [i, i + 100]})])
        time = to_core(NOON_US + i * 60_000_000)
        made.append(shard_block(made[-1].end if made else 0, rows, time, time))
    return tuple(made)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, "n0", "talkers-0.0", 4)
    (tmp_path / "nodes" / "n1").mkdir()
    return a_run(tmp_path)


def write(home: Path, node: str, edge: str, count: int) -> None:
    said: list[Done] = []
    logs = EdgeLogs(home / "nodes" / node / "spill", said.append, lambda error: None)
    for number, block in enumerate(blocks(count)):
        logs.want(Spill(ticket=number + 1, edge=Edge(edge), blocks=(block,)))
        logs.work()
    assert all(done.ok for done in said)


def log_file(home: Path) -> Path:
    (file,) = (home / "nodes").rglob("*.log")
    return file


def test_logs_are_shown_with_their_positions_times_and_sizes(home: Path, capsys):
    code, out, _ = call(capsys, "log", "inspect", str(home), "--json")
    (one,) = json.loads(out)["logs"]
    size = log_file(home).stat().st_size
    assert code == 0
    assert {key: one[key] for key in ("node", "edge", "segments", "entries", "from", "to", "bytes", "damage")} == {
        "node": "n0", "edge": "talkers-0.0", "segments": 1, "entries": 4, "from": 0, "to": 12, "bytes": size,
        "damage": "",
    }  # fmt: skip
    assert one["time_us"] == NOON_US + 3 * 60_000_000
    assert "12:03:00" in call(capsys, "log", "inspect", str(home))[1]


def test_rows_are_printed_from_a_position_or_an_event_time_on(home: Path, capsys):
    _, out, _ = call(capsys, "log", "dump", "talkers-0.0", str(home), "--from", "6", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"k": f"key{i}", "n": n} for i in (2, 3) for n in (i, i + 100)
    ]
    _, out, _ = call(capsys, "log", "dump", "talkers-0.0", str(home), "--since", "2026-01-01T12:02:30")
    assert out.splitlines() == ["k=key3, n=3", "k=key3, n=103"]
    _, out, _ = call(capsys, "log", "dump", "talkers-0.0", str(home), "--max", "3")
    assert len(out.splitlines()) == 3


def test_rows_of_any_type_are_json_that_every_reader_takes(tmp_path: Path, capsys):
    home = a_run(tmp_path)
    odd = {
        "d": [float("nan"), float("-inf"), 0.5],
        "b": [b"\x00\xff", None, b""],
        "l": [[float("inf"), None], [], None],
        "t": pa.array([NOON_US, None, 0], pa.timestamp("us", "UTC")),
        "c": pa.array(["1.50", None, "-2"]).cast(pa.decimal128(9, 2)),
    }
    rows = ArrowRows([pa.record_batch(odd)])
    logs = EdgeLogs(home / "nodes" / "n0" / "spill", lambda done: None, lambda error: None)
    logs.want(Spill(ticket=1, edge=Edge("talkers-0.0"), blocks=(shard_block(0, rows, 0, 0),)))
    logs.work()

    def strange(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    _, out, _ = call(capsys, "log", "dump", "talkers-0.0", str(home), "--json")
    found = [json.loads(line, parse_constant=strange) for line in out.splitlines()]
    assert [row["d"] for row in found] == ["NaN", "-Infinity", 0.5]
    assert [row["b"] for row in found] == ["00ff", None, ""]
    assert [row["l"] for row in found] == [["Infinity", None], [], None]
    assert [row["t"] for row in found] == ["2026-01-01 12:00:00+00:00", None, "1970-01-01 00:00:00+00:00"]
    assert [row["c"] for row in found] == ["1.50", None, "-2.00"]


def test_the_last_entries_are_printed_and_those_that_come(home: Path, capsys):
    code, out, _ = call(capsys, "log", "tail", "talkers-0.0", str(home), "-n", "2")
    assert (code, [line.partition(":")[0] for line in out.splitlines()]) == (0, ["6 to 9", "9 to 12"])
    _, out, _ = call(capsys, "log", "tail", "talkers-0.0", str(home), "--follow", "--seconds", "0.1", "--json")
    assert [json.loads(line)["to"] for line in out.splitlines()] == [3, 6, 9, 12]


def test_a_whole_log_is_verified_and_the_torn_end_of_a_write_is_not_damage(home: Path, capsys):
    assert call(capsys, "log", "verify", str(home))[:2] == (0, "n0 talkers-0.0: whole (4 entries)\n")
    with log_file(home).open("ab") as file:
        file.write(b"\xf7HF\n and what was to come")
    code, out, _ = call(capsys, "log", "verify", str(home))
    assert (code, out) == (0, "n0 talkers-0.0: whole (4 entries; 25 bytes of an unfinished write)\n")


@pytest.mark.parametrize("hurt", ["changed", "cut", "head"])
def test_a_damaged_log_is_said_and_what_is_whole_before_it_is_still_printed(home: Path, capsys, hurt: str):
    file = log_file(home)
    raw = bytearray(file.read_bytes())
    if hurt == "changed":
        raw[len(raw) // 2] ^= 1
    elif hurt == "head":
        raw[6] ^= 1
    file.write_bytes(raw[:-1] if hurt == "cut" else raw)
    code, out, _ = call(capsys, "log", "verify", str(home))
    assert code == 1
    assert "damaged: segment 1" in out
    code, out, err = call(capsys, "log", "dump", "talkers-0.0", str(home))
    assert code == 1
    assert "does not hold what was written to it" in err
    assert len(err.splitlines()) == 1
    assert out.splitlines() == [f"k=key{i}, n={n}" for i in range(4) for n in (i, i + 100)][: len(out.splitlines())]
    assert len(out.splitlines()) < 8


def test_a_run_whose_consumers_keep_up_has_no_logs(tmp_path: Path, capsys):
    (tmp_path / "nodes" / "n0").mkdir(parents=True)
    a_run(tmp_path)
    for command in ("inspect", "verify"):
        code, out, _ = call(capsys, "log", command, str(tmp_path))
        assert (code, out.strip()) == (0, "There are no logs: all consumers keep up.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dump", "talkers-9.0"], "there is no log of 'talkers-9.0' · There are logs of talkers-0.0."),
        (["dump", "talkers-0.0", "--node", "n1"], "No edge has one"),
        (["tail", "talkers-0.0", "--node", "n7"], "no node 'n7' keeps its files here"),
        (["dump", "talkers-0.0", "--since", "noon"], "--since 'noon' is not a time"),
    ],
)
def test_mistakes_are_one_line(home: Path, capsys, arguments: list[str], said: str):
    command, *rest = arguments
    code, _, err = call(capsys, "log", command, *rest[:1], str(home), *rest[1:])
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


def test_an_edge_that_no_pipeline_has_is_a_mistake_and_one_without_a_log_is_not(home: Path, capsys):
    for command in ("inspect", "verify"):
        (home / "plan.json").unlink(missing_ok=True)
        code, out, _ = call(capsys, "log", command, str(home), "--edge", "u0.0")
        assert (code, out.strip()) == (0, "There is no log of u0.0: its consumers keep up.")
        (home / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
        assert call(capsys, "log", command, str(home), "--edge", "u0.0")[0] == 0
        code, _, err = call(capsys, "log", command, str(home), "--edge", "u0.O")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "no edge is named 'u0.O'" in err


def test_an_edge_that_two_nodes_have_needs_a_node(home: Path, capsys):
    write(home, "n1", "talkers-0.0", 2)
    code, _, err = call(capsys, "log", "tail", "talkers-0.0", str(home))
    assert code == 2
    assert "--node n0 or --node n1" in err
    assert call(capsys, "log", "tail", "talkers-0.0", str(home), "--node", "n1")[0] == 0


def test_a_run_on_other_machines_is_said(tmp_path: Path, capsys):
    code, _, err = call(capsys, "log", "inspect", str(a_run(tmp_path)))
    assert code == 2
    assert "no node of this run keeps its files here" in err
