"""Skips: given up by a primary, granted at a new epoch, passed over by every copy alike, then forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import CONFIG, ONE, feed, place, receive, record, take
from test_core_gate import FIRST, hear, node, refused

from holdfast.core.host import Host
from holdfast.core.load import LoadView
from holdfast.core.placement import Reports, plan
from holdfast.core.ready import Done, FindLetters, Ready
from holdfast.core.roles import Condition
from holdfast.errors import InputError, InvariantError, MemoryLimitError
from holdfast.model import messages as m
from holdfast.model.ids import asset_id
from holdfast.model.skips import SKIPS_MAX, Skip, command, objection
from holdfast.model.topology import ShardSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

BAD = 13
NO_LOADS = LoadView()


class Picky(WindowSum):
    """Cannot take a batch with a value of 13: it refuses it, tears its state, or has no memory for it."""

    __slots__ = ("error", "tears")

    def __init__(self, spec: ShardSpec, error: type = InputError, *, tears: bool = False) -> None:
        super().__init__(spec, 10, Costs(), Meter())
        self.error = error
        self.tears = tears

    def step(self, edge, rows, watermark):
        if any(value == BAD for _, _, value in rows):
            self.torn = self.tears
            raise self.error("it cannot be", detail="a\nbad\tvalue")
        return super().step(edge, rows, watermark)


class Pair:
    """A primary, its backup and what the primary asks the coordinator for."""

    def __init__(self, factory=Picky, **fields: object) -> None:
        self.place = place(**fields)
        self.a, self.b = (Host(seat, ONE, CONFIG, factory) for seat in ("a#1", "b#1"))
        self.version = 0
        self.noted: list = []
        #: How far the files of dead letters go; None: nobody says so.
        self.filed: int | None = 0
        self.put()

    def put(self, **fields: object) -> None:
        """The next record."""
        self.version += 1
        before = {name: getattr(self.place, name) for name in self.place.__struct_fields__}
        self.place = type(self.place)(**{**before, "since": self.version, **fields})
        for host in (self.a, self.b):
            ready = Ready()
            host.on_record(record(self.version, self.place), 0, ready)
            self.noted += ready.notes

    @property
    def runner(self):
        return (self.a.runners.get("u0")) or self.b.runners["u0"]

    def give(self, batch: int, value: int) -> None:
        """One batch for both holders; the primary takes what it can."""
        start = 3 * batch
        for host in (self.a, self.b):
            feed(host.copies["u0"], "s0>u0", start, [(1, 10 * batch, value)], 10 * batch + 10, batch)
            host.copies["u0"].inboxes["s0>u0"].last = batch
        self.pump()

    def pump(self) -> None:
        ready = Ready()
        self.runner.pump(0, ready)
        self.noted += ready.notes
        for host in (self.a, self.b):
            for effect in ready.apply if self.filed is not None else ():
                if isinstance(effect, FindLetters):
                    host.tickets.on_done(Done(ticket=effect.ticket, ok=True, to=self.filed), 0, Ready())

    def follow(self, ahead: int = 0, planned: int = 0) -> None:
        """Everybody who reads it says where they stand: where it ends, or further on; and what they had planned."""
        outlet = self.runner.outlet
        for queue in self.runner.copy.outputs:
            for consumer in queue.owners:
                message = m.Subscribe(
                    edge=queue.edge, consumer=consumer, epoch=1, at=queue.next + ahead, ack=0, planned=planned
                )
                outlet.on_subscribe("reader", message, 0, Ready())

    def want(self, start: int) -> None:
        self.follow()
        self.ask(start)

    def ask(self, start: int) -> None:
        ready = Ready()
        message = m.SkipWanted(shard="u0", input="s0>u0", start=start)
        for host in (self.a, self.b):
            host.on_skip_wanted("operator", message, 0, ready)
        self.noted += ready.notes

    def capture(self) -> None:
        guard = self.a.runners["u0"].guards[0]
        for message in receive(self.b, take(guard)["b#1"]):
            self.a.on_held("b#1", message, 0, Ready())

    def rows(self, host: Host) -> tuple[list, list]:
        made = host.copies["u0"]
        return [b.rows for b in made.outputs[0].blocks], [b.rows for b in made.dead.blocks]

    def words(self) -> list[str]:
        return [note.word for note in self.noted]


@pytest.fixture
def stuck() -> Pair:
    made = Pair()
    made.give(0, 1)
    made.capture()
    made.give(1, BAD)
    made.give(2, 2)
    return made


def skip_of(made: Pair) -> Skip:
    (found,) = [x for x in made.runner.reports() if isinstance(x, m.GivenUp)]
    return found.skip


def test_what_a_person_reads_is_the_command_that_helps(stuck):
    (failed,) = [note for note in stuck.noted if note.word == "failed"]
    assert (failed.edge, failed.start) == ("s0>u0", 3)
    assert "batch 1" in failed.why
    assert failed.way == "`holdfast skip u0 s0 1` passes over it and keeps its rows in dead/u0."
    assert command(asset_id("v0"), Skip("u0.0", 40, 44)) == "holdfast skip v0 u0.0 40"


def test_nothing_is_given_up_that_does_not_stand_still(stuck):
    stuck.want(0)
    stuck.want(6)
    assert stuck.runner.skips.given_up is None
    assert stuck.runner.reports() == []
    skips, now = stuck.runner.skips, stuck.place
    assert skips.objection("s0>u0", 0, now) == "u0 has taken batch 0 of s0: it cannot be skipped any more"
    assert skips.objection("s0>u0", 2, now) == "u0 has not come to batch 2 of s0: it stands still at batch 1 of s0"
    assert skips.objection("s0>u0", 9, now) == "batch 9 of s0 has not come to u0"
    assert skips.objection("s0>u0", 1, now) == ""


def test_a_block_is_given_up_once_and_asked_for_until_the_record_has_it(stuck):
    stuck.want(3)
    stuck.want(3)
    assert stuck.words().count("gave-up") == 1
    (report,) = stuck.runner.reports()
    assert report == m.GivenUp(
        shard="u0", since=1, skip=Skip("s0>u0", 3, 6, 1, "it cannot be · a bad value"), torn=False
    )
    stuck.pump()
    assert stuck.rows(stuck.a)[1] == []


def test_the_primary_goes_on_in_place_at_a_new_epoch_and_keeps_the_rows(stuck):
    stuck.want(3)
    stuck.put(epoch=2, skips=(skip_of(stuck),))
    assert stuck.runner.epoch == stuck.runner.outlet.epoch == 2
    assert stuck.rows(stuck.a) == ([((1, 9, 1),), (), ((1, 29, 2),)], [((1, 10, BAD),)])
    assert stuck.words().count("skipped") == 1
    assert stuck.runner.skips.since_ns == 0
    assert not stuck.runner.copy.why


def test_its_backup_goes_on_with_captures_of_the_new_epoch(stuck):
    stuck.want(3)
    stuck.put(epoch=2, skips=(skip_of(stuck),))
    stuck.capture()
    assert stuck.rows(stuck.b) == stuck.rows(stuck.a)
    assert stuck.runner.guards[0].unfit == {}


@pytest.mark.parametrize("heard", [0, 1])
def test_a_round_whose_answers_a_skip_has_overtaken_is_answered_at_the_new_epoch(heard):
    """The backup was at work on it, or had done it; its words carried the old epoch (seed 4100426)."""
    made = Pair()
    made.give(0, 1)
    guard = made.runner.guards[0]
    answers = receive(made.b, take(guard)["b#1"])
    for message in answers[:heard]:
        made.a.on_held("b#1", message, 0, Ready())
    made.give(1, BAD)
    made.want(3)
    made.put(epoch=2, skips=(skip_of(made),))
    ready = Ready()
    guard.on_tick(1 << 50, ready)
    for message in receive(made.b, [message for _, message in ready.send]):
        made.a.on_held("b#1", message, 0, Ready())
    assert (guard.waiting, guard.unfit) == ({}, {})
    made.give(2, 2)
    made.capture()
    assert made.rows(made.b) == made.rows(made.a)


def test_a_copy_that_is_promoted_before_the_block_skips_it_too(stuck):
    stuck.want(3)
    skip = skip_of(stuck)
    stuck.put(epoch=2, skips=(skip,))
    there = stuck.rows(stuck.a)
    stuck.put(primary="b#1", backup=None, epoch=3)
    assert stuck.rows(stuck.b) == there
    assert [note.epoch for note in stuck.noted if note.word == "skipped"] == [2, 3]


def test_nothing_is_given_up_whose_dead_letters_another_node_has_written():
    """A predecessor took the block, which only this node cannot take, and nobody has read its output; but what it set
    aside is in a file, at the positions that the rows of the skipped block would get (seed 16001372)."""
    made = Pair()
    made.filed = 2
    made.give(0, 1)
    made.give(1, BAD)
    made.want(3)
    assert made.runner.skips.given_up is None
    assert made.runner.skips.way_on(made.place) == (
        "It cannot be skipped: another node has taken it, and dead letters that came of it are in a file."
    )


def test_nothing_is_given_up_before_it_is_known_how_far_dead_letters_are_written():
    made = Pair()
    made.filed = None
    made.give(0, 1)
    made.give(1, BAD)
    made.want(3)
    assert made.runner.skips.given_up is None
    assert "how far dead letters of u0 are kept" in made.runner.skips.objection("s0>u0", 1, made.place)


def test_nothing_is_given_up_before_everybody_has_said_where_they_stand(stuck):
    stuck.ask(3)
    assert stuck.runner.skips.given_up is None
    assert "has not said yet where it stands" in stuck.runner.skips.objection("s0>u0", 1, stuck.place)
    stuck.want(3)
    assert stuck.runner.skips.given_up is not None


def test_what_another_node_has_taken_is_not_skipped_once_its_results_were_read(stuck):
    """This node lacks the memory, say, that the primary before it had (seed 1014 of stalls)."""
    stuck.follow(ahead=5)
    stuck.ask(3)
    assert stuck.runner.skips.given_up is None
    assert "has read what came of it" in stuck.runner.skips.objection("s0>u0", 1, stuck.place)
    assert stuck.runner.skips.way_on(stuck.place).startswith("It cannot be skipped: another node has taken it")


def test_what_a_sink_had_planned_before_it_was_started_again_counts_as_read(stuck):
    """Nobody knows what of its batch it had written; and the batch would end inside a block (seed 9001953)."""
    stuck.follow(planned=5)
    stuck.ask(3)
    assert stuck.runner.skips.given_up is None
    assert "has read what came of it" in stuck.runner.skips.objection("s0>u0", 1, stuck.place)


def test_a_torn_primary_leaves_it_to_its_backup():
    made = Pair(lambda spec: Picky(spec, tears=False))
    made.give(0, 1)
    made.capture()
    made.a.copies["u0"].op.tears = True
    made.give(1, BAD)
    assert made.runner.copy.condition is Condition.TORN
    made.want(3)
    (report,) = made.runner.reports()
    assert report.torn
    reports = Reports()
    reports.given_up[asset_id("u0")] = report
    draft = plan(record(1, made.place), reports, NO_LOADS, CONFIG)
    after = draft.places["u0"]
    assert (after.primary, after.backup, after.epoch, after.skips) == ("b#1", None, 2, (report.skip,))
    made.put(primary="b#1", backup=None, epoch=2, skips=after.skips)
    assert made.rows(made.b)[1] == [((1, 10, BAD),)]


def test_a_torn_primary_does_not_hand_over_in_a_drain():
    """It would be named as the backup, and the next one would be torn by the same block (seed 3100291)."""
    made = Pair(lambda spec: Picky(spec, tears=False))
    made.give(0, 1)
    made.capture()
    made.a.copies["u0"].op.tears = True
    made.give(1, BAD)
    made.put(moving=True)
    assert not made.runner.has_yielded()
    assert not [x for x in made.runner.reports() if isinstance(x, m.Yielded)]
    made.runner.copy.condition = Condition.FAILED  # its state is whole: that can go anywhere
    assert made.runner.has_yielded()


def test_a_torn_primary_without_a_backup_cannot_go_on():
    made = Pair(lambda spec: Picky(spec, tears=True), backup=None)
    feed(made.a.copies["u0"], "s0>u0", 0, [(1, 0, BAD)], 10, 0)
    made.pump()
    made.want(0)
    assert made.runner.skips.given_up is None
    assert "no second node has a copy" in made.runner.skips.objection("s0>u0", 0, made.place)
    assert made.runner.skips.way_on(made.place).startswith("It cannot be skipped")


def test_a_shard_that_waits_for_memory_does_not_try_again_what_it_gave_up():
    made = Pair(lambda spec: Picky(spec, MemoryLimitError))
    made.give(0, BAD)
    assert made.runner.copy.condition is Condition.WAITING
    made.want(0)
    assert made.runner.copy.condition is Condition.FAILED
    ready = Ready()
    made.runner.on_tick(1 << 50, ready)
    assert made.runner.copy.condition is Condition.FAILED
    made.put(epoch=2, skips=(skip_of(made),))
    assert made.rows(made.a)[1] == [((1, 0, BAD),)]


def test_a_skip_is_forgotten_when_the_backup_holds_what_came_after_it(stuck):
    stuck.want(3)
    skip = skip_of(stuck)
    stuck.put(epoch=2, skips=(skip,))
    assert stuck.runner.reports() == []
    stuck.capture()
    (report,) = stuck.runner.reports()
    assert report == m.SkipsPassed(shard="u0", since=2, skips=(skip,))
    reports = Reports()
    reports.passed[asset_id("u0")] = report
    draft = plan(record(2, stuck.place), reports, NO_LOADS, CONFIG)
    assert (draft.places["u0"].skips, draft.places["u0"].epoch) == ((), 2)
    stuck.put(skips=())
    assert stuck.a.copies["u0"].skips == {}
    assert stuck.runner.skips.known("s0>u0", 1, stuck.place) == skip  # whoever says it again hears that it is done


def test_the_coordinator_skips_at_a_new_epoch_and_only_under_the_place_it_was_asked_for(stuck):
    stuck.want(3)
    (report,) = stuck.runner.reports()
    reports = Reports()
    reports.given_up[asset_id("u0")] = report
    draft = plan(record(1, stuck.place), reports, NO_LOADS, CONFIG)
    assert (draft.places["u0"].primary, draft.places["u0"].epoch, draft.places["u0"].skips) == (
        "a#1",
        2,
        (report.skip,),
    )
    later = plan(record(2, place(since=2)), reports, NO_LOADS, CONFIG)
    assert later is None or later.places["u0"].skips == ()
    moving = plan(record(1, place(moving=True)), reports, NO_LOADS, CONFIG)
    assert moving is None or moving.places["u0"].skips == ()


def test_a_shard_has_a_bounded_number_of_skips(stuck):
    many = tuple(Skip("s0>u0", 100 + 3 * i, 103 + 3 * i, i + 40, "x") for i in range(SKIPS_MAX))
    stuck.put(epoch=1, skips=many)
    assert "skips in force" in stuck.runner.skips.objection("s0>u0", 1, stuck.place)
    stuck.want(3)
    assert stuck.runner.skips.given_up is None
    assert objection((*many, Skip("s0>u0", 3, 6, 1, "x")), ("s0>u0",)) != ""


@pytest.mark.parametrize(
    "skip",
    [
        Skip("s9>u0", 0, 3, 0, "x"),
        Skip("s0>u0", 3, 3, 0, "x"),
        Skip("s0>u0", 0, 3, -1, "x"),
        Skip("s0>u0", 0, 3, 0, "a\nb"),
        Skip("s0>u0", 0, 3, 0, "x" * 301),
    ],
)
def test_a_skip_that_cannot_be_is_objected_to(skip):
    assert objection((skip,), ("s0>u0",)) != ""
    assert objection((Skip("s0>u0", 0, 3, 0, "x"),), ("s0>u0",)) == ""


def test_a_new_epoch_that_nobody_asked_for_is_still_an_error(stuck):
    with pytest.raises(InvariantError, match="missed an epoch"):
        stuck.put(epoch=2)


def test_a_block_of_another_shard_is_skipped_by_its_position():
    two = layered(stages=1, shards=2, tops=1)
    spec = two.shard["v0"]
    edges = [e for e in spec.inputs if not e.startswith("s")]
    assert edges
    skip = Skip(edges[0], 40, 44)
    assert (skip.source, skip.number, str(skip)) == (edges[0], 40, f"[40, 44) of {edges[0]}")
    assert objection((skip,), spec.inputs) == ""


@pytest.mark.parametrize(
    ("source", "message", "why"),
    [
        ("operator", m.SkipWanted(shard="u0", input="s0>u1", start=0), "u0 does not read s0>u1"),
        ("operator", m.SkipWanted(shard="u9", input="s0>u0", start=0), "does not belong to this pipeline"),
        ("operator", m.SkipWanted(shard="u0", input="s0>u0", start=-1), "is not between"),
        ("n1#1", m.GivenUp(shard="u0", since=1, skip=Skip("s0>u0", 0, 3, 0, "x")), "only the primary"),
        ("n0#1", m.GivenUp(shard="u0", since=1, skip=Skip("s0>u0", 3, 3, 0, "x")), "it skips what it cannot have"),
        ("n0#1", m.SkipsPassed(shard="u0", since=1, skips=(Skip("u0.0", 0, 3),)), "it skips what it cannot have"),
    ],
)
def test_the_gate_refuses_what_no_right_peer_could_have_sent(source, message, why):
    (said,) = refused(hear(node(), source, message))
    assert why in said


def test_the_gate_refuses_a_record_that_skips_at_the_same_epoch_or_what_cannot_be():
    def after(**fields: object) -> m.Push:
        shard = replace(FIRST.places["u0"], since=2, **fields)
        return m.Push(record=replace(FIRST, version=2, term=1, places={**FIRST.places, "u0": shard}))

    right, wrong = Skip("s0>u0", 0, 3, 0, "x"), Skip("s0>u1", 0, 3, 0, "x")
    assert "skips something at the same epoch" in refused(hear(node("n2"), "n1#1", after(skips=(right,))))[0]
    assert "it skips what it cannot have" in refused(hear(node("n2"), "n1#1", after(epoch=2, skips=(wrong,))))[0]
    assert refused(hear(node("n2"), "n1#1", after(epoch=2, skips=(right,)))) == []
    assert "cannot be primary" in refused(hear(node("n0"), "n1#1", after(epoch=2, skips=(right,))))[0]
