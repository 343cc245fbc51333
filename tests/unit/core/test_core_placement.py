"""The next record is a function of the last one and of what was reported."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.core.links import NO_CUTS, LinkView
from holdfast.core.load import LoadView
from holdfast.core.placement import Reports, plan
from holdfast.model.config import MS, Config
from holdfast.model.ids import is_ledger, ledger_of, life_of, name_of
from holdfast.model.protection import Protection
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import layered

NAMES = ("n0", "n1", "n2", "n3")
CONFIG = Config()


def start(shards: int = 4, names=NAMES) -> Record:
    return first_record(layered(stages=1, shards=shards), names)


def no_news() -> LoadView:
    """Loads as a coordinator has them that has led for a while and heard nothing."""
    view = LoadView()
    view.may_move = True
    return view


def after(
    record: Record, config: Config = CONFIG, loads: LoadView | None = None, links: LinkView = NO_CUTS, **reported
) -> Record:
    reports = Reports()
    for name, value in reported.items():
        setattr(reports, name, value)
    made = plan(record, reports, loads or no_news(), config, links)
    if made is None:
        return record
    return Record(
        version=made.version,
        term=1,
        members=made.members,
        places=made.places,
        draining=made.draining,
        protection=made.protection,
    )


def settle(
    record: Record, config: Config = CONFIG, loads: LoadView | None = None, links: LinkView = NO_CUTS, **reported
) -> Record:
    """Play the primaries' part until nothing changes: everything that joins has joined, all that moves has yielded."""
    record = after(record, config, loads, links, **reported)
    for _ in range(60):
        joined = {a: (p.since, p.joining) for a, p in record.places.items() if p.joining}
        yielded = {a: p.since for a, p in record.places.items() if p.moving}
        following = after(record, config, loads, links, joined=joined, yielded=yielded)
        if following is record:
            return record
        record = following
    raise AssertionError("the placement does not come to rest")


def test_a_failed_nodes_shards_go_to_all_who_hold_their_images():
    record = start(shards=8)
    held = {a: p for a, p in record.places.items() if p.primary == "n0#1" and p.backup}
    made = after(record, suspects={"n0": 1})
    assert "n0" not in made.members
    assert held
    for asset, place in held.items():
        assert (made.places[asset].primary, made.places[asset].epoch) == (place.backup, place.epoch + 1)
        assert made.places[asset].joining not in (None, place.backup)


def test_a_backup_is_replaced_and_the_primary_stays():
    made = after(start(shards=1), suspects={"n1": 1})
    place = made.places["u0"]
    assert (place.primary, place.backup, place.epoch) == ("n0#1", None, 1)
    assert place.joining is not None


def test_a_seat_becomes_the_backup_only_when_the_primary_has_said_so_of_this_place():
    record = after(start(shards=1), suspects={"n1": 1})
    place = record.places["u0"]
    assert after(record, joined={"u0": (place.since - 1, place.joining)}).places["u0"].backup is None
    assert after(record, joined={"u0": (place.since, "n9#1")}).places["u0"].backup is None
    assert after(record, joined={"u0": (place.since, place.joining)}).places["u0"].backup == place.joining


def test_a_shard_whose_only_holder_is_suspected_stays_and_is_lost_only_in_its_next_life():
    record = Record(
        version=3, term=1, members={"n0": 1, "n1": 1, "n2": 1}, places={"u0": Place(primary="n0#1", since=3)}
    )
    made = after(record, suspects={"n0": 1})
    assert made.places["u0"].primary == "n0#1"
    back = after(made, hellos={"n0": 1})
    assert back.places["u0"].primary == "n0#1"
    reborn = after(made, hellos={"n0": 2})
    assert reborn.places["u0"].primary is None


def test_a_restart_before_anybody_noticed_is_a_failure_of_the_old_life():
    record = start(shards=1)
    made = after(record, hellos={"n0": 2})
    assert made.members["n0"] == 2
    assert made.places["u0"].primary == "n1#1"
    ledger = made.places[ledger_of("s0")]
    assert ledger == record.places[ledger_of("s0")]
    assert made.places["s0"].epoch == 2


def test_an_old_suspicion_or_an_old_hello_changes_nothing():
    record = start()
    assert after(record, suspects={"n0": 7}) is record
    assert after(record, hellos={"n0": 1}) is record


def test_membership_changes_by_one_at_a_time():
    made = after(start(), suspects={"n0": 1, "n1": 1}, hellos={"n9": 1})
    assert len(set(made.members) ^ set(NAMES)) == 1


