"""The vote of a store in a cluster of two: it votes once a term, keeps the newest record, and never leads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.election import Election, Standing
from holdfast.core.ready import AskWitness, Done, Ready, WitnessState
from holdfast.core.tickets import Tickets
from holdfast.core.witness import WITNESS, Witness, answer
from holdfast.model.config import Config
from holdfast.model.record import Record

CONFIG = Config()
BOTH = Record(version=1, term=0, members={"a": 1, "b": 1}, places={})
ALONE = Record(version=4, term=2, members={"b": 1}, places={})


def vote(name: str, term: int) -> AskWitness:
    return AskWitness(ticket=1, name=name, term=term)


def accept(name: str, record: Record) -> AskWitness:
    return AskWitness(ticket=1, name=name, term=record.term, record=record)


def member(name: str = "a") -> tuple[Election, Tickets]:
    election, tickets = Election(name, CONFIG, 0, None, BOTH), Tickets(CONFIG.spill_limit_ns)
    election.commit, election.decided = BOTH.version, BOTH
    election.witness = Witness(name, tickets, election, CONFIG.election_ns // 2)
    return election, tickets


def asked(ready: Ready) -> AskWitness:
    (found,) = (effect for effect in ready.apply if isinstance(effect, AskWitness))
    return found


def tell(tickets: Tickets, state: WitnessState, question: AskWitness) -> tuple[WitnessState, Ready]:
    after, said = answer(state, question)
    ready = Ready()
    tickets.on_done(Done(ticket=question.ticket, ok=True, witness=said), 0, ready)
    return after, ready


def test_it_votes_once_a_term_and_says_the_same_again():
    state, said = answer(WitnessState(), vote("a", 3))
    assert said.granted
    assert answer(state, vote("a", 3))[1].granted
    for late in (vote("b", 3), vote("b", 2)):
        after, said = answer(state, late)
        assert (after, said.granted, said.term) == (state, False, 3)
    assert answer(state, vote("b", 4))[1].granted


def test_it_takes_no_record_of_a_term_that_is_over_and_none_that_is_older():
    state, said = answer(WitnessState(), accept("b", ALONE))
    assert said.granted
    assert answer(state, accept("a", BOTH)) == (state, said.__class__(term=2, granted=False, record=ALONE))
    older = Record(version=3, term=2, members={"b": 1}, places={})
    after, said = answer(state, accept("b", older))  # it comes late
    assert (after.record, said.granted) == (ALONE, False)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 4))))
def test_whatever_is_asked_a_term_has_one_winner_and_nothing_goes_back(questions):
    state, winners = WitnessState(), {}
    for name, term, version in questions:
        record = Record(version=version, term=term, members={"a": 1, "b": 1}, places={}) if version else None
        after, said = answer(state, AskWitness(ticket=1, name=name, term=term, record=record))
        assert (after.term, after.record.rank) >= (state.term, state.record.rank)
        assert after.record.rank >= state.record.rank
        if record is None and said.granted:
            assert winners.setdefault(term, name) == name
        if said.granted:
            assert term == after.term
        state = after


def test_one_of_two_is_elected_and_decides_with_the_store():
    election, tickets = member()
    ready = Ready()
    election.campaign(0, 0, ready)
    assert election.standing is Standing.CANDIDATE
    state, ready = tell(tickets, WitnessState(), asked(ready))
    assert election.standing is Standing.COORDINATOR
    assert election.commit == 1  # nothing of its own term yet
    state, ready = tell(tickets, state, asked(ready))
    assert election.commit == 2
    assert election.can_remove("b", 0)
    ready = Ready()
    election.propose({"a": 1}, {}, (), {}, {}, {}, 0, ready)
    assert election.commit == 2  # not by itself
    tell(tickets, state, asked(ready))
    assert election.commit == 3


def test_whom_the_other_one_and_the_store_have_voted_out_does_not_lead():
    election, tickets = member()
    ready = Ready()
    election.campaign(0, 0, ready)
    state, _ = answer(WitnessState(), accept("b", ALONE))
    _, ready = tell(tickets, state, asked(ready))
    assert election.term == 2  # refused: that term is over
    ready = Ready()
    election.campaign(0, 0, ready)
    tell(tickets, state, asked(ready))
    assert election.accepted == ALONE
    assert election.standing is Standing.CANDIDATE
    assert not election.is_member()


def test_a_store_that_has_not_answered_lately_lets_nobody_be_removed_and_is_asked():
    election, tickets = member()
    ready = Ready()
    election.campaign(0, 0, ready)
    state, ready = tell(tickets, WitnessState(), asked(ready))
    state, _ = tell(tickets, state, asked(ready))
    later = 100 * CONFIG.election_ns
    assert not election.can_remove("b", later)
    ready = Ready()
    election.wake_witness(later, ready)
    again = Ready()
    election.wake_witness(later + 1, again)
    assert asked(ready)
    assert not again.apply  # one question at a time
    tickets.on_done(Done(ticket=asked(ready).ticket, ok=False, why="It does not answer."), later, Ready())
    assert not election.can_remove("b", later)
    ready = Ready()
    election.wake_witness(later, ready)
    _, said = answer(state, asked(ready))
    tickets.on_done(Done(ticket=asked(ready).ticket, ok=True, witness=said), later, Ready())
    assert election.contacts[WITNESS] == later
    assert election.can_remove("b", later)
