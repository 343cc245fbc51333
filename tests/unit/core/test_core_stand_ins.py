"""A backup that stands in for a primary that is late: when it may, what it says, and what is left of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import feed, host, images, op, place, receive, record, take

from holdfast.core.detector import Detector
from holdfast.core.errand import Errand, Limits
from holdfast.core.fetch import decide
from holdfast.core.host import Host
from holdfast.core.protect.images import ASKS_MAX
from holdfast.core.ready import TICK, Ready, Received
from holdfast.core.roles import Condition
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Place, Record, first_record
from holdfast.model.skips import Skip
from holdfast.model.topology import layered

HYBRID = place(mode="hybrid")
EDGE = "s0>u0"
MISSED = m.Missed(name="a", life=1)
ROW = (1, 1, 1)


def backup(where: Place = HYBRID, batches: int = 2, config: Config | None = None) -> Host:
    """The node of the backup, to which a stage has handed some batches over."""
    made = host("b#1", where, config or Config())
    for batch in range(batches):
        feed(made.copies["u0"], EDGE, 3 * batch, [ROW], 20 * (batch + 1), batch)
    return made


def late(made: Host, now_ns: int = 1_000 * MS) -> Ready:
    ready = Ready()
    made.stand_ins.on_missed("c#1", MISSED, now_ns, ready)
    return ready


def asked(at: int = 0, *, consumer: str = "r0") -> m.Subscribe:
    return m.Subscribe(edge="u0.0", consumer=consumer, epoch=1, at=at, ack=0)


def test_who_asked_early_gets_rows_in_the_step_in_which_a_heartbeat_is_missed():
    made = backup()
    made.on_subscribe("r0@1", asked(), 0, Ready())
    ready = late(made)
    sent = [(to, x) for to, x in ready.send if isinstance(x, m.Data)]
    assert [(to, x.epoch, len(x.blocks)) for to, x in sent] == [("r0@1", 1, 2)]
    assert [type(note) for note in ready.notes] == [notes.StandsIn, notes.EmittedBeside, notes.EmittedBeside]
    assert made.copies["u0"].condition is Condition.STANDING_IN


def test_in_mode_passive_and_while_it_moves_nobody_stands_in():
    for where in (place(), place(mode="hybrid", moving=True), place(mode="hybrid", backup="c#1", joining="b#1")):
        made = backup(where, batches=0)
        assert not late(made).notes


@pytest.mark.parametrize(("mode", "stand_in"), [("hybrid", {"u0", "u1", "v0"}), ("none", {"u1"})])
def test_nobody_stands_in_behind_a_shard_that_may_start_empty(mode, stand_in):
    shape = layered(stages=1, shards=2, tops=1)
    first = first_record(shape, ("a", "b", "c"))
    places = first.places | dict.fromkeys(shape.shard, HYBRID) | {"u0": replace(HYBRID, mode=mode)}
    made = Host("b#1", shape, Config(), op)
    made.on_record(replace(first, places=places), 0, Ready())
    assert {note.shard for note in late(made).notes if isinstance(note, notes.StandsIn)} == stand_in


def test_a_node_that_was_just_heard_is_not_stood_in_for():
    made = backup()
    made.stand_ins.hear("a#1", 950 * MS)
    assert not late(made).notes
    assert late(made, 2_000 * MS).notes


def test_after_false_alarms_in_a_row_the_next_is_believed_later():
    made = backup()
    now = began = 1_000 * MS
    starts = []
    while now < began + 3_000 * MS:  # a monitor that does not hear it, and a primary that answers at once
        if late(made, now).notes:
            starts.append((now - began) // MS)
            made.stand_ins.on_back("a#1", m.Back(shard="u0", since=1), now + MS, Ready())
        now += 100 * MS
    assert starts == [0, 300, 800, 1_700]


def test_its_image_is_what_it_was_when_its_primary_is_back():
    made = backup()
    copy = made.copies["u0"]
    queues = [(q.next, q.trimmed) for q in copy.queues]
    late(made)
    assert (copy.positions(), copy.holds_to(EDGE)) == ({EDGE: 6}, 0)
    ready = Ready()
    made.stand_ins.on_back("a#1", m.Back(shard="u0", since=1), 1_100 * MS, ready)
    assert copy.condition is Condition.COMPLETE
    assert (copy.positions(), [(q.next, q.trimmed) for q in copy.queues]) == ({EDGE: 0}, queues)
    assert copy.retained() == 6
    assert ready.send == [("a#1", m.StoodDown(shard="u0", since=1, to={EDGE: 6}))]


def test_captures_wait_until_it_stands_down():
    primary = host("a#1", HYBRID)
    guard = images(primary.copies["u0"], HYBRID)
    made = backup(batches=0)
    feed(primary.copies["u0"], EDGE, 0, [ROW], 20, 0)
    feed(made.copies["u0"], EDGE, 0, [ROW], 20, 0)
    primary.runners["u0"].pump(0, Ready())
    late(made)
    captured = take(guard)["b#1"]
    assert receive(made, captured) == []
    ready = Ready()
    made.stand_ins.on_back("a#1", m.Back(shard="u0", since=1), 0, ready)
    assert m.Held(shard="u0", epoch=1, round=1, fits=True) in [message for _, message in ready.send]


def test_a_promotion_keeps_what_came_of_it_and_steps_nothing_again():
    made = backup()
    late(made)
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2, mode="hybrid")), 0, ready)
    assert made.copies["u0"].positions() == {EDGE: 6}
    assert not [note for note in ready.notes if isinstance(note, notes.Emitted)]
    promoted = next(note for note in ready.notes if isinstance(note, notes.Promoted))
    assert promoted.positions == (6,)
    assert made.copies["u0"].retained() == 0


def test_a_promotion_with_a_skip_goes_back_first():
    made = backup()
    late(made)
    skip = Skip(EDGE, 0, 3, 0, "bad")
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2, mode="hybrid", skips=(skip,))), 0, ready)
    down = next(note for note in ready.notes if isinstance(note, notes.StandsDown))
    assert not down.kept
    assert any(isinstance(note, notes.Skipped) for note in ready.notes)


def test_much_input_that_waits_for_its_image_ends_it():
    made = backup(config=Config(retained_soft_max=8, retained_hard_max=12))
    late(made)
    ready = Ready()
    made.stand_ins.on_tick(0, ready)
    assert [note.why for note in ready.notes if isinstance(note, notes.StandsDown)] == [
        "too much input waits for its image"
    ]


def test_a_primary_says_that_it_is_back_when_it_stands_as_far():
    made = host("a#1", HYBRID)
    runner, ready = made.runners["u0"], Ready()
    ahead = m.StandIn(shard="u0", since=1, to={EDGE: 3})
    made.stand_ins.on_stand_in("b#1", ahead, 0, ready)
    assert not ready.send
    assert runner.copy.replays
    feed(runner.copy, EDGE, 0, [ROW], 20, 0)
    runner.pump(0, Ready())
    made.stand_ins.on_stand_in("b#1", ahead, 0, ready)
    assert ready.send == [("b#1", m.Back(shard="u0", since=1))]


def test_a_block_is_given_up_only_when_its_backup_has_promised_not_to_take_it():
    made = host("a#1", HYBRID)
    runner, ready = made.runners["u0"], Ready()
    runner.on_skip_wanted(m.SkipWanted(shard="u0", input=EDGE, start=0), 0, ready)
    firm = m.Back(shard="u0", since=1, firm=True)
    assert ready.send == [("b#1", firm)]
    other = backup()
    answers = Ready()
    other.stand_ins.on_back("a#1", firm, 0, answers)
    assert answers.send == [("a#1", m.StoodDown(shard="u0", since=1, to={EDGE: 0}, firm=True))]
    assert not late(other).notes
    made.stand_ins.on_stood_down("b#1", answers.send[0][1], 0, ready)
    assert runner.beside.is_firm((EDGE, 0), runner.place, None)
    assert not runner.beside.is_firm((EDGE, 0), replace(HYBRID, epoch=2), None)


def test_a_fetch_is_served_by_a_stand_in_and_by_no_other_backup():
    made = backup()
    ask = m.Fetch(ticket=1, edge="u0.0", start=0, end=2, consumer="g0", epoch=0)
    refused = decide(made, ask, 0)
    assert isinstance(refused, m.FetchRefused)
    assert refused.reason is FetchReason.NOT_HERE
    late(made)
    answer = decide(made, ask, 0)
    assert isinstance(answer, m.Fetched)
    assert decide(made, replace(ask, end=40), 0) is None
    assert isinstance(decide(made, replace(ask, producer_epoch=2), 0), m.FetchRefused)


def test_an_errand_asks_the_stand_in_when_the_primary_hangs_and_the_primary_again_after_that():
    limits = Limits(turn_ns=100, patience_ns=10_000, pause_ns=10, limit_ns=100_000)
    ask = m.Fetch(ticket=0, edge="u0.0", start=0, end=2, consumer="g0", epoch=0, producer_epoch=1)
    errand = Errand(ask, "u0", "a", 1, ("a", "b"), limits, 0, "b")
    targets = []
    now = 0
    for _ in range(4):
        ready = errand.step(TICK, now)
        targets += [to for to, message in ready.send if isinstance(message, m.Fetch)]
        now = ready.wake_ns or now
    assert targets == ["a", "b", "a"]
    refused = m.FetchRefused(ticket=errand.ticket, edge="u0.0", reason=FetchReason.NOT_HERE)
    ready = errand.step(Received("a", refused), now)
    assert not errand.over


def test_one_missed_heartbeat_is_told_to_whoever_could_stand_in():
    detector = Detector("c", Config())
    detector.on_record(Record(version=1, term=0, members={"a": 1, "b": 1, "c": 1}, places={}), 0)
    detector.on_heartbeat("b", 0)
    assert detector.missed(150 * MS) is None
    assert detector.missed(151 * MS) == m.Missed(name="b", life=1)
    monitor, ready = host("c#1", HYBRID), Ready()
    monitor.stand_ins.tell(MISSED, 0, ready)
    assert ready.send == [("b#1", MISSED)]
    monitor.stand_ins.tell(m.Missed(name="b", life=1), 0, ready)
    assert len(ready.send) == 1


def test_captures_sweep_where_somebody_may_stand_in():
    made = host("a#1", HYBRID).copies["u0"]
    guard = images(made, HYBRID)
    period_ns = guard.protection.period_ns
    feed(made, EDGE, 0, [ROW], 20, 0)
    while made.step() is not None:
        pass
    assert not guard.due(period_ns, frozen=False)
    assert guard.due(2 * period_ns, frozen=False)
    queue = made.outputs[0]
    for consumer in queue.owners:
        queue.ack(consumer, queue.next)
    assert guard.due(period_ns, frozen=False)
    assert not guard.due(period_ns - 1, frozen=False)
    passive = images(made, place())
    assert passive.due(period_ns, frozen=False)


def test_who_stands_down_tells_its_producers_and_those_that_go_on_sending_again():
    shape = layered(stages=1, shards=2, tops=1)
    first = first_record(shape, ("a", "b", "c"))
    places = first.places | dict.fromkeys(shape.shard, place(mode="passive")) | {"v0": HYBRID}
    made = Host("b#1", shape, Config(), op)
    made.on_record(replace(first, places=places), 0, Ready())
    edge = made.copies["v0"].inputs[0].edge
    made.copies["v0"].inputs[0].position = 7
    asks = [x for _, x in late(made).send if isinstance(x, m.Subscribe) and x.edge == edge]
    assert {(x.at, x.ack) for x in asks} == {(7, 0)}  # its primary acknowledges for both
    ready = Ready()
    made.stand_ins.on_back("a#1", m.Back(shard="v0", since=1), 1_100 * MS, ready)
    rests = [(to, x.edge) for to, x in ready.send if isinstance(x, m.Subscribe) and x.inactive and not x.paused]
    assert rests == [("a#1", i.edge) for i in made.copies["v0"].inputs]
    ready = Ready()
    made.on_data("a#1", m.Data(edge=edge, epoch=1, blocks=()), 1_200 * MS, ready)
    assert [(to, x.edge, x.seat, x.inactive) for to, x in ready.send] == [("a#1", edge, "b#1", True)]


def test_a_backup_that_is_asked_early_keeps_nothing_for_one_that_rests():
    made = backup()
    made.on_subscribe("r0@1", asked(), 0, Ready())
    made.on_subscribe("r0@1", replace(asked(), inactive=True), 0, Ready())
    assert not [x for _, x in late(made).send if isinstance(x, m.Data)]
    ready = Ready()
    made.on_subscribe("r0@1", asked(), 0, ready)
    assert [x for _, x in ready.send if isinstance(x, m.Data)]


def test_a_capture_goes_again_to_a_stand_in_that_is_late_only_as_a_question():
    primary = host("a#1", HYBRID)
    guard = images(primary.copies["u0"], HYBRID)
    feed(primary.copies["u0"], EDGE, 0, [ROW], 20, 0)
    primary.runners["u0"].pump(0, Ready())
    take(guard)
    again = []
    for late_one in ("", "b"):
        guard.pace.is_late = lambda name, late_one=late_one: name == late_one
        ready = Ready()
        guard.on_tick(guard.sent_ns + 10 * guard.config.retry_ns, ready)
        again.append([x.pieces for _, x in ready.send])
    assert again == [[1], [0]]


def test_a_capture_that_a_late_stand_in_never_got_comes_to_it_all_the_same():
    """Its node says for good that it is slow, and what was sent first is lost: a question would find nothing."""
    primary = host("a#1", HYBRID)
    guard = images(primary.copies["u0"], HYBRID)
    guard.pace.is_late = lambda name: True
    feed(primary.copies["u0"], EDGE, 0, [ROW], 20, 0)
    primary.runners["u0"].pump(0, Ready())
    take(guard)
    again = []
    for _ in range(2 * ASKS_MAX):
        ready = Ready()
        guard.on_tick(guard.sent_ns + 10 * guard.config.retry_ns, ready)
        again += [x.pieces for _, x in ready.send]
    assert again == [0, 0, 1, 0, 0, 1]
