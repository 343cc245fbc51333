"""Every note is known to all who read notes: it is entered once, and a rule reads it or it says that none needs to."""

from __future__ import annotations

from pathlib import Path
from string import Formatter

import pytest

from holdfast.core.invariants import Invariants
from holdfast.errors import ConfigError
from holdfast.model.block import WATERMARK_MAX, Block
from holdfast.model.notes import Accepted, Elected, Emitted, Note, Pasted, StaleCapture, all_notes
from holdfast.model.topology import layered
from holdfast.sim.checker import Violation
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation
from holdfast.sim.swarm import NODE_STEPS, STAGE_STEPS

NOTES = [note for note in all_notes() if note.__module__ in ("holdfast.model.notes", "holdfast.model.stage_notes")]
CORE = Path(__file__).parents[3] / "src" / "holdfast" / "core"


def checker():
    return Simulation(Setup(seed=1, nodes=3, topology=layered(stages=1, shards=1))).checker


@pytest.mark.parametrize("note", NOTES, ids=lambda n: n.word)
def test_a_note_says_whether_a_rule_reads_it_and_says_the_truth(note):
    assert note.checked == (note in checker().rules or note in Invariants().rules)


def test_a_note_that_says_nothing_fails_the_checker():
    class Unheard(Note, frozen=True):
        shard: str

    with pytest.raises(Violation, match="an unknown note: unheard u0"):
        checker().on_notes(0, "n0", [Unheard("u0")])


def test_a_note_whose_rule_is_gone_fails_the_checker():
    made = checker()
    del made.rules[Elected]
    with pytest.raises(Violation, match="an unknown note: elected"):
        made.on_notes(0, "n0", [Elected("n0", 1)])


def test_a_note_that_needs_no_rule_passes():
    checker().on_notes(0, "n0", [Pasted("u0", "n0#1", 1, 1, True)])


def test_words_are_one_per_note():
    words = [note.word for note in NOTES]
    assert len(words) == len(set(words)) > 40


@pytest.mark.parametrize("note", [note for note in NOTES if note.told], ids=lambda n: n.word)
def test_what_is_told_names_only_fields_of_the_note(note):
    named = {field for _, field, _, _ in Formatter().parse(note.told.text) if field}
    assert named
    assert named <= set(note.__struct_fields__)


@pytest.mark.parametrize("note", NOTES, ids=lambda n: n.word)
def test_every_note_is_left_by_some_machine(note):
    assert any(f"notes.{note.__name__}" in path.read_text() for path in CORE.rglob("*.py"))


def test_a_note_is_a_line_of_a_trace():
    block = Block(3, 6, ((1, 2, 3),), WATERMARK_MAX, 7)
    assert str(Emitted("u0", "u0.0", 2, block)) == "emitted u0 u0.0 epoch=2 [3,6) rows=1 wm=end"
    assert str(Accepted("r0", "u0.0", 2, block, 9)) == "accepted r0 u0.0 epoch=2 [3,6) rows=1 wm=end"
    assert str(StaleCapture("u0", "n1#2", 3, 4)) == "stale-capture u0 n1#2 3 4"


def test_a_fault_waits_only_for_notes_that_exist():
    words = {note.word for note in NOTES}
    assert words > {*STAGE_STEPS, *NODE_STEPS}
    with pytest.raises(ConfigError, match="no note begins like 'promted u0'"):
        Fault(kind="crash", node="n0", when="promted u0")
