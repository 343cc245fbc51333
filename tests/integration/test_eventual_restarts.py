"""kill -9 of all nodes and drivers at once, of a pipeline whose operators leave footprints: a restart gathers them and
replays what was taken since. Real nodes, a real store, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.plans import layered_plan
from test_restarts import Restarted, go_through

from holdfast.checkpoint.head import decode
from holdfast.model.plan import Plan
from holdfast.store.local import LocalStore

pytestmark = pytest.mark.slow


def eventual_plan() -> Plan:
    """Shards over a stage, and shards over those; windows stay open over several entries."""
    plan = layered_plan(shards=4, tops=2, window_us=1_000_000)
    operators = tuple(
        replace(operator, checkpoint="eventual", checkpoint_ns=200_000_000) for operator in plan.operators
    )
    return replace(plan, operators=operators)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], Restarted]]:
    made: list[Restarted] = []

    def one(seed: int) -> Restarted:
        made.append(Restarted(tmp_path, seed, eventual_plan()))
        return made[-1]

    yield one
    for restarted in made:
        restarted.crash()
        restarted.nodes.close()


def needs_others(store: Path) -> bool:
    """Does some shard's newest entry build on earlier ones? Otherwise nothing would have been gathered or replayed."""
    seen = LocalStore(store)
    heads = {one.key.rpartition("/")[0] for one in seen.list("head/")}
    found = [seen.look(key) for key in sorted(heads)]
    newest = [decode(one[0], "a head").good[:1] for one in found if one is not None]
    return any(len(entry.files) > 1 for entries in newest for entry in entries)


def test_everything_is_killed_and_goes_on_from_footprints(make: Callable[[int], Restarted]):
    one = make(1)
    go_through(one, lives=3, lacking="pages")
    assert not list(one.store.glob("checkpoint/*/pages-*"))


def test_a_restart_replays_what_came_after_the_oldest_footprint(make: Callable[[int], Restarted]):
    one = make(2)
    one.start()
    one.nodes.begin()
    one.live("sink committed")
    one.nodes.until("entries to build on each other", lambda: needs_others(one.store), 60)
    one.crash()
    assert needs_others(one.store)
    one.start()
    one.live("entry")
    one.nodes.finish(240)
    assert one.nodes.difference() == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 9))
def test_the_same_over_many_moments(make: Callable[[int], Restarted], seed: int):
    go_through(make(seed), lives=6, lacking="pages")
