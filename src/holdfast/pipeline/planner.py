"""A pipeline's plan: the layout, with schemas from Spark and everything checked. Planning starts nothing.

The same file always gives the same plan, under the same ids: a stage's child plans again and finds its functions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import xxhash

from holdfast.errors import ConfigError
from holdfast.model.plan import REAL_TIME, InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.operators import WindowAggregate, build
from holdfast.pipeline import checks
from holdfast.pipeline.api import Pipeline
from holdfast.pipeline.frames import (
    apply_steps,
    arrow_schema,
    combine,
    empty_stream,
    lines_of,
    port_schema,
    source_frame,
    source_rows,
    types_of,
    unknown_column,
    with_event_time,
)
from holdfast.pipeline.graph import Aggregate, Frame, JoinOf, Port, Session, Sink
from holdfast.pipeline.kafka import check_target
from holdfast.pipeline.layout import (
    WINDOW_END,
    WINDOW_TIME,
    Branch,
    InputLayout,
    Layout,
    OperatorLayout,
    Stage,
    lay_out,
)
from holdfast.pipeline.paths import check_paths
from holdfast.pipeline.real_time import why_not

#: By this column a batch of partial aggregates is told from one of rows.
PANE_START = "pane_start"


def plan(pipeline: Pipeline, spark: Session, *, query: str | None = None) -> Plan:
    """Plan a pipeline, or say in a ConfigError what is wrong with it. What only deserves a warning goes to
    `pipeline.warnings`. `query` is the identity of a deployment; if not given, it is derived from the plan."""
    return Planner(pipeline, spark).plan(query)


@dataclass
class Planner:
    pipeline: Pipeline
    spark: Session
    layout: Layout = field(init=False)
    operators: dict[str, OperatorPlan] = field(default_factory=dict)
    #: Schema of what each operator gives out.
    outputs: dict[str, pa.Schema] = field(default_factory=dict)
    sinks: dict[str, checks.SinkFacts] = field(default_factory=dict)
    #: Source stages that never run dry.
    endless: set[str] = field(default_factory=set)
    #: What the rows of each port are.
    ports: dict[str, pa.Schema] = field(default_factory=dict)
    #: Paths that each source reads.
    inputs: dict[str, list[str]] = field(default_factory=dict)
    #: Rows of each stage, as analysed; of a source, those of each branch.
    frames: dict[tuple[str, Branch | None], Frame] = field(default_factory=dict)
    #: What each source stage reads, before any step.
    roots: dict[str, Frame] = field(default_factory=dict)
    #: One of LATENCIES, for sources that do not say it; and why no source of this run can be in real time.
    latency: str = ""
    not_real_time: str = ""
    #: Source stages that are to be in real time, and why they cannot ("": they can).
    in_real_time: dict[str, str] = field(default_factory=dict)

    def plan(self, query: str | None = None) -> Plan:
        self.layout = lay_out(self.pipeline)
        self.pipeline.warnings.clear()
        for operator in self.layout.operators.values():  # in the order of the file: what feeds one comes before it
            with _made_at(operator.node.where):
                self.operators[operator.name] = self._operator(operator)
        for stage in self.layout.stages.values():
            if stage.sink is not None:
                with _made_at(stage.sink.where):
                    self._sink(stage, stage.sink)
        check_paths(self.sinks, self.inputs)
        self._feeds()
        for stage in self.layout.stages.values():
            if stage.kind == "source" and (stage.source.latency or self.latency) == REAL_TIME:
                self.in_real_time[stage.id] = self.not_real_time or why_not(source_rows(stage, self._root(stage)))
        operators = tuple(self.operators.values())
        stages = tuple(self._stage(stage) for stage in self.layout.stages.values())
        query = query or _identity(self.pipeline.name, operators, stages)
        return Plan(
            pipeline=self.pipeline.name,
            query=query,
            topology=self.layout.topology(query),
            operators=operators,
            stages=stages,
        )

    # -- rows -----------------------------------------------------------------------------------------------------

    def _frame(self, stage: Stage, branch: Branch | None = None) -> Frame:
        """Rows of a stage; of one of its branches, if it is a source."""
        key = (stage.id, branch if stage.kind == "source" else None)
        if key not in self.frames:
            self.frames[key] = self._analysed(stage, branch)
        return self.frames[key]

    def _analysed(self, stage: Stage, branch: Branch | None) -> Frame:
        if branch is not None and stage.kind == "source":
            return _stepped(self._root(stage), branch)
        if isinstance(port := stage.branches[0].root, Port):
            self.ports[stage.id] = port_schema(port, self.spark)
            return empty_stream(self.spark, self.ports[stage.id])
        roots = [empty_stream(self.spark, self.outputs[b.root.name or ""]) for b in stage.branches]
        kinds = [types_of(_stepped(r, b)) for r, b in zip(roots, stage.branches, strict=True)]
        for other in kinds[1:]:
            _same_schema(stage.id, kinds[0], other)
        return combine(stage, roots)

    def _root(self, stage: Stage) -> Frame:
        if stage.id not in self.roots:
            source = stage.source
            root = source_frame(source, self.spark)
            if not root.isStreaming:
                raise ConfigError(
                    f"{source.label}: the source is not a stream",
                    hint="Use spark.readStream; tables to look things up in belong into a map.",
                )
            checks.check_plan(root, source.label)
            if checks.is_endless(root):
                self.endless.add(stage.id)
            self.inputs[source.label] = checks.paths_of(root)
            self.roots[stage.id] = root
        return self.roots[stage.id]

    # -- operators ------------------------------------------------------------------------------------------------

    def _operator(self, operator: OperatorLayout) -> OperatorPlan:
        node = operator.node
        inputs = [self._input(operator, given) for given in operator.inputs]
        _check_sides(operator, inputs)
        if isinstance(node, JoinOf):
            inputs = _renamed(inputs, node)
            kind, settings = "join", _join_settings(node, inputs)
        else:
            assert isinstance(node, Aggregate)
            kind, settings = _aggregate_settings(node)
        made = OperatorPlan(
            name=node.name,
            kind=kind,
            shards=node.shards,
            mode=node.mode,
            checkpoint=node.checkpoint,
            checkpoint_ns=node.checkpoint_ns,
            recover_ns=node.recover_ns,
            inputs=tuple(inputs),
            settings=settings,
            output=b"",
        )
        built = build(made)  # refuses what cannot be held, and knows the types of the results
        self.outputs[node.name] = built.output_schema
        replays = node.checkpoint == "eventual"  # row by row
        if isinstance(built, WindowAggregate) and not built.program.needs_rows() and not replays:
            fed = [msgspec.structs.replace(i, partial=i.source in self.layout.stages) for i in inputs]
            made = msgspec.structs.replace(made, inputs=tuple(fed))
        return msgspec.structs.replace(made, output=_ipc(built.output_schema))

    def _input(self, operator: OperatorLayout, given: InputLayout) -> InputPlan:
        branch = given.branch
        if branch.direct:
            frame = empty_stream(self.spark, self.outputs[given.source])
        else:
            frame = self._frame(self.layout.stages[given.source], branch)
        timed = with_event_time(frame, branch)
        needed = self._needed(operator, given, list(timed.columns))
        _check_columns(operator, timed, needed)
        _check_event_time(operator, timed, branch)
        if branch.direct:
            needed = list(frame.columns)  # a shard sends what it has; `window_time` is derived where it arrives
        return InputPlan(
            source=given.source,
            schema=_ipc(arrow_schema(timed, needed, operator.name)),
            by=given.by,
            event_time=branch.event_time,
            side=given.side,
        )

    def _needed(self, operator: OperatorLayout, given: InputLayout, columns: list[str]) -> list[str]:
        """Columns that cross the edge."""
        node = operator.node
        if not isinstance(node, Aggregate):
            time = [] if given.branch.event_time in columns else [given.branch.event_time]
            return [*columns, *time, *(c for c in given.by if c not in columns)]
        values = (call.column for call in node.aggs.values() if call.column is not None)
        return list(dict.fromkeys([given.branch.event_time, *node.by, *values]))

    def _feeds(self) -> None:
        for operator in self.layout.operators.values():
            feeds = []
            for name, number in operator.feeds:
                other = self.layout.operators[name]
                feeds.append((name, number, other.shards, other.inputs[number].by))
            made = self.operators[operator.name]
            self.operators[operator.name] = msgspec.structs.replace(made, feeds=tuple(feeds))

    # -- stages ---------------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> StagePlan:
        if stage.kind in ("between", "sink"):
            event_time = stage.branches[0].event_time if stage.kind == "between" else ""
            return StagePlan(
                id=stage.id,
                kind=stage.kind,
                reads=stage.reads,
                feeds=tuple(stage.feeds),
                event_time=event_time,
                arrow=stage.sink is not None and stage.sink.light,
            )
        source = stage.source
        return StagePlan(
            id=stage.id,
            kind=stage.kind,
            feeds=tuple(stage.feeds),
            outlets=tuple(stage.outlets[n] for n in stage.fed_with) if stage.outlets else (),
            delay_us=source.delay_us,
            idle_ns=source.idle_ns,
            trigger_ms=source.trigger_ms,
            endless=stage.id in self.endless,
            event_time=source.event_time,
            late_to=source.late_to,
            future_us=source.future_us,
            bad_rows_max=source.bad_rows_max,
            rows=_ipc(self.ports[stage.id]) if stage.id in self.ports else b"",
            latency=source.latency or msgspec.UNSET,
        )

    def _sink(self, stage: Stage, sink: Sink) -> None:
        if sink.kafka is not None:
            check_target(sink.kafka, self.outputs[stage.reads[0]], sink.name)
            self.sinks[stage.id] = checks.SinkFacts(checks.KAFKA, where=str(sink.kafka))
            return
        if sink.arrow is not None:
            self.sinks[stage.id] = checks.SinkFacts(checks.ARROW)
            return
        frame = self._frame(stage)
        with checks.nothing_starts(frame, f"{sink.name}: the writer"):
            try:
                writer = sink.write(frame)
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                said = (lines_of(error) or [""])[0]
                what = unknown_column(said) or f"the writer fails with {type(error).__name__}"
                hint = f"The function of write at {sink.where} is DataFrame -> DataStreamWriter."
                raise ConfigError(f"{sink.name}: {what}", detail=said, hint=hint) from error
        facts = checks.check_writer(writer, sink)
        checks.check_stream(frame, writer._df, sink.name)
        checks.check_plan(writer._df, sink.name)
        if facts.doubt:
            self.pipeline.warnings.append(
                f"{sink.name}: sink {facts.format!r} may hold rows twice after a failure ({facts.doubt}); "
                "files, Delta, or a foreachBatch that is idempotent by batch id would not"
            )
        self.sinks[stage.id] = facts


@contextmanager
def _made_at(where: str) -> Iterator[None]:
    """A mistake that names no line yet is that of this call."""
    try:
        yield
    except ConfigError as error:
        if where.partition(":")[0] + ":" not in error.what + error.detail:
            error.detail = f"{error.detail} ({where})".strip()
        raise


def _stepped(root: Frame, branch: Branch) -> Frame:
    """The steps applied, each looked at by itself: so an error names the one that is to blame."""
    frame = root
    for step in branch.steps:
        with checks.nothing_starts(frame, f"{step.label}: the function"):
            frame = apply_steps(frame, (step,))
        checks.check_stream(root, frame, step.label)
        checks.check_plan(frame, step.label)
    return frame


def _identity(name: str, operators: tuple[OperatorPlan, ...], stages: tuple[StagePlan, ...]) -> str:
    content = msgspec.msgpack.encode((name, operators, stages))
    return f"{name}-{xxhash.xxh3_64_hexdigest(content)}"


def _ipc(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()


# -- checks of one operator -------------------------------------------------------------------------------------------


def _check_columns(operator: OperatorLayout, frame: Frame, needed: list[str]) -> None:
    columns = list(frame.columns)
    doubled = sorted({c for c in columns if columns.count(c) > 1})
    if doubled:
        raise ConfigError(
            f"{operator.name}: two columns are named {doubled[0]!r}", hint="Rename or drop one of them in a map."
        )
    if PANE_START in needed:
        raise ConfigError(f"{operator.name}: a column may not be named {PANE_START!r}", hint="Rename it in a map.")
    for name in needed:
        if name in columns or name == WINDOW_TIME:
            continue
        near = difflib.get_close_matches(name.lower(), [c.lower() for c in columns], 1)
        close = next((c for c in columns if near and c.lower() == near[0]), None)
        raise ConfigError(
            f"{operator.name}: no column named {name!r}",
            detail=f"The input has {', '.join(columns)}.",
            hint=f"Did you mean {close!r}? Names are case-sensitive." if close else "Names are case-sensitive.",
        )


def _check_event_time(operator: OperatorLayout, frame: Frame, branch: Branch) -> None:
    name = branch.event_time
    types = types_of(frame)
    if name not in types:
        lost = WINDOW_END if name == WINDOW_TIME else name
        raise ConfigError(
            f"{operator.name}: no event time",
            detail=f"Column {lost!r} is not in its input, which has {', '.join(types)}.",
            hint=f"Keep {lost!r} in {branch.label}.",
        )
    if types[name] != "timestamp":
        raise ConfigError(
            f"{operator.name}: event time {name!r} is not a timestamp",
            detail=f"It is {types[name]}.",
            hint=f"Cast it in a map: df.withColumn({name!r}, ...cast('timestamp')).",
        )


def _check_sides(operator: OperatorLayout, inputs: list[InputPlan]) -> None:
    """What a union brings together must be alike: columns, types, and the event time."""
    for one in inputs:
        first = next(i for i in inputs if i.side == one.side)
        _same_schema(operator.name, _types(first), _types(one))
        if one.event_time != first.event_time:
            raise ConfigError(
                f"{operator.name}: the union has two event times",
                detail=f"{first.event_time!r} of {first.source} and {one.event_time!r} of {one.source}.",
                hint="Give both the same column, in a map before the union.",
            )


def _types(given: InputPlan) -> dict[str, str]:
    schema = pa.ipc.read_schema(pa.py_buffer(given.schema))
    return {f.name: str(f.type) for f in schema}


def _same_schema(name: str, first: dict[str, str], other: dict[str, str]) -> None:
    if set(first.items()) == set(other.items()):
        return
    apart = sorted({c for c in (*first, *other) if first.get(c) != other.get(c)})
    raise ConfigError(
        f"{name}: a union of different schemas",
        detail="; ".join(f"{c!r} is {first.get(c, 'missing')} and {other.get(c, 'missing')}" for c in apart),
        hint="Select and cast the same columns in a map before the union.",
    )


# -- settings ---------------------------------------------------------------------------------------------------------


def _aggregate_settings(node: Aggregate) -> tuple[str, dict]:
    settings: dict = {
        "by": list(node.by),
        "aggs": {name: [call.function, call.column, call.ignore_nulls] for name, call in node.aggs.items()},
        "overflow": node.overflow,
    }
    if node.counted:
        return "count_window", {"size": node.size, "step": node.step, **settings}
    return "aggregate", {"size_us": node.size, "step_us": node.step, **settings}


def _renamed(inputs: list[InputPlan], node: JoinOf) -> list[InputPlan]:
    """Columns of the right side whose names the left one has: `right_` goes before them."""

    def names(side: int) -> list[str]:
        given = next(i for i in inputs if i.side == side)
        columns = list(_types(given))
        return columns if given.event_time in columns else [*columns, given.event_time]

    left, right = names(0), names(1)
    rename = {c: f"right_{c}" for c in right if c in left}
    return [msgspec.structs.replace(i, rename=rename) if i.side == 1 else i for i in inputs]


def _join_settings(node: JoinOf, inputs: list[InputPlan]) -> dict:
    rename = next(i for i in inputs if i.side == 1).rename
    window = {"within": list(node.within)} if node.within is not None else {"same_window": node.window_us}
    return {
        "on": [[a, rename.get(b, b)] for a, b in node.on],
        "how": node.how,
        "where": node.where_sql,
        **window,
    }
