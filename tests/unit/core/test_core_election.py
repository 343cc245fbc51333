"""One coordinator a term, one record a version: events in, effects out."""

from __future__ import annotations

from holdfast.core.election import TRANSITIONS, Election, Standing, Trigger
from holdfast.core.ready import Ready
from holdfast.model.config import MS, Config
from holdfast.model.found import Ballot
from holdfast.model.messages import Append, Appended, Beat, Pull, RequestVote, Vote
from holdfast.model.record import NO_RECORD, Place, Record

CONFIG = Config()
MEMBERS = {"a": 1, "b": 1, "c": 1}
FIRST = Record(version=1, term=0, members=MEMBERS, places={"u": Place(primary="a#1")})


def member(name: str = "a", record: Record = FIRST) -> Election:
    election = Election(name, CONFIG, 0, None, record)
    election.commit, election.decided = record.version, record
    return election


def elected() -> tuple[Election, Ready]:
    election, ready = member(), Ready()
    election.campaign(0, 0, ready)
    election.on_vote("b", Vote(term=1, granted=True), 0, ready)
    assert election.standing is Standing.COORDINATOR
    return election, ready


def test_a_candidate_votes_for_itself_on_disk_and_asks_the_others():
    election, ready = member(), Ready()
    election.on_tick(CONFIG.election_ns, 5, ready)
    assert ready.persist == [("vote", Ballot(1, "a"))]
    assert [(to, type(m)) for to, m in ready.send] == [("b", RequestVote), ("c", RequestVote)]


def test_a_new_coordinator_first_decides_a_record_of_its_own_term():
    election, ready = elected()
    assert election.accepted.rank == (1, 2)
    assert not election.may_propose()
    election.on_appended("c", Appended(term=1, version=2), 1, ready)
    assert (election.commit, election.may_propose()) == (2, True)


def test_a_member_votes_once_a_term_and_only_for_who_knows_as_much():
    election, ready = member("b"), Ready()
    election.on_request_vote("a", RequestVote(term=1, record_rank=(0, 1)), 0, ready)
    election.on_request_vote("c", RequestVote(term=1, record_rank=(0, 1)), 0, ready)
    election.on_request_vote("c", RequestVote(term=9, record_rank=(0, 0)), 0, ready)
    assert [m.granted for _, m in ready.send] == [True, False, False]
    assert election.term == 1
    assert ready.persist[-1] == ("vote", Ballot(1, "a"))


def test_whoever_cannot_be_elected_does_not_keep_others_from_it():
    """It stands first in every term, and votes for itself; of two members both must agree."""
    two = Record(version=2, term=1, members={"a": 1, "b": 1}, places=FIRST.places)
    ahead, behind = member("a", two), member("b", Record(version=1, term=1, members=two.members, places=FIRST.places))
    for _ in range(3):
        ready = Ready()
        behind.campaign(0, 0, ready)
        ahead.on_request_vote("b", ready.send[0][1], 0, Ready())
    ready = Ready()
    ahead.campaign(0, 0, ready)
    behind.on_request_vote("a", ready.send[0][1], 0, ready)
    ahead.on_vote("b", ready.send[-1][1], 0, ready)
    assert ahead.standing is Standing.COORDINATOR


def test_a_coordinator_steps_down_before_a_newer_term():
    election, ready = elected()
    election.on_vote("c", Vote(term=5, granted=False), 0, ready)
    assert (election.standing, election.term) == (Standing.FOLLOWER, 5)


def test_a_coordinator_whose_term_is_over_is_told_so():
    election, ready = member("b"), Ready()
    election.on_request_vote("c", RequestVote(term=4, record_rank=(0, 1)), 0, ready)
    election.on_append("a", Append(term=1, record=FIRST, commit=1), 0, ready)
    assert ready.send[-1] == ("a", Vote(term=4, granted=False))
    election.on_beat("a", Beat(term=1, version=1, commit=1), 0, ready)
    assert ready.send[-1] == ("a", Vote(term=4, granted=False))


