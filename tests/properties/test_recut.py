"""A state that was cut anew by key goes on like one that never was: every kind of operator, any numbers of shards.

The same rows go into shards that are cut anew after a while, and into as many that were there from the beginning.
Whatever comes out after that must be the same, shard by shard and bit by bit (rows of every type, nulls, long texts,
sums of doubles, first and last).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle
from support.batches import SECOND
from support.stored_states import EVERY, operators, rows, side

from holdfast.errors import ConfigError, StateError
from holdfast.model.plan import OperatorPlan
from holdfast.operators import FOREVER, LEFT, RIGHT, Join, StateConfig
from holdfast.operators.build import build, rows_schema
from holdfast.operators.recut import Widening, recut
from holdfast.runtime.shards import cut

#: Small: a test makes dozens of shards.
CONFIG = StateConfig(page_bytes=4096, limit_bytes=1 << 22)
OPERATORS = {one.name: one for one in operators()}
#: No row of `rows` is earlier.
START = -30_000_000


class Shards:
    """Shards of one operator, and all that they have given out since the last look."""

    def __init__(self, plan: OperatorPlan, count: int) -> None:
        self.plan = plan
        self.ops: list[Any] = [build(plan, CONFIG) for _ in range(count)]
        self.out: list[list[pa.Table]] = [[] for _ in range(count)]

    def feed(self, table: pa.Table) -> None:
        for which, given_ in enumerate(self.plan.inputs):
            found = side(table, which) if self.plan.kind == "join" else oracle.with_time(table)
            for batch in found.combine_chunks().to_batches():
                for number, part in enumerate(cut(batch, given_.by, len(self.ops))):
                    op = self.ops[number]
                    made = op.process(which, part) if isinstance(op, Join) else op.process(part)
                    self._take(number, made)

    def pass_time(self, watermark: int) -> None:
        for number, op in enumerate(self.ops):
            for which in (LEFT, RIGHT) if isinstance(op, Join) else (None,):
                self._take(number, op.on_watermark(watermark) if which is None else op.on_watermark(which, watermark))

    def _take(self, number: int, made: pa.Table | None) -> None:
        if made is not None and made.num_rows:
            self.out[number].append(made)

    def taken(self) -> list[list[str]]:
        """Rows in an order of their own: rows of different keys that expire together have none."""
        found = [[repr(row) for table in tables for row in table.to_pylist()] for tables in self.out]
        self.out = [[] for _ in self.ops]
        return [sorted(one) if self.plan.kind == "join" else one for one in found]


@pytest.mark.parametrize("name", sorted(OPERATORS))
@settings(max_examples=8)
@given(
    before=st.integers(1, 9), after=st.integers(1, 9), seed=st.integers(0, 1000), share=st.floats(0.1, 0.9),
    seconds=st.integers(0, 40),
)  # fmt: skip
def test_a_state_that_was_cut_anew_goes_on_as_if_it_never_was(name, before, after, seed, share, seconds):
    table = rows(300, seed).sort_by("seq")
    first, rest = table.slice(0, int(300 * share)), table.slice(int(300 * share))
    moved, never = Shards(OPERATORS[name], before), Shards(OPERATORS[name], after)
    for one in (moved, never):
        one.feed(first)
        one.pass_time(START)
        one.taken()
    new = Shards(OPERATORS[name], after)
    recut(iter(moved.ops), new.ops)
    for at in (START, START + seconds * SECOND, FOREVER):
        for one in (new, never):
            one.pass_time(at)
            if at == START:
                one.feed(rest)
        assert new.taken() == never.taken()


def test_shards_at_different_watermarks_are_not_cut():
    shards = Shards(OPERATORS["sliding"], 2)
    shards.ops[0].on_watermark(START)
    with pytest.raises(StateError, match="not at one point"):
        recut(shards.ops, Shards(OPERATORS["sliding"], 3).ops)


# --- aggregates that come and go


def widened(plan: OperatorPlan, aggs: dict[str, list[Any]]) -> OperatorPlan:
    return msgspec.structs.replace(plan, settings={**plan.settings, "aggs": aggs})


def widening(old: OperatorPlan, new: OperatorPlan, **defaults: str) -> Widening:
    return Widening(build(old).program, build(new).program, rows_schema(new.inputs[0]), defaults)


@pytest.mark.parametrize("name", ["sliding", "counted"])
@settings(max_examples=6)
@given(
    seed=st.integers(0, 1000),
    few=st.lists(st.sampled_from(sorted(EVERY)), min_size=1, max_size=6, unique=True),
    many=st.lists(st.sampled_from(sorted(EVERY)), min_size=1, max_size=9, unique=True),
)
def test_aggregates_that_stay_go_on_when_others_come_and_go(name, seed, few, many):
    """Against an operator that had all of them from the beginning."""
    table = rows(200, seed).sort_by("seq")
    aggs = {agg: EVERY[agg] for agg in [*few, *(agg for agg in many if agg not in few)]}
    old, new = widened(OPERATORS[name], {a: EVERY[a] for a in few}), widened(OPERATORS[name], aggs)
    moved, never, now = Shards(old, 3), Shards(new, 2), Shards(new, 2)
    for one in (moved, never):
        one.feed(table.slice(0, 100))
        one.taken()
    added = {agg: "null" for agg in aggs if agg not in few}
    recut(moved.ops, now.ops, widening(old, new, **added))
    for one in (now, never):
        one.feed(table.slice(100))
        one.pass_time(FOREVER)
    for got, expected in zip(now.out, never.out, strict=True):
        assert [repr(t.select(few).to_pylist()) for t in got] == [repr(t.select(few).to_pylist()) for t in expected]


def test_a_new_aggregate_begins_with_its_default():
    old = widened(OPERATORS["every"], {"n": EVERY["n"]})
    new = widened(old, {"n": EVERY["n"], "all": EVERY["n"], "sum_i64": EVERY["sum_i64"], "max_i64": EVERY["max_i64"]})
    moved, now = Shards(old, 1), Shards(new, 1)
    moved.feed(rows(50))
    recut(moved.ops, now.ops, widening(old, new, all="7", sum_i64="40", max_i64="null"))
    now.pass_time(FOREVER)
    for row in (row for table in now.out[0] for row in table.to_pylist()):
        assert (row["all"], row["sum_i64"], row["max_i64"]) == (7, 40, None)


def test_a_default_of_another_type_is_refused():
    old = widened(OPERATORS["every"], {"n": EVERY["n"]})
    new = widened(old, {"n": EVERY["n"], "sum_i64": EVERY["sum_i64"]})
    with pytest.raises(ConfigError, match="is not int64"):
        widening(old, new, sum_i64="much")
