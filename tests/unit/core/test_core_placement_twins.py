"""Where the record puts two copies that run at once, and keepers, and what becomes of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.links import LinkView, Wires
from holdfast.core.load import LoadView
from holdfast.core.placement import Reports, plan
from holdfast.model.config import Config
from holdfast.model.ids import name_of
from holdfast.model.protection import Protection
from holdfast.model.record import Record, first_record
from holdfast.model.topology import layered

SHAPE = layered(stages=1, shards=2)
ACTIVE, PASSIVE, NONE, REPLAY = (Protection(mode=mode) for mode in ("active", "passive", "none", "replay"))


def start(protection: Protection = ACTIVE, names: tuple[str, ...] = ("n0", "n1", "n2", "n3")) -> Record:
    return first_record(SHAPE, names, protection)


def after(record: Record, links: LinkView | None = None, **reported) -> Record:
    reports = Reports()
    for name, value in reported.items():
        setattr(reports, name, value)
    made = plan(record, reports, LoadView(), Config(), links or LinkView(Wires(SHAPE), frozenset()))
    if made is None:
        return record
    return replace(
        record,
        version=made.version,
        members=made.members,
        places=made.places,
        draining=made.draining,
        protection=made.protection,
    )


def join(record: Record, shard: str = "u0") -> Record:
    place = record.places[shard]
    return after(record, joined={shard: (place.since, place.joining)})


def test_a_pipeline_starts_with_two_that_run():
    place = start().places["u0"]
    assert (place.running, place.targets, place.twin) == (("n0#1", "n1#1"), (), "n1#1")
    assert after(start()).places["u0"] == place


def test_when_a_primary_fails_its_twin_is_named_and_another_joins():
    record = after(start(), suspects={"n0": 1})
    place = record.places["u0"]
    assert (place.primary, place.twin, place.epoch, place.mode) == ("n1#1", None, 2, "active")
    assert place.joining in place.targets
    named = join(record).places["u0"]
    assert (named.primary, named.twin, named.epoch) == ("n1#1", place.joining, 2)


def test_a_copy_that_falls_back_joins_anew_and_a_primary_leaves_that_to_its_twin():
    record = start()
    place = after(record, fell_back={"u0": (1, "n1#1")}).places["u0"]
    assert (place.running, place.joining, place.epoch) == (("n0#1",), "n1#1", 1)
    place = after(record, fell_back={"u0": (1, "n0#1")}).places["u0"]
    assert (place.running, place.joining, place.epoch) == (("n1#1",), "n0#1", 2)
    assert after(record, fell_back={"u0": (0, "n1#1")}).places["u0"].twin  # said of an older place


def test_one_that_is_alone_and_cannot_go_on_gets_a_new_epoch():
    record = after(start(names=("n0",)), fell_back={"u0": (1, "n0#1")})
    assert (record.places["u0"].primary, record.places["u0"].epoch) == ("n0#1", 2)


@pytest.mark.parametrize("mode", ["passive", "hybrid"])
def test_an_image_becomes_the_twin_at_once_and_a_twin_never_an_image(mode):
    record = start(Protection(mode=mode))
    before = record.places["u0"]
    record = after(record, protection={"u0": ACTIVE})
    assert (record.places["u0"].twin, record.places["u0"].epoch) == (before.backup, 1)
    record = after(record, protection={"u0": Protection(mode=mode)})
    place = record.places["u0"]
    assert (place.twin, place.mode) == (before.backup, "active")
    assert place.joining not in (None, before.backup)
    place = join(record).places["u0"]
    assert (place.backup, place.twin, place.mode) == (record.places["u0"].joining, None, mode)


def test_with_two_nodes_a_twin_joins_anew_to_be_an_image():
    record = after(start(names=("n0", "n1")), protection={"u0": PASSIVE})
    place = record.places["u0"]
    assert (place.running, place.joining, place.mode) == (("n0#1",), "n1#1", "active")
    assert join(record).places["u0"].mode == "passive"


def test_to_none_and_back():
    record = after(start(), protection={"u0": NONE})
    place = record.places["u0"]
    assert (place.running, place.joining, place.mode) == (("n0#1",), None, "none")
    record = after(record, protection={"u0": ACTIVE})
    assert record.places["u0"].mode == "none"
    assert join(record).places["u0"].twin == record.places["u0"].joining


def test_a_drain_lets_them_change_places_and_another_joins():
    record = after(start(), drains={"n0": None})
    place = record.places["u0"]
    assert (place.primary, place.twin, place.epoch, place.moving) == ("n1#1", "n0#1", 2, False)
    assert place.joining
    named = join(record).places["u0"]
    assert "n0" not in {name_of(seat) for seat in named.holders}


def test_a_drain_of_both_and_a_mode_without_a_copy_leave_one():
    record = after(after(start(), drains={"n0": None, "n1": None}), protection={"u0": NONE})
    assert record.places["u0"].twin is None
    assert record.places["u0"].mode == "none"


def test_copies_that_cannot_reach_each_other_part():
    record = after(start(), LinkView(Wires(SHAPE), frozenset({("n0", "n1")})))
    place = record.places["u0"]
    assert len(place.running) == 1
    assert name_of(place.joining or "") not in ("n0", "n1", "")


@pytest.mark.parametrize("mode", ["passive", "hybrid"])
def test_an_image_becomes_a_keeper_at_once_and_a_keeper_never_an_image(mode):
    record = start(Protection(mode=mode))
    before = record.places["u0"]
    record = after(record, protection={"u0": REPLAY})
    place = record.places["u0"]
    assert (place.keeper, place.mode, place.epoch, place.targets) == (before.backup, "replay", 1, ())
    record = after(record, protection={"u0": Protection(mode=mode)})
    place = record.places["u0"]
    assert (place.keeper, place.mode) == (before.backup, "replay")
    assert place.joining not in (None, before.backup)
    place = join(record).places["u0"]
    assert (place.backup, place.keeper, place.mode) == (record.places["u0"].joining, None, mode)


def test_between_keeper_and_twin_another_node_gets_an_image():
    record = start(REPLAY)
    before = record.places["u0"]
    record = after(record, protection={"u0": ACTIVE})
    place = record.places["u0"]
    assert (place.keeper, place.mode, place.twin) == (before.backup, "replay", None)
    record = join(record)
    assert (record.places["u0"].twin, record.places["u0"].mode) == (place.joining, "active")
    record = after(record, protection={"u0": REPLAY})
    assert (record.places["u0"].twin, record.places["u0"].mode) == (place.joining, "active")
    assert join(record).places["u0"].keeper == record.places["u0"].joining


def test_with_two_nodes_a_keeper_joins_anew_to_be_an_image():
    record = after(start(REPLAY, names=("n0", "n1")), protection={"u0": PASSIVE})
    place = record.places["u0"]
    assert (place.backup, place.joining, place.mode) == (None, "n1#1", "replay")
    assert join(record).places["u0"].mode == "passive"


def test_a_keeper_that_joins_anew_ends_a_hand_over_to_it():
    """Nobody takes a record in which a shard moves to nobody, and the coordinator would propose no other any more."""
    record = after(start(REPLAY, ("n0", "n1")), drains={"n0": None})
    assert record.places["u0"].moving
    record = after(record, protection={"u0": PASSIVE})
    place = record.places["u0"]
    assert (place.backup, place.joining, place.moving) == (None, "n1#1", False)
    place = after(join(record)).places["u0"]
    assert (place.backup, place.mode, place.moving) == ("n1#1", "passive", True)


def test_between_keeper_and_none():
    record = after(start(REPLAY), protection={"u0": NONE})
    place = record.places["u0"]
    assert (place.backup, place.joining, place.mode) == (None, None, "none")
    record = after(record, protection={"u0": REPLAY})
    assert record.places["u0"].mode == "none"
    assert join(record).places["u0"].keeper == record.places["u0"].joining


def test_a_keeper_takes_over_and_another_node_gets_an_image():
    record = start(REPLAY)
    before = record.places["u0"]
    record = after(record, suspects={"n0": 1})
    place = record.places["u0"]
    assert (place.primary, place.epoch) == (before.backup, 2)
    assert place.joining is not None
    assert join(record).places["u0"].keeper == place.joining
