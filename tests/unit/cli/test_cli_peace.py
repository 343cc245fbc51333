"""`holdfast peace plan` and `calibrate`: the table, the JSON, and one line for every mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.network_graph import PrintedGraph

from holdfast.cli.calibrate import capacity, measure, writers_of
from holdfast.cli.main import main
from holdfast.peace import read_model
from holdfast.store.memory import MemoryStore

DOCS = Path(__file__).parents[3] / "docs" / "peace.md"


@pytest.fixture
def model(tmp_path) -> Path:
    """The one that docs/peace.md shows."""
    path = tmp_path / "net.toml"
    path.write_text(re.findall(r"^```toml\n(.*?)^```", DOCS.read_text(), re.S | re.M)[0])
    return path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["peace", *arguments])
    told = capsys.readouterr()
    return int(end.value.code or 0), told.out, told.err.strip()


def test_the_page_shows_what_the_command_prints(capsys, model):
    code, out, _ = run(capsys, "plan", str(model), "--write", "n1=3", "--write", "n4=2", "--write", "n2=1")
    assert code == 0
    shown = DOCS.read_text().partition("--write n2=1\n```")[2].split("```")[1]
    assert [line.split() for line in out.splitlines() if line.split()] == [
        line.split() for line in shown.splitlines() if line.split()
    ]


def test_the_json_has_every_chunk_and_no_timestep_carries_more_than_the_model_says(capsys, model):
    code, out, _ = run(capsys, "plan", str(model), "--every", "4", "--json")
    assert code == 0
    found = json.loads(out)
    assert len(found["grants"]) == 24
    assert found["denied"] == []
    graphs = {}
    for grant in found["grants"]:
        graph = graphs.setdefault(grant["timestep"], PrintedGraph(read_model(model.read_text())))
        graph.augment_chain([grant["writer"], *grant["chain"]])
    assert len(graphs) == found["timesteps"] > 1
    assert min(graph.least() for graph in graphs.values()) == 0, "never below, and somewhere full"


def test_another_seed_chooses_otherwise_and_the_same_one_does_not(capsys, model):
    plans = [run(capsys, "plan", str(model), "--every", "4", "--json", "--seed", seed)[1] for seed in "1123"]
    assert plans[0] == plans[1]
    assert len(set(plans)) > 1


def test_a_request_that_can_never_be_served_is_told(capsys, model):
    model.write_text(model.read_text().replace('n3 = { rack = "one" }\n', ""))
    code, out, _ = run(capsys, "plan", str(model), "--every", "1")
    assert code == 0
    assert "denied: request 0 of n1: no chain of servers" in out
    assert "3 chunks" in out


MISTAKES = {
    "nothing": ([], "nothing to plan"),
    "unknown server": (["--write", "n9=1"], "no server 'n9'"),
    "no number": (["--write", "n1"], "cannot read 'n1'"),
    "not a number": (["--write", "n1=x"], "cannot read 'n1=x'"),
    "zero": (["--write", "n1=0"], "cannot read 'n1=0'"),
    "too many": (["--write", "n1=1000000", "--write", "n2=1"], "too many to plan"),
    "below zero": (["--every", "-1"], "--every"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(mistake, capsys, model):
    arguments, told = MISTAKES[mistake]
    code, _, err = run(capsys, "plan", str(model), *arguments)
    assert code == 2
    assert told in err
    assert err.startswith("error: ")
    assert "\n" not in err


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (("up = 5", "up = -5"), "up is -5"),
        (("down = 5", ""), "no capacity 'down'"),
        (("[switches.left] ", '[switches.left]\nuplink = "right"\nup = 1\ndown = 1\n#'), "form a loop"),
        (('n1 = { rack = "one" }', 'n1 = { rack = "three" }'), "unknown rack"),
    ],
)
def test_a_mistake_in_the_model_is_one_line_and_exit_code_2(damage, told, capsys, model):
    before = model.read_text()
    model.write_text(before.replace(*damage))
    assert model.read_text() != before
    code, out, err = run(capsys, "plan", str(model), "--every", "1")
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("error: ")
    assert "\n" not in err


def test_a_model_that_is_not_there_or_not_text_is_one_line(capsys, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "bytes"):
        code, _, err = run(capsys, "plan", str(path), "--every", "1")
        assert code == 2
        assert "cannot read the network model" in err
        assert "\n" not in err


def test_the_capacity_is_where_the_total_stops_growing():
    assert capacity({1: 60.0, 2: 91.0, 4: 102.0, 8: 104.0}) == 4
    assert capacity({1: 30.0, 2: 45.0, 4: 39.6, 8: 48.2}) == 2, "the paper's disk"
    assert capacity({1: 100.0, 2: 99.0}) == 1
    assert writers_of(8) == [1, 2, 4, 8]
    assert writers_of(6) == [1, 2, 4]


def test_what_is_measured_is_the_whole_of_all_writers_and_nothing_is_left():
    store, now = MemoryStore(), iter((10.0, 12.0))
    assert measure(store, 3, 1_000_000, clock=lambda: next(now)) == 1_500_000
    assert store.list("") == []


def test_calibrate_says_what_to_write_into_a_model(tmp_path, capsys):
    url = f"file://{tmp_path}/store"
    code, out, _ = run(capsys, "calibrate", url, "--chunk", "1 MB", "--writers", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found["sent"]) == {"1", "2"}
    assert found["send"] in (1, 2)
    assert "receive" not in found, "a folder has no data nodes"
    code, out, _ = run(capsys, "calibrate", url, "--chunk", "1 MB", "--writers", "1")
    assert "receive = 1" in out
    assert run(capsys, "calibrate", url, "--chunk", "1 KB")[0] == 2
    assert run(capsys, "calibrate", url, "--writers", "0")[0] == 2
