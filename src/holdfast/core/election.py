"""The coordinator's election and the compare-and-set of the placement record: raft, with a log of one entry.

Every record is the whole truth, so a node keeps only the newest one it accepted. The rules are raft's: a term has at
most one coordinator, because a member votes once a term, on disk first; a candidate must have accepted a record at
least as new as its voter's; a record is decided when a majority of *its* members have it in the term of the
coordinator that proposed it; a new coordinator first decides a record of its own term. Members change by one at a
time, so that the majorities of two consecutive records always share a node. Removing a dead member is what lets a
cluster of four lose two, one after the other. With two members nothing can be decided without both: there is no
automatic fail-over then, and `can_remove` says so; unless a store votes, too (`core/witness.py`).

This machine decides who may change the record, never what to change: that is `core/placement.py`.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.ready import AskWitness, Ready, WitnessAnswer
from holdfast.core.witness import WITNESS, Witness
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.found import record_entry, vote_entry
from holdfast.model.ids import Address, Name, name_of
from holdfast.model.messages import Append, Appended, Beat, Pull, Push, RequestVote, Vote
from holdfast.model.record import NO_RECORD, Record, majority


class Standing(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    COORDINATOR = "coordinator"


class Trigger(Enum):
    SILENCE = "no coordinator heard for the time-out, or it is suspected"
    MAJORITY = "votes of a majority"
    NEWER_TERM = "a message of a newer term"
    COORDINATOR_HEARD = "a coordinator of this term shows itself"


#: Every change of standing there is; the docs draw it.
TRANSITIONS: dict[tuple[Standing, Trigger], Standing] = {
    (Standing.FOLLOWER, Trigger.SILENCE): Standing.CANDIDATE,
    (Standing.FOLLOWER, Trigger.NEWER_TERM): Standing.FOLLOWER,
    (Standing.FOLLOWER, Trigger.COORDINATOR_HEARD): Standing.FOLLOWER,
    (Standing.CANDIDATE, Trigger.SILENCE): Standing.CANDIDATE,
    (Standing.CANDIDATE, Trigger.MAJORITY): Standing.COORDINATOR,
    (Standing.CANDIDATE, Trigger.NEWER_TERM): Standing.FOLLOWER,
    (Standing.CANDIDATE, Trigger.COORDINATOR_HEARD): Standing.FOLLOWER,
    (Standing.COORDINATOR, Trigger.NEWER_TERM): Standing.FOLLOWER,
}


class Election:
    __slots__ = (
        "accepted", "appended", "commit", "config", "contacts", "coordinator", "decided", "elected_ns", "heard_ns",
        "name", "patience_ns", "seen", "sent_ns", "standing", "term", "voted_for", "votes", "witness",
    )  # fmt: skip

    def __init__(self, name: Name, config: Config, term: int, voted_for: Name | None, accepted: Record) -> None:
        self.name = name
        self.config = config
        #: Newest term seen, and whom this node voted for in it. On disk before any answer; never goes back.
        self.term = term
        self.voted_for = voted_for
        #: The highest term in which somebody stood who could not be elected: this node would stand above that.
        self.seen = 0
        #: Newest record accepted, decided or not. On disk before any answer.
        self.accepted = accepted
        #: Version up to which records are known to be decided, and the newest such record.
        self.commit = 0
        self.decided: Record = NO_RECORD
        self.standing = Standing.FOLLOWER
        self.coordinator: Name | None = None
        self.votes: dict[Name, None] = {}
        self.appended: dict[Name, None] = {}
        #: When each member was last heard.
        self.contacts: dict[Name, int] = {}
        self.heard_ns = 0
        self.sent_ns = 0
        #: When this node last became coordinator: what it heard of others before says little.
        self.elected_ns = 0
        self.patience_ns = config.election_ns
        #: The store, where it votes.
        self.witness: Witness | None = None

    # --- standing

    def _turn(self, trigger: Trigger) -> None:
        self.standing = TRANSITIONS[(self.standing, trigger)]

    def _keep(self, ready: Ready) -> None:
        ready.persist.append(vote_entry(self.term, self.voted_for))

    def _saw_term(self, term: int, ready: Ready) -> None:
        if term > self.term:
            self.term = term
            self.voted_for = None
            self.coordinator = None
            self._keep(ready)
            self._turn(Trigger.NEWER_TERM)

    def is_member(self) -> bool:
        return self.name in self.accepted.members

    def may_propose(self) -> bool:
        """Coordinator, with nothing of its own undecided: membership may change by one more."""
        return self.standing is Standing.COORDINATOR and self.commit == self.accepted.version

    def hears(self, now_ns: int) -> bool:
        """A coordinator has shown itself lately."""
        recent = now_ns - self.heard_ns < self.config.misses_max * self.config.heartbeat_ns
        return recent and self.coordinator is not None

    def on_contact(self, name: Name, now_ns: int) -> None:
        """Any word from a member: what the coordinator knows of its own about who lives."""
        if name in self.accepted.members:
            self.contacts[name] = now_ns

    def silence_ns(self, name: Name, now_ns: int) -> int:
        return now_ns - self.contacts.get(name, -(1 << 60)) if name != self.name else 0

    def is_silent(self, name: Name, limit_ns: int, now_ns: int) -> bool:
        """Has a coordinator waited for longer than this for a word from a member? It waits from its election on."""
        return now_ns - self.elected_ns > limit_ns and self.silence_ns(name, now_ns) > limit_ns

    def can_remove(self, name: Name, now_ns: int) -> bool:
        """Would those the coordinator hears decide a record without this member, and could they decide one with it?

        A member must not be voted out by a cluster that then has no majority left: with two members it never is, unless
        the store votes and has just answered.
        """
        limit_ns = self.config.misses_max * self.config.heartbeat_ns
        voters = self._voters(self.accepted)
        living = sum(1 for other in voters if other != name and self.silence_ns(other, now_ns) <= limit_ns)
        return living >= majority(len(voters)) and living >= (len(voters) - 1) // 2 + 1

    def can_add(self, now_ns: int) -> bool:
        """Could those whom the coordinator hears go on if a new member were gone as soon as it counts? (One node alone
        could not: it may have a second all the same.)"""
        limit_ns = self.config.misses_max * self.config.heartbeat_ns
        members = self.accepted.members
        living = sum(1 for name in members if self.silence_ns(name, now_ns) <= limit_ns)
        return living >= min(len(members), majority(len(members) + 1))

    def _voters(self, record: Record) -> list[Name]:
        return [*record.members, WITNESS] if self.witness is not None else list(record.members)

    def _have_majority(self, names: dict[Name, None]) -> bool:
        voters = self._voters(self.accepted)
        return sum(1 for name in names if name in voters) >= majority(len(voters))

    def hears_majority(self, now_ns: int) -> bool:
        limit_ns = self.config.misses_max * self.config.heartbeat_ns
        return self._have_majority(
            {name: None for name in self._voters(self.accepted) if self.silence_ns(name, now_ns) <= limit_ns}
        )

    def wake_witness(self, now_ns: int, ready: Ready) -> None:
        """A member may be gone: does the store answer?"""
        witness = self.witness
        if witness is not None and self.standing is Standing.COORDINATOR and not witness.is_asked(now_ns):
            witness.ask(self.term, self.accepted, now_ns, ready)

    def on_witness(self, asked: AskWitness, said: WitnessAnswer, now_ns: int, ready: Ready) -> None:
        self.contacts[WITNESS] = now_ns
        self._saw_term(said.term, ready)
        if not said.granted or asked.term != self.term:
            return
        if asked.record is not None:
            if self.standing is Standing.COORDINATOR and asked.record.rank == self.accepted.rank:
                self.appended[WITNESS] = None
                self._count_appended(ready)
        elif self.standing is Standing.CANDIDATE:
            if said.record.rank > self.accepted.rank:  # only the store has it: the other node is gone
                self.accepted = said.record
                ready.persist.append(record_entry(said.record))
            self.votes[WITNESS] = None
            self._count_votes(now_ns, ready)  # by that record: whoever is out by it has no vote of its own

    def on_tick(self, now_ns: int, jitter_ns: int, ready: Ready) -> None:
        if self.standing is Standing.COORDINATOR:
            hurry = self.commit < self.accepted.version
            if now_ns - self.sent_ns >= (self.config.retry_ns if hurry else self.config.beat_ns):
                self._beat(now_ns, ready)
                if hurry:
                    self.wake_witness(now_ns, ready)
        elif self.is_member() and now_ns - self.heard_ns >= self.patience_ns:
            self.campaign(now_ns, jitter_ns, ready)

    def hasten(self, rank: int, now_ns: int, jitter_ns: int, ready: Ready) -> None:
        """The coordinator is suspected: the first of the ring stands at once, the others wait for it by rank."""
        tries = self.standing is Standing.CANDIDATE and now_ns - self.heard_ns < 2 * self.config.heartbeat_ns
        if self.standing is Standing.COORDINATOR or tries or not self.is_member():
            return
        if rank == 0:
            self.campaign(now_ns, jitter_ns, ready)
        else:
            wait_ns = 2 * rank * self.config.heartbeat_ns
            self.patience_ns = min(self.patience_ns, now_ns - self.heard_ns + wait_ns)

    def campaign(self, now_ns: int, jitter_ns: int, ready: Ready) -> None:
        self._turn(Trigger.SILENCE)
        self.term = max(self.term, self.seen) + 1
        self.voted_for = self.name
        self.coordinator = None
        self._keep(ready)
        self.votes = {self.name: None}
        self.heard_ns = now_ns
        self.patience_ns = self.config.election_ns // 2 + jitter_ns
        ready.notes.append(notes.Campaign(self.name, self.term))
        for peer in self._peers():
            ready.send.append((peer, RequestVote(term=self.term, record_rank=self.accepted.rank)))
        if self.witness is not None:
            self.witness.ask(self.term, None, now_ns, ready)
        self._count_votes(now_ns, ready)

    def _peers(self) -> list[Name]:
        return [name for name in self.accepted.members if name != self.name]

    def on_request_vote(self, source: Name, message: RequestVote, now_ns: int, ready: Ready) -> None:
        granted = False
        if tuple(message.record_rank) >= self.accepted.rank:  # never adopt the term of one who could not be elected
            self._saw_term(message.term, ready)
            granted = message.term == self.term and self.voted_for in (None, source)
        else:  # it votes for itself in that term: whoever stands in the same one cannot win its vote
            self.seen = max(self.seen, message.term)
        if granted:
            self.voted_for = source
            self.heard_ns = now_ns
            self._keep(ready)
        ready.send.append((source, Vote(term=self.term, granted=granted)))

    def on_vote(self, source: Address, message: Vote, now_ns: int, ready: Ready) -> None:
        source = name_of(source)
        self.on_contact(source, now_ns)
        self._saw_term(message.term, ready)
        if self.standing is Standing.CANDIDATE and message.granted and message.term == self.term:
            self.votes[source] = None
            self._count_votes(now_ns, ready)

    def _count_votes(self, now_ns: int, ready: Ready) -> None:
        if not self._have_majority(self.votes):
            return
        self._turn(Trigger.MAJORITY)
        self.coordinator = self.name
        self.elected_ns = now_ns
        ready.notes.append(notes.Elected(self.name, self.term))
        mine = self.accepted
        self.propose(mine.members, mine.places, mine.draining, mine.protection, mine.units, mine.roster, now_ns, ready)

    # --- the record

    def propose(
        self,
        members: dict,
        places: dict,
        draining: tuple,
        protection: dict,
        units: dict,
        roster: dict,
        now_ns: int,
        ready: Ready,
    ) -> None:
        """Compare-and-set: the next version after the one this coordinator has accepted."""
        before = self.accepted
        record = Record(
            version=before.version + 1,
            term=self.term,
            members=members,
            places=places,
            draining=draining,
            protection=protection,
            units=units,
            roster=roster,
        )
        for name, life in members.items():
            if before.members.get(name) != life:
                self.contacts[name] = now_ns  # it said hello; what it said before it was out is long ago
        self.accepted = record
        ready.persist.append(record_entry(record))
        self.appended = {self.name: None}
        self.sent_ns = now_ns
        message = Append(term=self.term, record=record, commit=self.commit)
        for peer in sorted({*before.members, *record.members}):
            if peer != self.name:
                ready.send.append((peer, message))
        if self.witness is not None:
            self.witness.ask(self.term, record, now_ns, ready)
        self._count_appended(ready)

    def _count_appended(self, ready: Ready) -> None:
        if self.commit < self.accepted.version and self._have_majority(self.appended):
            self._decide(self.accepted, ready)
            beat = Beat(term=self.term, version=self.commit, commit=self.commit)
            ready.send.extend((peer, beat) for peer in self._peers())

    def _decide(self, record: Record, ready: Ready) -> None:
        self.commit = record.version
        self.decided = record
        ready.notes.append(notes.Decided(self.name, record.version, record.term))

    def _beat(self, now_ns: int, ready: Ready) -> None:
        self.sent_ns = now_ns
        beat = Beat(term=self.term, version=self.accepted.version, commit=self.commit)
        ready.send.extend((peer, beat) for peer in self._peers())

    def _heard(self, source: Name, term: int, now_ns: int, ready: Ready) -> bool:
        """A coordinator shows itself; false if its term is over."""
        if term < self.term:
            ready.send.append((source, Vote(term=self.term, granted=False)))  # tells it that its term is over
            return False
        self._saw_term(term, ready)
        if self.standing is not Standing.COORDINATOR:
            self._turn(Trigger.COORDINATOR_HEARD)
        self.coordinator = source
        self.heard_ns = now_ns
        self.patience_ns = self.config.election_ns
        return True

    def on_append(self, source: Address, message: Append, now_ns: int, ready: Ready) -> None:
        source = name_of(source)
        if not self._heard(source, message.term, now_ns, ready):
            return
        if message.record.rank > self.accepted.rank:
            self.accepted = message.record
            ready.persist.append(record_entry(message.record))
        if message.record.rank == self.accepted.rank:
            ready.send.append((source, Appended(term=self.term, version=message.record.version)))
        self._learn(message.commit, ready)

    def on_appended(self, source: Address, message: Appended, now_ns: int, ready: Ready) -> None:
        source = name_of(source)
        self.on_contact(source, now_ns)
        self._saw_term(message.term, ready)
        mine = self.standing is Standing.COORDINATOR and message.term == self.term
        if mine and message.version == self.accepted.version:
            self.appended[source] = None
            self._count_appended(ready)

    def on_beat(self, source: Address, message: Beat, now_ns: int, ready: Ready) -> None:
        source = name_of(source)
        if not self._heard(source, message.term, now_ns, ready):
            return
        if (message.term, message.version) != self.accepted.rank:
            ready.send.append((source, Pull(version=self.accepted.version)))
        else:
            ready.send.append((source, Appended(term=self.term, version=message.version)))
        self._learn(message.commit, ready)

    def _learn(self, commit: int, ready: Ready) -> None:
        """What the coordinator of this term has decided, if it is what this node has accepted from it."""
        if self.commit < commit == self.accepted.version and self.accepted.term == self.term:
            self._decide(self.accepted, ready)

    def on_pull(self, source: Name, ready: Ready) -> None:
        """A member lacks the coordinator's record (a decided one is pushed by the node, to anyone)."""
        if self.standing is Standing.COORDINATOR and source in self.accepted.members:
            ready.send.append((source, Append(term=self.term, record=self.accepted, commit=self.commit)))

    def on_push(self, source: Address, message: Push, now_ns: int, ready: Ready) -> None:
        self.take(message.record, ready)

    def take(self, record: Record, ready: Ready) -> bool:
        """A decided record from anyone. True if it is news."""
        if record.version <= self.commit:
            return False
        if record.rank > self.accepted.rank:
            self.accepted = record
            ready.persist.append(record_entry(record))
        self._saw_term(record.term, ready)  # a campaign of a lower term could only propose what is older
        self._decide(record, ready)
        return True
