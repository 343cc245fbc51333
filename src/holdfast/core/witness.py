"""A third vote for a cluster of two: a small object in the store that votes and accepts as a node does.

Two nodes have no majority without each other. If they have a store, it counts as a member that never leads: what it has
voted for and accepted is in one object, and whoever asks it does its thinking (`answer`), reads the object, and puts
the next state in its place if nobody was faster. So it is as good as a voter that runs: raft's rules hold, and two
nodes that are cut from each other, but not from the store, cannot both win it in one term.

It differs from a node in one thing. It never stands for coordinator, so a record that only it has accepted, since the
other one died, would bar the way for good. Its vote therefore brings that record along, and a candidate takes it for
its own before it leads: that is the first phase of Paxos. A candidate that is not a member of it does not lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.ready import AskWitness, Done, Ready, WitnessAnswer, WitnessState
from holdfast.core.tickets import Tickets
from holdfast.model.ids import Name
from holdfast.model.record import Record
from holdfast.model.topology import Topology

#: Its name among voters. No node is called so.
WITNESS = Name("@store")


def has_witness(topology: Topology, nodes: Sequence[Name]) -> bool:
    """With more nodes than two it would have to be asked for what they can do without it."""
    return topology.has_store and len(nodes) == 2


def answer(state: WitnessState, asked: AskWitness) -> tuple[WitnessState, WitnessAnswer]:
    """What it says, and what it is from then on. The same state: nothing has to be written."""
    if asked.term < state.term:
        return state, WitnessAnswer(term=state.term, granted=False, record=state.record)
    if asked.record is None:
        granted = asked.term > state.term or state.voted_for in (None, asked.name)
        after = WitnessState(term=asked.term, voted_for=asked.name, record=state.record) if granted else state
        return after, WitnessAnswer(term=after.term, granted=granted, record=state.record)
    voted_for = state.voted_for if asked.term == state.term else None
    newest = asked.record if asked.record.rank > state.record.rank else state.record
    after = WitnessState(term=asked.term, voted_for=voted_for, record=newest)
    return after, WitnessAnswer(term=asked.term, granted=newest.rank == asked.record.rank, record=newest)


class Voter(Protocol):
    """Who asks: the election of this node."""

    def on_witness(self, asked: AskWitness, said: WitnessAnswer, now_ns: int, ready: Ready) -> None: ...


class Witness:
    """This node's line to it: one question at a time, the newest."""

    __slots__ = ("_asked", "_since_ns", "name", "patience_ns", "tickets", "voter")

    def __init__(self, name: Name, tickets: Tickets, voter: Voter, patience_ns: int) -> None:
        self.name = name
        #: After this time it may be asked again, whether it has answered or not.
        self.patience_ns = patience_ns
        self.tickets = tickets
        self.voter = voter
        self._asked: AskWitness | None = None
        self._since_ns = 0

    def is_asked(self, now_ns: int) -> bool:
        return self._asked is not None and now_ns - self._since_ns < self.patience_ns

    def ask(self, term: int, record: Record | None, now_ns: int, ready: Ready) -> None:
        """For its vote, or (with a record) to accept that. What was asked before is not waited for any more."""
        if self._asked is not None:
            self.tickets.cancel(self._asked.ticket)
        self._since_ns = now_ns
        self._asked = AskWitness(ticket=self.tickets.issue(self), name=self.name, term=term, record=record)
        ready.apply.append(self._asked)

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        asked, self._asked = self._asked, None
        if done.ok and done.witness is not None and asked is not None:
            self.voter.on_witness(asked, done.witness, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self._asked = None
