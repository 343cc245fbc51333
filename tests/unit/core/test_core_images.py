"""The guard `Images`: rounds of one moment, scans in chunks, what gates an acknowledgement and from when on."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace
from support.core import CONFIG, ONE, SMALL, answer, copy_of, fill, held, host, images, pasted, place, receive, take

from holdfast.core.copy import Copy
from holdfast.core.protect import Images, Pace
from holdfast.core.protect.images import SCAN_RETRIES_MAX, STRETCH_MAX
from holdfast.core.ready import Ready
from holdfast.core.roles import Change
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.protection import Protection

EDGE = "s0>u0"
BOTH = place(joining="c#1")


def heads(sent: dict[str, list[m.Message]]) -> dict[str, m.Capture]:
    return {seat: messages[0] for seat, messages in sent.items()}


# --- rounds


def test_a_round_is_due_after_its_period_and_only_if_something_was_consumed():
    made = copy_of()
    guard = images(made, place())
    assert not guard.due(10_000 * MS, frozen=False)
    fill(made, [1])
    assert not guard.due(249 * MS, frozen=False)
    assert guard.due(250 * MS, frozen=False)
    assert guard.due(0, frozen=True)
    guard.protection = Protection(period_ns=10 * MS)
    assert guard.due(10 * MS, frozen=False)
    take(guard)
    assert not guard.due(10_000 * MS, frozen=False)


def test_a_round_waits_while_a_take_over_would_have_little_to_do_again_but_not_for_ever():
    made = copy_of()
    guard = images(made, place(), Config(replay_ns=5 * MS))
    fill(made, [1])
    period_ns = guard.protection.period_ns
    assert not guard.due(period_ns, frozen=False)
    assert guard.due(STRETCH_MAX * period_ns, frozen=False)
    made.op.busy_ns += 5 * MS
    assert guard.due(period_ns, frozen=False)
    assert not guard.due(period_ns - 1, frozen=False)
    take(guard)
    answer(guard, "b#1", [pasted(1)])
    fill(made, [2], 1)
    assert not guard.due(period_ns, frozen=False)
    assert guard.due(0, frozen=True)


def test_much_consumed_input_forces_a_round_and_a_torn_state_is_never_captured():
    made = copy_of(config=Config(retained_soft_max=5))
    guard = images(made, place(), Config(retained_soft_max=5))
    fill(made, range(5))
    assert guard.due(0, frozen=False)
    made.change(Change.TORN)
    assert not guard.due(10_000 * MS, frozen=True)


def test_held_acknowledges_and_pasted_lets_the_next_round_begin():
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    assert guard.safe() == {EDGE: 0}
    fill(made, [2], 1)
    answer(guard, "b#1", [held(1)])
    assert guard.safe() == {EDGE: 3}
    assert not guard.due(10_000 * MS, frozen=True)
    answer(guard, "b#1", [pasted(1)])
    assert guard.due(10_000 * MS, frozen=False)
    assert guard.safe() == {EDGE: 3}


def test_pasted_counts_as_held_where_that_word_was_lost():
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    answer(guard, "b#1", [pasted(1)])
    assert (guard.safe(), guard.waiting) == ({EDGE: 3}, {})


def test_answers_of_another_round_or_of_a_stranger_are_nothing():
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    for seat, number in (("b#1", 0), ("b#1", 2), ("x#1", 1)):
        answer(guard, seat, [held(number), pasted(number)])
    assert (guard.safe(), list(guard.waiting)) == ({EDGE: 0}, ["b#1"])


def test_captures_in_flight_go_out_again_under_the_new_place():
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    guard.retarget(place(2, joining="c#1"))
    assert [x.since for x in guard.waiting["b#1"]] == [2]
    ready = Ready()
    guard.on_tick(2 * CONFIG.retry_ns, ready)
    assert [(seat, x.since) for seat, x in ready.send] == [("b#1", 2)]
    guard.retarget(place(3, backup=None, joining="c#1"))
    assert (guard.waiting, guard.scans, guard.gates) == ({}, {"c#1": 0}, {})


def test_what_a_lost_target_had_not_pasted_goes_into_the_next_round():
    made = copy_of()
    guard = images(made, BOTH)
    fill(made, [1])
    take(guard)
    answer(guard, "b#1", [pasted(1)])
    assert guard.safe() == {EDGE: 0}  # the joining image is complete with this round: it gates too
    guard.retarget(place(2))
    assert guard.due(0, frozen=False)
    take(guard)
    answer(guard, "b#1", [held(2)])
    assert guard.safe() == {EDGE: 3}


# --- what gates, and from when on


def test_with_no_complete_image_nothing_is_held_back():
    made = copy_of(config=SMALL)
    guard = images(made, place(backup=None, joining="c#1"), SMALL)
    fill(made, range(12))
    take(guard)
    assert guard.safe() is None
    assert images(copy_of(), place(backup=None)).safe() is None


def test_an_image_in_the_middle_of_its_scan_gates_nothing_and_gates_from_the_round_that_completes_it():
    made, image = copy_of(config=SMALL), host("c#1", BOTH, SMALL)
    guard = images(made, BOTH, SMALL)
    fill(made, range(10))  # three chunks
    for number in (1, 2):
        sent = take(guard)
        answer(guard, "b#1", [held(number)])
        assert guard.safe() == made.positions()
        assert not heads(sent)["c#1"].done
        answer(guard, "c#1", receive(image, sent["c#1"]))
        answer(guard, "b#1", [pasted(number)])
        assert guard.reports("u0") == []
        fill(made, range(10), number)
    before = guard.safe()
    sent = take(guard)
    assert heads(sent)["c#1"].done
    answer(guard, "b#1", [held(3)])
    assert guard.safe() == before  # c#1 may be named as soon as it has this: nothing newer before it holds it
    answer(guard, "c#1", receive(image, sent["c#1"], paste=False))
    assert guard.safe() == made.positions()
    assert guard.reports("u0") == []
    answer(guard, "c#1", receive(image, sent["c#1"]))
    assert guard.reports("u0") == [m.Joined(asset="u0", since=1, seat="c#1")]
    assert image.copies["u0"].based
    assert image.copies["u0"].op.windows == made.op.windows


def test_the_image_that_a_scan_made_equals_the_state_whatever_went_on_meanwhile():
    made, image = copy_of(config=SMALL), host("c#1", BOTH, SMALL)
    guard = images(made, place(backup=None, joining="c#1"), SMALL)
    fill(made, range(30), time=500)
    for number in range(1, 20):
        sent = take(guard)
        answer(guard, "c#1", receive(image, sent["c#1"]))
        if image.copies["u0"].based:
            break
        # windows close and free their slots, others take those slots again, on both sides of the cursor
        fill(made, range(number, number + 9), number, time=10 * number, watermark=10 * number)
    assert number > 5
    assert image.copies["u0"].positions() == made.positions()
    assert image.copies["u0"].op.windows == made.op.windows
    assert image.copies["u0"].op.slots == made.op.slots


def test_a_delta_that_only_begins_a_scan_is_not_sent_at_all():
    made = copy_of()
    guard = images(made, place(backup=None, joining="c#1"))
    fill(made, range(9))
    assert [len(x) for x in take(guard).values()] == [1]
    assert made.op.dirty == {}


def test_whole_captures_carry_everything_each_time():
    made = copy_of()
    guard = images(made, place(), method="whole")
    for number, count in enumerate((4, 5), 1):
        fill(made, [number * 100], number - 1)
        if number == 1:
            fill(made, range(3), 1)
        head = heads(take(guard))["b#1"]
        assert len(head.state) == count
        answer(guard, "b#1", [pasted(number)])


# --- what goes wrong on the way


def test_a_lost_piece_is_sent_again_and_the_round_completes():
    made, image = copy_of(config=SMALL), host("b#1", config=SMALL)
    guard = images(made, place(), SMALL)
    fill(made, range(10))
    sent = take(guard)["b#1"]
    assert len(sent) == 3
    assert receive(image, [sent[0], sent[2]]) == []
    ready = Ready()
    guard.on_tick(2 * SMALL.retry_ns, ready)
    assert [message for _, message in ready.send] == sent
    answers = receive(image, [message for _, message in ready.send])
    assert [type(x) for x in answers] == [m.Held, m.Pasted]
    answer(guard, "b#1", answers)
    assert guard.waiting == {}


def test_what_is_held_is_asked_for_without_its_state_and_answered_again():
    made, image = copy_of(), host("b#1")
    guard = images(made, place())
    fill(made, [1])
    answer(guard, "b#1", receive(image, take(guard)["b#1"], paste=False))
    ready = Ready()
    guard.on_tick(2 * CONFIG.retry_ns, ready)
    poke = ready.send[0][1]
    assert isinstance(poke, m.Capture)
    assert (poke.pieces, poke.state, poke.outputs) == (0, None, {})
    assert receive(image, [poke], paste=False) == [held(1)]
    receive(image, [])
    assert receive(image, [poke]) == [pasted(1)]


def test_resends_come_less_and_less_often():
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    at = []
    for tick in range(1, 200):
        ready = Ready()
        guard.on_tick(tick * CONFIG.retry_ns, ready)
        if ready.send:
            at.append(tick)
    assert at[:4] == [2, 6, 14, 22]
    assert max(b - a for a, b in pairwise(at)) == 8


def test_a_slow_joining_seat_is_started_over_and_does_not_hold_up_the_backup():
    made = copy_of(config=SMALL)
    guard = images(made, BOTH, SMALL)
    fill(made, range(10))
    first = take(guard)
    answer(guard, "b#1", [held(1), pasted(1)])
    late_ns = SCAN_RETRIES_MAX * SMALL.retry_ns
    ready = Ready()
    guard.on_tick(late_ns - 1, ready)
    assert "c#1" in guard.waiting
    guard.on_tick(late_ns, ready)
    assert notes.ScanAgain("u0", 1, 1, "c#1") in ready.notes
    assert (guard.waiting, guard.scans) == ({}, {"c#1": 0})
    fill(made, range(10), 1)
    again = take(guard, late_ns)
    assert (heads(again)["b#1"].scan, heads(again)["c#1"].scan) == (-1, 0)
    answer(guard, "c#1", [held(1), pasted(1)])  # of the round that was given up
    assert guard.scans == {"c#1": 0}
    assert heads(first)["c#1"].round == 1


def test_a_joining_seat_is_waited_for_where_it_holds_up_nobody():
    made = copy_of(config=SMALL)
    guard = images(made, place(backup=None, joining="c#1"), SMALL)
    fill(made, range(10))
    take(guard)
    ready = Ready()
    guard.on_tick(100 * SCAN_RETRIES_MAX * SMALL.retry_ns, ready)
    assert (ready.notes, list(guard.waiting)) == ([], ["c#1"])


def test_a_joining_image_that_does_not_continue_is_brought_up_anew():
    made = copy_of(config=SMALL)
    guard = images(made, BOTH, SMALL)
    fill(made, range(10))
    take(guard)
    answer(guard, "b#1", [pasted(1)])
    answer(guard, "c#1", [pasted(1)])
    assert guard.scans == {"c#1": 4}
    take(guard)
    answer(guard, "c#1", [held(2, fits=False)])
    assert guard.scans == {"c#1": 0}
    assert guard.reports("u0") == []


def completed(guard: Images, made: Copy) -> None:
    """Bring the joining seat up to its last chunk: the record may name it from now on."""
    for number in range(1, 5):
        take(guard)
        answer(guard, "b#1", [pasted(number)])
        answer(guard, "c#1", [pasted(number)])
        if guard.reports("u0"):
            break
    fill(made, range(10), 1)
    take(guard)
    answer(guard, "b#1", [pasted(guard.number)])


def test_an_image_that_was_reported_complete_is_not_started_over_for_being_slow():
    """The record may name it at any moment: it must go on being one that could take over."""
    made = copy_of(config=SMALL)
    guard = images(made, BOTH, SMALL)
    fill(made, range(10))
    completed(guard, made)
    ready = Ready()
    guard.on_tick(100 * SCAN_RETRIES_MAX * SMALL.retry_ns, ready)
    assert (ready.notes, list(guard.waiting), guard.scans) == ([], ["c#1"], {})
    assert guard.reports("u0") == [m.Joined(asset="u0", since=1, seat="c#1")]


def test_an_image_that_was_reported_complete_and_does_not_continue_is_reported_and_holds_back_acknowledgements():
    made = copy_of(config=SMALL)
    guard = images(made, BOTH, SMALL)
    fill(made, range(10))
    completed(guard, made)
    safe = guard.safe()
    answer(guard, "c#1", [held(guard.number, fits=False)])
    assert guard.reports("u0") == [m.Unfit(asset="u0", since=1, seat="c#1")]
    fill(made, range(10), 2)
    take(guard)
    answer(guard, "b#1", [pasted(guard.number)])
    assert guard.safe() == safe
    guard.retarget(place(2, backup="c#1"))  # the first report came through: it is named, and must be dropped again
    assert guard.reports("u0") == [m.Unfit(asset="u0", since=2, seat="c#1")]


def test_a_backup_that_does_not_fit_is_reported_and_holds_back_acknowledgements_until_the_record_has_dropped_it():
    """The record still names it: should the primary die now, it runs from where it stands."""
    made = copy_of()
    guard = images(made, place())
    fill(made, [1])
    take(guard)
    answer(guard, "b#1", [held(1, fits=False)])
    assert guard.reports("u0") == [m.Unfit(asset="u0", since=1, seat="b#1")]
    assert guard.safe() == {EDGE: 0}
    assert not guard.is_settled()
    fill(made, [2], 1)
    if guard.due(10_000 * MS, frozen=False):
        take(guard)
    assert guard.safe() == {EDGE: 0}
    guard.retarget(place(2, backup=None, joining="b#1"))
    assert guard.reports("u0") == []
    assert guard.safe() is None
    assert heads(take(guard))["b#1"].scan == 0


# --- pace


def test_the_bandwidth_limit_holds_back_chunks_but_not_deltas():
    config = Config(chunk_bytes=SMALL.chunk_bytes, transfer_bytes_per_s=SMALL.chunk_bytes)  # one chunk a second
    made, image = copy_of(config=config), host("c#1", BOTH, config)
    guard = images(made, BOTH, config)
    fill(made, range(10))
    first = take(guard)
    assert [x.scan for x in heads(first).values()] == [-1, 0]
    answer(guard, "b#1", [pasted(1)])
    answer(guard, "c#1", receive(image, first["c#1"]))
    assert not guard.due(10 * MS, frozen=False)
    fill(made, [1], 1)
    second = take(guard, 300 * MS)
    assert [len(x) for x in second.values()] == [1, 1]
    assert heads(second)["b#1"].state == heads(second)["c#1"].state  # the same delta, and no chunk
    assert (heads(second)["c#1"].scan, heads(second)["c#1"].done) == (4, False)
    answer(guard, "b#1", [pasted(2)])
    answer(guard, "c#1", receive(image, second["c#1"]))
    assert guard.due(1_000 * MS, frozen=False)
    third = take(guard, 1_000 * MS)
    assert [len(x) for x in third.values()] == [1, 2]
    answer(guard, "c#1", receive(image, third["c#1"]))
    assert image.copies["u0"].op.scanned == 8


def test_a_scan_that_may_not_begin_yet_sends_nothing_and_the_backup_gets_its_delta():
    config = Config(chunk_bytes=SMALL.chunk_bytes, transfer_bytes_per_s=SMALL.chunk_bytes)
    made = copy_of(config=config)
    guard = images(made, BOTH, config)
    guard.pace.spend(config.chunk_bytes, 0)  # another shard of this node brings up an image
    fill(made, [1])
    assert not guard.due(10 * MS, frozen=False)
    assert list(take(guard, 500 * MS)) == ["b#1"]
    answer(guard, "b#1", [pasted(1)])
    assert guard.due(1_000 * MS, frozen=False)
    assert list(take(guard, 1_000 * MS)) == ["b#1", "c#1"]


def test_without_a_limit_the_pace_is_always_free():
    pace = Pace(None)
    pace.spend(1 << 40, 0)
    assert pace.is_free(0)
    limited = Pace(1_000)
    limited.spend(500, 0)
    limited.spend(500, 0)
    assert (limited.is_free(899 * MS), limited.is_free(900 * MS)) == (False, True)


def test_a_node_that_looks_every_100_ms_keeps_up_with_its_limit_and_does_not_pass_it():
    pace, sent = Pace(1_000), 0
    for now_ms in range(0, 10_000, 100):
        while pace.is_free(now_ms * MS):
            pace.spend(30, now_ms * MS)
            sent += 30
    assert 9_900 <= sent <= 10_200


def test_one_limit_is_for_all_shards_of_a_node():
    pace = Pace(SMALL.chunk_bytes)
    guards = [Images(copy_of(config=SMALL), BOTH, SMALL, pace, 0) for _ in range(2)]
    for guard in guards:
        guard.retarget(BOTH)
    assert all(guard.due(0, frozen=False) for guard in guards)
    take(guards[0])
    assert not guards[1].due(899 * MS, frozen=False)
    assert guards[1].due(900 * MS, frozen=False)


# --- output


def test_output_comes_to_a_new_image_in_parts_and_completes_it():
    small = replace(ONE, block_rows_max=3)
    made = copy_of(small)
    fill(made, range(8))
    fill(made, [9], 1, time=11, watermark=10)  # closes eight windows: blocks of three, three and two rows
    queue = made.outputs[0]
    assert [len(block.rows) for block in queue.blocks] == [0, 3, 3, 2]
    assert [block.watermark for block in queue.blocks] == [0, 0, 0, 10]
    guard = images(made, place(backup=None, joining="c#1"))
    other = host("c#1", place(backup=None, joining="c#1"))
    standing = []
    while guard.scans:
        messages = take(guard)["c#1"]
        assert all(sum(map(len, message.cargo)) <= 4 for message in messages)
        assert heads({"c#1": messages})["c#1"].rising
        answer(guard, "c#1", receive(other, messages))
        standing.append(other.copies["u0"].outputs[0].next)
    assert standing == [1, 5, 9, 12]
    assert guard.made == {"c#1": None}
    assert list(other.copies["u0"].outputs[0].blocks) == list(queue.blocks)


def test_a_copy_that_started_empty_is_not_captured_before_it_knows_where_every_stage_goes_on():
    """What it says is missing when a stage has spoken comes of no input: an image of before would make other rows."""
    made = copy_of()
    inbox = made.inboxes[made.inputs[0].edge]
    guard = images(made, place(backup=None, joining="c#1"))
    inbox.landing = True
    assert not guard.due(SECOND, frozen=False)
    made.inputs[0].watermark = WATERMARK_MAX  # the stage has ended: nothing comes any more
    assert guard.due(SECOND, frozen=False)
    made.inputs[0].watermark, inbox.landing = 0, False
    assert guard.due(SECOND, frozen=False)
