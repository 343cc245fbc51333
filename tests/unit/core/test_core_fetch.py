"""What a fetch gets, and what the errand that asked does about it: both ends, without a network between them."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.errand import HOPELESS, Errand, Limits
from holdfast.core.fetch import WAIT_NS_MAX, WAITING_MAX, Fetches, decide
from holdfast.core.host import Host
from holdfast.core.ready import TICK, Ready, Received
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import shard_block
from holdfast.model.config import MS, Config
from holdfast.model.ids import Seat
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Place, Record
from holdfast.model.topology import layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

TOPOLOGY = layered(stages=1, shards=2)
CONFIG = Config(lease_ns=100)
ASK = m.Fetch(ticket=1, edge="u0.0", start=0, end=2, consumer="g0", epoch=0)


def place(primary: Seat | None, since: int = 1, epoch: int = 1, *, is_stage: bool = False) -> Place:
    return Place(primary=primary, backup=None, epoch=epoch, since=since, is_stage=is_stage)


def record(version: int, **places: Place) -> Record:
    given = {"u0": place("a#1"), "u1": place("a#1"), "s0": place("a#1", is_stage=True), **places}
    given["s0.ledger"] = place("a#1")
    return Record(version=version, term=1, members={"a": 1, "b": 1}, places=given)


def host(*, blocks: int = 2, **places: Place) -> Host:
    made = Host("a#1", TOPOLOGY, CONFIG, lambda spec: WindowSum(spec, 10, Costs(), Meter()))
    made.on_record(record(1, **places), 0, Ready())
    for shard in ("u0", "u1"):
        for mark in range(blocks if shard in made.runners else 0):
            queue(made, shard).append(((1, 2, 3),), mark)
    return made


def queue(made: Host, shard: str = "u0") -> OutputQueue:
    return made.copies[shard].outputs[0]


def ask(made: Host, now_ns: int = 0, **fields) -> m.Message | None:
    return decide(made, msgspec.structs.replace(ASK, **fields), now_ns)


def reason(answer: m.Message | None) -> FetchReason:
    assert isinstance(answer, m.FetchRefused)
    return answer.reason


# --- what it gets


def test_a_fetch_gets_the_blocks_that_it_asked_for_and_no_others():
    made = host(blocks=3)
    answer = ask(made, start=2, end=6, ticket=7)
    assert isinstance(answer, m.Fetched)
    assert (answer.ticket, answer.epoch) == (7, 1)
    assert answer.blocks == tuple(queue(made).blocks)[1:]
    nothing = ask(made, start=2, end=2)
    assert isinstance(nothing, m.Fetched)
    assert nothing.blocks == ()


def test_a_fetch_that_begins_or_ends_inside_a_block_is_refused_rather_than_cut():
    made = host()
    for start, end in ((0, 3), (1, 4), (1, 2), (3, 2)):
        assert reason(ask(made, start=start, end=end)) is FetchReason.POSITION


def test_a_fenced_consumer_gets_nothing():
    made = host(r0=place("a#1", epoch=4, is_stage=True))
    old, new = (msgspec.structs.replace(ASK, consumer="r0", epoch=epoch) for epoch in (3, 4))
    assert made.fence.behind("task", new) is None
    behind, ready = made.fence.behind("task", old), Ready()
    assert behind is not None
    Fetches(made).refuse_fetch("task", old, behind, ready)
    ((to, refused),) = ready.send
    assert isinstance(refused, m.FetchRefused)
    assert (to, refused.reason, refused.first) == ("task", FetchReason.FENCED, 4)
    assert [type(note) for note in ready.notes] == [notes.Unserved]


def test_a_shard_that_runs_elsewhere_or_in_an_older_epoch_than_the_asker_knows_is_not_here():
    made = host(u0=place("b#1"))
    refused = ask(made)
    assert isinstance(refused, m.FetchRefused)
    assert (refused.reason, refused.home) == (FetchReason.NOT_HERE, "b#1")
    assert reason(ask(host(), producer_epoch=2)) is FetchReason.NOT_HERE
    empty = Host("a#1", TOPOLOGY, CONFIG, lambda spec: WindowSum(spec, 10, Costs(), Meter()))
    assert reason(ask(empty)) is FetchReason.NOT_HERE


def test_positions_of_another_run_and_edges_of_another_pipeline_are_foreign():
    assert reason(ask(host(), query="of-yesterday")) is FetchReason.FOREIGN
    assert reason(ask(host(), edge="elsewhere.0")) is FetchReason.FOREIGN
    assert reason(ask(host(), edge="s0>u0")) is FetchReason.FOREIGN  # nobody but its shard reads it
    assert isinstance(ask(host(), query=TOPOLOGY.query), m.Fetched)


def test_a_guest_that_fetches_keeps_its_leases_on_all_it_has_yet_to_fetch():
    """It reads one edge after the other: those it comes to last must not lapse while it reads the first."""
    made = host(blocks=1)
    queues = [queue(made, shard) for shard in ("u0", "u1")]
    for queue_ in queues:
        queue_.lease("g0", 10)
    assert isinstance(ask(made, 9), m.Fetched)
    for queue_ in queues:
        queue_.ack("r0", queue_.next)
        assert queue_.lapse(109) == []
    assert isinstance(ask(made, 9, consumer="a stranger"), m.Fetched)
    for queue_ in queues:
        assert list(queue_.leases) == ["g0"]
        assert queue_.lapse(110) == ["g0"]
    refused = ask(made, 110)
    assert isinstance(refused, m.FetchRefused)
    assert (refused.reason, refused.first) == (FetchReason.TRIMMED, 2)


# --- rows that are still to be made


def answers(ready: Ready) -> list[tuple[str, str]]:
    return [(to, x.reason.value if isinstance(x, m.FetchRefused) else "rows") for to, x in ready.send]


def waiting(made: Host, wait_ns: int = 100, *sources: str) -> Fetches:
    fetches, ready = Fetches(made), Ready()
    for source in sources or ("task",):
        fetches.on_fetch(source, msgspec.structs.replace(ASK, end=6, wait_ns=wait_ns), 0, ready)
    assert ready.send == []
    return fetches


def test_a_fetch_of_rows_still_to_come_is_answered_when_they_are_made():
    made = host()
    fetches, ready = waiting(made, 100, "one", "other"), Ready()
    fetches.look_again(50, ready)
    assert answers(ready) == []
    queue(made).append(((1, 2, 3),), 2)
    fetches.look_again(60, ready)
    assert answers(ready) == [("one", "rows"), ("other", "rows")]
    fetches.look_again(70, ready)
    assert len(ready.send) == 2


def test_a_fetch_that_waits_ends_at_the_limit_that_its_asker_gave():
    fetches, ready = waiting(host()), Ready()
    fetches.look_again(99, ready)
    assert answers(ready) == []
    fetches.look_again(100, ready)
    assert answers(ready) == [("task", "not yet")]
    assert fetches.waiting == {}


def test_a_fetch_that_waits_ends_when_the_shard_leaves_or_its_consumer_is_fenced():
    made = host()
    fetches, ready = waiting(made), Ready()
    made.runners.pop("u0")
    fetches.look_again(1, ready)
    assert answers(ready) == [("task", "not here")]
    made = host()
    fetches, ready = waiting(made), Ready()
    made.fence.record = record(2, g0=place("b#1", epoch=3, is_stage=True))
    fetches.look_again(1, ready)
    assert answers(ready) == [("task", "fenced")]


def test_a_node_keeps_no_question_longer_than_its_own_limit_nor_more_than_it_can_hold():
    fetches, ready = waiting(host(), 10 * WAIT_NS_MAX), Ready()
    for number in range(WAITING_MAX):
        fetches.on_fetch(f"t{number}", msgspec.structs.replace(ASK, end=6, wait_ns=100), 0, ready)
    assert answers(ready) == [(f"t{WAITING_MAX - 1}", "not yet")]
    fetches.look_again(WAIT_NS_MAX, ready)
    assert fetches.waiting == {}


# --- the errand

LIMITS = Limits(wait_ns=20 * MS, patience_ns=50 * MS, pause_ns=10 * MS, limit_ns=1_000 * MS)


def errand(home: str = "a") -> Errand:
    return Errand(msgspec.structs.replace(ASK, producer_epoch=1), "u0", home, 1, ("a", "b"), LIMITS, 0)


def sent(ready: Ready) -> list[tuple[str, str]]:
    return [(to, type(x).__name__) for to, x in ready.send]


def refused(made: Errand, why: FetchReason, now_ns: int, ticket: int = 0) -> Ready:
    refusal = m.FetchRefused(ticket=ticket or made.ticket, edge="u0.0", reason=why)
    return made.step(Received("a", refusal), now_ns)


def test_an_errand_asks_the_primary_and_ends_with_its_rows():
    made = errand()
    ready = made.step(TICK, 0)
    assert sent(ready) == [("a", "Fetch")]
    assert ready.send[0][1].wait_ns == LIMITS.wait_ns
    assert ready.wake_ns == 50 * MS
    block = shard_block(0, ((1, 2, 3),), 4)
    ready = made.step(Received("a", m.Fetched(ticket=1, edge="u0.0", epoch=1, blocks=(block,))), 5)
    assert made.over
    assert made.answer is not None
    assert made.answer.blocks == (block,)
    assert [note.word for note in ready.notes] == ["fetched"]
    assert made.step(TICK, 60 * MS).send == []


@pytest.mark.parametrize("why", list(FetchReason))
def test_an_errand_gives_up_where_waiting_does_not_help_and_asks_again_where_it_does(why: FetchReason):
    made = errand()
    made.step(TICK, 0)
    ready = refused(made, why, 1 * MS)
    if why in HOPELESS:
        assert made.gone is not None
        assert sent(ready) == []
    else:
        assert sent(ready) == [("a", "Pull"), ("b", "Pull")]
        assert made.step(TICK, 10 * MS).send == []
        assert sent(made.step(TICK, 11 * MS)) == [("a", "Fetch")]


def test_an_errand_turns_to_the_new_primary_as_soon_as_it_hears_of_it_and_names_its_epoch():
    made = errand()
    made.step(TICK, 0)
    ready = made.step(Received("b", m.Push(record=record(2, u0=place("b#1", 2, 2)))), 3 * MS)
    assert [(to, x.producer_epoch) for to, x in ready.send] == [("b", 2)]
    assert sent(refused(made, FetchReason.NOT_HERE, 4 * MS, ticket=1)) == []  # of the question that counts no more
    stale = m.Fetched(ticket=1, edge="u0.0", epoch=1, blocks=())
    ready = made.step(Received("a", stale), 5 * MS)
    assert not made.over
    assert [note.word for note in ready.notes] == ["refused"]
    made.step(Received("b", msgspec.structs.replace(stale, ticket=2, epoch=2)), 6 * MS)
    assert made.answer is not None


def test_an_errand_waits_longer_for_a_node_that_does_not_answer_and_ends_at_its_limit():
    made, now_ns, asked_ns = errand(), 0, []
    while not made.over:
        ready = made.step(TICK, now_ns)
        asked_ns += [now_ns for _, x in ready.send if isinstance(x, m.Fetch)]
        now_ns = ready.wake_ns
    assert made.late
    assert asked_ns == [0, 60 * MS, 170 * MS, 380 * MS, 790 * MS]


def test_an_errand_for_a_shard_without_a_primary_looks_for_one():
    made = errand("")
    assert sent(made.step(TICK, 0)) == [("a", "Pull"), ("b", "Pull")]
    assert sent(made.step(Received("b", m.Push(record=record(2, u0=place("b#1", 2, 2)))), 1)) == [("b", "Fetch")]
