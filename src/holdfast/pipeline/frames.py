"""The user's functions applied: DataFrames of stages. This is what a stage's child process calls; nothing is started.

    stage_frame(pipeline, stage, spark)   source stages: the streaming DataFrame, steps applied, to run foreachBatch on
    stage_function(pipeline, stage)       between and sink stages: {operator: its DataFrame} -> DataFrame
    stage_writer(pipeline, stage)         sinks: DataFrame -> the user's DataStreamWriter, not started
    light_sink(pipeline, stage)           sinks without Spark: the function or the topic
    feed_of(operator plan, number)        how a micro-batch of a stage becomes what crosses to an operator, in SQL

The DataFrames of operators have the columns of `OperatorPlan.output`; `empty_stream` makes one for planning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError, check
from holdfast.model.plan import OperatorPlan
from holdfast.operators import WindowAggregate, build, wire_schema
from holdfast.operators.columns import quoted
from holdfast.pipeline.api import Pipeline
from holdfast.pipeline.graph import Frame, Port, Session, Sink, Source, Step, Writer
from holdfast.pipeline.layout import WINDOW_END, WINDOW_TIME, Branch, Stage, lay_out

_ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SPARK = {type_: name for name, type_ in _ARROW.items()}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
#: Spark has an error of its own for Kafka.
_NO_SOURCE = re.compile(r"\[\w*DATA_SOURCE_NOT_(?:FOUND|ENABLED)\] Failed to find (?:the )?data source: ([\w.-]*\w)")


def stage_frame(pipeline: Pipeline, stage_id: str, spark: Session) -> Frame:
    """The streaming DataFrame of a source stage, its steps applied: the rows before lateness is decided.

    Run `.writeStream.foreachBatch(...)` on it. Columns may be more than operators need: see `feed_of`.
    """
    stage = _stage(pipeline, stage_id, "source")
    return source_rows(stage, source_frame(stage.source, spark))


def source_rows(stage: Stage, root: Frame) -> Frame:
    """The rows of a source stage from those of its source.

    Where it has several outlets, a row is of one of them: it has a column for each outlet, a struct of the columns that
    its steps give, and only that of its own outlet is not null. So one query reads for all of them, whatever their
    columns are; Spark knows that it is one source, and plans and notes it once.
    """
    frames = [apply_steps(root, branch.steps) for branch in stage.branches]
    if not stage.outlets:
        return frames[0]
    return outlets_together(dict(zip(stage.outlets, frames, strict=True)))


def outlets_together(frames: dict[str, Frame]) -> Frame:
    wrapped = [frame.selectExpr(f"struct(*) as {quoted(name)}") for name, frame in frames.items()]
    whole = wrapped[0]
    for frame in wrapped[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


def outlet_rows(rows: Frame, outlet: str) -> Frame:
    """Of the rows of a stage with several outlets, those of one, as they were."""
    return rows.where(f"{quoted(outlet)} is not null").selectExpr(f"{quoted(outlet)}.*")


def stage_function(pipeline: Pipeline, stage_id: str) -> Callable[[dict[str, Frame]], Frame]:
    """For between and sink stages: from a DataFrame per operator read (streaming or batch) to the stage's rows.

    A between stage's rows have the column `window_time` (the event time of what it feeds) beside the user's.
    """
    stage = _stage(pipeline, stage_id, "between", "sink")

    def function(frames: dict[str, Frame]) -> Frame:
        return combine(stage, [frames[b.root.name or ""] for b in stage.branches])

    return function


def stage_writer(pipeline: Pipeline, stage_id: str) -> Callable[[Frame], Writer]:
    """The user's writer of a sink: set checkpointLocation and queryName on what it returns, then start that."""
    stage = _stage(pipeline, stage_id, "sink")
    assert stage.sink is not None
    return stage.sink.write


def light_sink(pipeline: Pipeline, stage_id: str) -> Sink:
    """What the user has said of a sink without Spark: the function or the topic."""
    stage = _stage(pipeline, stage_id, "sink")
    assert stage.sink is not None
    check(stage.sink.light, "a sink of Spark's was taken for one without", stage_id)
    return stage.sink


@dataclass(frozen=True)
class StageFeed:
    """How rows of a stage cross to one input of an operator.

    With `partial`: group by the expressions of `group` (`pane_start` and the keys, named as in the dict) and compute
    those of `partial`; the shard merges the parts of several tasks and batches. Without: select `columns`. The Arrow
    batches are then cut by `by`; rows are cast to `schema`, so that nullability never differs.
    """

    columns: tuple[str, ...]
    by: tuple[str, ...]
    schema: pa.Schema
    group: dict[str, str] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)


def feed_of(operator: OperatorPlan, number: int) -> StageFeed:
    """How a stage feeds input `number` of an operator. Late rows and rows without event time are out before."""
    given = operator.inputs[number]
    schema = wire_schema(given)
    group: dict[str, str] = {}
    partial: dict[str, str] = {}
    built = build(operator) if given.partial else None
    if isinstance(built, WindowAggregate):
        for name, sql in built.partial_sql().items():
            (group if name == "pane_start" or name in given.by else partial)[name] = sql
    return StageFeed(tuple(schema.names), given.by, schema, group, partial)


