"""Who backs up what: by lot, by figure 6, and never where both copies could fail together if that can be helped."""

from __future__ import annotations

from random import Random

import pytest
from support.core import host
from test_core_placement import after, no_news, settle, start

from holdfast.core.assign import Reassign, UnitShare, dynamic
from holdfast.core.epoch import Epoch, Exposed
from holdfast.core.load import LoadView
from holdfast.core.recovery import HaSegment
from holdfast.errors import ConfigError
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.domains import draw, farthest, shared
from holdfast.model.ids import is_ledger, name_of
from holdfast.model.messages import Loads
from holdfast.model.record import Record, first_record
from holdfast.model.topology import layered

RACKS = {"n0": "a/1", "n1": "a/1", "n2": "a/2", "n3": "b/1"}
SPREAD = Config(domains=RACKS)
PERCENT = SECOND // 100


# --- failure domains


def test_nodes_share_as_much_as_their_labels_agree_from_the_beginning_on():
    assert [shared("n0", other, RACKS) for other in ("n1", "n2", "n3", "unknown")] == [2, 1, 0, 0]
    assert shared("n3", "n0", {"n3": "b/1", "n0": "a/1"}) == 0  # racks of different zones have nothing in common


def test_the_farthest_nodes_are_those_that_share_least():
    assert farthest("n0", ["n0", "n1", "n2", "n3"], RACKS) == ["n3"]
    assert farthest("n0", ["n0", "n1", "n2"], RACKS) == ["n2"]
    assert farthest("n0", ["n0", "n1"], RACKS) == ["n1"]  # a copy in the same rack beats none
    assert farthest("n0", ["n2", "n1", "n3"], {}) == ["n2", "n1", "n3"]


def test_the_lot_is_the_same_whoever_draws_and_changes_only_for_what_a_lost_node_had():
    names = [f"n{i}" for i in range(6)]
    drawn = {f"u{i}": draw(f"u{i}", names) for i in range(300)}
    assert drawn == {unit: draw(unit, names[::-1]) for unit in drawn}
    assert all(30 < list(drawn.values()).count(name) < 75 for name in names)
    without = {unit: draw(unit, names[1:]) for unit in drawn}
    assert all(without[unit] == drawn[unit] for unit in drawn if drawn[unit] != "n0")


def test_a_label_with_an_empty_part_is_refused():
    with pytest.raises(ConfigError, match="empty part"):
        Config(domains={"n0": "a//b"})
    with pytest.raises(ConfigError, match="unknown assignor"):
        Config(assignor="best")


def test_the_first_record_without_labels_is_what_it_was_and_with_them_keeps_copies_apart():
    topology = layered(stages=2, shards=12)
    names = ("n0", "n1", "n2", "n3")
    assert first_record(topology, names, domains={}) == first_record(topology, names)
    made = first_record(topology, names, domains={"n0": "a", "n1": "a", "n2": "b", "n3": "b"})
    for place in made.places.values():
        if place.backup:
            assert (name_of(place.primary) in ("n0", "n1")) != (name_of(place.backup) in ("n0", "n1"))
    kept = [name_of(p.backup) for a, p in made.places.items() if p.backup and not is_ledger(a)]
    assert [kept.count(name) for name in names] == [3, 3, 3, 3]


def test_what_lost_its_backup_gets_one_in_another_domain_however_busy_that_is():
    record = start(shards=8)
    loads = no_news()
    loads.running = {f"u{i}": 90 * PERCENT for i in range(8) if name_of(record.places[f"u{i}"].primary) == "n3"}
    made = after(record, SPREAD, loads, suspects={"n2": 1})
    given = {(name_of(p.primary), name_of(p.joining)) for p in made.places.values() if p.joining and p.primary}
    assert given
    for home, joiner in given:
        assert joiner == farthest(home, ["n0", "n1", "n3"], RACKS)[0] or home == "n3"


def test_what_is_too_near_its_primary_moves_away_one_at_a_time_and_then_nothing_moves():
    record = settle(start(shards=8), SPREAD)
    for asset, place in record.places.items():
        if place.backup:
            home = name_of(place.primary)
            assert name_of(place.backup) in farthest(home, ["n0", "n1", "n2", "n3"], RACKS), asset
    assert after(record, SPREAD) is record


# --- by lot


def test_by_lot_a_backup_is_where_it_was_drawn_and_does_not_move_for_load():
    lot = Config(assignor="random_static")
    record = first_record(layered(stages=1, shards=8), ("n0", "n1", "n2", "n3"), draws=True)
    for asset, place in record.places.items():
        if place.backup and not is_ledger(asset):
            others = [n for n in record.members if n != name_of(place.primary)]
            assert name_of(place.backup) == draw(asset, others)
    loads = no_news()
    loads.images = {f"u{i}": (90 if i < 4 else 0) * PERCENT for i in range(8)}
    assert after(record, lot, loads) is record
    lost = after(record, lot, suspects={"n1": 1})
    for asset, place in lost.places.items():
        if place.joining and not is_ledger(asset) and not place.is_stage:
            free = [n for n in lost.members if n not in (name_of(place.primary), name_of(place.backup or ""))]
            assert name_of(place.joining) == draw(asset, free)


