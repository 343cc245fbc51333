"""Which links are cut, and what goes around them."""

from __future__ import annotations

from itertools import combinations

import pytest
from msgspec.structs import replace
from test_core_placement import settle, start

from holdfast.core.election import Election, Standing
from holdfast.core.links import LinkView, LinkWatch, Wires, link
from holdfast.core.load import LoadView
from holdfast.core.ready import Ready
from holdfast.model.config import MS, Config
from holdfast.model.ids import name_of
from holdfast.model.messages import Unheard
from holdfast.model.record import Record, first_record
from holdfast.model.topology import layered

NAMES = ("n0", "n1", "n2", "n3")
CONFIG = Config()
SHAPE = layered(stages=2, shards=4, tops=2, placed=True)


def cut_at(shape, *pairs) -> LinkView:
    return LinkView(Wires(shape), frozenset(link(*pair) for pair in pairs))


def strained(record: Record, view: LinkView) -> list[str]:
    return [asset for asset in record.places if view.strain(asset, record.places)]


# --- what is a cut


class Hearing:
    """A coordinator n0 that hears n1, n2 and n3 as often as it is said."""

    def __init__(self) -> None:
        self.election = Election("n0", CONFIG, 1, "n0", first_record(SHAPE, NAMES))
        self.election.standing, self.election.coordinator = Standing.COORDINATOR, "n0"
        self.links = LinkWatch("n0", SHAPE, self.election, CONFIG)
        self.notes: list[str] = []
        self.now_ns = 0

    def run(
        self,
        ms: int,
        *,
        silent: tuple[str, ...] = (),
        behind: tuple[str, ...] = (),
        said: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        """So many milliseconds, in which all but `silent` are heard, all but those `behind` have the newest record, and
        these members do not hear those."""
        self.election.appended = {name: None for name in NAMES if name not in behind}
        for _ in range(ms // 100):
            self.now_ns += 100 * MS
            ready = Ready()
            for name in NAMES[1:]:
                if name not in silent:
                    self.election.on_contact(name, self.now_ns)
            for hearer, members in (said or {}).items():
                self.links.on_unheard(f"{hearer}#1", Unheard(members=members), self.now_ns, ready)
            self.links.on_tick(self.now_ns, ready)
            self.notes += [str(note) for note in ready.notes]


def test_what_was_said_for_long_enough_is_a_cut_once():
    told = Hearing()
    told.run(900, said={"n1": ("n2",)})
    assert told.notes == []
    told.run(5_000, said={"n1": ("n2",), "n2": ("n1",)})
    assert told.notes == ["link-cut n0 n1 n2"]
    assert told.links.is_due()
    assert told.links.take().cuts == {("n1", "n2")}
    assert not told.links.is_due()


def test_who_is_silent_to_the_coordinator_too_is_not_behind_a_cut():
    told = Hearing()
    told.run(5_000, silent=("n2",), said={"n1": ("n2",)})
    assert told.notes == []


@pytest.mark.parametrize("behind", ["n1", "n2"])
def test_who_does_not_have_the_newest_record_does_not_know_whom_to_send_heartbeats_to(behind):
    """Found by seed 8000068: n2 is started again, and hears nothing of the coordinator, which hears it."""
    told = Hearing()
    told.run(5_000, behind=(behind,), said={"n1": ("n2",)})
    assert told.notes == []
    told.run(1_500, said={"n1": ("n2",)})
    assert told.notes == ["link-cut n0 n1 n2"]


def test_what_was_said_of_an_earlier_life_says_nothing_of_the_next():
    """Found by seed 170318: one complaint before n2 was taken in again, one right after."""
    told = Hearing()
    told.links.on_record(told.election.accepted)
    told.run(900, said={"n1": ("n2",)})
    told.links.on_record(replace(told.election.accepted, members={"n0": 1, "n1": 1, "n2": 2, "n3": 1}))
    told.run(900, said={"n1": ("n2",)})
    assert told.notes == []
    told.run(300, said={"n1": ("n2",)})
    assert told.notes == ["link-cut n0 n1 n2"]


def test_a_word_in_between_begins_the_wait_anew():
    told = Hearing()
    for _ in range(5):
        told.run(800, said={"n1": ("n2",)})
        told.run(500)
    assert told.notes == []


def test_a_cut_is_mended_when_nobody_has_said_it_for_much_longer():
    told = Hearing()
    told.run(1_500, said={"n1": ("n2",)})
    for _ in range(4):  # it comes and goes
        told.run(9_000)
        told.run(1_500, said={"n1": ("n2",)})
    assert told.notes == ["link-cut n0 n1 n2"]
    told.run(11_000)
    assert told.notes[1:] == ["link-mended n0 n1 n2"]
    assert told.links.is_due()


def test_the_coordinators_own_links_are_not_its_business_here():
    told = Hearing()
    told.run(5_000, said={"n1": ("n0",)})
    assert told.notes == []
    assert LinkWatch("n1", SHAPE, told.election, CONFIG).report(("n0", "n2")) == [Unheard(members=("n2",))]


def test_who_is_coordinator_no_more_forgets_and_a_member_that_left_has_no_links():
    told = Hearing()
    told.run(1_500, said={"n1": ("n2",)})
    told.links.on_record(replace(told.election.accepted, members={"n0": 1, "n1": 1, "n3": 1}))
    assert told.links.take().cuts == frozenset()
    told.run(1_500, said={"n1": ("n3",)})
    told.election.standing = Standing.FOLLOWER
    told.run(100)
    assert told.links.cuts() == []


# --- what needs a link


def test_neighbours_are_those_with_whom_rows_captures_or_pages_are_exchanged():
    shape = layered(stages=1, shards=1)
    record = first_record(shape, ("n0", "n1", "n2", "n3", "n4"))  # u0: n0, n1; its stage: n0; the ledger: n1, n2
    wires = Wires(shape)
    assert wires.neighbours("n0", record.places) == {"n1", "n2"}
    assert wires.neighbours("n2", record.places) == {"n0", "n1"}
    assert wires.neighbours("n4", record.places) == frozenset()


# --- around it


def test_a_backup_out_of_reach_is_given_up_and_a_seat_in_reach_joins():
    record = start(shards=1)  # u0: n0, n1
    view = cut_at(layered(stages=1, shards=1), ("n0", "n1"))
    place = settle(record, links=view).places["u0"]
    assert {name_of(seat) for seat in place.holders} & {"n2", "n3"}
    assert not view.is_cut(*map(name_of, place.holders))


@pytest.mark.parametrize("pair", list(combinations(NAMES, 2)))
@pytest.mark.parametrize("count", [3, 4])
def test_with_one_link_cut_nothing_needs_it_any_more_and_all_is_protected(pair, count):
    if not set(pair) <= set(NAMES[:count]):
        return
    record, view = first_record(SHAPE, NAMES[:count]), cut_at(SHAPE, pair)
    assert strained(record, view)
    made = settle(record, loads=LoadView(), links=view, config=Config(standby=True))
    assert strained(made, view) == []
    assert made.unprotected() == []
    assert made.members == record.members
    assert settle(made, loads=LoadView(), links=cut_at(SHAPE)).places == made.places  # mended: nothing goes back


def test_with_every_link_cut_but_those_to_one_everything_is_there():
    """Two members that hear only the third."""
    pairs = [pair for pair in combinations(NAMES, 2) if "n0" not in pair]
    made = settle(first_record(SHAPE, NAMES), links=cut_at(SHAPE, *pairs))
    stages = {asset: name_of(p.primary) for asset, p in made.places.items() if p.is_stage}
    assert set(stages.values()) == {"n0"}
    assert strained(made, cut_at(SHAPE, *pairs)) == []


def test_where_there_is_no_way_around_nothing_moves():
    record = first_record(SHAPE, ("n1", "n2"))
    assert settle(record, links=cut_at(SHAPE, ("n1", "n2"))).places == record.places


def test_what_is_new_is_not_put_behind_a_cut():
    """n3 leaves: what it held joins elsewhere, and never where its primary does not reach it."""
    view = cut_at(SHAPE, ("n1", "n2"))
    made = settle(settle(first_record(SHAPE, NAMES), links=view), links=view, suspects={"n3": 1})
    assert strained(made, view) == []
    assert made.unprotected() == []
