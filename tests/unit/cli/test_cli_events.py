"""`holdfast events`: every event once, and only kinds that exist."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.cli.story import ROUTINE, EventLogs, write_event
from holdfast.model.notes import all_notes
from holdfast.runtime.node.events import KINDS

#: Which argument of these calls is the kind of an event. What a stage says becomes an event of kind stage-….
WRITERS = {
    "write": 0,
    "limited": 2,
    "write_event": 1,
    "_on_trouble": 0,
    "on_trouble": 0,
    "_tell": 0,
    "_enter": 0,
    "say": 0,
}


def line(number: int, time: int) -> str:
    return json.dumps({"number": number, "time": f"2026-01-01T00:00:{time:02}.000+00:00", "event": "told"}) + "\n"


def told(diaries: EventLogs) -> list[int]:
    return [event["number"] for event in diaries.news()]


def test_an_event_is_told_once_even_if_another_node_wrote_an_older_one_meanwhile(tmp_path):
    n0, n1 = (tmp_path / "nodes" / name / "events.jsonl" for name in ("n0", "n1"))
    for path in (n0, n1):
        path.parent.mkdir(parents=True)
    n0.write_text(line(1, 10) + line(2, 30))
    diaries = EventLogs(tmp_path)
    assert told(diaries) == [1, 2]
    n1.write_text(line(3, 20))  # between the two that were told
    assert told(diaries) == [3]
    whole = line(4, 40)
    with n0.open("a") as file:
        file.write(whole[:10])
    assert told(diaries) == []
    with n0.open("a") as file:
        file.write(whole[10:])
    assert told(diaries) == [4]
    write_event(tmp_path, "kill", "of the run", number=5)
    assert told(diaries) == [5]
    assert told(diaries) == []
    assert told(EventLogs(tmp_path)) == [1, 3, 2, 4, 5]


def test_a_diary_that_gets_another_name_is_neither_told_again_nor_forgotten(tmp_path):
    path = tmp_path / "nodes" / "n0" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(line(1, 1))
    diaries = EventLogs(tmp_path)
    assert told(diaries) == [1]
    for number in range(2, 12, 2):  # so often that inodes are used again
        with path.open("a") as file:
            file.write(line(number, number) + line(0, number))
        os.replace(path, path.with_suffix(".1.jsonl"))
        path.write_text(line(number + 1, number + 1))
        assert told(diaries) == [number, 0, number + 1]


def test_an_unknown_kind_is_refused_with_those_that_there_are(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"pipeline": "p", "source": "", "cwd": "", "endpoints": {}}))
    with pytest.raises(SystemExit) as end:
        main(["events", str(tmp_path), "--kind", "promoted"])
    assert end.value.code == 2
    assert "promotion" in capsys.readouterr().err


EVENTS = [  # node, second, kind, text, epoch
    ("n0", 1, "stage-start", "The driver of in starts at epoch 1.", 1),
    ("n1", 1, "stage-start", "A standby of in is wanted here; it is cold for now.", 0),
    *((node, 2, "record", "Record 21 is decided (term 1).", None) for node in ("n0", "n1", "n2")),
    *(("n0", second, "stage-batch", "in: batch", 1) for second in range(3, 8)),
    *((node, 8, "unreachable", "Nothing listens any more where n2 (life 1) did.", None) for node in ("n0", "n1")),
    ("n0", 9, "promotion", "n0#1 takes over talkers-1 at epoch 2.", 2),
    ("n1", 9, "promotion", "n1#1 takes over talkers-2 at epoch 2.", 2),
    *(("n0", second, "memory-again", "talkers-1 has memory again, and goes on.", None) for second in (10, 20)),
]


@pytest.fixture
def a_run_with_events(tmp_path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"pipeline": "p", "source": "", "cwd": "", "endpoints": {}}))
    for node, second, kind, text, epoch in EVENTS:
        path = tmp_path / "nodes" / node / "events.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        event = {"time": f"2026-01-01T00:00:{second:02}+00:00", "node": node, "event": kind, "text": text}
        with path.open("a") as file:
            file.write(json.dumps({**event, **({} if epoch is None else {"epoch": epoch})}) + "\n")
    return tmp_path


def shown(capsys, *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        main(["events", *arguments])
    assert end.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_by_default_events_are_the_story_and_the_last_line_says_what_is_left_out(a_run_with_events, capsys):
    *story, last = shown(capsys, str(a_run_with_events))
    assert [line.partition("  ")[2].split(maxsplit=1)[1] for line in story] == [
        "The driver of in starts at epoch 1.",
        "Nothing listens any more where n2 (life 1) did.",
        "n0#1 takes over talkers-1 at epoch 2.",
        "n1#1 takes over talkers-2 at epoch 2.",
        "talkers-1 has memory again, and goes on.",
        "talkers-1 has memory again, and goes on.",
    ]
    assert last == (
        "9 routine events are not shown (5 stage-batch, 3 record, 1 stage-start): --all shows all, --kind stage-batch "
        "those of one kind."
    )


def test_routine_events_are_told_when_asked_for_and_a_machine_gets_all(a_run_with_events, capsys):
    home = str(a_run_with_events)
    assert len(shown(capsys, home, "--kind", "record")) == 1
    assert len(shown(capsys, home, "--kind", "stage-batch")) == 5
    assert len(shown(capsys, home, "--all")) == len(EVENTS)
    assert [json.loads(line)["node"] for line in shown(capsys, home, "--json", "--kind", "record")] == [
        "n0",
        "n1",
        "n2",
    ]
    assert len(shown(capsys, home, "--json")) == len(EVENTS)


def test_every_routine_kind_is_one_that_there_is():
    assert ROUTINE <= KINDS


def literals(node: ast.expr) -> list[str]:
    """The strings that an expression can be, if it says so itself."""
    match node:
        case ast.Constant(value=str(value)):
            return [value]
        case ast.IfExp():
            return literals(node.body) + literals(node.orelse)
    return []


def written(path: Path) -> set[str]:
    found = set()
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        place = WRITERS.get(name)
        if place is None or len(call.args) <= place + (name == "write"):  # a file's write takes one argument
            continue
        kinds = literals(call.args[place])
        found |= {f"stage-{kind}" for kind in kinds} if name == "say" else set(kinds)
    return found


def test_every_kind_that_is_written_is_known_and_every_known_one_is_written():
    source = Path(holdfast.__file__).parent
    files = [path for part in ("runtime", "spark", "cli") for path in (source / part).rglob("*.py")]
    found = set().union(*map(written, files), (note.told.event for note in all_notes() if note.told))
    found -= {"stage-alive", "stage-ended", "stage-up"}  # heard by the node, not written
    assert found == KINDS