# --- figure 6, in the record


def loads_with(*moves: Reassign) -> LoadView:
    view = no_news()
    view.may_move = False
    view.reassign = {move.unit: move for move in moves}
    return view


def test_a_unit_joins_elsewhere_and_keeps_its_old_image_until_the_new_one_is_whole():
    record = start(shards=4)
    place = record.places["u0"]
    move = Reassign("u0", "n1", "n2", 40 * MS, 0, 10 * MS)
    made = after(record, loads=loads_with(move))
    now = made.places["u0"]
    assert (place.backup, now.backup, now.joining) == ("n1#1", "n1#1", "n2#1")
    done = after(made, loads=loads_with(move), joined={"u0": (now.since, "n2#1")})
    assert (done.places["u0"].backup, done.places["u0"].joining) == ("n2#1", None)
    assert after(done, loads=loads_with(move)) is done  # it is where it shall be


def test_no_more_units_join_at_once_than_a_node_may_bring_up():
    record = start(shards=12)
    mine = [a for a, p in record.places.items() if p.primary == "n0#1" and p.backup and not p.is_stage]
    moves = []
    for asset in mine:
        source = name_of(record.places[asset].backup)
        moves.append(Reassign(asset, source, next(n for n in ("n1", "n2", "n3") if n != source), 9 * MS, 0, MS))
    assert len(moves) > 2
    made = after(record, Config(joins_max=2), loads_with(*moves))
    assert sum(p.joining is not None for p in made.places.values()) == 2


def test_a_move_that_the_record_has_overtaken_is_not_made():
    record = start(shards=4)
    gone = Reassign("u0", "n3", "n2", 40 * MS, 0, 10 * MS)  # n3 does not back it up
    home = Reassign("u1", "n2", "n1", 40 * MS, 0, 10 * MS)  # n1 runs it
    nobody = Reassign("u2", "n3", "n9", 40 * MS, 0, 10 * MS)
    assert after(record, loads=loads_with(gone, home, nobody)) is record


# --- figure 6, epoch after epoch


