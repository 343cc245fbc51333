"""A ring of heartbeats that only reports."""

from __future__ import annotations

import pytest

from holdfast.core.detect import Level
from holdfast.core.detector import Detector
from holdfast.model.config import MS, Config
from holdfast.model.messages import Suspect
from holdfast.model.record import Record

RING = Record(version=1, term=0, members={"a": 1, "b": 2, "c": 1}, places={})


def detector(config: Config | None = None) -> Detector:
    made = Detector("c", config or Config())
    made.on_record(RING, 0)
    return made


def test_each_member_has_one_monitor_and_watches_one():
    made = detector()
    assert (made.watched, made.watched_life, made.monitor) == ("b", 2, "a")


@pytest.mark.parametrize(("heartbeat", "misses"), [(100, 3), (50, 5)])
def test_dead_after_so_many_misses_and_both_are_settable(heartbeat, misses):
    made = detector(Config(heartbeat_ns=heartbeat * MS, misses_max=misses, election_ns=5_000 * MS))
    told = None
    for beat in range(misses + 2):
        told = made.on_tick(beat * heartbeat * MS)
        if beat <= misses:
            assert told is None
    assert told == Suspect(name="b", life=2)


def test_a_heartbeat_of_another_node_does_not_count():
    made = detector()
    for beat in range(1, 4):
        made.on_tick(beat * 100 * MS)
        made.on_heartbeat("a", beat * 100 * MS)
    assert made.on_tick(400 * MS) is not None
    made.on_heartbeat("b", 400 * MS)
    assert made.on_tick(500 * MS) is None


def test_who_slept_does_not_blame_others():
    made = detector()
    made.on_tick(100 * MS)
    assert made.on_tick(5_000 * MS) is None
    assert made.on_tick(5_100 * MS) is None


def test_alone_or_outside_there_is_no_ring():
    made = detector()
    made.on_record(Record(version=2, term=0, members={"a": 1, "b": 1}, places={}), 0)
    assert (made.monitor, made.watched) == (None, None)
    made.on_record(Record(version=3, term=0, members={"c": 1}, places={}), 0)
    assert made.on_tick(10_000 * MS) is None


def test_two_levels_suspicious_on_the_first_miss_and_dead_after_the_threshold():
    """hybrid-ha §IV-B: action that can be undone on the first miss, a failure after the usual three."""
    made = detector()
    seen = []
    for beat in range(1, 6):
        made.on_tick(beat * 100 * MS)
        seen.append(made.level("b", beat * 100 * MS))
    assert seen == [Level.GREEN, Level.YELLOW, Level.YELLOW, Level.RED, Level.RED]
    made.on_heartbeat("b", 500 * MS)
    assert made.level("b", 510 * MS) is Level.GREEN
    assert made.level("nobody", 510 * MS) is Level.GREEN


def test_neighbours_are_heard_as_often_as_the_watched_one_and_others_every_tenth_time():
    ring = Record(version=1, term=0, members=dict.fromkeys("abcdef", 1), places={})
    made = Detector("c", Config())
    made.on_record(ring, 0, frozenset("e"))
    sent: dict[str, int] = {}
    for beat in range(1, 21):
        made.on_tick(beat * 100 * MS)
        for name in "bde":
            made.on_heartbeat(name, beat * 100 * MS)
        for name in made.hearers():
            sent[name] = sent.get(name, 0) + 1
    assert sent == {"a": 2, "b": 20, "d": 20, "e": 20, "f": 2}
    assert made.unheard == ()  # a and f owe one heartbeat a second, and may miss three
    for beat in range(21, 35):
        made.on_tick(beat * 100 * MS)
    assert set(made.unheard) == set("abdef")


def test_a_peer_that_becomes_a_neighbour_gets_time_to_know_it():
    ring = Record(version=1, term=0, members=dict.fromkeys("abcd", 1), places={})
    made = Detector("a", Config())
    made.on_record(ring, 0)
    made.on_tick(900 * MS)
    made.on_record(ring, 900 * MS, frozenset("c"))
    assert made.level("c", 1_000 * MS) is Level.GREEN