def test_the_last_member_is_never_removed():
    record = Record(version=1, term=0, members={"n0": 1}, places={"u0": Place(primary="n0#1")})
    assert after(record, suspects={"n0": 1}) is record


def test_a_dead_driver_gets_a_new_epoch_and_an_old_report_does_not():
    record = start()
    assert after(record, downs={"s0": 1}).places["s0"].epoch == 2
    assert after(record, downs={"s0": 0}) is record


def test_a_drain_moves_everything_and_never_leaves_a_shard_unprotected():
    record = after(start(), drains={"n0": None})
    assert record.draining == ("n0",)
    for _ in range(60):
        for asset, place in record.places.items():
            assert asset == "s0" or place.backup
        joined = {a: (p.since, p.joining) for a, p in record.places.items() if p.joining}
        yielded = {a: p.since for a, p in record.places.items() if p.moving}
        following = after(record, joined=joined, yielded=yielded)
        if following is record:
            break
        record = following
    assert not [a for a, p in record.places.items() if "n0" in map(name_of, p.holders)]


def test_a_drain_that_would_leave_nobody_is_not_honoured():
    record = settle(start(), drains={"n0": None})
    assert after(record, drains={"n1": None, "n2": None, "n3": None}).draining == ("n0",)
    alone = record
    for name in ("n1", "n2", "n3"):
        alone = settle(alone, suspects={name: 1})
    assert alone.members == {"n0": 1}
    assert all(p.primary and name_of(p.primary) == "n0" for p in alone.places.values())


def test_a_drain_of_one_that_came_back_is_forgotten():
    record = settle(start(), drains={"n0": None})
    assert settle(record, hellos={"n0": 2}).draining == ()


def test_a_node_that_came_back_gets_backups_again():
    record = settle(start(shards=12), suspects={"n0": 1})
    record = settle(record, hellos={"n0": 2})
    load = dict.fromkeys(record.members, 0)
    for place in record.places.values():
        for seat in place.holders:
            load[name_of(seat)] += 1
    assert max(load.values()) - min(load.values()) <= 4


@pytest.mark.parametrize("seed", range(25))
def test_the_placement_comes_to_rest_whatever_members_come_and_go(seed):
    rng = Random(seed)
    record, lives = start(shards=6), dict.fromkeys(NAMES, 1)
    for _ in range(12):
        name = rng.choice((*NAMES, "n4"))
        if name in record.members and len(record.members) > 2 and rng.random() < 0.5:
            record = settle(record, suspects={name: record.members[name]})
        elif rng.random() < 0.2:
            record = settle(record, drains={name: None})
        else:
            lives[name] = lives.get(name, 0) + 1
            record = settle(record, hellos={name: lives[name]})
        for asset, place in record.places.items():
            names = [name_of(seat) for seat in place.holders]
            assert len(set(names)) == len(names)
            assert all(life_of(s) in (0, record.members.get(name_of(s))) for s in place.holders)
            if asset != "s0" and len(record.members) > 1:
                assert place.backup or place.primary is None


# --- images that are brought up


def joins(record: Record) -> dict[str, int]:
    """Shards that are being brought up, per node that sends."""
    found: dict[str, int] = {}
    for asset, place in record.places.items():
        if place.joining and place.primary and not is_ledger(asset):
            found[name_of(place.primary)] = found.get(name_of(place.primary), 0) + 1
    return found


@pytest.mark.parametrize("joins_max", [1, 2, 3])
def test_a_node_brings_up_no_more_images_at_once_than_it_may_and_all_of_them_in_the_end(joins_max):
    config = Config(joins_max=joins_max)
    record = after(start(shards=24), config, suspects={"n1": 1})
    seen = []
    for _ in range(60):
        seen.append(max(joins(record).values(), default=0))
        waiting = [a for a, p in sorted(record.places.items()) if p.joining]
        if not waiting:
            break
        first = record.places[waiting[0]]  # one after the other, so that places come free one by one
        record = after(record, config, joined={waiting[0]: (first.since, first.joining)})
    assert max(seen) == seen[0] == joins_max
    assert seen[-1] == 0
    assert all(p.backup for a, p in record.places.items() if a != "s0")


def test_a_ledger_joins_whatever_else_is_brought_up():
    record = after(start(shards=24), Config(joins_max=1), suspects={"n2": 1})
    assert record.places[ledger_of("s0")].joining


