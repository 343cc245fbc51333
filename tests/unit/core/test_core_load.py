"""Load is measured and smoothed, told to the coordinator, and backups are moved by it: rarely, and never to and fro."""

from __future__ import annotations

from random import Random

import pytest
from support.core import host
from test_core_placement import NAMES, after, no_news, settle, start

from holdfast.core.gauge import Gauge
from holdfast.core.load import COPY_NS, LoadView, LoadWatch, Scale
from holdfast.core.ready import Ready, StageBusy
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.ids import is_ledger, name_of
from holdfast.model.messages import Loads
from holdfast.model.record import Record

WINDOW_NS = 60 * SECOND
PERCENT = SECOND // 100
CONFIG = Config()


def looked(gauge: Gauge, rates: list[int], period_ns: int = 5 * SECOND) -> int | None:
    """The load after periods in which a copy was busy for these nanoseconds a second."""
    busy, now = 0, 0
    gauge.look(busy, now, WINDOW_NS)
    for rate in rates:
        busy, now = busy + rate * period_ns // SECOND, now + period_ns
        gauge.look(busy, now, WINDOW_NS)
    return gauge.load


# --- measuring


def test_a_load_is_unknown_until_there_is_a_stretch_of_time_to_measure():
    gauge = Gauge()
    assert gauge.look(7 * SECOND, 0, WINDOW_NS) is None
    assert gauge.look(8 * SECOND, 0, WINDOW_NS) is None
    assert gauge.look(8 * SECOND, 5 * SECOND, WINDOW_NS) == SECOND // 5


def test_a_steady_load_is_known_at_once_and_stays_as_it_is():
    for periods in (1, 3, 12, 100):
        assert looked(Gauge(), [20 * PERCENT] * periods) == 20 * PERCENT


def test_the_first_minute_is_a_plain_mean_whatever_its_order():
    rates = [0, 90, 10, 40, 0, 70, 0, 30]
    for order in (rates, sorted(rates), sorted(rates, reverse=True)):
        load = looked(Gauge(), [rate * PERCENT for rate in order])
        assert load == pytest.approx(30 * PERCENT, rel=1e-6)


