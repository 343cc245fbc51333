"""Nodes that come later than the files of the others, and nodes that go for good.

Such a node becomes a member in two records, one after the other. The first has its name and where it listens (the
*roster*): nobody counts it yet, but whoever accepts a later record knows how to reach everybody whom that one names.
Then the node says hello like any other, and the second record has it as a member. It counts for a majority from that
one on, and only where that one is accepted (`core/election.py`). As with every member, one change must be decided
before the next one begins; so two records that follow each other never have majorities that miss each other (raft,
section 6).

A member whom nobody reaches would be voted out and say hello again, forever. So its hello counts when it shows that a
record arrived there that the coordinator pushed to it since it was not a member.

A member more can make a majority larger than those who are up. So nobody is added while the coordinator does not hear
enough members to go on without the new one. In a cluster where the store votes (`core/witness.py`) nobody is let in:
which nodes count the store is said by their files, and must not change while they run.

Who leaves for good is drained, then taken out of the members by one record while it still runs, and ends when it hears
that this is decided. It stays in the roster, without an address: its hello is not heard any more, in whichever life.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.election import Election, Standing
from holdfast.core.placement import Draft, Reports
from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.ids import Address, Name, name_of
from holdfast.model.messages import Hello, LetIn, Push, SendAway
from holdfast.model.record import ROSTER_MAX


class Membership:
    __slots__ = ("_pushed", "_reports", "election", "name", "peers")

    def __init__(self, name: Name, peers: tuple[Name, ...], election: Election, reports: Callable[[], Reports]) -> None:
        self.name = name
        #: Names in this node's own file.
        self.peers = peers
        self.election = election
        self._reports = reports
        #: Of roster names that are not members and said hello: the record that was pushed to them first.
        self._pushed: dict[Name, int] = {}

    def knows(self, name: Name) -> bool:
        return name in self.peers or name in self.election.accepted.roster

    def to_greet(self) -> list[Name]:
        """Whom a node asks to be let in: any of them may be the coordinator."""
        late = [name for name in self.election.accepted.roster if name not in self.peers]
        return [name for name in (*self.peers, *late) if name != self.name]

    def judge(self, reports: Reports, now_ns: int) -> None:
        """Leave those who may become members, and may go, now. Others say hello again, or are sent away again."""
        reports.hellos = {name: life for name, life in reports.hellos.items() if self._may_come(name, now_ns)}
        can_go = self.election.can_remove
        reports.sent_away = {name: None for name in reports.sent_away if can_go(name, now_ns)}

    def _may_come(self, name: Name, now_ns: int) -> bool:
        record = self.election.accepted
        if name in record.roster:
            return not record.has_left(name) and (name in record.members or self.election.can_add(now_ns))
        return name in self.peers

    # --- messages

    def on_hello(self, source: Address, message: Hello, now_ns: int, ready: Ready) -> None:
        if self.election.decided.has_left(message.name):
            ready.send.append((name_of(source), Push(record=self.election.decided)))  # it may not know
            return
        if self._is_out_of_reach(message, ready):
            return
        hellos = self._reports().hellos
        hellos[message.name] = max(message.life, hellos.get(message.name, 0))

    def _is_out_of_reach(self, message: Hello, ready: Ready) -> bool:
        """Of a name in the roster that is not a member: has nothing arrived there that was pushed since then?"""
        name, record = message.name, self.election.decided
        if self.election.standing is not Standing.COORDINATOR:
            self._pushed.clear()
            return name in record.roster and name not in record.members  # a later coordinator sees for itself
        if name in record.members or name not in self.election.accepted.roster or name == self.name:
            self._pushed.pop(name, None)
            return False
        if message.version >= self._pushed.setdefault(name, record.version):
            return False
        ready.send.append((name, Push(record=record)))
        return True

    def on_let_in(self, source: Address, message: LetIn, now_ns: int, ready: Ready) -> None:
        let_in = self._reports().let_in
        if self.election.witness is None and (message.name in let_in or len(let_in) < ROSTER_MAX):
            let_in[message.name] = message.address

    def on_send_away(self, source: Address, message: SendAway, now_ns: int, ready: Ready) -> None:
        self._reports().sent_away[message.name] = None

    def tell(self, made: Draft, ready: Ready) -> None:
        """What a record that is proposed changes in the roster."""
        before = made.before.roster
        for name, address in made.roster.items():
            if before.get(name) != address:
                note = notes.Invited(self.name, name, address, made.version)
                ready.notes.append(note if address else notes.SentOff(self.name, name, made.version))
