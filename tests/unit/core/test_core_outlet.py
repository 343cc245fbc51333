"""What leaves a running shard: who may read, from where, who is told that it cannot, and what is kept for whom."""

from __future__ import annotations

import pytest
from support.core import CONFIG, ONE, feed, host, op, place, record

from holdfast.core.host import Host
from holdfast.core.ready import Left, Ready
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.topology import ReaderSpec, Topology, layered


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
    assert (queue.acks, queue.leases, made.runners["u0"].outlet.taps) == (before, {}, {})


def test_a_reader_ahead_of_a_new_primary_is_waited_for_and_told_if_no_block_ends_where_it_stands():
    made, ready = host(), Ready()
    runner = made.runners["u0"]
    for consumer, at in (("right", 2), ("wrong", 3)):
        made.on_subscribe(consumer, m.Subscribe(edge="u0.0", consumer=consumer, epoch=1, at=at, ack=at), 0, ready)
    assert ready.send == []
    for batch, start in enumerate((0, 3, 6)):  # each closes a window: a row and a watermark
        feed(made.copies["u0"], "s0>u0", start, [(1, 10 * batch + 5, 1)], 10 * batch + 10, batch)
    runner.pump(0, ready)
    assert barred(ready) == [("wrong", 1, "position")]
    assert [to for to, x in ready.send if isinstance(x, m.Data)] == ["right"]
    assert list(runner.outlet.taps) == [("u0.0", "right", "")]


PAIR = layered(stages=1, shards=1, tops=1)


def pair_host() -> Host:
    made = Host("a#1", PAIR, CONFIG, op)
    made.on_record(record(1, place(), PAIR), 0, Ready())
    return made


def test_a_shards_position_inside_a_block_gets_nothing_and_ends_nobody():
    made, ready = pair_host(), Ready()
    made.copies["u0"].outputs[0].append(((1, 2, 3),), 4)
    made.on_subscribe("a#1", m.Subscribe(edge="u0.0", consumer="v0", epoch=1, at=1, ack=1), 0, ready)
    assert ready.send == []
    assert [type(note) for note in ready.notes] == [notes.Barred]
    assert made.copies["u0"].outputs[0].trimmed == 0


def test_a_shard_that_asks_for_what_it_has_acknowledged_is_told_where_the_edge_begins():
    """A word of its own overtook this one: the rows are gone, and rightly so. It is never left without an answer."""
    made, ready = pair_host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    ask = {"edge": "u0.0", "epoch": 1, "at": 2, "ack": 2}
    made.on_subscribe("r0", m.Subscribe(consumer="r0", **ask), 0, ready)
    made.on_subscribe("a#1", m.Subscribe(consumer="v0", seat="a#1", **ask), 0, ready)
    assert queue.trimmed == 2
    ready = Ready()
    late = m.Subscribe(consumer="v0", seat="a#1", edge="u0.0", epoch=1, at=0, ack=0)
    made.on_subscribe("a#1", late, 0, ready)
    assert [message for _, message in ready.send] == [m.Here(edge="u0.0", epoch=1, consumer="v0", first=2)]


def test_a_paused_subscription_streams_nothing_and_is_told_from_where_it_could_go_on():
    made, ready = pair_host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    ask = {"edge": "u0.0", "consumer": "v0", "seat": "a#1", "epoch": 1, "at": 0}
    made.on_subscribe("a#1", m.Subscribe(ack=2, **ask), 0, Ready())
    made.on_subscribe("b#1", m.Subscribe(ack=0, paused=True, **{**ask, "seat": "b#1"}), 0, ready)
    assert [message for _, message in ready.send] == [m.Here(edge="u0.0", epoch=1, consumer="v0", first=2, next=2)]
    queue.append(((1, 2, 3),), 9)
    made.runners["u0"].outlet.flush(later := Ready())
    assert [to for to, message in later.send if isinstance(message, m.Data)] == ["a#1"]


def test_two_copies_of_a_consumer_have_a_tap_and_an_acknowledgement_each():
    """No mode runs two copies yet. Whoever lets the record name two must find this as it is."""
    made, ready = pair_host(), Ready()
    queue = made.copies["u0"].outputs[0]
    queue.append(((1, 2, 3),), 4)
    queue.append(((1, 2, 3),), 14)
    queue.ack("r0", 4)
    queue.count("v0", ("a#1", "b#1"))
    ask = {"edge": "u0.0", "consumer": "v0", "epoch": 1}
    made.on_subscribe("a#1", m.Subscribe(seat="a#1", at=4, ack=4, **ask), 0, ready)
    assert queue.trimmed == 0
    made.on_subscribe("b#1", m.Subscribe(seat="b#1", at=2, ack=2, **ask), 0, ready)
    assert queue.trimmed == 2
    taps = made.runners["u0"].outlet.taps
    assert {key[2]: tap.address for key, tap in taps.items() if key[1] == "v0"} == {"a#1": "a#1", "b#1": "b#1"}
    data = [(to, [b.start for b in x.blocks]) for to, x in ready.send if isinstance(x, m.Data)]
    assert data == [("b#1", [2])]


def test_a_consumer_in_a_new_epoch_takes_over_from_all_copies_of_the_old_one():
    made = pair_host()
    ask = {"edge": "u0.0", "consumer": "v0", "at": 0, "ack": 0}
    for seat, epoch in (("a#1", 1), ("b#1", 1), ("c#1", 2)):
        made.on_subscribe(seat, m.Subscribe(seat=seat, epoch=epoch, **ask), 0, Ready())
    assert list(made.runners["u0"].outlet.taps) == [("u0.0", "v0", "c#1")]


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
    assert made.runners["u0"].outlet.taps["u0.0", "g0", ""].address == "g0@2"


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
    assert ("u0.0", "g0", "") not in made.runners["u0"].outlet.taps
