"""Where stages and their standbys go: by what they cost, apart from each other, and never before a standby is warm."""

from __future__ import annotations

from random import Random

import pytest
from test_core_placement import after

from holdfast.core.load import COPY_NS, GIGABYTE, MEMORY_NS, LoadView, Scale
from holdfast.core.ready import StandbyReady
from holdfast.core.standbys import START_NS, Standbys
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.ids import Seat, name_of
from holdfast.model.messages import Warmed
from holdfast.model.record import Record, first_record
from holdfast.model.topology import layered

NAMES = ("n0", "n1", "n2", "n3")
CONFIG = Config(standby=True)
STAGES = ("s0", "s1", "s2", "s3")
PERCENT = SECOND // 100


def settle(record: Record, config: Config, loads: LoadView, **reported) -> Record:
    """Play the part of shards until nothing changes; no standby gets warm by itself."""
    record = after(record, config, loads, **reported)
    for _ in range(60):
        joined = {a: (p.since, p.joining) for a, p in record.places.items() if p.joining}
        yielded = {a: p.since for a, p in record.places.items() if p.moving and not p.is_stage}
        following = after(record, config, loads, joined=joined, yielded=yielded)
        if following is record:
            return record
        record = following
    raise AssertionError("the placement does not come to rest")


def started(stages: int = 4, names=NAMES, config: Config = CONFIG) -> Record:
    """Every stage has a standby."""
    return settle(first_record(layered(stages=stages, shards=4), names), config, LoadView())


def view(cpu: dict[str, int] | None = None, memory: dict[str, int] | None = None, *, may_move: bool = True) -> LoadView:
    """In percent of a core, and in megabytes, which the standbys take, too."""
    made = LoadView()
    made.running = {stage: load * PERCENT for stage, load in (cpu or {}).items()}
    made.memory = {stage: taken * 10**6 for stage, taken in (memory or {}).items()}
    made.standbys = dict(made.memory)
    made.may_move = may_move
    return made


def homes(record: Record, seat: str = "primary") -> dict[str, str]:
    return {a: name_of(getattr(p, seat) or "") for a, p in record.places.items() if p.is_stage}


def load_of(record: Record, loads: LoadView) -> dict[str, int]:
    scale, found = Scale(loads, record.places), dict.fromkeys(record.members, 0)
    for asset, place in record.places.items():
        for seat in place.holders:
            found[name_of(seat)] += scale.weigh(asset, place, runs=seat == place.primary)
    return found


def test_a_stage_counts_by_its_cpu_and_its_memory_and_a_standby_by_its_memory():
    places = started(2).places
    scale = Scale(view({"s0": 70}, {"s0": 500}), places)
    half_a_gigabyte = MEMORY_NS // 2
    assert GIGABYTE == 2 * 500 * 10**6
    assert scale.weigh("s0", places["s0"], runs=True) == COPY_NS + 70 * PERCENT + half_a_gigabyte
    assert scale.weigh("s0", places["s0"], runs=False) == COPY_NS + half_a_gigabyte
    assert scale.weigh("s1", places["s1"], runs=True) == COPY_NS + 70 * PERCENT + half_a_gigabyte  # like its kind


def test_a_standby_is_never_on_the_node_of_its_stage():
    record = started()
    for gone in ("n0", "n2"):
        record = settle(record, CONFIG, LoadView(), suspects={gone: 1})
        assert all(p.backup and name_of(p.backup) != name_of(p.primary) for p in record.places.values() if p.is_stage)


def test_the_stages_of_a_node_do_not_all_follow_to_the_same_one():
    """Six stages of equal cost on three nodes: the two of each node stand by on two others."""
    record = started(6, ("n0", "n1", "n2"))
    found = {
        home: {homes(record, "backup")[s] for s, h in homes(record).items() if h == home} for home in record.members
    }
    assert found == {"n0": {"n1", "n2"}, "n1": {"n0", "n2"}, "n2": {"n0", "n1"}}


def test_a_stage_without_a_standby_goes_where_memory_and_cpu_leave_room():
    """n1 runs a stage that computes, n2 one that takes memory; n3 has one that does neither."""
    record = first_record(layered(stages=4, shards=4), NAMES)
    loads = view({"s0": 10, "s1": 90, "s2": 10, "s3": 10}, {"s0": 100, "s1": 100, "s2": 9_000, "s3": 100})
    made = settle(record, Config(), loads, suspects={"n0": 1})
    assert homes(record)["s0"] == "n0"
    assert homes(made)["s0"] == "n3"


def test_a_drain_waits_until_the_standby_is_warm_and_names_another_then():
    record = started()
    home, standby = homes(record)["s1"], homes(record, "backup")["s1"]
    drained = settle(record, CONFIG, LoadView(), drains={home: None})
    place = drained.places["s1"]
    assert (name_of(place.primary or ""), place.moving, place.epoch) == (home, True, 1)
    assert after(drained, CONFIG, LoadView(), warmed={"s1": (place.since - 1, place.backup)}) is drained
    moved = settle(drained, CONFIG, LoadView(), warmed={"s1": (place.since, place.backup)})
    now = moved.places["s1"]
    assert (now.primary, now.epoch, now.moving) == (place.backup, 2, False)
    assert standby == name_of(now.primary or "")
    assert name_of(now.backup or "") not in ("", home, standby)


