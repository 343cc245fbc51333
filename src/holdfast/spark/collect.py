"""One micro-batch from Spark to Arrow: late and bad rows apart, the rest grouped where that pays, cut for every shard.

One pass over the batch, whatever the number of operators that the stage feeds, and of its branches (`branches.py`). Two
ways to get it:

    rows    collect the columns that operators need, and do everything else in Arrow. The plan is the same for every
            batch, so Spark compiles it once. The best for small batches, and where groups are many.
    spark   group in Spark and collect the groups, if the stage feeds one aggregate: for batches too large to be
            collected whole, and for large ones of few groups where it was measured to be faster (`Faster`;
            docs/spark/costs.md). The watermark is not a literal in the plan (a new literal is code to compile, 65 ms a
            batch): groups come with their least event time, and only a batch that has late rows is asked again.

Grouping is adaptive: where it hardly makes a batch smaller, rows go as they are, and it is tried again now and then.
Rows without an event time are in no window, as in Spark: they are counted and left out. Bad rows (`bad.py`) are looked
for first: what an operator cannot hold is not late.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InputError
from holdfast.model.ids import Asset, Edge, shard_id, stage_edge
from holdfast.model.plan import NEVER_US, OperatorPlan, Plan, StagePlan
from holdfast.operators import StateConfig, WindowAggregate, build, wire_schema
from holdfast.operators.columns import quoted
from holdfast.operators.limits import VALUE_BYTES_MAX
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.shards import cut
from holdfast.spark.bad import RowLimits, clock_us
from holdfast.spark.branches import StageBranch, narrowed, together
from holdfast.spark.partial import PartialAggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Group only where at most this share of the rows is left.
SHARE_MAX = 0.7
#: After a grouping that did not pay, so many batches go ungrouped; twice as many each time, up to the second number.
SKIP_MIN, SKIP_MAX = 8, 256
#: Below this a batch is not worth grouping.
GROUP_ROWS_MIN = 200
#: Grouping in Spark is tried from this many rows a batch on, if at most this share of them is left.
SPARK_TRY_ROWS, SPARK_TRY_SHARE = 100_000, 0.1
#: The first so many batches of a driver's life are collected: what it compiles for the other way may take seconds, and
#: its JVM has enough to compile then.
FIRST_BATCHES = 16
#: Each way is timed over so many batches: the first of them pay for code that is compiled and warmed up.
TIMED_BATCHES = 4
#: Then the faster one is kept for so many; twice as many each time, up to the second number.
KEEP_MIN, KEEP_MAX = 32, 1_024
_HIDDEN = ("__rows", "__min", "__max", "__longest")
_NO_LIMIT = 1 << 30


class Adaptive:
    """Whether to group the next batch, from what it did for those before."""

    def __init__(self) -> None:
        self.skip = 0
        self.penalty = SKIP_MIN

    def wants(self, rows: int) -> bool:
        if rows < GROUP_ROWS_MIN:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        return True

    def grouped(self, rows: int, groups: int) -> bool:
        """Did it pay? If not, leave it for a while."""
        if groups <= SHARE_MAX * rows:
            self.penalty = SKIP_MIN
            return True
        self.skip, self.penalty = self.penalty, min(SKIP_MAX, 2 * self.penalty)
        return False


class Faster:
    """Which way is the faster one for large batches of few groups: both are timed now and then, one is kept."""

    def __init__(self) -> None:
        #: Batches since this round began; the first begins late.
        self.at = -FIRST_BATCHES
        self.keep = KEEP_MIN
        #: Least seconds a row, of this round: rows collected, groups of Spark's.
        self.least = {False: math.inf, True: math.inf}

    @property
    def in_spark(self) -> bool:
        if self.at < 2 * TIMED_BATCHES:
            return self.at >= TIMED_BATCHES
        return self.least[True] < self.least[False]

    def took(self, seconds: float, rows: int) -> None:
        """The next batch, the way of `in_spark`."""
        if self.at < 2 * TIMED_BATCHES:
            self.least[self.in_spark] = min(self.least[self.in_spark], seconds / rows)
        self.at += 1
        if self.at == 2 * TIMED_BATCHES + self.keep:
            self.at, self.keep = 0, min(KEEP_MAX, 2 * self.keep)
            self.least = {False: math.inf, True: math.inf}


class StageOutlet:
    """What a stage hands to one input of one operator."""

    def __init__(self, stage: Asset, operator: OperatorPlan, number: int) -> None:
        self.operator = operator.name
        self.input = operator.inputs[number]
        self.schema = wire_schema(self.input)
        self.edges: list[Edge] = [stage_edge(stage, shard_id(operator.name, i)) for i in range(operator.shards)]
        self.adaptive = Adaptive()
        self.aggregate: WindowAggregate | None = None
        self.partial: PartialAggregate | None = None
        if operator.kind == "aggregate" and self.input.partial:
            op = build(operator, StateConfig(limit_bytes=1 << 24))
            assert isinstance(op, WindowAggregate)
            if not op.program.needs_rows():
                self.aggregate = op
                arrow = PartialAggregate(op)
                self.partial = arrow if arrow.possible else None

    def rows(self, table: pa.Table) -> pa.Table:
        """What crosses: the operator's columns, grouped if that pays."""
        table = table.select(self.schema.names)
        if self.partial is None or not self.adaptive.wants(table.num_rows):
            return table
        grouped = self.partial(table)
        return grouped if self.adaptive.grouped(table.num_rows, grouped.num_rows) else table

    def parts(self, table: pa.Table) -> dict[Edge, ArrowRows]:
        if not table.num_rows:
            return {}
        made: dict[Edge, ArrowRows] = {}
        for batch in table.combine_chunks().to_batches():
            for edge, piece in zip(self.edges, cut(batch, self.input.by, len(self.edges)), strict=True):
                if piece.num_rows:
                    rows = ArrowRows([piece])
                    made[edge] = made[edge] + rows if edge in made else rows
        return made


