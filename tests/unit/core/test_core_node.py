"""One node as a whole: events in, effects out; nothing but `step` is touched."""

from __future__ import annotations

from random import Random

import msgspec
from support.core import CONFIG, SMALL, copy_of, fill, images, op, take

from holdfast.core.election import Standing
from holdfast.core.node import Node
from holdfast.core.ready import TICK, ChildDied, Done, Idle, Ready, Received, StandbyReady, StartStage, StopStage
from holdfast.model import messages as m
from holdfast.model.config import MS, Config
from holdfast.model.found import Ballot, Found
from holdfast.model.protection import Protection
from holdfast.model.record import NO_RECORD, Place, Record, first_record
from holdfast.model.topology import layered

TOPOLOGY = layered(stages=1, shards=1)
NEW = Found()


def node(name: str = "n0", names=("n0", "n1", "n2"), disk=NEW, config: Config = CONFIG) -> tuple[Node, Ready]:
    first = first_record(TOPOLOGY, names[:3])
    made = Node(name, names, TOPOLOGY, config, op, Random(1), disk, first, 0)
    return made, made.start(0)


def lead(made: Node, now_ns: int = 100 * MS) -> None:
    made.step(TICK, now_ns)
    made.step(Received("n1#1", m.Vote(term=1, granted=True)), now_ns)
    made.step(Received("n1#1", m.Appended(term=1, version=2)), now_ns)
    assert made.election.standing is Standing.COORDINATOR


def noted(ready: Ready, word: str) -> list:
    return [note for note in ready.notes if note.word == word]


def test_a_life_is_on_disk_before_anything_else():
    made, ready = node(disk=Found(life=4, record=first_record(TOPOLOGY, ("n0", "n1", "n2")), vote=Ballot(7, "n1")))
    assert (made.seat, ready.persist[0]) == ("n0#5", ("life", 5))
    assert (made.election.term, made.election.voted_for) == (7, "n1")
    assert made.host.copies == {}


def test_the_first_life_starts_its_shards_and_its_stages():
    made, ready = node()
    assert list(made.host.runners) == ["u0"]
    assert ready.apply == [StartStage(stage="s0", epoch=1)]


def test_a_node_without_a_record_listens_to_nothing_but_records():
    made, _ = node("n9", ("n0", "n1", "n2", "n9"))
    deliver = m.Deliver(stage="s0", epoch=1, batch=0, attempt=1, shards={"u0": 1}, parts={}, last=None)
    assert made.step(Received("s0@1", deliver), 5).send == []
    hellos = [to for to, x in made.step(TICK, 100 * MS).send if isinstance(x, m.Hello)]
    assert hellos == ["n0", "n1", "n2"]


def test_heartbeats_go_to_the_monitor_and_carry_the_version():
    made, _ = node("n1")
    ready = made.step(TICK, 100 * MS)
    assert ("n2", m.Heartbeat(life=1, version=1)) in ready.send
    assert ready.wake_ns == 200 * MS
    behind = made.step(Received("n0#1", m.Heartbeat(life=1, version=0)), 110 * MS)
    assert isinstance(behind.send[0][1], m.Push)
    ahead = made.step(Received("n0#1", m.Heartbeat(life=1, version=9)), 110 * MS)
    assert ahead.send == [("n0", m.Pull(version=1))]


def test_a_monitor_tells_everybody_and_decides_nothing():
    made, _ = node("n2")
    made.election.heard_ns = made.election.patience_ns = 1 << 50
    told = []
    for tick in range(1, 6):
        told = [to for to, x in made.step(TICK, tick * 100 * MS).send if isinstance(x, m.Suspect)]
    assert told == ["n0", "n1"]
    assert made.record.members == {"n0": 1, "n1": 1, "n2": 1}


def test_the_coordinator_removes_who_is_silent_and_dismisses_who_is_not():
    made, _ = node()
    lead(made)
    suspect = Received("n2#1", m.Suspect(name="n1", life=1))
    assert noted(made.step(suspect, 150 * MS), "dismissed")
    assert noted(made.step(suspect, 900 * MS), "no-quorum")
    assert not noted(made.step(suspect, 900 * MS), "no-quorum")
    ready = made.step(Received("n2#1", m.Appended(term=1, version=2)), 900 * MS)
    assert noted(ready, "proposed")
    assert "n1" not in made.election.accepted.members
    assert made.record.version == 2


