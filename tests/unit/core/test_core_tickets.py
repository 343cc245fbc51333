"""Work that is done elsewhere: a ticket is good for one answer, and one that never comes is missed."""

from __future__ import annotations

from holdfast.core.ready import Done, Ready
from holdfast.core.tickets import Tickets
from holdfast.model.config import SECOND


class Heard:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        self.said.append(done.ok)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self.said.append(("missed", ticket))


def test_no_number_is_given_twice_and_each_answer_goes_to_who_waits_for_it():
    tickets, first, second = Tickets(SECOND), Heard(), Heard()
    one, two = tickets.issue(first), tickets.issue(second)
    assert one != two
    tickets.on_done(Done(ticket=two, ok=False), 0, Ready())
    tickets.on_done(Done(ticket=one, ok=True), 0, Ready())
    assert (first.said, second.said) == ([True], [False])
    assert tickets.issue(first) not in (one, two)


def test_a_ticket_is_good_for_one_answer_and_an_unknown_one_for_none():
    tickets, heard = Tickets(SECOND), Heard()
    ticket = tickets.issue(heard)
    for _ in range(2):
        tickets.on_done(Done(ticket=ticket, ok=True), 0, Ready())
    tickets.on_done(Done(ticket=99, ok=True), 0, Ready())
    assert (heard.said, len(tickets)) == ([True], 0)


def test_an_answer_that_does_not_come_is_missed_once_and_means_nothing_when_it_comes_later():
    tickets, heard = Tickets(SECOND), Heard()
    ticket = tickets.issue(heard)
    for now_ns in (5 * SECOND, 5 * SECOND + SECOND // 2):
        tickets.on_tick(now_ns, Ready())
    assert heard.said == []  # it counts from the first tick on
    for now_ns in (6 * SECOND, 7 * SECOND):
        tickets.on_tick(now_ns, Ready())
    tickets.on_done(Done(ticket=ticket, ok=True), 8 * SECOND, Ready())
    assert (heard.said, len(tickets)) == ([("missed", ticket)], 0)


def test_what_was_cancelled_is_neither_answered_nor_missed():
    tickets, heard = Tickets(SECOND), Heard()
    ticket = tickets.issue(heard)
    tickets.on_tick(0, Ready())
    tickets.cancel(ticket)
    tickets.on_done(Done(ticket=ticket, ok=True), 0, Ready())
    tickets.on_tick(2 * SECOND, Ready())
    assert heard.said == []


def test_work_whose_size_nobody_knows_is_waited_for_longer():
    tickets, heard = Tickets(SECOND, 10 * SECOND), Heard()
    tickets.issue(heard, long=True)
    for now_ns in (0, 2 * SECOND, 9 * SECOND):
        tickets.on_tick(now_ns, Ready())
    assert len(tickets) == 1
    tickets.on_tick(10 * SECOND, Ready())
    assert len(tickets) == 0