def test_a_burst_counts_for_its_share_of_the_window_and_is_forgotten():
    gauge = Gauge()
    looked(gauge, [10 * PERCENT] * 30)
    busy, now = gauge.busy_ns, gauge.at_ns
    burst = gauge.look(busy + 5 * SECOND, now + 5 * SECOND, WINDOW_NS) or 0
    assert 10 * PERCENT < burst < 10 * PERCENT + 90 * PERCENT // 10
    for i in range(1, 60):
        gauge.look(busy + 5 * SECOND + i * SECOND // 2, now + (i + 1) * 5 * SECOND, WINDOW_NS)
    assert gauge.load == pytest.approx(10 * PERCENT, rel=0.02)


def test_batches_that_come_now_and_then_count_by_their_mean():
    assert looked(Gauge(), [60 * PERCENT, 0, 0] * 40) == pytest.approx(20 * PERCENT, rel=0.2)


def test_a_load_that_changes_for_good_is_followed_within_a_few_windows():
    assert looked(Gauge(), [80 * PERCENT] * 20 + [20 * PERCENT] * 36) == pytest.approx(20 * PERCENT, rel=0.2)


def test_a_long_pause_makes_the_gauge_take_what_it_finds():
    gauge = Gauge()
    looked(gauge, [50 * PERCENT] * 20)
    gauge.look(gauge.busy_ns, gauge.at_ns + 10 * WINDOW_NS, WINDOW_NS)
    assert gauge.load == 0


def test_a_process_that_was_started_anew_is_measured_anew():
    gauge = Gauge()
    looked(gauge, [50 * PERCENT] * 3)
    assert gauge.look(0, gauge.at_ns + SECOND, WINDOW_NS) is None
    assert gauge.look(SECOND // 10, gauge.at_ns + SECOND, WINDOW_NS) == 10 * PERCENT


# --- telling


def watch(seat: str = "a#1") -> LoadWatch:
    return LoadWatch(name_of(seat), host(seat), CONFIG)


def told(made: LoadWatch, coordinator: str | None, now_ns: int) -> list:
    ready = Ready()
    made.on_tick(coordinator, now_ns, ready)
    return ready.send


def test_a_node_tells_the_coordinator_what_its_copies_cost_once_a_period():
    made = watch("a#1")
    assert told(made, "c", 0) == []
    made.host.copies["u0"].op.busy_ns += SECOND
    assert told(made, "c", 4 * SECOND) == []
    assert told(made, "c", 5 * SECOND) == [("c", Loads(running={"u0": SECOND // 5}, images={}))]
    assert told(made, "c", 9 * SECOND) == []
    assert [message for _, message in told(made, "c", 10 * SECOND)] == [Loads(running={"u0": SECOND // 10}, images={})]


def test_a_node_tells_the_memory_of_stages_that_run_or_stand_by_on_it():
    record = after(start(), Config(standby=True))
    seat, other = record.places["s0"].backup or "", record.places["s0"].primary or ""
    made = watch(seat)
    made.host.fence.record = record
    made.on_stage_busy(StageBusy("s0", 0, 300_000_000), 0)
    made.on_stage_busy(StageBusy("gone", 0, 5), 0)
    assert made.memory() == {"s0": 300_000_000}
    leads = LoadWatch("c", made.host, CONFIG)
    for source, taken in ((seat, 300), (other, 500), ("n9#1", 900)):
        leads.on_loads(source, Loads(running={}, images={}, memory={"s0": taken}), 0, Ready())
    assert (leads.view.memory, leads.view.standbys) == ({"s0": 500}, {"s0": 300})
    assert leads.view.up == {seat: True, other: True, "n9#1": True}  # their driver processes are up
    leads.on_loads(seat, Loads(running={"u0": 1}, images={}), 0, Ready())
    assert leads.view.up == {seat: False, other: True, "n9#1": True}


def test_a_backup_tells_what_pasting_costs():
    made = watch("b#1")
    told(made, "c", 0)
    made.host.copies["u0"].op.busy_ns += SECOND
    assert told(made, "c", 5 * SECOND) == [("c", Loads(running={}, images={"u0": SECOND // 5}))]


def test_a_copy_in_another_role_is_measured_anew():
    made = watch("b#1")
    copy = made.host.copies["u0"]
    told(made, "c", 0)
    told(made, "c", 5 * SECOND)
    copy.promote(0)
    assert copy.gauge.load is None
    told(made, "c", 10 * SECOND)
    told(made, "c", 15 * SECOND)
    assert copy.gauge.load == 0
    copy.demote()
    assert copy.gauge.load is None


def test_the_coordinator_hears_itself_and_nobody_else_speaks_for_a_copy():
    made = watch("a#1")
    made.view.running["u0"] = 3
    made.on_loads("b#1", Loads(running={"u0": 9}, images={"u0": 5}), 0, Ready())
    assert (made.view.running, made.view.images) == ({"u0": 3}, {"u0": 5})
    made.on_loads("b#2", Loads(running={}, images={"u0": 7}), 0, Ready())
    assert made.view.images == {"u0": 5}
    assert told(made, "a", 0) == []
    assert told(made, "a", 5 * SECOND) == []
    assert made.view.running == {"u0": 0}


def test_who_does_not_lead_forgets_and_waits_for_news_before_it_moves_anything():
    made = watch("a#1")
    made.view.running["u0"] = 3
    told(made, "b", SECOND)
    assert made.view.running == {}
    assert not made.is_due(SECOND + CONFIG.balance_ns - 1)
    assert not made.take(SECOND + CONFIG.balance_ns - 1).may_move
    assert made.take(SECOND + CONFIG.balance_ns).may_move
    assert not made.take(SECOND + CONFIG.balance_ns).may_move
    assert made.take(SECOND + 2 * CONFIG.balance_ns).may_move


def test_a_stage_is_told_by_the_seat_that_runs_it():
    made = watch("a#1")
    made.on_stage_busy(StageBusy("s0", 0), 0)
    made.on_stage_busy(StageBusy("s0", 2 * SECOND), 5 * SECOND)
    assert made.measured()[0] == {"s0": 40 * PERCENT}
    other = watch("b#1")
    other.on_stage_busy(StageBusy("s0", 0), 0)
    other.on_stage_busy(StageBusy("s0", 2 * SECOND), 5 * SECOND)
    assert other.measured() == ({}, {})


# --- weighing


def view(running: dict | None = None, images: dict | None = None) -> LoadView:
    made = no_news()
    made.running, made.images = running or {}, images or {}
    return made


def test_what_is_not_known_counts_like_the_mean_of_its_kind_and_without_news_all_count_the_same():
    places = start(shards=3).places
    scale = Scale(view(), places)
    weights = {scale.weigh(a, p, runs=runs) for a, p in places.items() for runs in (True, False)}
    assert weights == {COPY_NS}
    scale = Scale(view({"u0": 10 * MS, "u1": 30 * MS, "s0": 700 * MS}, {"u0": 4 * MS}), places)
    weigh = lambda asset, runs: scale.weigh(asset, places[asset], runs=runs) - COPY_NS  # noqa: E731
    assert [weigh("u0", True), weigh("u1", True), weigh("u2", True)] == [10 * MS, 30 * MS, 20 * MS]
    assert [weigh("u0", False), weigh("u1", False)] == [4 * MS, 4 * MS]
    assert [weigh("s0", True), weigh("s0", False)] == [700 * MS, 0]
    assert [weigh("s0.ledger", True), weigh("s0.ledger", False)] == [0, 0]


def loads_of(record: Record, loads: LoadView) -> dict[str, int]:
    scale, found = Scale(loads, record.places), dict.fromkeys(record.members, 0)
    for asset, place in record.places.items():
        for seat in place.holders:
            found[name_of(seat)] += scale.weigh(asset, place, runs=seat == place.primary)
    return found


def seats_of(record: Record) -> dict[str, int]:
    return {name: load // COPY_NS for name, load in loads_of(record, LoadView()).items()}


def test_a_new_backup_goes_to_the_node_with_the_least_load_though_it_has_more_copies():
    record = start(shards=8)
    busy = view({shard: 0 for shard in record.places if record.places[shard].primary})
    heavy = next(a for a, p in record.places.items() if p.primary == "n3#1")
    busy.running[heavy] = 90 * PERCENT
    record = after(record, loads=busy, suspects={"n0": 1})
    given = [name_of(p.joining) for p in record.places.values() if p.joining]
    assert given
    assert "n3" not in given
    assert "n3" in [name_of(p.joining) for p in after(start(shards=8), suspects={"n0": 1}).places.values() if p.joining]


def moves(record: Record, loads: LoadView, limit: int = 60, config: Config = CONFIG) -> tuple[Record, list]:
    """Let backups be moved for balance until nothing more is."""
    found = []
    for _ in range(limit):
        made = after(record, config, loads)
        if made is record:
            return record, found
        asset = next(a for a, p in made.places.items() if p.joining)
        place = made.places[asset]
        assert [a for a, p in made.places.items() if p.joining or p.moving] == [asset]
        found.append((asset, name_of(place.backup or ""), name_of(place.joining or "")))
        record = after(made, config, joined={asset: (place.since, place.joining)}, loads=LoadView())
    raise AssertionError(f"no rest after {limit} moves: {found}")


IDLE = dict.fromkeys(("u0", "u1", "u2", "u3"), 0)


def test_a_heavy_backup_moves_to_the_light_node_though_that_has_more_copies():
    """n1 runs a busy shard and keeps the image of another; n2 has four copies, and little to do."""
    record = start(shards=4, names=("n0", "n1", "n2"))
    busy = view({**IDLE, "u1": 60 * PERCENT}, {**IDLE, "u0": 30 * PERCENT})
    place = record.places["u0"]
    assert (place.primary, place.backup, seats_of(record)) == ("n0#1", "n1#1", {"n0": 4, "n1": 3, "n2": 4})
    assert moves(record, busy)[1][0] == ("u0", "n1", "n2")


def test_without_permission_nothing_moves():
    record = start(shards=4, names=("n0", "n1", "n2"))
    busy = view({**IDLE, "u1": 60 * PERCENT}, {**IDLE, "u0": 30 * PERCENT})
    busy.may_move = False
    assert after(record, loads=busy) is record


def test_a_move_that_only_turns_the_imbalance_round_is_not_made():
    """All of what n1 has to do is one image, and n2 would then have as much."""
    record = start(shards=4, names=("n0", "n1", "n2"))
    busy = view(IDLE, {**IDLE, "u0": 90 * PERCENT})
    assert loads_of(record, busy)["n1"] - loads_of(record, busy)["n2"] > 80 * PERCENT
    assert moves(record, busy)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_nothing(seed):
    rng = Random(seed)
    record = start(shards=12)
    running = {f"u{i}": 30 * PERCENT for i in range(12)}
    images = {f"u{i}": 8 * PERCENT for i in range(12)}
    record, _ = moves(record, view(running, images))
    for _ in range(50):
        noisy = view(
            {a: load * rng.randrange(95, 106) // 100 for a, load in running.items()},
            {a: load * rng.randrange(90, 111) // 100 for a, load in images.items()},
        )
        assert after(record, loads=noisy) is record


@pytest.mark.parametrize("seed", range(40))
def test_backups_come_to_rest_within_a_bounded_number_of_moves_and_never_go_to_and_fro(seed):
    """Random loads, members that come and go: every time the moves end, and no copy comes back to where it was."""
    rng = Random(f"balance {seed}")
    shards = rng.randrange(4, 25)
    record, lives = start(shards=shards), dict.fromkeys(NAMES, 1)
    loads = view()
    for _ in range(10):
        loads.running = {f"u{i}": rng.choice((0, 1, 5, 40)) * PERCENT for i in range(shards) if rng.random() < 0.9}
        loads.images = {f"u{i}": rng.choice((0, 1, 3, 20)) * PERCENT for i in range(shards) if rng.random() < 0.9}
        loads.running["s0"] = rng.choice((0, 50, 150)) * PERCENT
        name = rng.choice((*NAMES, "n4"))
        still = view(loads.running, loads.images)
        still.may_move = False
        if name in record.members and len(record.members) > 3 and rng.random() < 0.5:
            record = settle(record, loads=still, suspects={name: record.members[name]})
        else:
            lives[name] = lives.get(name, 0) + 1
            record = settle(record, loads=still, hellos={name: lives[name]})
        before = loads_of(record, loads)
        record, moved = moves(record, loads, 2 * shards + 4)
        visited: dict[str, list[str]] = {}
        for asset, source, target in moved:
            assert target not in visited.setdefault(asset, [source])
            visited[asset].append(target)
        now = loads_of(record, loads)
        assert max(now.values()) <= max(before.values())
        check_rest(record, loads, now)


def check_rest(record: Record, loads: LoadView, now: dict[str, int]) -> None:
    """No backup is left that could be moved to good effect."""
    scale = Scale(loads, record.places)
    for asset, place in record.places.items():
        if place.backup and not place.is_stage and place.primary:
            weight, high = scale.weigh(asset, place, runs=False), now[name_of(place.backup)]
            others = [now[n] for n in record.members if n not in (name_of(place.primary), name_of(place.backup))]
            for low in others:
                assert high - low - weight < max(CONFIG.imbalance_ns, high // 10)


def test_a_cluster_without_news_counts_copies_as_it_always_has():
    record = settle(settle(start(shards=12), suspects={"n0": 1}), hellos={"n0": 2})
    seats = seats_of(record)
    assert max(seats.values()) - min(seats.values()) <= 4
    assert any(is_ledger(a) or name_of(p.backup or "") == "n0" for a, p in record.places.items())
