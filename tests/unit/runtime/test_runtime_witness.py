"""How the store's vote is kept: one small object, compared and set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.core.ready import AskWitness
from holdfast.errors import HoldfastError
from holdfast.model.record import Record
from holdfast.runtime.stable.witness import ask_witness
from holdfast.store.local import LocalStore
from holdfast.store.service import IoService


@pytest.fixture
def service(tmp_path: Path):
    made = IoService(LocalStore(tmp_path))
    yield made
    made.close()


def test_what_it_has_said_outlives_who_asked(service):
    record = Record(version=3, term=2, members={"n0": 1}, places={})
    assert service.run(ask_witness("q", AskWitness(ticket=1, name="n0", term=2))).granted
    assert service.run(ask_witness("q", AskWitness(ticket=1, name="n0", term=2, record=record))).granted
    said = service.run(ask_witness("q", AskWitness(ticket=1, name="n1", term=3)))
    assert (said.granted, said.record) == (True, record)
    assert service.run(ask_witness("another run", AskWitness(ticket=1, name="n1", term=1))).granted


def test_of_two_who_ask_at_once_one_wins(service):
    with ThreadPoolExecutor(2) as both:
        for term in range(1, 30):
            asked = [AskWitness(ticket=1, name=name, term=term) for name in ("n0", "n1")]
            said = list(both.map(lambda one: service.run(ask_witness("q", one)), asked))
            assert [one.granted for one in said].count(True) == 1


def test_one_that_was_damaged_says_nothing(service, tmp_path):
    service.run(ask_witness("q", AskWitness(ticket=1, name="n0", term=2)))
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file() and "witness" in str(path))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(HoldfastError, match="damaged"):
        service.run(ask_witness("q", AskWitness(ticket=1, name="n1", term=9)))
