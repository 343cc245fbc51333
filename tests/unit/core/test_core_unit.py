"""Copies, primaries and images: one order of input, captures that fit only where they start, fences at the border."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.checkpoint import Rounds, method_of
from holdfast.core.copy import Copy
from holdfast.core.feed import Feed
from holdfast.core.hand_over import HandOver
from holdfast.core.host import Host
from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import TICK, Left, Ready, Received
from holdfast.core.roles import TRANSITIONS, Action, Role, State
from holdfast.errors import InvariantError, MemoryLimitError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Block, Digest, batch_block, shard_block
from holdfast.model.config import MS, Config
from holdfast.model.reasons import BarReason
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import ReaderSpec, Topology, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

TWO = layered(stages=2, shards=1)
CONFIG = Config()


def op(spec):
    return WindowSum(spec, 10, Costs(), Meter())


def copy(topology: Topology = TWO, config: Config = CONFIG, *, based: bool = True) -> Copy:
    spec = topology.shards[0]
    return Copy(spec, topology, op(spec), config, based=based)


def feed(made: Copy, edge: str, start: int, rows, watermark: int, batch: int):
    block = batch_block(start, tuple(rows), watermark, batch)
    made.inboxes[edge].sealed.append(block)
    return block


def run(made: Copy) -> list:
    emitted = []
    while (blocks := made.step()) is not None:
        emitted.extend(block for _, block in blocks)
    return emitted


BATCHES = [("s0>u0", 0, [(1, 3, 1)], 10, 0), ("s0>u0", 3, [(1, 12, 1)], 25, 1), ("s1>u0", 0, [(1, 4, 5)], 30, 0)]


def test_two_edges_that_interleave_differently_give_the_same_blocks():
    one, other = copy(), copy()
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
    made = copy()
    feed(made, *BATCHES[2])
    assert made.step() is None
    assert made.next_input().edge == "s0>u0"


def test_windows_close_in_order_of_end_and_key():
    made = copy(layered(stages=1, shards=1))
    feed(made, "s0>u0", 0, [(2, 15, 1), (1, 15, 1), (3, 5, 1)], 100, 0)
    assert run(made)[0].rows == ((3, 9, 1), (1, 19, 1), (2, 19, 1))


def test_a_hole_in_the_input_is_an_error():
    made = copy()
    feed(made, "s0>u0", 7, [], 10, 0)
    with pytest.raises(InvariantError, match="hole"):
        made.step()


def test_without_room_nothing_is_consumed():
    made = copy(layered(stages=1, shards=1), Config(queue_memory_max=1, queue_spill_max=0))
    feed(made, "s0>u0", 0, [], 10, 0)
    feed(made, "s0>u0", 2, [], 20, 1)
    assert len(run(made)) == 1
    assert made.inputs[0].position == 2


def place(since: int = 1, **fields) -> Place:
    return Place(**{"primary": "a#1", "backup": "b#1", "since": since, **fields})


@pytest.mark.parametrize("method", ["delta", "whole"])
def test_a_capture_fits_only_where_it_starts_and_a_whole_one_everywhere(method):
    made, image, late = copy(), copy(), copy(based=False)
    rounds, how = Rounds(made, 1, 0), method_of(Config(method=method))
    rounds.retarget(("b#1", "c#1"), "c#1", 1)
    feed(made, *BATCHES[0])
    run(made)
    first = rounds.begin(made, ("b#1", "c#1"), how, 5)
    assert (first["b#1"].whole, first["c#1"].whole) == (method == "whole", True)
    assert image.fits(first["b#1"])
    image.paste(first["b#1"])
    late.paste(first["c#1"])
    assert rounds.on_pasted("b#1", 1, True) is False
    assert rounds.on_pasted("b#1", 1, True) is False
    assert rounds.on_pasted("c#1", 1, True) is True
    rounds.complete()
    feed(made, *BATCHES[2])
    run(made)
    second = rounds.begin(made, ("b#1",), how, 6)["b#1"]
    assert second.whole or not copy().fits(second)
    image.paste(second)
    assert image.positions() == made.positions() == rounds.base
    assert image.op.windows == made.op.windows


def test_a_target_whose_image_does_not_fit_gets_a_whole_capture_next():
    made = copy()
    rounds, how = Rounds(made, 1, 0), method_of(CONFIG)
    rounds.retarget(("b#1",), None, 1)
    rounds.begin(made, ("b#1",), how, 5)
    assert not rounds.on_pasted("b#1", 1, False)
    assert rounds.begin(made, ("b#1",), how, 6)["b#1"].whole


def test_captures_in_flight_go_out_again_under_the_new_place():
    made = copy()
    rounds = Rounds(made, 1, 0)
    rounds.retarget(("b#1",), None, 1)
    rounds.begin(made, ("b#1",), method_of(CONFIG), 5)
    rounds.retarget(("b#1", "c#1"), "c#1", 2)
    assert rounds.waiting["b#1"].since == 2
    rounds.retarget(("c#1",), "c#1", 3)
    assert (rounds.waiting, list(rounds.wants_whole)) == ({}, ["c#1"])


# --- a node's shards

ONE = layered(stages=1, shards=1)


def record(version: int, shard: Place) -> Record:
    base = first_record(ONE, ("a", "b", "c"))
    return Record(version=version, term=1, members=base.members, places={**base.places, "u0": shard})


def host(seat: str = "a#1", shard: Place | None = None) -> Host:
    made = Host(seat, ONE, CONFIG, op)
    made.on_record(record(1, shard or place()), 0, Ready())
    return made


def test_every_transition_that_can_happen_is_in_the_table_and_others_are_refused():
    made = host("b#1")
    made.states["u0"] = State.PRIMARY
    with pytest.raises(InvariantError, match="cannot have it"):
        made.on_record(record(2, place(2)), 0, Ready())
    assert (State.ABSENT, Role.MOVING) not in TRANSITIONS
    assert {action for _, action in TRANSITIONS.values()} == set(Action)


def test_a_shard_starts_empty_only_under_the_first_record():
    with pytest.raises(InvariantError, match="start empty"):
        host("a#1", place(3))


def test_a_copy_without_an_image_is_never_promoted():
    made = host("c#1", place(1, joining="c#1"))
    with pytest.raises(InvariantError, match="without an image"):
        made.on_record(record(2, place(2, primary="c#1", epoch=2)), 0, Ready())


def test_a_primary_that_missed_an_epoch_of_its_own_says_so():
    made = host()
    with pytest.raises(InvariantError, match="missed an epoch"):
        made.on_record(record(2, place(2, epoch=3)), 0, Ready())


def test_one_that_handed_over_and_missed_it_is_primary_again():
    made = host()
    made.on_record(record(2, place(2, moving=True)), 0, Ready())
    assert made.reports() == [m.Yielded(asset="u0", since=2)]
    ready = Ready()
    made.on_record(record(4, place(4, epoch=3)), 0, ready)
    assert made.primaries["u0"].epoch == 3
    assert notes.Promoted("u0", "a#1", 3, (0,)) in ready.notes


def capture(since: int = 1, epoch: int = 1, number: int = 1, whole: bool = True) -> m.Capture:
    made = copy(ONE)
    rounds = Rounds(made, epoch, 0)
    rounds.retarget(("b#1",), "b#1" if whole else None, since)
    rounds.number = number - 1
    return rounds.begin(made, ("b#1",), method_of(CONFIG), 0)["b#1"]


def test_an_image_takes_captures_only_from_the_primary_of_its_place():
    made, ready = host("b#1"), Ready()
    made.on_capture("x#1", capture(), 0, ready)
    made.on_capture("a#1", capture(epoch=9), 0, ready)
    assert ready.send == []
    made.on_capture("a#1", capture(), 0, ready)
    made.on_capture("a#1", capture(), 0, ready)
    assert [x.fits for _, x in ready.send] == [True, True]
    made.on_capture("a#1", capture(number=0), 0, ready)
    assert len(ready.send) == 2


def test_a_capture_that_does_not_fit_asks_for_a_whole_one():
    made, ready = host("c#1", place(1, joining="c#1")), Ready()
    made.on_capture("a#1", capture(whole=False), 0, ready)
    assert [x.fits for _, x in ready.send] == [False]


def test_an_image_that_a_failed_paste_has_emptied_never_runs():
    """The state engine forgets everything when a paste fails; positions of the copy stay where they were."""

    class Full(WindowSum):
        full = True

        def paste(self, state, whole):
            if self.full:
                raise MemoryLimitError("no room")
            super().paste(state, whole)

    def backup() -> Host:
        made, ready = Host("b#1", ONE, CONFIG, lambda spec: Full(spec, 10, Costs(), Meter())), Ready()
        made.on_record(record(1, place()), 0, ready)
        made.on_capture("a#1", capture(), 0, ready)
        assert ready.send == []
        assert isinstance(ready.notes[-1], notes.PasteFailed)
        return made

    made, ready = backup(), Ready()
    made.on_record(record(2, place(2, joining="c#1")), 0, ready)  # it may wait for the next capture
    with pytest.raises(InvariantError, match="failed paste"):
        made.on_record(record(3, place(3, primary="b#1", backup=None, epoch=2)), 0, ready)
    made, Full.full = backup(), False
    made.on_capture("a#1", capture(), 0, ready)
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2)), 0, ready)
    assert made.primaries["u0"].epoch == 2


def test_a_capture_that_comes_before_its_record_waits_for_it():
    made, ready = host("b#1"), Ready()
    made.on_capture("a#1", capture(since=2), 0, ready)
    assert ready.send == []
    made.on_record(record(2, place(2, joining="c#1")), 0, ready)
    assert [x.fits for _, x in ready.send] == [True]


def test_a_primary_takes_no_captures_and_answers_to_old_epochs_are_ignored():
    made, ready = host(), Ready()
    made.on_capture("a#1", capture(), 0, ready)
    made.on_pasted("b#1", m.Pasted(shard="u0", epoch=7, round=1, fits=True), 0, ready)
    assert ready.send == []
    host("b#1").on_pasted("b#1", m.Pasted(shard="u0", epoch=1, round=1, fits=True), 0, ready)


def test_a_fenced_consumer_cannot_acknowledge_and_one_ahead_is_waited_for():
    made, ready = host(), Ready()
    ask = {"edge": "u0.0", "consumer": "r0", "at": 0, "ack": 0}
    made.on_subscribe("r0", m.Subscribe(epoch=2, **ask), 0, ready)
    made.on_subscribe("r0", m.Subscribe(epoch=1, **{**ask, "ack": 9}), 0, ready)
    assert isinstance(ready.notes[-1], notes.Fenced)
    assert made.copies["u0"].outputs[0].acks["r0"] == 0
    host("b#1").on_subscribe("r0", m.Subscribe(epoch=1, **ask), 0, ready)


def test_a_sink_that_went_back_behind_its_acknowledgement_is_told_instead_of_waiting_for_ever():
    """Its checkpoint was put back, or lost with its machine."""
    made, ready = host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append((), 10)
    made.on_subscribe("r0", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=1, ack=1), 0, Ready())
    made.on_subscribe("r0", m.Subscribe(edge="u0.0", consumer="r0", epoch=2, at=0, ack=0), 0, ready)
    assert [message for _, message in ready.send] == [m.Trimmed(edge="u0.0", epoch=1, first=1)]


def test_a_full_holder_turns_a_stage_away():
    made = host()
    hand = HandOver(made)
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)] * CONFIG.retained_hard_max, 1, 0)
    ready = Ready()
    deliver = m.Deliver(stage="s0", epoch=1, batch=1, attempt=1, shards={"u0": 1}, parts={}, last=None)
    hand.on_deliver("s0@1", deliver, 0, ready)
    assert ready.send[0][1].reason == "full"


def test_spill_is_said_until_nothing_is_left_of_it_and_by_images_too():
    config = Config(queue_memory_max=2)
    made = Host("a#1", ONE, config, op)
    made.on_record(record(1, place()), 0, Ready())
    for i in range(4):
        feed(made.copies["u0"], "s0>u0", 2 * i, [], 10 * i + 10, i)
    ready = Ready()
    made.primaries["u0"].pump(0, ready)
    queue = made.copies["u0"].outputs[0]
    assert [(e.trimmed, e.to) for e in ready.apply] == [(0, 2)]
    image, ready = Host("b#1", ONE, config, op), Ready()
    image.on_record(record(1, place()), 0, ready)
    rounds = Rounds(made.copies["u0"], 1, 0)
    rounds.retarget(("b#1",), "b#1", 1)
    taken = rounds.begin(made.copies["u0"], ("b#1",), method_of(config), 0)["b#1"]
    image.on_capture("a#1", taken, 0, ready)
    assert [(e.trimmed, e.to) for e in ready.apply] == [(0, 2)]
    ready = Ready()
    image.on_record(record(2, place(2, backup=None)), 0, ready)
    assert [(e.trimmed, e.to) for e in ready.apply] == [(4, 0)]
    ready = Ready()
    ask = m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=4, ack=4)
    made.on_subscribe("r0", ask, 0, ready)
    made.on_subscribe("r0", ask, 0, ready)
    assert [(e.trimmed, e.to) for e in ready.apply] == [(4, 2)]
    assert queue.spilled == 0


# --- streams


def test_a_feed_asks_again_at_a_hole_refuses_fenced_rows_and_ignores_old_ones():
    made, ready = Feed("e", "u", 1, 0, 100), Ready()
    data = m.Data(edge="e", epoch=3, blocks=(shard_block(0, (), 1), shard_block(5, (), 2)))
    assert [b.start for b in made.take(data, "p", 0, ready)] == [0]
    assert ready.send[-1][1].at == 1
    assert made.take(m.Data(edge="e", epoch=2, blocks=(shard_block(1, (), 2),)), "p", 0, ready) == []
    assert made.take(data, "p", 0, ready) == []
    made.subscribe(None, 5, ready)
    assert made.heard_ns == 5


def reader(leased: bool = False) -> Reader:
    spec = ReaderSpec(id="r0", edges=("u0.0",), leased=leased)
    return Reader(spec, 1, ONE, CONFIG, record(1, place()), {}, 0)


def bare(start: int, rows: int, watermark: int) -> Block:
    """A block as a reader hears of it: without its rows."""
    return Block(start, start + rows + 1, (), watermark)


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


def test_messages_survive_the_wire_and_every_one_is_in_the_union():
    assert set(m.AnyMessage.__args__) == set(m.Message.__subclasses__())
    commit = m.CommitRecord(
        query="q",
        batch=0,
        epoch=1,
        attempt=1,
        watermark=3,
        offsets=(0, 4),
        late=1,
        digests={"s>u": Digest(1, -5)},
    )
    for message in (
        m.Heartbeat(life=1, version=2),
        m.Data(edge="e", epoch=1, blocks=(shard_block(0, [[1, 2, 3]], 9),)),
        m.Delivered(
            stage="s", epoch=1, batch=0, attempt=1, seat="n#1", shards={"u": 4}, digests={"s>u": Digest(1, 2**64 - 1)}
        ),
        m.LedgerCopy(ledger="s.ledger", since=1, page=m.LedgerPage("q", 1, commit)),
        m.Push(record=record(3, place())),
    ):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=m.AnyMessage) == message


def test_a_copy_that_comes_later_knows_that_the_disk_is_full():
    made = host("c#1", place())
    made.on_disk(True)
    made.on_record(record(2, place(2, joining="c#1")), 0, Ready())
    assert made.copies["u0"].outputs[0].disk_full


def test_a_guest_whose_rows_are_gone_holds_nothing():
    guest = ReaderSpec(id="g0", edges=("u0.0",), leased=True)
    topology = Topology(shards=ONE.shards, stages=ONE.stages, readers=(*ONE.readers, guest))
    made, ready = Host("a#1", topology, CONFIG, op), Ready()
    made.on_record(record(1, place()), 0, ready)
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    queue.ack("r0", 2)
    made.on_subscribe("g0", m.Subscribe(edge="u0.0", consumer="g0", epoch=1, at=0, ack=0), 0, ready)
    assert isinstance(ready.send[-1][1], m.Trimmed)
    assert queue.leases == {}
    made.on_subscribe("g0", m.Subscribe(edge="u0.0", consumer="g0", epoch=1, at=2, ack=2), 5, ready)
    assert queue.leases == {"g0": 5 + CONFIG.lease_ns}


def barred(ready: Ready) -> list[tuple[str, int, str]]:
    return [(to, x.epoch, x.why) for to, x in ready.send if isinstance(x, m.Barred)]


@pytest.mark.parametrize("consumer", ["g0", "r0"])
def test_a_reader_whose_position_is_inside_a_block_is_told_and_the_node_lives(consumer: str):
    """Its checkpoint is of another run, in which blocks ended elsewhere."""
    made, ready = host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    before = dict(queue.acks)
    made.on_subscribe("g0@7", m.Subscribe(edge="u0.0", consumer=consumer, epoch=7, at=1, ack=1), 0, ready)
    assert barred(ready) == [("g0@7", 7, "position")]
    assert (queue.acks, queue.leases, made.primaries["u0"].taps) == (before, {}, {})


def test_a_reader_ahead_of_a_new_primary_is_waited_for_and_told_if_no_block_ends_where_it_stands():
    made, ready = host(), Ready()
    primary = made.primaries["u0"]
    for consumer, at in (("right", 2), ("wrong", 3)):
        made.on_subscribe(consumer, m.Subscribe(edge="u0.0", consumer=consumer, epoch=1, at=at, ack=at), 0, ready)
    assert ready.send == []
    for batch, start in enumerate((0, 3, 6)):  # each closes a window: a row and a watermark
        feed(made.copies["u0"], "s0>u0", start, [(1, 10 * batch + 5, 1)], 10 * batch + 10, batch)
    primary.pump(0, ready)
    assert barred(ready) == [("wrong", 1, "position")]
    assert [to for to, x in ready.send if isinstance(x, m.Data)] == ["right"]
    assert list(primary.taps) == [("u0.0", "right")]


def test_a_shards_position_inside_a_block_is_still_a_bug_of_ours():
    topology = layered(stages=1, shards=1, tops=1)
    made = Host("a#1", topology, CONFIG, op)
    placed = {shard: place() for shard in topology.shard}
    made.on_record(msgspec.structs.replace(record(1, place()), places=placed), 0, Ready())
    made.copies["u0"].outputs[0].append(((1, 2, 3),), 4)
    with pytest.raises(InvariantError, match="points into a block"):
        made.on_subscribe("a#1", m.Subscribe(edge="u0.0", consumer="v0", epoch=1, at=1, ack=1), 0, Ready())


def test_a_guest_of_another_run_is_told_whatever_its_position():
    made, ready = host(), Ready()
    ask = {"edge": "u0.0", "consumer": "g0", "epoch": 1, "at": 0, "ack": 0}
    made.on_subscribe("g0", m.Subscribe(query="of-yesterday", **ask), 0, ready)
    assert barred(ready) == [("g0", 1, "foreign")]
    assert made.copies["u0"].outputs[0].leases == {}
    made.on_subscribe("g0", m.Subscribe(query=ONE.query, **ask), 0, ready)
    assert "g0" in made.copies["u0"].outputs[0].leases


def test_of_two_guests_with_one_name_the_later_reads_and_the_earlier_is_told():
    made, ready = host(), Ready()
    ask = {"edge": "u0.0", "consumer": "g0", "at": 0, "ack": 0}
    made.on_subscribe("g0@1", m.Subscribe(epoch=1, **ask), 0, ready)
    made.on_subscribe("g0@2", m.Subscribe(epoch=2, **ask), 0, ready)
    assert barred(ready) == []
    made.on_subscribe("g0@1", m.Subscribe(epoch=1, **ask), 0, ready)
    assert barred(ready) == [("g0@1", 1, "fenced")]
    assert made.primaries["u0"].taps["u0.0", "g0"].address == "g0@2"


def test_a_reader_that_is_turned_away_asks_no_more_and_one_of_a_later_life_is_not_meant():
    made = reader(leased=True)
    assert {x.query for _, x in made.step(TICK, 0).send if isinstance(x, m.Subscribe)} == {ONE.query}
    made.step(Received("a#1", m.Barred(edge="u0.0", epoch=0, why=BarReason.FENCED)), 0)
    assert made.barred == {}
    made.step(Received("a#1", m.Barred(edge="u0.0", epoch=1, why=BarReason.FENCED)), 0)
    assert made.barred == {"u0.0": "fenced"}
    ready = made.step(TICK, 400 * MS)
    assert [type(x) for _, x in ready.send] == [m.Pull]


def test_a_guest_that_leaves_lets_go_of_rows_at_once_and_leaves_no_lease_to_lapse():
    made, ready = host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    made.on_subscribe("g0", m.Subscribe(edge="u0.0", consumer="g0", epoch=0, at=0, ack=0), 0, ready)
    made.on_subscribe("r0", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=2, ack=2), 0, ready)
    assert queue.trimmed == 0
    ready = Ready()
    made.on_left(Left("g0", ("u0.0", "of-another-pipeline.0")), 0, ready)
    assert queue.trimmed == 2
    assert [note.word for note in ready.notes] == ["left"]
    made.on_left(Left("r0", ("u0.0",)), 0, ready)  # a sink of the pipeline stays
    assert queue.acks == {"r0": 2}
    ready = Ready()
    made.on_tick(10 * CONFIG.lease_ns, ready)
    assert "lapsed" not in [note.word for note in ready.notes]
    assert ("u0.0", "g0") not in made.primaries["u0"].taps