def test_without_standbys_a_drain_moves_stages_at_once():
    record = first_record(layered(stages=2, shards=4), NAMES)
    made = after(record, Config(), drains={"n0": None})
    assert homes(record)["s0"] == "n0"
    assert homes(made)["s0"] != "n0"
    assert made.places["s0"].epoch == 2


@pytest.mark.parametrize("lost", ["driver", "node"])
def test_a_stage_that_dies_while_it_waits_to_move_does_not_wait(lost):
    record = started()
    home = homes(record)["s1"]
    drained = settle(record, CONFIG, LoadView(), drains={home: None})
    place = drained.places["s1"]
    reported = {"downs": {"s1": place.epoch}} if lost == "driver" else {"suspects": {home: 1}}
    made = after(drained, CONFIG, LoadView(), **reported)
    assert (made.places["s1"].primary, made.places["s1"].epoch) == (place.backup, 2)
    assert not made.places["s1"].moving


def test_a_standby_that_dies_while_its_stage_waits_to_move_is_replaced_and_waited_for():
    record = started()
    home, standby = homes(record)["s1"], homes(record, "backup")["s1"]
    drained = settle(record, CONFIG, LoadView(), drains={home: None})
    made = settle(drained, CONFIG, LoadView(), suspects={standby: 1})
    place = made.places["s1"]
    assert (name_of(place.primary or ""), place.moving, place.epoch) == (home, True, 1)
    assert name_of(place.backup or "") not in ("", home, standby)


# --- a second failure right after the first


def twice(up: frozenset[str] = frozenset()) -> tuple[Record, LoadView]:
    """Of two stages on four nodes, one lost its standby's node a moment ago; the next standby is where no stage was."""
    record = started(2)
    loads = view({"s0": 60, "s1": 60}, may_move=False)
    made = Standbys(Seat("n1#1"), CONFIG)
    made.on_record(record, 0)
    lost = settle(record, CONFIG, loads, suspects={homes(record, "backup")["s0"]: 1})
    made.on_record(lost, 5 * SECOND)
    loads.drivers = made.drivers({Seat(f"{name}#1"): True for name in up}, 9 * SECOND)
    return lost, loads


def test_a_stage_passes_over_a_standby_whose_process_is_starting_for_a_node_where_one_is_up():
    record, loads = twice()
    home, other, standby = homes(record)["s0"], homes(record)["s1"], homes(record, "backup")["s0"]
    assert len({home, other, standby}) == 3
    made = settle(record, CONFIG, loads, suspects={home: 1})
    assert (homes(made)["s0"], homes(made, "backup")["s0"], made.places["s0"].epoch) == (other, standby, 2)


def test_a_standby_whose_process_is_up_takes_over_also_when_it_is_new():
    standby = homes(twice()[0], "backup")["s0"]
    record, loads = twice(up=frozenset({standby}))
    made = settle(record, CONFIG, loads, suspects={homes(record)["s0"]: 1})
    assert homes(made)["s0"] == standby


def test_a_stage_goes_to_a_standby_that_is_starting_if_no_other_process_is_up():
    record, loads = twice()
    standby = homes(record, "backup")["s0"]
    loads.drivers = dict.fromkeys(loads.drivers, False)
    made = settle(record, CONFIG, loads, suspects={homes(record)["s0"]: 1})
    assert homes(made)["s0"] == standby


def test_a_stage_whose_driver_dies_does_not_go_back_to_the_process_it_was_in_while_another_is_up():
    record, loads = twice()
    made = settle(record, CONFIG, loads, downs={"s0": 1})
    assert homes(made)["s0"] == homes(record)["s1"]
    assert homes(made, "backup")["s0"] == homes(record, "backup")["s0"]


def test_a_process_counts_as_starting_until_its_node_tells_or_for_a_while_and_never_by_the_first_record():
    record, lost = started(2), twice()[0]
    made = Standbys(Seat("n1#1"), CONFIG)
    made.on_record(record, 7 * SECOND)
    assert set(made.drivers({}, 7 * SECOND).values()) == {True}
    new = lost.places["s0"].backup or ""
    made.on_record(lost, 9 * SECOND)
    made.on_record(lost, 20 * SECOND)  # again: that changes nothing

    def starting(up: dict[Seat, bool], now_ns: int) -> list[str]:
        return [seat for seat, is_up in made.drivers(up, now_ns).items() if not is_up]

    assert starting({}, 9 * SECOND + START_NS - 1) == [new]
    assert starting({}, 9 * SECOND + START_NS) == starting({Seat(new): True}, 10 * SECOND) == []
    assert starting({Seat(new): False}, 9 * SECOND + 9 * START_NS) == [new]
    light = Standbys(Seat("n1#1"), CONFIG, frozenset({"s0"}))
    light.on_record(lost, 0)
    assert list(light.drivers({}, 0)) == [lost.places["s1"].primary, lost.places["s1"].backup]  # no JVM for s0
    there = Standbys(Seat(new), CONFIG)
    there.on_record(record, 7 * SECOND)
    there.on_record(lost, 9 * SECOND)
    assert there.passed_over(lost, 10 * SECOND) == ["s0"]
    assert there.passed_over(lost, 9 * SECOND + START_NS) == made.passed_over(lost, 10 * SECOND) == []