def test_a_member_keeps_a_record_before_it_answers_and_decides_it_when_told():
    election, ready = member("b"), Ready()
    record = Record(version=2, term=3, members=MEMBERS, places=FIRST.places)
    election.on_append("a", Append(term=3, record=record, commit=1), 0, ready)
    assert ready.persist[-1] == ("record", record)
    assert ready.send == [("a", Appended(term=3, version=2))]
    assert election.commit == 1
    election.on_beat("a", Beat(term=3, version=2, commit=2), 0, ready)
    assert election.decided == record


def test_a_member_that_missed_a_record_asks_for_it():
    election, ready = member("b"), Ready()
    election.on_beat("a", Beat(term=3, version=7, commit=7), 0, ready)
    assert ready.send == [("a", Pull(version=1))]
    assert election.commit == 1


def test_the_coordinator_sends_its_record_to_members_only():
    election, ready = elected()
    before = len(ready.send)
    election.on_pull("stranger", ready)
    assert len(ready.send) == before
    election.on_pull("b", ready)
    assert isinstance(ready.send[-1][1], Append)


def test_a_decided_record_is_taken_from_anyone_and_raises_the_term():
    election, ready = member("b"), Ready()
    record = Record(version=4, term=6, members=MEMBERS, places=FIRST.places)
    assert election.take(record, ready)
    assert (election.term, election.accepted, election.decided) == (6, record, record)
    assert not election.take(record, ready)


def test_a_decided_record_does_not_displace_a_newer_one_that_is_still_open():
    newer = Record(version=5, term=7, members=MEMBERS, places=FIRST.places)
    election, ready = member("b"), Ready()
    election.accepted = newer
    assert election.take(Record(version=3, term=2, members=MEMBERS, places=FIRST.places), ready)
    assert election.accepted is newer


def test_a_coordinator_shows_itself_on_time_and_hurries_while_something_is_open():
    election, ready = elected()
    election.on_appended("b", Appended(term=1, version=2), 0, ready)
    quiet = Ready()
    election.on_tick(50 * MS, 0, quiet)
    assert quiet.send == []
    election.on_tick(CONFIG.beat_ns, 0, quiet)
    assert [type(m) for _, m in quiet.send] == [Beat, Beat]


def test_the_first_of_the_ring_stands_at_once_and_the_others_wait():
    first, second, ready = member("a"), member("b"), Ready()
    first.hasten(0, 10 * MS, 0, ready)
    assert first.standing is Standing.CANDIDATE
    term = first.term
    first.hasten(0, 11 * MS, 0, ready)
    assert first.term == term
    second.hasten(1, 10 * MS, 0, ready)
    assert second.standing is Standing.FOLLOWER
    assert second.patience_ns == 10 * MS + 2 * CONFIG.heartbeat_ns


def test_who_is_no_member_never_stands():
    stranger, ready = Election("z", CONFIG, 0, None, NO_RECORD), Ready()
    stranger.on_tick(1 << 60, 0, ready)
    stranger.hasten(0, 1, 0, ready)
    assert ready.send == []


def test_nobody_is_removed_by_those_who_then_have_no_majority():
    election, _ = elected()
    assert not election.can_remove("c", 10 * CONFIG.heartbeat_ns)
    election.on_contact("b", 10 * CONFIG.heartbeat_ns)
    assert election.can_remove("c", 10 * CONFIG.heartbeat_ns)
    two = member("a", Record(version=1, term=0, members={"a": 1, "b": 1}, places={}))
    two.on_contact("b", 0)
    assert not two.can_remove("b", 0)


def test_one_member_decides_alone():
    single = member("a", Record(version=1, term=0, members={"a": 1}, places={}))
    ready = Ready()
    single.campaign(0, 0, ready)
    assert (single.standing, single.commit) == (Standing.COORDINATOR, 2)


def test_every_standing_knows_what_a_newer_term_means():
    assert all((standing, Trigger.NEWER_TERM) in TRANSITIONS for standing in Standing)
