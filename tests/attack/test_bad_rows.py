"""Rows at every edge of what a type can say: what a stage hands over its operators take, and no stream ends by it."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from support.collected import SCHEMA, TIME, collector, operator, rows

from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.plan import FOREVER_US, NEVER_US, OperatorPlan, to_core
from holdfast.operators import CountWindowAggregate, Join, StateConfig, WindowAggregate, build
from holdfast.operators.limits import TIME_MAX_US, TIME_MIN_US

EDGES = [
    edge + by
    for edge in (NEVER_US, NEVER_US // 2, -(1 << 60), TIME_MIN_US, 0, TIME_MAX_US, 1 << 60, FOREVER_US // 2, FOREVER_US)
    for by in (-10_000_000, -1, 0, 1, 10_000_000)
    if NEVER_US <= edge + by <= FOREVER_US
]
DAY = 86_400_000_000


def changed(kind: str = "aggregate", **settings: Any) -> OperatorPlan:
    plan = operator()
    given = (plan.inputs[0],)
    if kind == "join":
        given = (given[0], msgspec.structs.replace(given[0], side=1, rename={n: f"r_{n}" for n in SCHEMA.names}))
        settings = {"on": [["src", "r_src"]], "how": "left_outer", **settings}
    return msgspec.structs.replace(plan, kind=kind, inputs=given, settings={**plan.settings, **settings})


OPERATORS = {
    "sliding": changed(),
    "days": changed(size_us=400 * DAY, step_us=400 * DAY),
    "ages": changed(size_us=1 << 61, step_us=1 << 61),
    "rows": changed("count_window", size=4, step=2),
    "within": changed("join", within=[-5_000_000, 5_000_000]),
    "one window": changed("join", same_window=DAY),
}


def take(plan: OperatorPlan, batches: list[pa.RecordBatch]) -> None:
    op = build(plan, StateConfig(limit_bytes=1 << 24))
    for batch in batches:
        if isinstance(op, Join):
            op.process(0, batch)
        elif isinstance(op, CountWindowAggregate):
            op.process(batch)
        elif "pane_start" in batch.schema.names:
            assert isinstance(op, WindowAggregate)
            op.process_partial(batch)
        else:
            op.process(batch)
    for side in (0, 1) if isinstance(op, Join) else ():
        op.on_watermark(side, FOREVER_US)
    if not isinstance(op, Join):
        op.on_watermark(FOREVER_US)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", OPERATORS)
def test_every_row_that_a_stage_hands_over_can_be_taken(name, seed):
    rng, plan = Random(f"{name}/{seed}"), OPERATORS[name]
    table = rows(400, keys=3, seed=seed)
    times = [rng.choice([*EDGES, None, rng.randrange(10**15)]) for _ in range(table.num_rows)]
    table = table.set_column(0, SCHEMA.field("ts"), pa.array(times, pa.int64()).view(TIME))
    watermark = rng.choice([NEVER_US, 0, 10**14])
    made = collector(plan).split(table, watermark, lambda: table)
    take(plan, [batch for part in made.parts.values() for batch in part.batches])
    possible = [t for t in times if t is not None and TIME_MIN_US <= t <= TIME_MAX_US]
    assert made.bad_rows == sum(t is not None for t in times) - len(possible)
    assert made.late_rows == sum(t < watermark for t in possible)
    assert WATERMARK_MIN < to_core(made.max_us) < WATERMARK_MAX