def test_a_suspicion_from_outside_the_ring_or_of_oneself_is_nothing():
    made, _ = node()
    lead(made)
    for source, name in (("n9#1", "n1"), ("n2#1", "n0"), ("n2#7", "n1")):
        made.step(Received(source, m.Suspect(name=name, life=1)), 900 * MS)
        assert made.reports.suspects == {}


def test_a_new_life_replaces_the_old_one_and_takes_nothing_with_it():
    made, _ = node()
    lead(made)
    made.step(Received("n1#2", m.Hello(name="n1", life=2)), 150 * MS)
    accepted = made.election.accepted
    assert accepted.members["n1"] == 2
    assert accepted.places["u0"].backup is None


def test_a_dead_child_is_reported_until_the_record_has_a_new_epoch():
    made, _ = node("n0")
    made.step(Received("n1#1", m.Beat(term=1, version=1, commit=1)), 10 * MS)
    ready = made.step(ChildDied("s0", 1), 20 * MS)
    assert ("n1", m.StageDown(stage="s0", epoch=1)) in ready.send
    assert made.step(Done(ticket=7, ok=True), 30 * MS).send == []
    again = made.step(TICK, 130 * MS)
    assert ("n1", m.StageDown(stage="s0", epoch=1)) in again.send
    moved = made.record.places | {"s0": Place(primary="n1#1", epoch=2, since=2, is_stage=True)}
    record = Record(version=2, term=1, members=made.record.members, places=moved)
    ready = made.step(Received("n1#1", m.Push(record=record)), 140 * MS)
    assert ready.apply == [StopStage(stage="s0", epoch=1)]


def test_a_late_word_of_an_earlier_drivers_death_does_not_hide_that_the_present_one_is_dead():
    made, _ = node("n0")
    made.step(Received("n1#1", m.Beat(term=1, version=1, commit=1)), 10 * MS)
    again = made.record.places | {"s0": msgspec.structs.replace(made.record.places["s0"], epoch=2, since=2)}
    record = Record(version=2, term=1, members=made.record.members, places=again)
    made.step(Received("n1#1", m.Push(record=record)), 20 * MS)
    made.step(ChildDied("s0", 2), 30 * MS)
    made.step(ChildDied("s0", 1), 40 * MS)
    assert ("n1", m.StageDown(stage="s0", epoch=2)) in made.step(TICK, 140 * MS).send


def test_a_standby_that_is_warm_is_told_while_its_stage_waits_to_move_and_until_it_has():
    made, _ = node("n0")
    made.step(Received("n1#1", m.Beat(term=1, version=1, commit=1)), 10 * MS)
    waits = Place(primary="n1#1", backup="n0#1", epoch=2, since=2, moving=True, is_stage=True)
    record = Record(version=2, term=1, members=made.record.members, places=made.record.places | {"s0": waits})
    ready = made.step(Received("n1#1", m.Push(record=record)), 20 * MS)
    warmed = ("n1", m.Warmed(stage="s0", since=2, seat="n0#1"))
    assert warmed not in ready.send
    assert warmed in made.step(StandbyReady("s0"), 30 * MS).send
    assert warmed in made.step(TICK, 140 * MS).send  # the first one may have been lost
    moved = Place(primary="n0#1", backup="n1#1", epoch=3, since=3, is_stage=True)
    record = Record(version=3, term=1, members=made.record.members, places=made.record.places | {"s0": moved})
    ready = made.step(Received("n1#1", m.Push(record=record)), 150 * MS)
    assert ready.apply == [StartStage(stage="s0", epoch=3)]
    assert warmed not in made.step(TICK, 400 * MS).send


def test_a_candidate_that_missed_a_record_is_given_it():
    made, _ = node()
    lead(made)
    ready = made.step(Received("n2#1", m.RequestVote(term=5, record_rank=(0, 0))), 150 * MS)
    assert [type(x) for _, x in ready.send] == [m.Push, m.Vote]


def test_one_node_alone_decides_at_once_and_says_that_it_is_degraded():
    alone = Node(
        "n0",
        ("n0",),
        TOPOLOGY,
        Config(),
        op,
        Random(1),
        Found(),
        first_record(TOPOLOGY, ("n0",)),
        0,
    )
    alone.start(0)
    ready = alone.step(TICK, 100 * MS)
    assert noted(ready, "degraded")
    assert alone.record.version == 2


