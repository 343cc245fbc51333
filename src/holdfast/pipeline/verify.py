"""The audit: recompute a pipeline's results with plain Spark batch over the same input, and compare with its sinks.

Input: what each stage has read, by its checkpoint, less the rows it has set aside: late ones and bad ones. Operators:
Spark SQL. Sinks: a file sink is read through Spark, which honours its `_spark_metadata`; for others the user says how
(`result=`). Only windows that end by the final watermark are expected: after `stop --finish` those are all.

Where a shard in mode `none` lost its node, its sinks have gaps (`pipeline/gaps.py`): rows of windows that overlap one
may be missing, and none may be wrong or there twice. Everything else is compared as ever.

Results that do not fit their types are in the dead letters instead of the sinks: as many as there must be. Rows of
batches that were skipped by hand are there too: they are taken away from what the operator has read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError, InputError
from holdfast.model.parts import GapFound
from holdfast.model.plan import FOREVER_US, Plan
from holdfast.operators.columns import quoted
from holdfast.pipeline.api import Pipeline
from holdfast.pipeline.checks import IDEMPOTENT_FILES, SinkFacts
from holdfast.pipeline.compare import FLOAT_TOLERANCE, Comparison, compare, less
from holdfast.pipeline.frames import apply_steps, combine, outlet_rows, source_rows
from holdfast.pipeline.gaps import WINDOW, gaps_of, overlaps
from holdfast.pipeline.graph import Aggregate, Frame, JoinOf, Port, Session, Sink
from holdfast.pipeline.kafka import topic_rows
from holdfast.pipeline.layout import Branch, InputLayout, Layout, Stage
from holdfast.pipeline.letters import letters_of, without_skipped
from holdfast.pipeline.origins import Origins, read_origins
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.recompute import UNFIT, aggregate, aggregate_fitting, by_arrival, join, timed
from holdfast.pipeline.recorded import expired, recorded
from holdfast.pipeline.replay import batch_frame


class StageCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage has read."""

    stage: str
    rows: int
    late: int
    bad: int = 0
    #: Late rows that were removed because they were old: what depends on this stage is not compared.
    expired: int = 0
    #: Rows recorded as late or bad that are not among those read: there must be none.
    strange: int = 0


class SinkVerdict(msgspec.Struct, frozen=True, kw_only=True):
    sink: str
    where: str
    #: Why it could not be compared; "": it was.
    not_compared: str = ""
    #: Of all rows; where there are gaps, of those whose windows overlap none.
    comparison: Comparison = Comparison()
    #: How many gaps there are, and what was compared in them: there rows may be missing.
    gaps: int = 0
    inside: Comparison = Comparison()
    missing_inside: int = 0

    @property
    def ok(self) -> bool:
        there = self.inside.doubled or self.inside.wrong or self.inside.unexpected or self.inside.more
        return not self.not_compared and self.comparison.same and not there


class AsideCount(msgspec.Struct, frozen=True, kw_only=True):
    """Results of an operator that do not fit their types: those that its shards have set aside, and those that there
    must be."""

    operator: str
    found: int
    expected: int