def combine(stage: Stage, roots: Sequence[Frame]) -> Frame:
    """The rows of a stage from the DataFrames at the roots of its branches."""
    frames = [apply_steps(root, branch.steps) for root, branch in zip(roots, stage.branches, strict=True)]
    if stage.kind == "between":
        return with_event_time(frames[0], stage.branches[0])
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    return result


def with_event_time(frame: Frame, branch: Branch) -> Frame:
    """With the column `window_time`, if the rows come from an aggregate and still have their window's end."""
    if branch.event_time == WINDOW_TIME and WINDOW_TIME not in frame.columns and WINDOW_END in frame.columns:
        return frame.selectExpr("*", f"timestamp_micros(unix_micros({WINDOW_END}) - 1) as {WINDOW_TIME}")
    return frame


def source_frame(source: Source, spark: Session) -> Frame:
    frame = _call(source.read, spark, source.label, "spark -> streaming DataFrame")
    return _need_frame(frame, source.label, "spark -> streaming DataFrame")


def port_schema(port: Port, spark: Session) -> pa.Schema:
    """What a port says that its rows are."""
    try:
        frame = spark.createDataFrame([], port.schema)
    except Exception as error:
        raise ConfigError(
            f"{port.label}: its schema cannot be read",
            detail=(lines_of(error) or [""])[0],
            hint='Write it as Spark does: schema="ts timestamp, src string, bytes long".',
        ) from error
    return arrow_schema(frame, list(frame.columns), port.label)


def apply_steps(frame: Frame, steps: Sequence[Step]) -> Frame:
    for step in steps:
        result = _call(step.apply, frame, step.label, "DataFrame -> DataFrame")
        frame = _need_frame(result, step.label, "DataFrame -> DataFrame")
    return frame


def _stage(pipeline: Pipeline, stage_id: str, *kinds: str) -> Stage:
    stage = lay_out(pipeline).stages.get(stage_id)
    if stage is None or stage.kind not in kinds:
        raise ConfigError(
            f"pipeline {pipeline.name!r} has no {' or '.join(kinds)} stage {stage_id!r}",
            hint="The plan was made from another file, or from another version of it.",
        )
    return stage


def _call(function: Callable[[Any], Any], argument: Any, label: str, kind: str) -> Any:
    """A user's function; what it raises names the step it belongs to."""
    try:
        return function(argument)
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        lines = lines_of(error)
        if missing := _NO_SOURCE.search(lines[0] if lines else ""):
            raise ConfigError(
                f"{label}: the source {missing[1]!r} is not installed",
                detail="Spark does not include it, and none of the given jars contains it.",
                hint="Name its jars in Spark's settings (--conf spark.jars=…, or conf in the cluster's file); "
                "docs/kafka.md has them for Kafka.",
            ) from error
        raise ConfigError(
            f"{label}: {_reason(error, lines)}",
            detail=lines[0] if lines else type(error).__name__,
            hint=f"The function ({kind}) was called once to learn its schema, before anything started.",
        ) from error


def _reason(error: BaseException, lines: list[str]) -> str:
    return unknown_column(lines[0] if lines else "") or f"the function fails with {type(error).__name__}"


def lines_of(error: BaseException) -> list[str]:
    """What an error of Spark's says, without the line in which Py4J says only that there is one."""
    lines = [line.removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    return lines[1:] if len(lines) > 1 and lines[0].startswith("An error occurred while calling") else lines


def unknown_column(text: str) -> str:
    """What Spark says of a column that is not there, in our words; "": it says something else."""
    missing = re.search(r"with name `(.+?)` cannot be resolved", text) if "UNRESOLVED_COLUMN" in text else None
    return f"no column named {missing[1]!r}" if missing else ""


def _need_frame(frame: Any, label: str, kind: str) -> Frame:
    if not (hasattr(frame, "isStreaming") and hasattr(frame, "schema")):
        raise ConfigError(
            f"{label}: the function gives no DataFrame",
            detail=f"It gives {type(frame).__name__}.",
            hint=f"It is {kind}.",
        )
    return frame


# -- types ------------------------------------------------------------------------------------------------------------


def arrow_type(spark_type: str) -> pa.DataType | None:
    """The Arrow type that `toArrow` gives for a Spark type; None if state cannot hold it."""
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _ARROW.get(spark_type)


def spark_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _SPARK[type_]


def types_of(frame: Frame) -> dict[str, str]:
    """Column -> Spark type, as SQL writes it."""
    return {f.name: f.dataType.simpleString() for f in frame.schema.fields}


def arrow_schema(frame: Frame, columns: Sequence[str], operator: str) -> pa.Schema:
    """The Arrow schema of these columns (all nullable), if an operator can hold them."""
    types = types_of(frame)
    fields = []
    for name in columns:
        type_ = arrow_type(types[name])
        if type_ is None:
            raise ConfigError(
                f"{operator}: column {name!r} has a type that cannot be held",
                detail=f"It is {types[name]}.",
                hint="Take a part of it, or cast it to boolean, a number, date, timestamp, string or binary, in a map.",
            )
        fields.append(pa.field(name, type_))
    return pa.schema(fields)


def empty_stream(spark: Session, schema: pa.Schema) -> Frame:
    """A streaming DataFrame of this schema, for analysis only: rows of an operator that does not run yet."""
    columns = [f"cast(null as {spark_type(f.type)}) as {quoted(f.name)}" for f in schema]
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return source.selectExpr(*columns)