def test_whoever_has_joined_makes_no_first_record_and_counts_the_store_as_its_file_says():
    """A run that goes on with two nodes, of which one had joined: both must agree that the store votes."""
    stored, names = msgspec.structs.replace(TOPOLOGY, has_store=True), ("n0", "n1")
    for joined in (False, True):
        made = Node("n1", names, stored, Config(), op, Random(1), NEW, first_record(stored, names), 0, joined=joined)
        made.start(0)
        assert made.election.accepted.version == (0 if joined else 1)
        assert made.election.witness is not None
    late = Node("n1", names, stored, Config(), op, Random(1), NEW, NO_RECORD, 0, joined=True)
    assert late.election.witness is None  # the file of the other one does not name it


def test_a_drain_is_taken_up_by_the_coordinator():
    made, _ = node()
    lead(made)
    made.step(Received("operator", m.Drain(name="n2")), 150 * MS)
    assert made.election.accepted.draining == ("n2",)


def test_a_backup_is_spared_while_its_primary_has_been_silent_for_longer():
    names = ("n0", "n1", "n2", "n3", "n4")
    made = Node("n2", names, TOPOLOGY, Config(), op, Random(1), Found(), first_record(TOPOLOGY, names), 0)
    made.start(0)
    made.step(TICK, 400 * MS)
    for voter, at_ms in (("n0", 400), ("n3", 400), ("n4", 400), ("n1", 500)):
        made.step(Received(f"{voter}#1", m.Vote(term=1, granted=True)), at_ms * MS)
    for voter in ("n3", "n4"):
        made.step(Received(f"{voter}#1", m.Appended(term=1, version=2)), 900 * MS)
    spared = made.step(Received("n3#1", m.Suspect(name="n1", life=1)), 900 * MS)
    assert list(map(str, noted(spared, "spared"))) == ["spared n2 n1 2"]
    made.step(Received("n3#1", m.Suspect(name="n0", life=1)), 900 * MS)
    assert made.election.accepted.places["u0"].primary == "n1#1"


def test_a_coordinator_suspects_the_silent_even_if_their_monitor_does_not():
    made, _ = node()
    lead(made)
    made.step(Received("n2#1", m.Appended(term=1, version=2)), 900 * MS)
    made.step(TICK, 900 * MS)
    assert "n1" not in made.election.accepted.members


def test_a_member_that_is_back_after_a_long_while_is_not_out_again_for_its_old_silence():
    """It was cut off for four seconds; until it speaks under the record that took it in again, its hello counts."""
    made, _ = node()
    lead(made)
    made.step(Received("n2#1", m.Appended(term=1, version=2)), 900 * MS)
    made.step(TICK, 900 * MS)
    made.step(Received("n2#1", m.Appended(term=1, version=3)), 910 * MS)
    assert sorted(made.record.members) == ["n0", "n2"]
    for at_ms in range(1000, 5000, 100):
        made.step(Received("n2#1", m.Appended(term=1, version=3)), at_ms * MS)
    made.step(Received("n1#1", m.Hello(name="n1", life=1)), 5000 * MS)
    made.step(Received("n2#1", m.Appended(term=1, version=4)), 5000 * MS)
    made.step(TICK, 5050 * MS)
    assert sorted(made.election.accepted.members) == ["n0", "n1", "n2"]


def test_a_new_coordinator_does_not_count_silence_from_before_its_election():
    """As a follower it heard nobody but the one whom it watches."""
    made, _ = node()
    made.step(Received("n1#1", m.Vote(term=0, granted=False)), 10 * MS)
    lead(made, 2000 * MS)
    made.election.contacts["n2"] = 10 * MS
    made.step(TICK, 2050 * MS)
    assert "n2" in made.election.accepted.members
    made.step(Received("n1#1", m.Appended(term=1, version=2)), 2800 * MS)
    made.step(TICK, 2850 * MS)
    assert "n2" not in made.election.accepted.members


# --- settings in the record

FAST = Protection(period_ns=10 * MS)


def test_settings_are_changed_by_the_coordinator_and_by_nobody_else():
    made, _ = node()
    change = Received("operator", m.SetProtection(operator="u0", protection=FAST))
    follower, _ = node("n2")
    follower.step(change, 50 * MS)
    assert follower.election.accepted.version == 1
    lead(made)
    made.step(change, 150 * MS)
    assert made.election.accepted.protection == {"u0": FAST}
    assert made.record.protection == {"u0": Protection()}
    made.step(Received("n1#1", m.Appended(term=1, version=3)), 150 * MS)
    assert made.record.protection_of("u0") == FAST
    assert made.host.runners["u0"].guards[0].protection == FAST


