"""A shard at work: it produces before it protects, and acknowledges the minimum over its guards."""

from __future__ import annotations

from msgspec.structs import replace
from support.core import CONFIG, feed, held, host, op, pasted, place, record

from holdfast.core.host import Host
from holdfast.core.protect import Images, guard_names
from holdfast.core.ready import Ready
from holdfast.core.runner import Runner
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import shard_block
from holdfast.model.config import MS
from holdfast.model.protection import Protection
from holdfast.model.topology import layered

PAIR = layered(stages=1, shards=1, tops=1)
EDGE = "u0.0"


class Kept:
    """A guard that keeps what a test says."""

    def __init__(self, name: str, safe: dict[str, int] | None) -> None:
        self.name = name
        self.protection = Protection()
        self.kept = safe
        self.taken = 0
        self.wants = False
        self.heard: list[m.Message] = []

    def retarget(self, place) -> None: ...

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        return self.wants

    def take(self, now_ns: int, ready: Ready) -> None:
        self.taken += 1

    def on_held(self, seat, message, now_ns, ready) -> None:
        self.heard.append(message)

    def on_pasted(self, seat, message, now_ns, ready) -> None:
        self.heard.append(message)

    def on_tick(self, now_ns, ready) -> None: ...

    def safe(self) -> dict[str, int] | None:
        return self.kept

    def is_settled(self) -> bool:
        return not self.wants

    def reports(self, shard) -> list[m.Message]:
        return []


def top(*guards: Kept) -> Runner:
    """The shard v0, which reads another one and has consumed a block of it; with these guards and no other."""
    made = Host("a#1", PAIR, CONFIG, op)
    made.on_record(record(1, place(), PAIR), 0, Ready())
    runner = made.runners["v0"]
    runner.guards = guards
    runner.copy.input(EDGE).queue.append(shard_block(0, ((1, 1, 1), (2, 1, 1)), 1))
    return runner


def acked(ready: Ready) -> list[int]:
    return [note.position for note in ready.notes if isinstance(note, notes.Acked)]


def test_acknowledged_is_the_minimum_over_all_guards_also_if_one_lags():
    ahead, behind = Kept("ahead", {EDGE: 3}), Kept("behind", {EDGE: 0})
    runner, ready = top(ahead, behind), Ready()
    runner.pump(0, ready)
    assert runner.copy.positions() == {EDGE: 3}
    assert (acked(ready), runner.safe()) == ([], {EDGE: 0})
    behind.kept = {EDGE: 3}
    runner.on_answer("b#1", pasted(1), 0, ready)
    assert acked(ready) == [3]
    runner.guards = (behind, ahead)
    assert runner.safe() == {EDGE: 3}


def test_a_guard_that_keeps_nothing_holds_nothing_back_and_gives_nothing_away():
    keeps, nothing = Kept("keeps", {EDGE: 0}), Kept("nothing", None)
    runner, ready = top(nothing, keeps), Ready()
    runner.pump(0, ready)
    assert (acked(ready), runner.safe()) == ([], {EDGE: 0})


def test_where_no_guard_keeps_anything_what_was_consumed_is_acknowledged():
    for guards in ((), (Kept("nothing", None),), (Kept("one", None), Kept("two", None))):
        runner, ready = top(*guards), Ready()
        runner.pump(0, ready)
        assert acked(ready) == [3]
        assert runner.feeds[EDGE].ack == 3


def test_what_was_acknowledged_never_goes_back():
    runner, ready = top(), Ready()
    runner.pump(0, ready)
    runner.guards = (Kept("new", {EDGE: 0}),)
    runner.acknowledge(0, ready)
    assert (acked(ready), runner.feeds[EDGE].ack) == ([3], 3)


def test_every_guard_hears_of_every_answer_and_takes_only_what_is_due():
    one, two = Kept("one", None), Kept("two", None)
    two.wants = True
    runner = top(one, two)
    assert runner.wants_protection(0)
    runner.protect(0, Ready())
    assert (one.taken, two.taken) == (0, 1)
    runner.on_answer("b#1", held(1), 0, Ready())
    runner.on_answer("b#1", m.Pasted(shard="u0", epoch=1, round=1), 0, Ready())
    assert one.heard == two.heard == [held(1), m.Pasted(shard="u0", epoch=1, round=1)]