def test_a_backup_that_does_not_fit_joins_anew_and_an_old_report_of_it_is_nothing():
    record = start(shards=1)
    place = record.places["u0"]
    assert after(record, unfit={"u0": (place.since - 1, place.backup)}) is record
    assert after(record, unfit={"u0": (place.since, "n9#1")}) is record
    made = after(record, unfit={"u0": (place.since, place.backup)}).places["u0"]
    assert (made.primary, made.backup, made.joining, made.epoch) == (place.primary, None, place.backup, place.epoch)
    assert made.since > place.since


def test_a_joining_seat_that_does_not_continue_joins_anew_whatever_was_reported_before():
    record = start(shards=1)
    record = after(record, drains={name_of(record.places["u0"].backup): None})
    place = record.places["u0"]
    assert place.joining
    made = after(record, joined={"u0": (place.since, place.joining)}, unfit={"u0": (place.since, place.joining)})
    assert (made.places["u0"].backup, made.places["u0"].joining is not None) == (place.backup, True)
    assert made.places["u0"].since > place.since


# --- settings


NONE = Protection(mode="none")


def test_going_down_drops_the_backup_in_the_record_that_changes_the_mode():
    record = after(start(), protection={"u0": NONE})
    place = record.places["u0"]
    assert (place.primary, place.backup, place.joining, place.mode) == ("n0#1", None, None, "none")
    assert place.epoch == 1
    assert record.places["u1"].mode == "passive"
    assert record.unprotected() == []
    assert after(record) is record


def test_going_down_gives_up_a_seat_that_was_joining():
    record = after(start(shards=1), suspects={"n1": 1})
    assert record.places["u0"].joining
    record = after(record, protection={"u0": NONE})
    assert record.places["u0"].targets == ()


def test_going_up_is_in_force_only_when_the_copy_is_complete():
    record = after(after(start(), protection={"u0": NONE}), protection={"u0": Protection()})
    place = record.places["u0"]
    assert (place.mode, place.backup) == ("none", None)
    assert place.joining is not None
    assert record.unprotected() == ["u0"]
    place = after(record, joined={"u0": (place.since, place.joining)}).places["u0"]
    assert (place.mode, place.backup, place.joining) == ("passive", record.places["u0"].joining, None)


def test_a_mode_that_goes_down_again_while_its_copy_joins_ends_without_a_copy():
    record = after(after(start(), protection={"u0": NONE}), protection={"u0": Protection()})
    place = record.places["u0"]
    record = after(record, joined={"u0": (place.since, place.joining)}, protection={"u0": NONE})
    assert (record.places["u0"].mode, record.places["u0"].targets) == ("none", ())


def test_a_drain_moves_a_shard_without_a_backup_by_way_of_one():
    record = after(start(), protection={f"u{i}": NONE for i in range(4)})
    record = after(record, drains={"n0": None})
    assert record.places["u0"].joining is not None
    assert all(record.places[f"u{i}"].joining is None for i in range(1, 4))
    record = settle(record)
    place = record.places["u0"]
    assert name_of(place.primary or "") != "n0"
    assert (place.targets, place.epoch, place.mode) == ((), 2, "none")


def test_a_shard_that_moves_away_while_its_mode_goes_up_is_protected_at_once():
    record = after(after(start(), protection={"u0": NONE}), drains={"n0": None})
    place = record.places["u0"]
    record = after(record, joined={"u0": (place.since, place.joining)})
    assert (record.places["u0"].mode, record.places["u0"].backup) == ("none", place.joining)
    record = after(record, protection={"u0": Protection()})
    assert (record.places["u0"].mode, record.places["u0"].backup) == ("passive", place.joining)


def test_a_pipeline_starts_in_the_modes_that_it_names():
    record = first_record(layered(stages=1, shards=2), NAMES, Protection(), {"u0": "none"})
    assert (record.places["u0"].backup, record.places["u0"].mode) == (None, "none")
    assert (record.places["u1"].backup, record.places["u1"].mode) == ("n2#1", "passive")
    assert record.unprotected() == []
    assert first_record(layered(stages=1, shards=1), NAMES, NONE, {"u0": "passive"}).places["u0"].backup


def test_settings_are_changed_for_operators_that_exist():
    record, fast = start(shards=2), Protection(period_ns=10 * MS)
    made = after(record, protection={"u1": fast, "nobody": fast})
    assert made.protection == {"u0": Protection(), "u1": fast}
    assert made.places == record.places
    assert after(record, protection={"nobody": fast}) is record
    assert after(made, protection={"u1": fast}) is made
    assert settle(made, suspects={"n1": 1}).protection == made.protection
