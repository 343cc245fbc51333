"""One copy of a shard: one order of input, captures that fit only where they start, a paste in pieces."""

from __future__ import annotations

import pytest
from support.core import ONE, SMALL, TWO, copy_of, feed, fill, images, place, run, take

from holdfast.core.arriving import Arriving, Pasting
from holdfast.core.copy import Copy
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model.config import Config

BATCHES = [("s0>u0", 0, [(1, 3, 1)], 10, 0), ("s0>u0", 3, [(1, 12, 1)], 25, 1), ("s1>u0", 0, [(1, 4, 5)], 30, 0)]


def test_two_edges_that_interleave_differently_give_the_same_blocks():
    one, other = copy_of(TWO), copy_of(TWO)
    for batch in BATCHES:
        feed(one, *batch)
    first = run(one)
    second = []
    for batch in (BATCHES[2], BATCHES[0], BATCHES[1]):
        feed(other, *batch)
        second += run(other)
    assert first == second
    assert [block.rows for block in first] == [((1, 9, 6),), ((1, 19, 1),)]


def test_the_lowest_watermark_goes_first_and_ties_go_by_edge():
    made = copy_of(TWO)
    feed(made, *BATCHES[2])
    assert made.step() is None
    assert made.next_input().edge == "s0>u0"


def test_windows_close_in_order_of_end_and_key():
    made = copy_of()
    feed(made, "s0>u0", 0, [(2, 15, 1), (1, 15, 1), (3, 5, 1)], 100, 0)
    assert run(made)[0].rows == ((3, 9, 1), (1, 19, 1), (2, 19, 1))


def test_a_hole_in_the_input_is_an_error():
    made = copy_of(TWO)
    feed(made, "s0>u0", 7, [], 10, 0)
    with pytest.raises(InvariantError, match="hole"):
        run(made)


def test_without_room_nothing_is_consumed():
    made = copy_of(ONE, Config(queue_memory_max=1, queue_spill_max=0))
    feed(made, "s0>u0", 0, [], 10, 0)
    feed(made, "s0>u0", 2, [], 20, 1)
    assert len(run(made)) == 1
    assert made.inputs[0].position == 2


def paste(made: Copy, messages: list[m.Message]) -> None:
    made.hold(arrived(messages))
    while made.pasting is not None:
        made.paste_piece()


def arrived(messages: list[m.Message]) -> Pasting:
    arriving = Arriving("a#1", (1, 0, 1), 0)
    for message in messages:
        assert arriving.capture() is None
        arriving.add(message)
    return Pasting("a#1", arriving.capture(), arriving.state())


@pytest.mark.parametrize("method", ["delta", "whole"])
def test_a_capture_fits_only_where_it_starts_and_the_start_of_a_scan_everywhere(method):
    made, image, late = copy_of(TWO), copy_of(TWO), copy_of(TWO, based=False)
    guard = images(made, place(joining="c#1"), method=method)
    feed(made, *BATCHES[0])
    run(made)
    first = take(guard)
    heads = {seat: messages[0] for seat, messages in first.items()}
    assert (heads["b#1"].scan, heads["c#1"].scan) == (-1, 0)
    assert image.fits(heads["b#1"])
    assert not late.fits(heads["b#1"])
    assert image.fits(heads["c#1"])
    paste(image, first["b#1"])
    paste(late, first["c#1"])
    assert late.based
    for seat in ("b#1", "c#1"):
        guard.on_pasted(seat, m.Pasted(shard="u0", epoch=1, round=1), 0, Ready())
    feed(made, *BATCHES[2])
    run(made)
    second = take(guard)
    assert not copy_of(TWO).fits(second["b#1"][0])
    for seat, its in (("b#1", image), ("c#1", late)):
        paste(its, second[seat])
        assert its.positions() == made.positions() == guard.base
        assert its.op.windows == made.op.windows


def test_a_paste_in_pieces_stands_nowhere_until_the_last_piece():
    made, image = copy_of(config=SMALL), copy_of(config=SMALL)
    guard = images(made, place(), SMALL)
    fill(made, range(10))
    messages = take(guard)["b#1"]
    assert len(messages) == 3
    image.hold(arrived(messages))
    for _ in range(2):
        assert image.paste_piece() is None
        assert image.condition is Condition.HOLDING
        assert image.positions() == {"s0>u0": 0}
        assert image.holds_to("s0>u0") == 12
    assert image.paste_piece() == []
    assert image.condition is Condition.COMPLETE
    assert image.positions() == made.positions() == {"s0>u0": 12}
    assert image.op.windows == made.op.windows


def test_nothing_is_pasted_that_is_not_held():
    with pytest.raises(InvariantError, match="nothing is held"):
        copy_of().paste_piece()


def test_an_image_that_was_torn_in_a_paste_fits_nothing_but_the_start_of_a_scan():
    made, image = copy_of(), copy_of()
    guard = images(made, place(joining="c#1"))
    fill(made, range(3))
    sent = take(guard)
    image.hold(Pasting("a#1", sent["b#1"][0], [object()]))
    image.give_up()
    assert not image.fits(sent["b#1"][0])
    assert image.fits(sent["c#1"][0])