@dataclass
class Batch:
    """A micro-batch, ready to be handed over."""

    parts: dict[Edge, ArrowRows] = field(default_factory=dict)
    rows: int = 0
    #: Rows that cross, after grouping.
    sent: int = 0
    #: Spark has grouped it; otherwise its rows were collected.
    in_spark: bool = False
    late: pa.Table | None = None
    #: Rows that an operator cannot hold, with their reasons.
    bad: pa.Table | None = None
    #: Highest event time, or NEVER_US: no row has one.
    max_us: int = NEVER_US
    without_time: int = 0

    @property
    def late_rows(self) -> int:
        return self.late.num_rows if self.late is not None else 0

    @property
    def bad_rows(self) -> int:
        return self.bad.num_rows if self.bad is not None else 0


class Collector:
    """Turns micro-batches of one stage into batches to hand over."""

    def __init__(self, plan: Plan, stage: StagePlan, spark_rows_min: int) -> None:
        self.stage = stage.id
        self.outlets: dict[str, list[StageOutlet]] = {}
        for (name, number), its in zip(stage.feeds, stage.outlets or ("",) * len(stage.feeds), strict=True):
            self.outlets.setdefault(its, []).append(StageOutlet(stage.id, plan.operator(name), number))
        self.branches = [StageBranch(its, fed, RowLimits(plan, stage, its)) for its, fed in self.outlets.items()]
        #: Group in Spark from this many rows on, whatever it costs.
        self.spark_rows_min = spark_rows_min
        aggregate = self.outlets[""][0].aggregate if len(stage.feeds) == 1 else None
        #: What Spark can group for. (Times without a zone would be converted by the session's.)
        self.groups_for = aggregate if aggregate is not None and aggregate.time.type.tz else None
        self.faster = Faster()
        #: Rows of the last batch, and what of them crossed.
        self.rows_last = self.sent_last = 0
        #: Batches until late or bad rows are expected no more: then only what operators need is collected.
        self.expect_late = 0
        #: Bad rows are not collected beyond this, if they are not there already.
        self.bad_max = _NO_LIMIT

    def collect(self, frame: DataFrame, watermark_us: int, bad_max: int = _NO_LIMIT) -> Batch:
        """Of more than `bad_max` bad rows at least one more than that is told."""
        self.bad_max = bad_max
        forced = self.groups_for is not None and self.rows_last >= self.spark_rows_min
        timed = not forced and self._may_pay_in_spark()
        began = time.perf_counter()
        made = self._one_way(frame, watermark_us, in_spark=forced or (timed and self.faster.in_spark))
        apart = made.late is not None or made.bad is not None
        if timed and not apart and made.rows:
            self.faster.took(time.perf_counter() - began, made.rows)
        self.rows_last, self.sent_last = made.rows, made.sent
        self.expect_late = 20 if apart else max(0, self.expect_late - 1)
        return made

    def _may_pay_in_spark(self) -> bool:
        if self.groups_for is None or self.expect_late or self.rows_last < SPARK_TRY_ROWS:
            return False
        return self.sent_last <= SPARK_TRY_SHARE * self.rows_last

    def _one_way(self, frame: DataFrame, watermark_us: int, *, in_spark: bool) -> Batch:
        """The first batch after a long pause may be too large to be collected, and none before it has said so."""
        ways = [] if in_spark else [self._rows]
        ways += [self._grouped_in_spark] if self.groups_for is not None else []
        trouble: Exception | None = None
        for way in ways:
            try:
                return way(frame, watermark_us)
            except Exception as error:
                if "spark.driver.maxResultSize" not in str(error):
                    raise
                trouble = error
        raise InputError(
            f"stage {self.stage}: a micro-batch is too large for its driver",
            detail="What is collected of it, or a table that a function of yours broadcasts, is more than "
            "spark.driver.maxResultSize.",
            hint="Nothing of it was handed over. Limit what a batch reads (maxFilesPerTrigger, maxOffsetsPerTrigger), "
            "or raise spark.driver.maxResultSize and spark.driver.memory with --conf.",
        ) from trouble

    # --- rows

    def take(self, table: pa.Table, watermark_us: int, bad_max: int = _NO_LIMIT) -> Batch:
        """The same of rows that are here, with all their columns."""
        self.bad_max = bad_max
        for branch in self.branches:
            branch.check(table, self.stage)
        made = self.split(table, watermark_us, lambda: table)
        self.rows_last, self.sent_last = made.rows, made.sent
        return made

    def _rows(self, frame: DataFrame, watermark_us: int) -> Batch:
        whole = self.expect_late > 0
        table = (frame if whole else narrowed(frame, self.branches)).toArrow()
        for branch in self.branches:
            branch.check(table, self.stage)
        return self.split(table, watermark_us, lambda: table if whole else frame.toArrow())

    def split(self, table: pa.Table, watermark_us: int, whole: Any) -> Batch:
        """Bad rows, late rows, grouping, shards. `whole()` gives the batch with all columns, if rows are set aside."""
        made, now = Batch(rows=table.num_rows), clock_us()
        if not table.num_rows:
            return made
        there = [branch.timed(table) for branch in self.branches]
        made.without_time = table.num_rows - sum(len(one.times) for one in there)
        clean = all(one.hold(watermark_us, now) for one in there)
        if not clean:
            every = whole()
            if every is not table:  # evaluated again: what is recorded and what is handed over must be of one time
                return self.split(every, watermark_us, lambda: every)
            parted = [one.without_bad(now) for one in there]
            made.bad, there = together([bad for bad, _ in parted]), [good for _, good in parted]
        made.max_us = max((int(one.times.max()) for one in there if len(one.times)), default=NEVER_US)
        if not clean:
            parted = [one.without_late(watermark_us) for one in there]
            made.late, there = together([late for late, _ in parted]), [rest for _, rest in parted]
        for one in there:
            for outlet in self.outlets[one.branch.outlet]:
                rows = outlet.rows(one.rows)
                made.sent += rows.num_rows
                made.parts.update(outlet.parts(rows))
        return made

    # --- groups

    def _grouped_in_spark(self, frame: DataFrame, watermark_us: int) -> Batch:
        op = self.groups_for
        assert op is not None
        groups, now, limits = self._groups(frame, op), clock_us(), self.branches[0].limits
        least, most, longest = (groups.column(name).drop_null().to_numpy() for name in _HIDDEN[1:])
        good = not len(least) or limits.hold(groups, int(least.min()), int(most.max()), now)
        good = good and (not len(longest) or longest.max() <= VALUE_BYTES_MAX)
        if good and (not len(least) or least.min() >= watermark_us):
            return self._batch_of(groups)
        # what is recorded as late or bad and what is handed over must be of one evaluation
        is_bad, is_late = limits.sql(self._moment, now), f"{self._moment} < {watermark_us}L"
        kept = frame.persist()
        try:
            bad = None if good else kept.where(is_bad).limit(min(_NO_LIMIT, self.bad_max + 1)).toArrow()
            rest = kept if good else kept.where(f"not {is_bad}")
            late = rest.where(is_late).toArrow()
            groups = self._groups(rest.where(f"not coalesce({is_late}, false)"), op)
        finally:
            kept.unpersist()
        made, event_time = self._batch_of(groups), self.branches[0].event_time
        if late.num_rows:
            made.late = late
            made.max_us = max(made.max_us, int(_micros(late.column(event_time)).max()))
        if bad is not None and bad.num_rows:
            made.bad, _ = limits.apart(bad, _micros(bad.column(event_time)), now)
        made.rows += made.late_rows + made.bad_rows
        return made

    @property
    def _moment(self) -> str:
        return f"unix_micros({quoted(self.branches[0].event_time)})"

    def _batch_of(self, groups: pa.Table) -> Batch:
        """What crosses of groups, none of them late."""
        outlet = self.outlets[""][0]
        counts, _, most, _ = (groups.column(name).combine_chunks() for name in _HIDDEN)
        timed = most.is_valid()
        rows = groups.drop_columns(list(_HIDDEN)).filter(timed)
        made = Batch(rows=_sum(counts), sent=rows.num_rows, parts=outlet.parts(rows), in_spark=True)
        made.without_time = made.rows - _sum(counts.filter(timed))
        if rows.num_rows:
            made.max_us = int(most.drop_null().to_numpy().max())
        return made

    def _groups(self, frame: DataFrame, op: WindowAggregate) -> pa.Table:
        from pyspark.sql import functions as F

        sql = op.partial_sql()
        by = ["pane_start", *(k.name for k in op.keys)]
        moment, limits = self._moment, self.branches[0].limits
        # a pane of a time that is out of range cannot be computed
        sql["pane_start"] = f"if({moment} between {limits.low}L and {limits.high}L, {sql['pane_start']}, null)"
        # keys are looked at when they are here; of other columns it would not be known
        lengths = [f"max(octet_length({quoted(name)}))" for name in limits.long if name not in by]
        longest = f"greatest({', '.join(lengths)})" if len(lengths) > 1 else "".join(lengths) or "cast(null as int)"
        hidden = dict(zip(_HIDDEN, ("count(1)", f"min({moment})", f"max({moment})", longest), strict=True))
        keys = [F.expr(sql[name]).alias(name) for name in by]
        parts = [F.expr(text).alias(name) for name, text in {**sql, **hidden}.items() if name not in by]
        return frame.groupBy(*keys).agg(*parts).toArrow()


def _micros(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().view(pa.int64()).to_numpy(zero_copy_only=False)


def _sum(array: Any) -> int:
    return int(np.sum(array.to_numpy(zero_copy_only=False))) if len(array) else 0
