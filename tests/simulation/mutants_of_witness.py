"""Planted bugs in the vote of the store: looked for in clusters of two, where it counts."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core.election import Election
from holdfast.core.ready import WitnessAnswer, WitnessState
from holdfast.core.witness import WITNESS
from holdfast.core.witness import answer as right
from holdfast.model.record import NO_RECORD
from holdfast.sim import store


def answering(wrong) -> list[Patch]:
    return [(store, "answer", wrong)]


@mutant
def the_store_votes_for_everybody() -> list[Patch]:
    def answer(state, asked):
        if asked.record is None:
            after = WitnessState(term=max(asked.term, state.term), voted_for=asked.name, record=state.record)
            return after, WitnessAnswer(term=asked.term, granted=True, record=state.record)
        return right(state, asked)

    return answering(answer)


@mutant
def the_store_takes_records_of_terms_that_are_over() -> list[Patch]:
    def answer(state, asked):
        if asked.record is not None and asked.term < state.term:
            return state, WitnessAnswer(term=asked.term, granted=True, record=asked.record)
        return right(state, asked)

    return answering(answer)


@mutant
def the_vote_of_the_store_brings_no_record_along() -> list[Patch]:
    """A candidate leads with what it had itself, whatever was decided without it."""

    def answer(state, asked):
        after, said = right(state, asked)
        return after, WitnessAnswer(term=said.term, granted=said.granted, record=NO_RECORD)

    return answering(answer)


@mutant
def the_store_has_no_say_where_one_node_is_left() -> list[Patch]:
    """So the one that is left decides alone, while the other one may win the store."""
    return [
        (Election, "_voters", lambda self, record: [*record.members, WITNESS][: 3 if len(record.members) > 1 else 1])
    ]


@mutant
def a_vote_of_the_store_counts_in_a_later_term() -> list[Patch]:
    right_on = Election.on_witness

    def on_witness(self, asked, said, now_ns, ready):
        from msgspec.structs import replace

        right_on(self, replace(asked, term=self.term), replace(said, granted=True), now_ns, ready)

    return [(Election, "on_witness", on_witness)]