class SkipCount(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an operator that were skipped by hand."""

    operator: str
    rows: int
    #: Those that are not among the rows that it was given: there must be none.
    strange: int = 0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    stages: tuple[StageCount, ...]
    sinks: tuple[SinkVerdict, ...]
    #: Operators that have set results aside.
    aside: tuple[AsideCount, ...] = ()
    #: Operators of which batches were skipped.
    skipped: tuple[SkipCount, ...] = ()
    #: The run started from this savepoint of another one; "": from nothing.
    savepoint: str = ""
    #: Doubles were compared within this part of their size.
    tolerance: float = FLOAT_TOLERANCE

    @property
    def ok(self) -> bool:
        aside = all(a.found == a.expected for a in self.aside) and not any(s.strange for s in self.skipped)
        return aside and all(s.ok for s in self.sinks) and not any(s.strange for s in self.stages)

    def text(self) -> str:
        lines = [f"pipeline {self.pipeline}: {'verified' if self.ok else 'NOT VERIFIED'}"]
        for s in self.stages:
            strange = f", {s.strange} recorded as late or bad that were never read" if s.strange else ""
            bad = f", {s.bad:,} bad" if s.bad else ""
            expired = f", {s.expired:,} more were late and have expired" if s.expired else ""
            lines.append(f"  stage {s.stage}: {s.rows:,} rows in, {s.late:,} late{bad}{expired}{strange}")
        for a in self.aside:
            lines.append(
                f"  operator {a.operator}: {a.found:,} results set aside that do not fit their types, "
                f"{a.expected:,} expected (dead/{a.operator})"
            )
        for one in self.skipped:
            strange = f", {one.strange:,} of them were never read" if one.strange else ""
            lines.append(
                f"  operator {one.operator}: {one.rows:,} rows were skipped by hand (dead/{one.operator}){strange}"
            )
        for sink in self.sinks:
            c = sink.comparison
            if sink.not_compared:
                lines.append(f"  sink {sink.sink}: not compared: {sink.not_compared}")
                continue
            counts = f"{c.rows_found:,} rows, {c.rows_expected:,} expected"
            lines += _gap_lines(sink)
            if c.same:
                outside = " outside of gaps" if sink.gaps else ""
                lines.append(f"  sink {sink.sink} ({sink.where}): {counts}: equal{outside}, row for row")
                continue
            named = ("missing", "doubled", "wrong", "unexpected")
            what = ", ".join(f"{getattr(c, n):,} {n}" for n in named if getattr(c, n))
            what = f"at least {what}" if c.more else what
            lines.append(f"  sink {sink.sink} ({sink.where}): {counts}: {what}")
            lines += [f"    {example}" for example in c.examples]
        if self.savepoint and not self.ok:
            lines.append(f"  The run started from savepoint {self.savepoint}. If steps without state were changed")
            lines.append("  there, what came before differs by that: one batch does not know the old steps.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.ok,
            "text": self.text(),
            "rows_in": sum(stage.rows for stage in self.stages),
            "rows_late": sum(stage.late for stage in self.stages),
            "rows_bad": sum(stage.bad for stage in self.stages),
            "rows_skipped": sum(one.rows for one in self.skipped),
            "rows_out": sum(sink.comparison.rows_found for sink in self.sinks),
            **msgspec.to_builtins(self),
        }


def verify(
    pipeline: Pipeline,
    plan: Plan,
    run_dir: str | Path,
    spark: Session,
    *,
    watermarks: dict[str, int] | None = None,
    last_batches: dict[str, int] | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Verdict:
    """Recompute and compare.

    watermarks: final watermark of each source stage in microseconds; one that is not given is finished (infinite).
    last_batches: Spark's last batch of each source stage that the ledger has; by default what the checkpoint says.
    tell: told what it is at.
    """
    return _Audit(pipeline, plan, Path(run_dir), spark, watermarks or {}, last_batches or {}, tell).run()


@dataclass
class _Audit:
    pipeline: Pipeline
    plan: Plan
    run_dir: Path
    spark: Session
    watermarks: dict[str, int]
    last_batches: dict[str, int]
    tell: Callable[[str], None]
    origins: Origins | None = field(init=False)
    layout: Layout = field(init=False)
    facts: dict[str, SinkFacts] = field(init=False)
    counts: dict[str, StageCount] = field(default_factory=dict)
    stage_rows: dict[str, Frame] = field(default_factory=dict)
    results: dict[str, Frame] = field(default_factory=dict)
    kept: list[Frame] = field(default_factory=list)
    aside: list[AsideCount] = field(default_factory=list)
    skipped: dict[str, SkipCount] = field(default_factory=dict)

    def run(self) -> Verdict:
        self.tell("planning, to see whether it is what ran")
        planner = Planner(self.pipeline, self.spark)
        now = planner.plan(self.plan.query)
        if now.operators != self.plan.operators or now.stages != self.plan.stages:
            raise ConfigError(
                f"pipeline {self.pipeline.name!r} is not the one that ran",
                detail="Its file gives another plan now: operators, columns or stages have changed.",
                hint="Verify with the file that was run; a copy is in the run's directory.",
            )
        self.layout, self.facts = planner.layout, planner.sinks
        self.origins = read_origins(self.run_dir)
        try:
            sinks = [self._sink(stage) for stage in self.layout.stages.values() if stage.kind == "sink"]
            for stage in self.layout.stages.values():  # also those that no sink needed
                if stage.kind == "source" or _is_known_port(stage):
                    self._stage(stage)
        finally:
            for frame in self.kept:
                frame.unpersist()
        return Verdict(
            pipeline=self.pipeline.name,
            stages=tuple(self.counts.values()),
            sinks=tuple(sinks),
            aside=tuple(self.aside),
            skipped=tuple(self.skipped.values()),
            savepoint=self.origins.savepoint if self.origins is not None else "",
        )

    # -- stages ---------------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> Frame:
        """All rows of a stage, less those that it has set aside."""
        if stage.id not in self.stage_rows:
            branch = stage.branches[0]
            if stage.kind == "source":
                checkpoint = self.run_dir / "checkpoints" / stage.id
                root = batch_frame(stage.source, self.spark, checkpoint, self.last_batches.get(stage.id))
                rows = source_rows(stage, root)
            elif _is_known_port(stage) and stage.source.batch is not None:
                rows = stage.source.batch(self.spark)
            else:
                rows = timed(apply_steps(self._result(branch.root.name or ""), branch.steps), branch)
            self.stage_rows[stage.id] = self._without_aside(stage, rows)
        return self.stage_rows[stage.id]

    def _outlet(self, stage: Stage, branch: Branch) -> Frame:
        """Those of one of its branches."""
        rows = self._stage(stage)
        return outlet_rows(rows, stage.outlets[stage.branches.index(branch)]) if stage.outlets else rows

    def _without_aside(self, stage: Stage, rows: Frame) -> Frame:
        self.tell(f"reading what {stage.id} has read")
        total, rest = rows.count(), rows
        counts = {"late": 0, "bad": 0}
        for kind in counts:
            files = [str(one.path) for one in recorded(self.run_dir / kind / stage.id)]
            if files:
                aside = self.spark.read.schema(rows.schema).parquet(*files).select(*map(quoted, rows.columns))
                counts[kind], rest = aside.count(), less(rest, aside)
        strange = rest.count() - (total - sum(counts.values())) if any(counts.values()) else 0
        gone = self._expired(stage.id)
        self.counts[stage.id] = StageCount(stage=stage.id, rows=total, strange=strange, expired=gone, **counts)
        return rest

    def _expired(self, stage: str) -> int:
        return expired(self.run_dir / "late" / stage).rows

    # -- operators ------------------------------------------------------------------------------------------------

    def _watermark(self, name: str) -> int:
        """Final watermark of an operator: the lowest of what feeds it."""
        found = []
        for given in self.layout.operators[name].inputs:
            stage = self.layout.stages.get(given.source)
            if stage is not None and stage.kind in ("source", "port"):
                found.append(self.watermarks.get(stage.id, FOREVER_US))
            else:
                found.append(self._watermark(stage.reads[0] if stage is not None else given.source))
        return min(found)

    def _result(self, name: str) -> Frame:
        if name in self.results:
            return self.results[name]
        operator = self.layout.operators[name]
        node = operator.node
        sides = [self._side([i for i in operator.inputs if i.side == side]) for side in (0, 1)]
        times = [next((i.branch.event_time for i in operator.inputs if i.side == s), "") for s in (0, 1)]
        if isinstance(node, JoinOf):
            rename = next(i.rename for i in self.plan.operator(name).inputs if i.side == 1)
            result = join(node, sides[0], sides[1], (times[0], times[1]), rename)
        else:
            assert isinstance(node, Aggregate)
            result = self._aggregate(name, node, self._without_skipped(name, sides[0]), times[0])
        readers = [s for s in self.layout.stages.values() if name in s.reads]
        if len(operator.feeds) + len(readers) > 1:  # computed once for all that use it
            result = result.persist()
            self.kept.append(result)
        self.results[name] = result
        return result

    def _aggregate(self, name: str, node: Aggregate, rows: Frame, event_time: str) -> Frame:
        """What comes out of an aggregate, less the results that were to be set aside."""
        found = letters_of(self.run_dir, name).results
        if not found:
            return aggregate(node, rows, event_time, self._watermark(name), self.spark)
        every = aggregate_fitting(node, rows, event_time, self._watermark(name), self.spark).persist()
        self.kept.append(every)
        self.aside.append(AsideCount(operator=name, found=found, expected=every.where(UNFIT).count()))
        return every.where(f"not {UNFIT}").drop(UNFIT)

    def _without_skipped(self, name: str, rows: Frame) -> Frame:
        skipped = letters_of(self.run_dir, name).skipped
        if not skipped:
            return rows
        rest, strange = without_skipped(rows, skipped)
        self.skipped[name] = SkipCount(operator=name, rows=len(skipped), strange=strange)
        return rest

    def _side(self, inputs: list[InputLayout]) -> Frame:
        """The rows of one side: the union of what feeds it."""
        whole: Frame = None
        for given in inputs:
            stage = self.layout.stages.get(given.source)
            known = self._result(given.source) if stage is None else self._outlet(stage, given.branch)
            rows = timed(known, given.branch)
            whole = rows if whole is None else whole.unionByName(rows)
        return whole

    # -- sinks ----------------------------------------------------------------------------------------------------

    def _sink(self, stage: Stage) -> SinkVerdict:
        sink = stage.sink
        assert sink is not None
        facts = self.facts[stage.id]
        where = facts.path or facts.where or facts.format
        reason = self._cannot(stage)
        if reason:
            return SinkVerdict(sink=sink.name, where=where, not_compared=reason)
        self.tell(f"recomputing what sink {sink.name} must hold")
        made = combine(stage, [self._result(b.root.name or "") for b in stage.branches])
        expected = as_written(made, sink).persist()
        try:
            found = self._content(sink, expected)
            self.tell(f"comparing sink {sink.name} row by row")
            values = {n for op in self.layout.operators.values() for n in getattr(op.node, "aggs", {})}
            gaps = gaps_of(self.run_dir, stage.id)
            if gaps:
                return self._with_gaps(sink, where, expected, found, values, gaps)
            return SinkVerdict(sink=sink.name, where=where, comparison=compare(expected, found, sink.name, values))
        finally:
            expected.unpersist()

    def _with_gaps(
        self, sink: Sink, where: str, expected: Frame, found: Frame, values: set[str], gaps: list[GapFound]
    ) -> SinkVerdict:
        """Exact outside of gaps, a part of what is expected inside. Without columns of windows all of it is inside."""
        tells = all(column in expected.columns for column in WINDOW)
        within = f"coalesce({overlaps(gaps)}, true)" if tells else "true"
        outside = compare(expected.where(f"not ({within})"), found.where(f"not ({within})"), sink.name, values)
        wanted, there = expected.where(within), found.where(within)
        keys = [quoted(column) for column in expected.columns if column not in values]
        same = " and ".join(f"e.{key} <=> f.{key}" for key in keys) or "true"
        known = self.spark.sql(f"select * from {{e}} e left semi join {{f}} f on {same}", e=wanted, f=there)
        inside = compare(known, there, sink.name, values)
        missing = wanted.count() - known.count() + inside.missing
        return SinkVerdict(
            sink=sink.name, where=where, comparison=outside, gaps=len(gaps), inside=inside, missing_inside=missing
        )

    def _cannot(self, stage: Stage) -> str:
        changed = self.origins.changed if self.origins is not None else {}
        for name in (stage.id, *self._above(list(stage.reads))):
            if name in changed:
                return f"{name} has not seen the whole history: {changed[name]}"
        for name in self._above(list(stage.reads)):
            operator = self.layout.operators[name]
            reason = by_arrival(operator)
            if reason:
                return reason
            letters = letters_of(self.run_dir, name)
            if letters.rows:
                return f"{name} has set aside {letters.rows:,} input rows, which are in dead/{name}"
            if letters.skipped and (letters.grouped or isinstance(operator.node, JoinOf)):
                count = len(letters.skipped)
                self.skipped[name] = SkipCount(operator=name, rows=count)
                what = "groups of rows" if letters.grouped else "rows of a join"
                return f"{count:,} {what} were skipped by hand in {name}; they are in dead/{name}"
            for given in operator.inputs:
                gone = self._expired(given.source)
                if gone:
                    return f"{gone:,} late rows of {given.source}, which must be left out, have expired (late_keep)"
                port = given.branch.root
                if isinstance(port, Port) and port.batch is None:
                    return f"the rows of port {port.name} came from another program; say which they were with batch="
            node = operator.node
            if isinstance(node, JoinOf) and self._watermark(name) < FOREVER_US:
                if node.how == "left_outer":
                    return f"rows of {name} without a partner are known only after the stream is finished"
                if name not in stage.reads:
                    return f"windows over join {name} are known only after the stream is finished"
        sink, facts = stage.sink, self.facts[stage.id]
        if sink is None or sink.result is not None or facts.format.lower() in IDEMPOTENT_FILES:
            return ""
        if sink.kafka is None or isinstance(sink.kafka.value, str):
            unknown = f"what a {facts.format} sink holds is not known"
            return f"{unknown}; say it with .{sink.call}(..., result=lambda spark: ...)"
        return ""

    def _above(self, names: list[str]) -> list[str]:
        """These operators and all that feed them."""
        found: dict[str, None] = {}
        while names:
            name = names.pop()
            if name in found:
                continue
            found[name] = None
            for given in self.layout.operators[name].inputs:
                stage = self.layout.stages.get(given.source)
                names += stage.reads if stage is not None else [given.source]
        return list(found)

    def _content(self, sink: Sink, expected: Frame) -> Frame:
        """What the sink holds."""
        if sink.result is not None:
            return sink.result(self.spark)
        if sink.kafka is not None:
            return topic_rows(self.spark, sink.kafka, sink.name, self.run_dir / "checkpoints" / sink.name, expected)
        facts = self.facts[sink.name]
        path = Path(facts.path)
        if "://" not in facts.path and not path.exists():
            return self.spark.createDataFrame([], expected.schema)
        reader = self.spark.read.format(facts.format).schema(expected.schema)
        for key, value in facts.options.items():
            if key != "path":
                reader = reader.option(key, value)
        return reader.load(facts.path)


def _gap_lines(sink: SinkVerdict) -> list[str]:
    if not sink.gaps:
        return []
    c = sink.inside
    named = ("doubled", "wrong", "unexpected")
    bad = ", ".join(f"{getattr(c, n):,} {n}" for n in named if getattr(c, n))
    what = bad or "those that are there are right"
    counts = f"{c.rows_found:,} rows, {sink.missing_inside:,} missing"
    return [
        f"  sink {sink.sink}: {sink.gaps} gaps, where a shard in mode none lost its node: {counts}; {what}",
        *(f"    {example}" for example in c.examples if bad),
    ]


def _is_known_port(stage: Stage) -> bool:
    """A port whose rows can be had again."""
    return stage.kind == "port" and stage.source.batch is not None


def as_written(frame: Frame, sink: Sink) -> Frame:
    """What a user's writer writes of a batch DataFrame: it may select or rename before `writeStream`."""
    if sink.light:
        columns = sink.kafka.in_json(frame.columns) if sink.kafka is not None else ()
        return frame.select(*map(quoted, columns)) if columns else frame
    writer = sink.write(_Written(frame))
    if not isinstance(writer, _Writing):
        raise InputError(f"{sink.name}: the writer gives no DataStreamWriter")
    return writer._frame


class _Written:
    """A batch DataFrame that also has `writeStream`: whatever a user's writer does to it is done to the batch."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @property
    def writeStream(self) -> _Writing:
        return _Writing(self._frame)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._frame, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            return _Written(result) if type(result) is type(self._frame) else result

        return call


class _Writing:
    """Takes every setting of a DataStreamWriter, and remembers what was to be written."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self
