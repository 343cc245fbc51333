"""A ring of heartbeats that only reports."""

from __future__ import annotations

import pytest

from holdfast.core.detect import Level, PhiAccrual
from holdfast.core.detector import Detector
from holdfast.errors import ConfigError
from holdfast.model.config import DETECTORS, MS, Config
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


def test_a_node_whose_loop_stands_still_says_so_and_is_suspicious_not_dead():
    """hybrid-ha §IV-B: what is done on suspicion can be undone, so a long step may bring it about."""
    made = detector()
    for beat in range(1, 31):
        made.on_tick(beat * 100 * MS)
        made.on_heartbeat("b", beat * 100 * MS, stalled_ns=beat * 100 * MS)
    assert made.level("b", 3_000 * MS) is Level.YELLOW
    assert "b" not in made.unheard
    made.on_tick(3_100 * MS)
    made.on_heartbeat("b", 3_100 * MS)
    assert made.level("b", 3_100 * MS) is Level.GREEN
    assert made.false_alarms == {Level.YELLOW: 1, Level.RED: 0}


def test_alarms_after_which_the_peer_is_heard_again_are_counted_as_false_by_level():
    made = detector()
    for silence in (200, 600, 250):  # suspicious, dead, suspicious
        start = made.ticked_ns
        for beat in range(1, silence // 50 + 1):
            made.on_tick(start + beat * 50 * MS)
        made.on_heartbeat("b", made.ticked_ns)
        made.on_heartbeat("a", made.ticked_ns)
    assert made.false_alarms[Level.YELLOW] == 4  # of each of the two
    assert made.false_alarms[Level.RED] == 2


def test_phi_gives_a_peer_with_much_jitter_more_time_and_a_steady_one_less():
    steady, shaky = PhiAccrual(100 * MS, 3, 0), PhiAccrual(100 * MS, 3, 0)
    for i in range(1, 101):
        steady.on_heard(i * 100 * MS)
        shaky.on_heard(i * 100 * MS + (i % 2) * 60 * MS)
    last = 100 * 100 * MS
    assert steady.level(last + 145 * MS) is Level.YELLOW
    assert shaky.level(last + 145 * MS) is Level.GREEN
    assert shaky.level(last + 320 * MS) is Level.YELLOW
    assert steady.level(last + 360 * MS) is Level.YELLOW  # not dead before the misses that are allowed
    assert steady.level(last + 400 * MS) is Level.RED
    assert shaky.level(last + 400 * MS) is not Level.RED


def test_phi_of_a_peer_that_has_just_been_met_or_is_asked_more_often_is_that_of_a_steady_one():
    met = PhiAccrual(1_000 * MS, 3, 0)
    assert met.level(1_300 * MS) is Level.GREEN
    met.expect(100 * MS, 1_300 * MS)
    assert [met.level((1_300 + ms) * MS) for ms in (100, 150, 500)] == [Level.GREEN, Level.YELLOW, Level.RED]


@pytest.mark.parametrize("method", DETECTORS)
def test_every_method_suspects_on_the_first_miss_and_takes_for_dead_after_the_last(method):
    made = detector(Config(detector=method))
    levels = []
    for ms in range(0, 1_000, 50):
        made.on_tick(ms * MS)
        levels.append(made.level("b", ms * MS))
    assert levels == sorted(levels)
    assert levels[2] is Level.GREEN
    assert levels[4] is Level.YELLOW
    assert levels[-1] is Level.RED
    with pytest.raises(ConfigError, match="unknown detector"):
        Config(detector="crystal ball")


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


def test_a_peer_that_is_slow_by_its_own_benchmark_is_suspicious_and_no_more():
    made = detector(Config(detector="benchmark"))
    made.on_tick(100 * MS)
    made.on_heartbeat("b", 110 * MS, slow=True)
    assert made.on_tick(200 * MS) is None
    assert made.level("b", 200 * MS) is Level.YELLOW
    made.on_heartbeat("b", 210 * MS)
    assert made.level("b", 210 * MS) is Level.GREEN
    assert made.false_by == {"benchmark": 1}


@pytest.mark.parametrize(("method", "cause"), [("misses", "misses"), ("phi", "phi"), ("benchmark", "misses")])
def test_false_alarms_are_counted_by_what_raised_them(method: str, cause: str):
    made = detector(Config(detector=method))
    for beat in range(1, 4):
        made.on_tick(beat * 100 * MS)
        made.on_heartbeat("b", beat * 100 * MS)
        made.on_heartbeat("a", beat * 100 * MS)
    for at in (400, 500):
        made.on_tick(at * MS)
        made.on_heartbeat("a", at * MS)
    made.on_heartbeat("b", 510 * MS)
    made.on_heartbeat("b", 520 * MS, stalled_ns=400 * MS)
    made.on_tick(600 * MS)
    made.on_heartbeat("b", 610 * MS)
    assert made.false_by == {cause: 1, "stalled": 1}
    assert sum(made.false_alarms.values()) == 2


def test_what_a_peer_said_in_an_earlier_life_is_forgotten():
    made = detector(Config(detector="benchmark"))
    made.on_heartbeat("b", 10 * MS, slow=True)
    made.on_record(Record(version=2, term=0, members={"a": 1, "b": 3, "c": 1}, places={}), 20 * MS)
    assert made.level("b", 20 * MS) is Level.GREEN