def test_a_shard_that_hands_over_has_yielded_when_all_of_its_guards_are_settled():
    one, two = Kept("one", None), Kept("two", None)
    runner = top(one, two)
    runner.place = replace(runner.place, moving=True)
    two.wants = True
    assert runner.reports() == []
    two.wants = False
    assert runner.reports() == [m.Yielded(asset="v0", since=1)]
    runner.guards = ()  # nobody holds anything: there is nobody to hand over to
    assert runner.reports() == []


def test_a_frozen_shard_consumes_nothing_and_captures_what_is_left():
    made = host()
    runner = made.runners["u0"]
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)], 0, 0)
    runner.pump(0, Ready())
    ready = Ready()
    made.on_record(record(2, place(2, moving=True)), 0, ready)
    feed(made.copies["u0"], "s0>u0", 3, [(1, 1, 1)], 0, 1)
    runner.pump(0, ready)
    assert made.copies["u0"].positions() == {"s0>u0": 3}
    assert ready.idle
    assert [task.kind for task in made.agenda(0).tasks] == ["capture"]
    assert made.reports() == []
    made.agenda(0).tasks[0].run(0, ready)
    runner.on_answer("b#1", pasted(1), 0, ready)
    assert made.reports() == [m.Yielded(asset="u0", since=2)]


def test_a_new_primary_produces_in_its_first_step_and_protects_in_an_idle_moment():
    made = host("b#1")
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)], 10, 0)
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, joining="c#1", epoch=2)), 0, ready)
    assert [note.word for note in ready.notes if note.word in ("promoted", "emitted", "captured")] == [
        "promoted",
        "emitted",
    ]
    assert ready.idle
    assert [task.kind for task in made.agenda(0).tasks] == ["capture"]
    made.agenda(0).tasks[0].run(0, ready)
    assert [(to, type(x)) for to, x in ready.send if isinstance(x, m.Capture)] == [("c#1", m.Capture)]


def test_much_consumed_input_is_captured_at_once_and_not_in_an_idle_moment():
    config = replace(CONFIG, retained_soft_max=4, retained_hard_max=40)
    made = host(config=config)
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)] * 4, 0, 0)
    ready = Ready()
    made.runners["u0"].pump(0, ready)
    assert [note.word for note in ready.notes if note.word == "captured"] == ["captured"]


# --- modes


def test_a_mode_names_its_guards_and_images_are_wherever_somebody_is_brought_up():
    alone = place(backup=None)
    none = Protection(mode="none")
    assert guard_names(Protection(), alone) == ("images",)
    assert guard_names(none, alone) == ()
    assert guard_names(none, place(backup=None, joining="c#1")) == ("images",)
    assert guard_names(replace(none, checkpoint="paged"), alone) == ("paged",)


def test_a_change_of_settings_leaves_a_guard_what_it_knows():
    made = host()
    runner = made.runners["u0"]
    guard = runner.guards[0]
    assert isinstance(guard, Images)
    runner.on_protection(Protection(period_ns=10 * MS, method="whole"), 0)
    assert runner.guards == (guard,)
    assert guard.protection.period_ns == 10 * MS


def test_a_record_with_other_settings_reaches_shards_whose_place_stays():
    made = host()
    before = record(1, place())
    changed = replace(before, version=2, protection={"u0": Protection(period_ns=10 * MS)})
    made.on_record(changed, 0, Ready())
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)], 0, 0)
    made.runners["u0"].pump(0, Ready())
    assert [task.kind for task in made.agenda(10 * MS).tasks] == ["capture"]


def test_a_shard_in_mode_none_acknowledges_what_it_consumed():
    made = Host("a#1", PAIR, CONFIG, op)
    none = Protection(mode="none")
    alone = replace(record(1, place(backup=None), PAIR), protection={"u0": none, "v0": none})
    made.on_record(alone, 0, Ready())
    runner = made.runners["v0"]
    assert runner.guards == ()
    runner.copy.input(EDGE).queue.append(shard_block(0, ((1, 1, 1),), 1))
    ready = Ready()
    runner.pump(0, ready)
    assert acked(ready) == [2]
