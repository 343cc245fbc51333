"""Ids and the contents of a disk: what they are made of is known in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.errors import InvariantError
from holdfast.model import found, ids
from holdfast.model.parts import LedgerPage
from holdfast.model.record import NO_RECORD, Record

SOURCE = Path(__file__).parents[3] / "src" / "holdfast"
#: What stands between the parts of an id.
SEPARATORS = {"#", ">", "@", ".ledger"}
TAKES_APART = {"partition", "rpartition", "split", "rsplit", "endswith", "startswith", "removesuffix", "removeprefix"}
RECORD = Record(version=3, term=2, members={"n0": 1}, places={})


def test_an_id_comes_apart_as_it_was_put_together():
    edge = ids.shard_edge(ids.shard_id("counts-by-key", 3), 2)
    assert (ids.maker_of(edge), ids.port_of(edge)) == ("counts-by-key-3", 2)
    assert ids.operator_of(ids.maker_of(edge)) == "counts-by-key"
    assert ids.is_ledger(ids.ledger_of("s0"))
    assert not ids.is_ledger("s0")
    assert ids.stage_of(ids.ledger_of("s0")) == "s0"
    seat = ids.seat_of("n2", 7)
    assert (ids.name_of(seat), ids.life_of(seat), ids.life_of("n2")) == ("n2", 7, 0)


def taken_apart(source: str) -> list[str]:
    return [
        ast.unparse(call)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in TAKES_APART
        for given in call.args
        if isinstance(given, ast.Constant) and given.value in SEPARATORS
    ]


#: These know no nodes, and cut other texts.
STRANGERS = ("prescriber", "operators", "state", "examples")
READERS = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in STRANGERS]


@pytest.mark.parametrize("path", READERS, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nobody_else_takes_an_id_apart(path):
    assert path == SOURCE / "model" / "ids.py" or taken_apart(path.read_text()) == []


def test_the_check_finds_what_it_looks_for():
    assert taken_apart("x = edge.partition('>')[2]") == ["edge.partition('>')"]
    assert taken_apart("x = name.endswith('.ledger') and name.split('.')") == ["name.endswith('.ledger')"]


def test_what_was_written_is_what_is_found():
    page = LedgerPage("q", 4, None)
    entries = [found.life_entry(3), found.vote_entry(7, "n1"), found.record_entry(RECORD)]
    on_disk = found.read(dict([*entries, found.ledger_entry("s0.ledger", 5, page)]))
    assert (on_disk.life, on_disk.vote, on_disk.record) == (3, found.Ballot(7, "n1"), RECORD)
    assert on_disk.ledgers == {"s0.ledger": found.KeptPage(5, page)}


def test_an_empty_disk_is_that_of_a_node_that_never_lived():
    assert found.read({}) == found.Found(life=0, vote=found.Ballot(0, None), record=NO_RECORD, ledgers={})


@pytest.mark.parametrize("entry", [("lives", 3), ("life", "3"), ("ledger/s0.ledger", (5, None))])
def test_an_entry_that_nobody_can_have_written_is_a_bug(entry):
    with pytest.raises(InvariantError, match="not what it should be"):
        found.read(dict([entry]))
