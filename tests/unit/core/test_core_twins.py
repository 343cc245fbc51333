"""Two copies of a shard that run at once: what each of them says, keeps and takes, and who goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import feed, host, place, record

from holdfast.core.errand import Errand, Limits
from holdfast.core.fetch import decide
from holdfast.core.host import Host
from holdfast.core.protect.twin import TICKS_MAX
from holdfast.core.reader import Reader
from holdfast.core.ready import Ready, Received, SetAside
from holdfast.core.roles import Condition, State
from holdfast.errors import WrongMessageError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Gap, base_of, shard_block
from holdfast.model.config import Config
from holdfast.model.protection import Protection
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Place, first_record
from holdfast.model.skips import SKIPS_MAX, Skip
from holdfast.model.topology import ReaderSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

ACTIVE = place(mode="active")
EDGE = "s0>u0"
ROW = (1, 1, 1)
LAYERS = layered(stages=1, shards=2, tops=1)
INPUTS = ("u0.0", "u1.0")


def hand_over(made: Host, batch: int = 0, ready: Ready | None = None) -> Ready:
    """One batch, to a copy that runs."""
    ready = ready or Ready()
    feed(made.copies["u0"], EDGE, 3 * batch, [ROW], 20 * (batch + 1), batch)
    made.runners["u0"].pump(0, ready)
    return ready


def layered_host(seat: str = "a#1", where: Place = ACTIVE, config: Config | None = None) -> Host:
    """The node of a copy of v0, which reads u0 and u1."""
    first = first_record(LAYERS, ("a", "b", "c", "d"))
    away = {shard: replace(ACTIVE, primary="c#1", backup="d#1") for shard in ("u0", "u1")}
    made = Host(seat, LAYERS, config or Config(), lambda spec: WindowSum(spec, 10, Costs(), Meter()))
    made.on_record(replace(first, places=first.places | {**away, "v0": where}), 0, Ready())
    return made


def told(to: dict[str, int], since: int = 1, kept: int = 0) -> m.Abreast:
    return m.Abreast(shard="v0", since=since, to=to, kept=kept)


def give(made: Host, count: int, ready: Ready) -> None:
    """The same number of blocks of both inputs."""
    for at in range(count):
        for edge in INPUTS:
            start = 2 * at
            block = shard_block(start, (ROW,), 20 * (at + 1), 1, None)
            made.on_data("c#1", m.Data(edge=edge, epoch=1, blocks=(block,)), 0, ready)


def acks(ready: Ready) -> dict[str, int]:
    return {note.edge: note.position for note in ready.notes if isinstance(note, notes.Acked)}


def test_both_copies_run_from_the_first_record_on_and_make_the_same():
    primary, twin = host("a#1", ACTIVE), host("b#1", ACTIVE)
    one, other = hand_over(primary), hand_over(twin)
    assert (primary.states["u0"], twin.states["u0"]) == (State.PRIMARY, State.TWIN)
    made = [note.block for note in one.notes if isinstance(note, notes.Emitted)]
    assert made
    assert made == [note.block for note in other.notes if isinstance(note, notes.EmittedBeside)]


def test_who_reads_gets_rows_of_a_twin_and_its_trim_follows_who_reads():
    twin = host("b#1", ACTIVE)
    twin.on_subscribe("r0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=0, ack=0), 0, Ready())
    sent = [message for to, message in hand_over(twin).send if to == "r0@1"]
    assert [type(message) for message in sent] == [m.Data]
    end = sent[0].blocks[-1].end
    twin.on_subscribe("r0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=end, ack=end), 0, Ready())
    assert twin.runners["u0"].outlet.queue("u0.0").trimmed == end


def test_a_primary_acknowledges_what_both_have_consumed():
    made = layered_host()
    ready = Ready()
    give(made, 3, ready)
    assert acks(ready) == {}
    for to, right in (
        ({"u0.0": 4, "u1.0": 2}, {"u0.0": 4, "u1.0": 2}),
        ({"u0.0": 9, "u1.0": 9}, {"u0.0": 6, "u1.0": 6}),
    ):
        heard = Ready()
        made.twins.on_abreast("b#1", told(to), 0, heard)
        assert acks(heard) == right


def test_a_twin_acknowledges_nothing_and_tells_its_primary_how_far_it_is():
    made = layered_host("b#1")
    ready = Ready()
    give(made, 2, ready)
    assert acks(ready) == {}
    assert all(message.ack == 0 for _, message in ready.send if isinstance(message, m.Subscribe))
    said = [message for to, message in ready.send if to == "a#1" and isinstance(message, m.Abreast)]
    assert said[-1].to == {"u0.0": 4, "u1.0": 4}


def test_until_a_new_twin_has_spoken_nothing_new_is_acknowledged():
    """Trap 5: it stands where its image stood."""
    made = layered_host(where=place(mode="active", backup=None))
    ready = Ready()
    give(made, 1, ready)
    assert acks(ready) == {"u0.0": 2, "u1.0": 2}
    places = made.record.places | {"v0": place(2, mode="active")}
    made.on_record(replace(made.record, version=2, places=places), 0, Ready())
    more = Ready()
    for edge in INPUTS:
        made.on_data("c#1", m.Data(edge=edge, epoch=1, blocks=(shard_block(2, (ROW,), 40, 1, None),)), 0, more)
    assert acks(more) == {}
    assert made.runners["v0"].safe() == {"u0.0": 0, "u1.0": 0}


def test_a_twin_goes_on_in_place_when_the_record_makes_it_the_primary():
    made = host("b#1", ACTIVE)
    hand_over(made)
    made.on_subscribe("r0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=0, ack=0), 0, Ready())
    runner, ready = made.runners["u0"], Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2, mode="active")), 0, ready)
    assert made.runners["u0"] is runner
    assert [type(note) for note in ready.notes][:1] == [notes.Promoted]
    assert not [note for note in ready.notes if isinstance(note, notes.Emitted)]
    sent = [message for to, message in hand_over(made, 1).send if to == "r0@1"]
    assert [message.epoch for message in sent] == [2]


def test_primary_and_twin_change_places_and_both_go_on():
    made = host("a#1", ACTIVE)
    hand_over(made)
    swapped = replace(ACTIVE.swapped(), since=2)
    assert (swapped.primary, swapped.twin, swapped.epoch) == ("b#1", "a#1", 2)
    ready = Ready()
    made.on_record(record(2, swapped), 0, ready)
    assert made.states["u0"] is State.TWIN
    assert any(isinstance(note, notes.RunsBeside) for note in ready.notes)
    made.on_record(record(4, replace(ACTIVE, epoch=3, since=4)), 0, Ready())
    assert made.states["u0"] is State.PRIMARY


def test_an_image_runs_when_the_record_makes_it_a_twin_and_one_that_cannot_says_so():
    made = host("b#1", place())
    feed(made.copies["u0"], EDGE, 0, [ROW], 20, 0)
    ready = Ready()
    made.on_record(record(2, replace(ACTIVE, since=2)), 0, ready)
    assert [type(note) for note in ready.notes if "Emitted" in type(note).__name__] == [notes.EmittedBeside]
    assert made.reports() == []
    lame = host("b#1", place())
    next(iter(lame.copies["u0"].inboxes.values())).landing = True  # of one that started empty
    lame.on_record(record(2, replace(ACTIVE, since=2)), 0, Ready())
    assert "u0" not in lame.runners
    assert lame.reports() == [m.FellBack(shard="u0", since=2, seat="b#1")]


@pytest.mark.parametrize("seat", ["a#1", "b#1"])
def test_a_copy_that_falls_back_for_long_is_reported_by_the_other_whichever_is_primary(seat):
    """Trap 4."""
    made = layered_host(seat, config=Config(queue_memory_max=8, queue_spill_max=0))
    other = {"a#1": "b#1", "b#1": "a#1"}[seat]
    give(made, 3, Ready())
    for tick in range(TICKS_MAX):
        assert made.runners["v0"].reports() == [], tick
        made.on_tick(0, Ready())
    assert made.runners["v0"].reports() == [m.FellBack(shard="v0", since=1, seat=other)]
    made.twins.on_abreast(other, told({"u0.0": 4, "u1.0": 4}), 0, Ready())
    made.on_tick(0, Ready())
    assert made.runners["v0"].reports() == []


def test_a_promised_block_is_not_taken_until_the_primary_has_taken_it():
    """Trap 3."""
    made = host("b#1", ACTIVE)
    ready = Ready()
    asked = m.Back(shard="u0", since=1, firm=True, block=(EDGE, 0))
    made.stand_ins.on_back("a#1", asked, 0, ready)
    assert ready.send == [("a#1", m.StoodDown(shard="u0", since=1, to={EDGE: 0}, firm=True, block=(EDGE, 0)))]
    hand_over(made)
    assert made.copies["u0"].positions() == {EDGE: 0}
    made.twins.on_abreast("a#1", m.Abreast(shard="u0", since=1, to={EDGE: 3}), 0, Ready())
    made.runners["u0"].pump(0, Ready())
    assert made.copies["u0"].positions() == {EDGE: 3}


def test_a_promise_is_kept_when_another_one_that_was_late_comes_after_it():
    """A question of long ago, of a block that the primary has taken since: networks double, and hold back."""
    made = host("b#1", ACTIVE)
    asked = m.Back(shard="u0", since=1, firm=True, block=(EDGE, 3))
    made.stand_ins.on_back("a#1", asked, 0, Ready())
    for late in (replace(asked, block=(EDGE, 0)), replace(asked, block=None)):
        made.stand_ins.on_back("a#1", late, 0, Ready())
    made.twins.on_abreast("a#1", m.Abreast(shard="u0", since=1, to={EDGE: 3}), 0, Ready())
    hand_over(made)
    hand_over(made, 1)
    assert made.copies["u0"].positions() == {EDGE: 3}


def test_promises_of_a_twin_are_bounded_and_one_that_is_not_given_is_not_answered():
    made = host("b#1", ACTIVE)
    asked = m.Back(shard="u0", since=1, firm=True)
    said = [Ready() for _ in range(SKIPS_MAX + 1)]
    for start, ready in enumerate(said):
        made.stand_ins.on_back("a#1", replace(asked, block=(EDGE, 3 * start)), 0, ready)
    assert [len(ready.send) for ready in said] == [1] * SKIPS_MAX + [0]
    assert len(made.runners["u0"].barred) == SKIPS_MAX


def test_a_block_is_given_up_when_the_twin_has_promised_not_to_take_it_and_has_not():
    made = host("a#1", ACTIVE)
    runner, ready = made.runners["u0"], Ready()
    runner.on_skip_wanted(m.SkipWanted(shard="u0", input=EDGE, start=0), 0, ready)
    assert ready.send == [("b#1", m.Back(shard="u0", since=1, firm=True, block=(EDGE, 0)))]
    answer = m.StoodDown(shard="u0", since=1, to={EDGE: 0}, firm=True, block=(EDGE, 0))
    made.stand_ins.on_stood_down("b#1", answer, 0, ready)
    assert runner.beside.may_skip(EDGE, 0, runner.place)
    assert not runner.beside.may_skip(EDGE, 3, runner.place)  # of that one nothing was promised
    made.stand_ins.on_stood_down("b#1", replace(answer, to={EDGE: 3}), 0, ready)
    assert not runner.beside.may_skip(EDGE, 0, runner.place)


def test_both_pass_over_what_the_record_skips_at_the_next_epoch():
    for seat in ("a#1", "b#1"):
        made = host(seat, ACTIVE)
        made.runners["u0"].barred = ((EDGE, 0),)
        hand_over(made)
        skip, ready = Skip(EDGE, 0, 3, 0, "bad"), Ready()
        runner = made.runners["u0"]
        runner.skips.given_up = skip if seat == "a#1" else None
        made.on_record(record(2, replace(ACTIVE, epoch=2, since=2, skips=(skip,))), 0, ready)
        assert any(isinstance(note, notes.Skipped) for note in ready.notes), seat
        assert made.copies["u0"].positions() == {EDGE: 3}


def test_at_an_empty_start_of_its_producer_both_stop_and_the_one_that_is_named_starts_empty_at_a_new_epoch():
    jump = shard_block(base_of(2), (), 100, 1, Gap(50, jump=True))
    for seat in ("a#1", "b#1"):
        made = layered_host(seat)
        give(made, 1, Ready())
        made.on_data("c#1", m.Data(edge="u0.0", epoch=2, blocks=(jump,)), 0, Ready())
        assert made.copies["v0"].condition is Condition.CUT_OFF
        assert made.runners["v0"].reports() == [m.FellBack(shard="v0", since=1, seat=seat)]
        ready = Ready()
        alone = place(2, primary=seat, backup=None, mode="active", epoch=2)
        made.on_record(replace(made.record, version=2, places=made.record.places | {"v0": alone}), 0, ready)
        assert made.copies["v0"].condition is Condition.LANDING
        assert any(isinstance(note, notes.CutOff) for note in ready.notes)


def test_a_shard_that_starts_empty_asks_both_copies_of_its_producer_how_much_they_have_sent():
    made = layered_host(where=place(mode="none", backup=None, epoch=2, empty=2))
    runner = made.runners["v0"]
    here = m.Here(edge="u0.0", epoch=1, consumer="v0", first=0, next=4, watermark=10, to=20)
    made.on_here("c#1", here, 0, Ready())
    assert runner.feeds["u0.0"].paused
    made.on_here("d#1", replace(here, next=8, watermark=30, to=15), 0, Ready())
    assert (runner.feeds["u0.0"].next, runner.bounds["u0.0"]) == (8, 20)
    assert runner.copy.input("u0.0").watermark == 30


def test_what_a_shard_needs_is_gone_only_if_its_producer_did_not_start_empty():
    made = layered_host()
    runner = made.runners["v0"]
    here = m.Here(edge="u0.0", epoch=1, consumer="v0", first=base_of(1), next=base_of(1) + 2, watermark=10, to=20)
    made.on_here("c#1", here, 0, Ready())
    made.on_here("d#1", here, 0, Ready())
    assert runner.bounds["u0.0"] == 20
    with pytest.raises(WrongMessageError, match="what a shard needs is gone"):
        made.on_here("c#1", replace(here, first=base_of(1) + 1, next=-1), 0, Ready())


def test_a_twin_lets_go_of_dead_letters_when_its_primary_has_written_them():
    made = host("b#1", ACTIVE)
    dead = made.copies["u0"].dead
    dead.append((ROW,), 5)
    made.twins.on_abreast("a#1", m.Abreast(shard="u0", since=1, to={EDGE: 0}), 0, Ready())
    assert dead.blocks
    made.twins.on_abreast("a#1", m.Abreast(shard="u0", since=1, to={EDGE: 0}, kept=dead.next), 0, Ready())
    assert not dead.blocks


def test_a_fetch_is_served_by_both_and_only_the_primary_says_that_something_is_gone():
    made = host("b#1", ACTIVE)
    hand_over(made)
    end = made.runners["u0"].outlet.queue("u0.0").next
    ask = m.Fetch(ticket=1, edge="u0.0", start=0, end=end, consumer="g0", epoch=0)
    assert isinstance(decide(made, ask, 0), m.Fetched)
    made.runners["u0"].outlet.queue("u0.0").ack("r0", end)
    refused = decide(made, ask, 0)
    assert isinstance(refused, m.FetchRefused)
    assert (refused.reason, refused.home) == (FetchReason.NOT_HERE, "a#1")
    ready = Ready()
    made.on_subscribe("g0", m.Subscribe(edge="u0.0", consumer="g0", epoch=1, at=0, ack=0), 0, ready)
    assert ready.send == []


def test_a_task_turns_to_the_twin_when_the_primary_hangs():
    ask = m.Fetch(ticket=0, edge="u0.0", start=0, end=2, consumer="g0", epoch=0, producer_epoch=1)
    errand = Errand(ask, "u0", "a", 0, ("a", "b"), Limits(), 0)
    errand.learn(record(1, ACTIVE))
    assert (errand.home, errand.standby) == ("a", "b")


def test_what_a_copy_said_before_it_joined_anew_does_not_count():
    made = layered_host()
    made.twins.on_abreast("b#1", told({"u0.0": 9, "u1.0": 9}), 0, Ready())
    for version, where in ((2, place(2, mode="active", backup=None, joining="b#1")), (3, place(3, mode="active"))):
        places = made.record.places | {"v0": where}
        made.on_record(replace(made.record, version=version, places=places), 0, Ready())
    give(made, 1, Ready())
    assert made.runners["v0"].safe() == {"u0.0": 0, "u1.0": 0}


def test_only_the_primary_writes_dead_letters():
    for seat, writes in (("a#1", True), ("b#1", False)):
        made = host(seat, ACTIVE)
        made.copies["u0"].dead.append((ROW,), 5)
        ready = Ready()
        made.on_tick(0, ready)
        assert any(isinstance(effect, SetAside) for effect in ready.apply) is writes


@pytest.mark.parametrize(("source", "taken"), [("a#1", True), ("b#1", True), ("d#1", True), ("z#1", False)])
def test_rows_of_whoever_may_run_beside_a_primary_are_taken_and_those_of_an_unknown_node_are_waited_for(source, taken):
    """Twins change without a new epoch, and a reader may have an older record."""
    first = first_record(LAYERS, ("a", "b", "c", "d"), Protection(mode="active"))
    reader = Reader(ReaderSpec(id="r0", edges=("u0.0",)), 1, LAYERS, Config(), first, {}, 0)
    block = replace(shard_block(0, (), 5, 1, None), rows=())
    ready = reader.step(Received(source, m.Data(edge="u0.0", epoch=1, blocks=(block,))), 1)
    assert reader.latest() == {"u0.0": 1 if taken else 0}
    assert not [note for note in ready.notes if isinstance(note, notes.Objected)]