def test_settings_of_an_operator_that_does_not_exist_change_nothing():
    made, _ = node()
    lead(made)
    before = made.election.accepted
    made.step(Received("operator", m.SetProtection(operator="nobody", protection=FAST)), 150 * MS)
    assert made.election.accepted is before
    assert made.reports.is_empty()


def decided_with_fast_settings() -> Record:
    made, _ = node()
    lead(made)
    made.step(Received("operator", m.SetProtection(operator="u0", protection=FAST)), 150 * MS)
    made.step(Received("n1#1", m.Appended(term=1, version=3)), 150 * MS)
    return made.record


def test_settings_survive_an_election():
    """The coordinator that set them is gone; the next one, which only heard of the record, goes on with them."""
    record = decided_with_fast_settings()
    heir, _ = node("n1")
    heir.step(Received("n0#1", m.Push(record=record)), 200 * MS)
    assert heir.record.protection_of("u0") == FAST
    heir.step(TICK, 2_000 * MS)
    heir.step(Received("n2#1", m.Vote(term=2, granted=True)), 2_000 * MS)
    heir.step(Received("n2#1", m.Appended(term=2, version=4)), 2_000 * MS)
    assert heir.election.standing is Standing.COORDINATOR
    heir.step(Received("n2#1", m.Suspect(name="n0", life=1)), 2_400 * MS)
    heir.step(Received("n2#1", m.Appended(term=2, version=4)), 2_400 * MS)
    accepted = heir.election.accepted
    assert accepted.version > record.version
    assert accepted.protection == {"u0": FAST}


def test_settings_survive_a_restart_whatever_the_file_says():
    """What the record on disk says counts; what the pipeline was started with counts only for its first record."""
    record = decided_with_fast_settings()
    made, _ = node(disk=Found(life=1, record=record, vote=Ballot(1, "n0")))
    made.step(Received("n1#1", m.Push(record=record)), 10 * MS)
    assert made.record.protection_of("u0") == FAST


# --- idle moments


def holding(pieces: int) -> Node:
    """A backup that holds a capture in so many pieces; each takes long to paste."""
    primary = copy_of(config=SMALL)
    guard = images(primary, Place(primary="n0#1", backup="n1#1"), SMALL)
    fill(primary, range(4 * pieces))
    made, _ = node("n1", config=SMALL)
    for message in take(guard)["n1#1"]:
        made.step(Received("n0#1", message), 10 * MS)
    return made


def left(made: Node) -> int:
    pasting = made.host.copies["u0"].pasting
    return len(pasting.left) if pasting else 0


def test_a_capture_is_held_at_once_and_pasted_in_an_idle_moment():
    made = holding(3)
    assert left(made) == 3
    ready = made.step(Idle(CONFIG.idle_budget_ns), 11 * MS)
    assert left(made) == 0
    assert noted(ready, "pasted")
    assert [type(x) for _, x in ready.send] == [m.Pasted]


def test_a_paste_is_interrupted_by_the_budget_of_an_idle_moment_and_goes_on_at_the_next():
    made = holding(20)
    seen = [left(made)]
    for at_ms in range(11, 20):
        ready = made.step(Idle(CONFIG.idle_budget_ns), at_ms * MS)
        seen.append(left(made))
        assert ready.idle == (left(made) > 0)
        if not left(made):
            break
    assert seen == [20, 4, 0]  # a sixteenth of the budget each, at the least
    assert made.host.copies["u0"].op.windows == {(10, key): 1 for key in range(80)}


def test_rows_that_come_between_two_pieces_are_taken_at_once():
    made = holding(20)
    made.step(Idle(CONFIG.idle_budget_ns), 11 * MS)
    assert left(made) == 4
    assert isinstance(made.step(Received("n0#1", m.Heartbeat(life=1, version=0)), 12 * MS).send[0][1], m.Push)
    assert left(made) == 4


def test_a_node_that_is_never_idle_pastes_with_its_ticks():
    made = holding(20)
    assert noted(made.step(TICK, 100 * MS), "pasted")


def test_an_idle_moment_without_work_asks_for_no_other():
    made, _ = node("n1")
    ready = made.step(Idle(CONFIG.idle_budget_ns), 10 * MS)
    assert (ready.idle, ready.send, ready.notes) == (False, [], [])
