"""Where nodes listen: what the file says, and what records have said since."""

from __future__ import annotations

import threading

from holdfast.model.record import NO_RECORD, Record
from holdfast.runtime.node.book import AddressBook


class FakeLink:
    def __init__(self, name: str, endpoint: str) -> None:
        self.name, self.endpoint, self.closed = name, endpoint, threading.Event()

    def close(self) -> None:
        self.closed.set()


def a_record(version: int, **roster: str) -> Record:
    return Record(version=version, term=1, members={}, places={}, roster=roster)


def a_book() -> AddressBook:
    return AddressBook("n0", {"n0": "at-0", "n1": "at-1"})


def test_there_is_a_link_to_everybody_else_in_the_file():
    book = a_book()
    book.connect(FakeLink, NO_RECORD)  # type: ignore[arg-type]
    assert sorted(book.links) == ["n1"]


def test_a_record_brings_an_address_and_a_link_and_none_for_who_has_left():
    book = a_book()
    book.connect(FakeLink, NO_RECORD)  # type: ignore[arg-type]
    known = book.endpoints
    book.learn(a_record(2, n4="at-4", n5=""))
    assert (sorted(book.links), known["n4"]) == (["n1", "n4"], "at-4")  # whoever holds the dictionary knows it, too
    link = book.links["n4"]
    book.learn(a_record(3, n4="at-4", n5=""))
    assert book.links["n4"] is link
    book.learn(a_record(4, n4="moved"))
    assert book.links["n4"].endpoint == "moved"  # type: ignore[attr-defined]
    assert link.closed.wait(5)  # type: ignore[attr-defined]


def test_what_a_file_says_is_newer_than_what_was_found_on_disk_and_older_than_the_next_record():
    book = a_book()
    book.connect(FakeLink, a_record(7, n1="long-ago", n4="at-4"))  # type: ignore[arg-type]
    assert book.endpoints == {"n0": "at-0", "n1": "at-1", "n4": "at-4"}
    book.learn(a_record(8, n1="long-ago", n4="at-4", n2="at-2"))
    assert book.endpoints["n1"] == "at-1"
    book.learn(a_record(9, n1="now", n4="at-4", n2="at-2"))
    assert book.endpoints["n1"] == "now"


def test_the_first_record_of_a_life_may_be_older_than_the_file():
    """A run went on: its sockets are elsewhere, and the record still says where they were."""
    for first in (NO_RECORD, a_record(1), a_record(7)):
        book = a_book()
        book.connect(FakeLink, first if first.version > 1 else NO_RECORD)  # type: ignore[arg-type]
        book.learn(first)
        book.learn(a_record(9, n1="long-ago", n4="at-4"))
        assert (book.endpoints["n1"], book.endpoints["n4"]) == ("at-1", "at-4")
        book.learn(a_record(10, n1="long-ago", n4="at-4", n5="at-5"))
        assert book.endpoints["n1"] == book.links["n1"].endpoint == "at-1"  # type: ignore[attr-defined]
        book.learn(a_record(11, n1="now", n4="at-4", n5="at-5"))
        assert book.endpoints["n1"] == book.links["n1"].endpoint == "now"  # type: ignore[attr-defined]


def test_the_link_to_who_has_left_is_closed_and_made_again_for_an_answer_or_a_return():
    book = a_book()
    book.connect(FakeLink, NO_RECORD)  # type: ignore[arg-type]
    book.learn(a_record(2))
    link = book.link_to("n1")
    book.learn(a_record(3, n1=""))
    assert link.closed.wait(5)  # type: ignore[union-attr]
    assert book.links == {}
    answer = book.link_to("n1")
    assert answer is book.link_to("n1")
    book.learn(a_record(4, n1="", n4="at-4"))
    assert answer.closed.wait(5)  # type: ignore[union-attr]
    assert sorted(book.links) == ["n4"]
    book.learn(a_record(5, n1="at-1", n4="at-4"))
    assert book.links["n1"].endpoint == "at-1"  # type: ignore[attr-defined]
    assert book.link_to("nobody") is None