# --- balance


def moved(record: Record, loads: LoadView, limit: int = 40) -> tuple[Record, list[tuple[str, str, str]]]:
    """Let things be moved for balance, standbys getting warm, until nothing more is; what stages did."""
    found = []
    for _ in range(limit):
        made = after(record, CONFIG, loads)
        if made is record:
            return record, found
        warmed = {a: (p.since, p.backup) for a, p in made.places.items() if p.is_stage and p.moving}
        joined = {a: (p.since, p.joining) for a, p in made.places.items() if p.joining}
        assert len(warmed) + len(joined) <= 1  # one at a time
        for stage in warmed:
            found.append(("stage", homes(record)[stage], homes(record, "backup")[stage]))
        for stage, home in homes(made, "backup").items():
            if home != homes(record, "backup")[stage]:
                found.append(("standby", homes(record, "backup")[stage], home))
        still = view(may_move=False)
        still.running, still.memory, still.standbys = loads.running, loads.memory, loads.standbys
        record = after(made, CONFIG, still, warmed=warmed, joined=joined) if warmed or joined else made
    raise AssertionError(f"no rest after {limit} moves: {found}")


def test_a_stage_moves_away_from_a_busy_node_and_its_node_keeps_the_standby():
    """Two stages ended up on one node, and another has none."""
    record = started()
    record = settle(record, CONFIG, LoadView(), suspects={"n0": 1})
    record = settle(record, CONFIG, LoadView(), hellos={"n0": 2})
    crowded = homes(record)
    busy = max(NAMES, key=lambda name: list(crowded.values()).count(name))
    assert list(crowded.values()).count(busy) == 2
    made, moves = moved(record, view(dict.fromkeys(STAGES, 80), dict.fromkeys(STAGES, 400)))
    assert ("stage", busy) in [move[:2] for move in moves]
    assert sorted(homes(made).values()) == ["n0", "n1", "n2", "n3"]
    assert all(p.backup and name_of(p.backup) != name_of(p.primary) for p in made.places.values() if p.is_stage)


def test_nothing_is_moved_where_it_would_only_turn_the_imbalance_round():
    assert moved(started(1), view({"s0": 95}, {"s0": 600}))[1] == []


@pytest.mark.parametrize("seed", range(30))
def test_moves_come_to_rest_and_leave_no_node_busier_than_the_busiest_was(seed):
    rng = Random(f"stages {seed}")
    stages = [f"s{i}" for i in range(rng.randrange(2, 9))]
    record = started(len(stages))
    for name in rng.sample(NAMES, rng.randrange(3)):
        record = settle(record, CONFIG, LoadView(), suspects={name: record.members[name]})
        record = settle(record, CONFIG, LoadView(), hellos={name: 2})
    loads = view(
        {stage: rng.choice((1, 10, 60, 150)) for stage in stages},
        {stage: rng.choice((50, 400, 2_000)) for stage in stages},
    )
    before = load_of(record, loads)
    made, moves = moved(record, loads)
    now = load_of(made, loads)
    assert max(now.values()) <= max(before.values())
    squares = [sum(load * load for load in loads.values()) for loads in (before, now)]
    assert squares[1] < squares[0] or not moves  # so that they end: none of them can be made twice


# --- the node's part ----------------------------------------------------------------------------------------------


def moving(record: Record, stage: str) -> Record:
    return settle(record, CONFIG, LoadView(), drains={homes(record)[stage]: None})


def test_a_node_says_that_a_standby_is_warm_only_where_a_stage_waits_for_it():
    record = started()
    made = Standbys(record.places["s1"].backup or "", CONFIG)
    made.on_record(record, 0)
    made.on_ready(StandbyReady("s1"), record)
    assert made.reports(0) == []
    drained = moving(record, "s1")
    made.on_record(drained, 5)
    place = drained.places["s1"]
    assert Warmed(stage="s1", since=place.since, seat=made.seat) in made.reports(6)
    made.on_ready(StandbyReady("s1", ready=False), drained)
    assert "s1" not in [message.stage for message in made.reports(7)]


def test_a_stage_does_not_wait_for_ever():
    drained = moving(started(), "s1")
    made = Standbys(drained.places["s1"].backup or "", CONFIG)
    made.on_record(drained, 7 * MS)
    assert made.reports(CONFIG.warm_wait_ns) == []
    assert "s1" in [message.stage for message in made.reports(7 * MS + CONFIG.warm_wait_ns)]


def test_word_of_a_standby_that_is_not_wanted_any_more_is_nothing():
    record = started()
    made = Standbys("n9#1", CONFIG)
    made.on_ready(StandbyReady("s1"), record)
    assert made.warm == {}