def settled(units: dict[str, tuple[str, str, int]], nodes: list[str], domains: dict[str, str], limit: int = 400):
    """Let epochs pass until nothing moves any more; what moved."""
    moved = []
    for _ in range(limit):
        shares = [UnitShare(u, HaSegment(p, b), ns, ns // 10) for u, (p, b, ns) in sorted(units.items())]
        found = dynamic(shares, nodes, domains)
        if not found:
            return moved
        for move in found:
            home, source, ns = units[move.unit]
            assert source == move.source
            assert move.target in farthest(home, nodes, domains)
            units[move.unit] = (home, move.target, ns)
            moved.append(move)
    raise AssertionError(f"no rest after {limit} epochs")


@pytest.mark.parametrize("seed", range(30))
def test_assignments_come_to_rest_balanced_as_nodes_come_and_go_and_nothing_moves_without_need(seed):
    rng = Random(f"assignments {seed}")
    names = [f"n{i}" for i in range(12)]
    domains = {name: f"rack-{rng.randrange(3)}" for name in names} if seed % 3 == 0 else {}
    nodes = names[: rng.randrange(3, 8)]
    units: dict[str, tuple[str, str, int]] = {}
    for i in range(8 * len(nodes)):
        home = nodes[i % len(nodes)]
        units[f"u{i}"] = (home, rng.choice(farthest(home, nodes, domains)), rng.choice((1, 2, 5, 20)) * MS)
    for _ in range(6):
        moved = settled(units, nodes, domains)
        assert len(moved) <= 2 * len(units)
        check_balanced(units, nodes, domains)
        noisy = {u: (p, b, ns * rng.randrange(97, 104) // 100) for u, (p, b, ns) in units.items()}
        assert len(settled(noisy, nodes, domains)) <= len(units) // 8  # noise moves next to nothing
        if len(nodes) > 4 and rng.random() < 0.5:  # one is gone: its units run where they were backed up
            gone = nodes.pop(rng.randrange(len(nodes)))
            for unit, (home, backup, ns) in list(units.items()):
                if gone in (home, backup):
                    home = backup if home == gone else home
                    units[unit] = (home, rng.choice(farthest(home, nodes, domains)), ns)
        else:
            nodes.append(next(name for name in names if name not in nodes))


def check_balanced(units: dict[str, tuple[str, str, int]], nodes: list[str], domains: dict[str, str]) -> None:
    """No unit of the longest segment of the worst point of failure could go anywhere to good effect."""
    segments: dict[tuple[str, str], int] = {}
    for home, backup, ns in units.values():
        segments[home, backup] = segments.get((home, backup), 0) + ns
    (home, backup), high = max(segments.items(), key=lambda item: (item[1], item[0]))
    targets = [name for name in farthest(home, nodes, domains) if name != backup]
    low, target = min((segments.get((home, name), 0), name) for name in targets) if targets else (high, backup)
    inside = [ns for p, b, ns in units.values() if (p, b) == (home, backup)]
    best = max((min(high - low - ns, ns) for ns in inside), default=0)
    room = (high - low) * sum(ns // 10 for ns in inside) // high
    fits = [ns for ns in inside if ns // 10 <= room and low + ns < high]
    assert best < max(MS, high // 10) or not fits, (home, backup, target, high, low, best)


# --- epochs


def told(cycles: int, **recovery_ms: int) -> Loads:
    recovery = {unit: ms * MS for unit, ms in recovery_ms.items()}
    return Loads(running={}, images={}, recovery=recovery, query_ns=max(recovery.values(), default=0), cycles=cycles)


def test_an_epoch_is_over_when_every_member_has_finished_a_cycle_and_its_times_are_means_over_it():
    record = start(shards=4)
    epoch = Epoch()
    for cycles, took in ((3, 10), (3, 30)):
        for i, name in enumerate(("n0", "n1", "n2", "n3")):
            epoch.on_loads(f"{name}#1", told(cycles + (took == 30 and i < 3), **{f"u{i}": took}), record)
    assert not epoch.is_over(record)  # n3 has not
    epoch.on_loads("n3#1", told(4, u3=50), record)
    assert epoch.is_over(record)
    shares = {share.unit: share for share in epoch.shares(record, {"u0": 7})}
    assert (shares["u0"].recovery_ns, shares["u3"].recovery_ns) == (20 * MS, 30 * MS)
    assert (shares["u0"].backup_ns, shares["u1"].backup_ns) == (7, 0)
    assert epoch.queries()["n3"] == 30 * MS


def test_who_does_not_run_a_shard_says_nothing_of_it_and_a_join_begins_the_epoch_anew():
    record = start(shards=4)
    epoch = Epoch()
    epoch.on_loads("n1#1", told(1, u0=99), record)
    assert epoch.shares(record, {}) == []
    epoch.on_loads("n0#1", told(1, u0=10), record)
    joins = after(record, suspects={"n3": 1})
    epoch.on_loads("n0#1", told(2, u0=10), joins)
    assert epoch.shares(record, {}) == []
    assert not epoch.is_over(record)


def test_a_node_with_nothing_to_capture_finishes_a_cycle_with_every_look():
    made = Exposed(host("a#1"))
    made.look(0)
    made.look(100 * MS)
    assert made.cycles == 2
    assert made.take() == ({"u0": 0}, 0)


# --- primaries


def test_a_busy_primary_changes_places_with_its_backup_by_a_hand_over_and_only_where_that_is_set():
    record = start(shards=8)
    home = name_of(record.places["u0"].primary)
    loads = no_news()
    mine = [a for a, p in record.places.items() if p.primary == f"{home}#1" and not p.is_stage and not is_ledger(a)]
    loads.running = {f"u{i}": (45 if f"u{i}" in mine else 1) * PERCENT for i in range(8)}
    loads.images = {f"u{i}": PERCENT for i in range(8)}
    hot = Config(move_primaries=True, assignor="dynamic")
    made = after(record, hot, loads)
    moving = [asset for asset, place in made.places.items() if place.moving]
    assert len(moving) == 1
    assert moving[0] in mine
    assert made.places[moving[0]].epoch == record.places[moving[0]].epoch  # nobody is promoted yet
    assert not any(p.moving for p in after(record, Config(assignor="dynamic"), loads).places.values())


def moved_primaries(record: Record, loads: LoadView, config: Config, limit: int = 40) -> list[str]:
    found = []
    for _ in range(limit):
        made = after(record, config, loads)
        if made is record:
            return found
        asset = next(a for a, p in made.places.items() if p.moving)
        found.append(asset)
        record = after(made, config, LoadView(), yielded={asset: made.places[asset].since})
    raise AssertionError(f"no rest: {found}")


@pytest.mark.parametrize("seed", range(10))
def test_moves_of_primaries_come_to_an_end(seed):
    rng = Random(f"primaries {seed}")
    loads = no_news()
    loads.running = {f"u{i}": rng.choice((1, 5, 40, 80)) * PERCENT for i in range(16)}
    loads.images = {f"u{i}": rng.choice((1, 4)) * PERCENT for i in range(16)}
    moved = moved_primaries(start(shards=16), loads, Config(move_primaries=True, assignor="dynamic"))
    assert len(moved) <= 16
    assert len(set(moved)) == len(moved)
