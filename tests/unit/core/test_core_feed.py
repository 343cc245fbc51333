"""Streams along an edge, from the side that reads: a shard's feed and a sink's reader."""

from __future__ import annotations

from support.core import CONFIG, ONE, place, record

from holdfast.core.feed import Feed
from holdfast.core.invariants import Invariants
from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import TICK, Ready, Received
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Block, shard_block
from holdfast.model.config import MS
from holdfast.model.reasons import BarReason
from holdfast.model.topology import ReaderSpec


def test_a_feed_asks_again_at_a_hole_and_ignores_old_rows():
    made, ready = Feed("e", "u", 1, 0, 100), Ready()
    data = m.Data(edge="e", epoch=3, blocks=(shard_block(0, (), 1), shard_block(5, (), 2)))
    assert [b.start for b in made.take(data, "p", 0, ready)] == [0]
    assert ready.send[-1][1].at == 1
    assert made.take(data, "p", 0, ready) == []
    made.subscribe(None, 5, ready)
    assert made.heard_ns == 5


def test_who_is_patient_asks_all_the_same_where_its_loop_is_always_slow():
    """Once it reads first what has come meanwhile; if nothing has, what it asked was lost."""
    made, retry_ns = Feed("e", "u", 1, 0, 100), 100 * MS
    made.subscribe("p", 0, Ready())
    looks = [made.is_silent(number * 4 * retry_ns, retry_ns, patient=True) for number in range(1, 4)]
    assert looks == [False, True, True]
    data = m.Data(edge="e", epoch=3, blocks=(shard_block(0, (), 1),))
    made.take(data, "p", 17 * retry_ns, Ready())
    assert not made.is_silent(21 * retry_ns, retry_ns, patient=True)
    assert Feed("e", "u", 1, 0, 100).is_silent(4 * retry_ns, retry_ns)


def reader(leased: bool = False) -> Reader:
    spec = ReaderSpec(id="r0", edges=("u0.0",), leased=leased)
    return Reader(spec, 1, ONE, CONFIG, record(1, place()), {}, 0)


def bare(start: int, rows: int, watermark: int) -> Block:
    """A block as a reader hears of it: without its rows."""
    return Block(start, start + rows + 1, (), watermark)


def test_a_reader_goes_on_from_a_batch_that_was_planned_further_than_it_has_followed():
    """A sink that was started again runs what its earlier life had planned, and may commit it before it has heard of
    all of it. What it commits is trimmed: asked for again, it would be taken for lost."""
    made = reader()
    made.step(TICK, 0)
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=1, blocks=(bare(0, 1, 1),))), 0)
    ready = made.commit({"u0.0": 7}, 0)
    assert [(x.at, x.ack) for _, x in ready.send] == [(7, 7)]
    own = Invariants()
    own.on_notes(ready.notes)
    late = made.step(Received("a#1", m.Data(edge="u0.0", epoch=1, blocks=(bare(2, 4, 2), bare(7, 1, 3)))), 0)
    own.on_notes(late.notes)
    assert made.latest() == {"u0.0": 9}
    assert [b.start for b in made.buffers["u0.0"]] == [7]


def test_a_reader_follows_positions_without_rows_and_never_goes_back():
    made = reader()
    asked = [x for _, x in made.step(TICK, 0).send if isinstance(x, m.Subscribe)]
    assert [x.bare for x in asked] == [True]
    assert made.latest() == {"u0.0": 0}
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=1, blocks=(bare(0, 1, 4),))), 0)
    made.step(Received("c#1", m.Data(edge="other", epoch=1, blocks=(bare(0, 1, 4),))), 0)
    moved = record(2, place(2, primary="b#1", backup=None, epoch=2))
    ready = made.step(Received("n", m.Push(record=moved)), 0)
    assert [(to, x.at) for to, x in ready.send] == [("b#1", 2)]
    assert made.latest() == {"u0.0": 2}
    assert made.step(Received("n", m.Push(record=record(1, place()))), 0).send == []


def test_a_reader_takes_nothing_from_a_producer_that_is_behind_what_it_has_heard_of():
    made = reader()
    made.step(TICK, 0)
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=3, blocks=(bare(0, 1, 4),))), 0)
    ready = made.step(Received("a#1", m.Data(edge="u0.0", epoch=2, blocks=(bare(2, 1, 5),))), 0)
    assert ready.notes == [notes.Refused("r0", "u0.0", 2, 3)]
    made.step(Received("a#1", m.Trimmed(edge="u0.0", epoch=2, first=9)), 0)
    assert (made.latest(), made.lost) == ({"u0.0": 2}, {})
    made.step(Received("n", m.Push(record=record(4, place(4, primary="b#1", backup=None, epoch=4)))), 0)
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=3, blocks=(bare(2, 1, 5),))), 0)
    assert made.latest() == {"u0.0": 2}


def test_what_tasks_must_fetch_leaves_out_what_has_no_rows():
    made = reader()
    made.step(TICK, 0)
    blocks = (bare(0, 0, 4), bare(1, 3, 5), bare(5, 0, 6))
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=1, blocks=blocks)), 0)
    assert made.pieces({"u0.0": 0}, {"u0.0": 1}) == []
    assert made.pieces({"u0.0": 6}, {"u0.0": 6}) == []
    piece = Piece(edge="u0.0", shard="u0", start=1, end=6, rows=3)
    assert made.pieces({"u0.0": 1}, {"u0.0": 6}) == [piece]
    # a plan of an earlier life: this one has not heard of it all yet, and takes it for rows
    assert made.pieces({"u0.0": 5}, {"u0.0": 9}) == [Piece(edge="u0.0", shard="u0", start=5, end=9, rows=4)]


def test_a_readers_commit_is_cumulative_and_what_is_committed_is_given_up():
    made = reader()
    made.step(TICK, 0)
    made.step(Received("a#1", m.Data(edge="u0.0", epoch=1, blocks=(bare(0, 0, 4), bare(1, 0, 5)))), 0)
    assert made.commit({"u0.0": 1}, 0).send[0][1].ack == 1
    assert made.commit({"u0.0": 1}, 0).send == []
    assert [block.start for block in made.buffers["u0.0"]] == [1]


def test_a_reader_whose_rows_are_gone_says_where_the_edge_starts():
    made = reader(leased=True)
    made.step(TICK, 0)
    made.step(Received("a#1", m.Trimmed(edge="u0.0", epoch=1, first=9)), 0)
    assert made.lost == {"u0.0": 9}
    ready = made.step(TICK, 400 * MS)
    assert [type(x) for _, x in ready.send] == [m.Pull]


def test_a_reader_that_is_turned_away_asks_no_more_and_one_of_a_later_life_is_not_meant():
    made = reader(leased=True)
    assert {x.query for _, x in made.step(TICK, 0).send if isinstance(x, m.Subscribe)} == {ONE.query}
    made.step(Received("a#1", m.Barred(edge="u0.0", epoch=0, why=BarReason.FENCED)), 0)
    assert made.barred == {}
    made.step(Received("a#1", m.Barred(edge="u0.0", epoch=1, why=BarReason.FENCED)), 0)
    assert made.barred == {"u0.0": "fenced"}
    ready = made.step(TICK, 400 * MS)
    assert [type(x) for _, x in ready.send] == [m.Pull]
