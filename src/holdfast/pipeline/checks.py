"""What Spark thinks of a user's functions: their logical plans and writers, looked into before anything is started.

Spark's classes are reached through the DataFrame itself. A plan is analysed, never optimised or run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ConfigError
from holdfast.pipeline.graph import Frame, Sink, Writer

#: Sources that Spark replays by offset from its checkpoint; any other that is not refused is taken at its word.
REPLAYABLE = ("files (parquet, json, csv, orc, text, avro)", "rate-micro-batch", "kafka", "delta")
_NOT_REPLAYABLE = {
    "socket": "what came over a socket is gone",
    "textsocket": "what came over a socket is gone",
    "rate": "its rows depend on when it was started",
    "memory": "it exists in one process only",
}
_STATEFUL = {
    "Aggregate": "a streaming aggregation",
    "Deduplicate": "dropDuplicates or distinct",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "Intersect": "intersect",
    "Except": "except",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Offset": "offset",
    "Sort": "a sort",
    "Window": "a window function",
}
_WITH_STATE = ("GroupsWithState", "TransformWithState", "FlatMapGroups", "CoGroup")
_MOMENT = ("current_timestamp", "now", "current_date", "localtimestamp", "current_time", "current_batch_timestamp")
#: Not deterministic by Spark's book, but a replay of the same files gives the same.
_HARMLESS = ("input_file_name", "input_file_block_start", "input_file_block_length")

#: Sinks that Spark makes idempotent by batch id.
IDEMPOTENT_FILES = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
#: The format of a sink that Spark does not write: a function gets its rows, or a topic does.
ARROW, KAFKA = "write_arrow", "write_kafka"
#: Sinks that Spark finds by other means than their name.
_BUILT_IN = ("memory", "table", "holdfast")
_IDEMPOTENT = (*IDEMPOTENT_FILES, "delta", "iceberg", "hudi", "noop", "holdfast")


def check_plan(frame: Frame, label: str) -> None:
    """Refuse what a stage cannot do: sources that cannot be replayed, state, and functions that differ in a replay."""
    analysed = frame._jdf.queryExecution().analyzed()
    for node in nodes_of(analysed):
        if node.isStreaming():
            _check_source(node, label)
            _check_state(node, label)
    for expression in _volatile(analysed):
        raise ConfigError(
            f"{label}: {expression} would give something else in a replay",
            detail="After a failure the same batch is run again, and must have the same rows.",
            hint="Derive it from the row, for example from its key or its event time, or put it into the source.",
        )


def check_stream(given: Frame, made: Frame, label: str) -> None:
    """Refuse a function that gives back rows of something else than what it was given."""
    if made.isStreaming and _sources(given) & _sources(made):
        return
    raise ConfigError(
        f"{label}: the function returns something that is not the stream",
        detail=f"It returns {'another stream' if made.isStreaming else 'a table, which has no rows to come'}.",
        hint="Transform the DataFrame that is given to it.",
    )


def _sources(frame: Frame) -> set[str]:
    """The streams that a frame reads, by the ids that Spark gives their columns."""
    nodes = nodes_of(frame._jdf.queryExecution().analyzed())
    return {node.output().mkString(",") for node in nodes if node.isStreaming() and not node.children().size()}


def paths_of(frame: Frame) -> list[str]:
    """The paths that a source of files reads."""
    found = []
    for node in nodes_of(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() == "StreamingRelation":
            path = node.dataSource().options().get("path")
            found += [str(path.get())] if path.isDefined() else []
    return found


def items_of(seq: Any) -> Iterator[Any]:
    for i in range(seq.size()):
        yield seq.apply(i)


def nodes_of(node: Any) -> Iterator[Any]:
    yield node
    for child in items_of(node.children()):
        yield from nodes_of(child)


def is_endless(frame: Frame) -> bool:
    """Whether a source makes rows as long as it is asked."""
    return any(source_name(node) == "rate-micro-batch" for node in nodes_of(frame._jdf.queryExecution().analyzed()))


def source_name(node: Any) -> str:
    """The format of a source in a plan; "" for what is none."""
    if node.nodeName() == "StreamingRelationV2":
        return node.sourceName()
    if node.nodeName() == "StreamingRelation":
        return node.dataSource().className()
    return "memory" if node.nodeName() in ("StreamingExecutionRelation", "MemoryStream") else ""


def _check_source(node: Any, label: str) -> None:
    name = source_name(node)
    reason = _NOT_REPLAYABLE.get(name.lower().rpartition(".")[2])
    if reason:
        raise ConfigError(
            f"{label}: source {name!r} cannot be replayed",
            detail=f"After a failure its rows would be lost: {reason}.",
            hint=f"Use one that keeps its rows, such as {', '.join(REPLAYABLE)}.",
        )


def _check_state(node: Any, label: str) -> None:
    kind = node.nodeName()
    if kind == "EventTimeWatermark":
        raise ConfigError(
            f"{label}: withWatermark has no effect here",
            detail="Windows and joins are Holdfast's, and go by its own watermark.",
            hint='Say it where the stream begins: pipeline.read(..., watermark="2 seconds").',
        )
    what = _STATEFUL.get(kind)
    if kind == "Join" and all(child.isStreaming() for child in items_of(node.children())):
        what = "a join of two streams"
    if what is None and any(part in kind for part in _WITH_STATE):
        what = f"Spark's state ({kind})"
    if what:
        raise ConfigError(
            f"{label}: {what} needs state, which a stage does not keep",
            detail=f"Found {kind} on the stream in the function's plan.",
            hint="Use Holdfast's own .window(...).by(...).agg(...) or .join(...), which survive a failure.",
        )


def _volatile(plan: Any) -> Iterator[str]:
    """Functions of a plan that depend on the moment or on chance."""
    for node in nodes_of(plan):
        for expression in items_of(node.expressions()):
            yield from _volatile_in(expression)


def _volatile_in(expression: Any) -> Iterator[str]:
    children = list(items_of(expression.children()))
    for child in children:
        yield from _volatile_in(child)
    if children and expression.deterministic():
        return
    name = expression.prettyName()
    if name in _MOMENT:
        yield f"{name}()"
    elif not expression.deterministic() and name not in _HARMLESS and all(c.deterministic() for c in children):
        yield f"{name}()"  # it, and not something inside it


# -- writers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SinkFacts:
    """What a user's writer will do."""

    format: str
    options: dict[str, str] = field(default_factory=dict)
    #: Why it may write a row twice after a failure; "": it cannot.
    doubt: str = ""
    #: Where that is, if not at a path.
    where: str = ""

    @property
    def path(self) -> str:
        return self.options.get("path", "")


@contextmanager
def nothing_starts(frame: Frame, who: str) -> Iterator[None]:
    """While a user's function is called, `start` and `toTable` are refused: planning starts nothing."""
    kind = type(frame.writeStream)
    kept = {name: getattr(kind, name) for name in ("start", "toTable")}

    def refuse(*args: object, **options: object) -> None:
        raise ConfigError(
            f"{who} starts the query itself",
            hint="Only a function of write gives a writer, and gives it unstarted, without .start() or .toTable(): "
            "Holdfast starts it, and again after a failure.",
        )

    try:
        for name in kept:
            setattr(kind, name, refuse)
        yield
    finally:
        for name, method in kept.items():
            setattr(kind, name, method)


def check_writer(writer: Writer, sink: Sink) -> SinkFacts:
    """Refuse settings of a writer that Holdfast must make itself; say what the sink is."""
    name = sink.name
    if not hasattr(writer, "_jwrite"):
        raise ConfigError(
            f"{name}: the function gives no DataStreamWriter",
            detail=f"It gives {type(writer).__name__}.",
            hint='It is DataFrame -> DataStreamWriter: lambda df: df.writeStream.format("parquet").option(...).',
        )
    inner = writer._jwrite
    mode = str(_private(inner, "outputMode")).lower()
    if mode in ("complete", "update"):
        raise ConfigError(
            f"{name}: output mode {mode!r} cannot be used here",
            detail="A window comes out once, when it is closed.",
            hint="Leave outputMode out, or say append.",
        )
    options = {str(k).lower(): str(v) for k, v in _options(_private(inner, "extraOptions")).items()}
    if "checkpointlocation" in options:
        raise ConfigError(
            f"{name}: checkpointLocation is Holdfast's to set",
            detail=f"The writer sets {options['checkpointlocation']!r}.",
            hint="Leave it out: the checkpoint moves with the sink from node to node.",
        )
    if _private(inner, "foreachBatchWriter") is not None:
        return SinkFacts("foreachBatch", options, "a batch is written again after a failure")
    if _private(inner, "foreachWriter") is not None:
        return SinkFacts("foreach", options, "rows of a batch are written again after a failure")
    format_ = str(_private(inner, "source"))
    if format_.lower() in IDEMPOTENT_FILES and not options.get("path"):
        raise ConfigError(f"{name}: a {format_} sink needs a path", hint='Add .option("path", "out/").')
    _check_written(writer, name, format_)
    if not _is_there(writer, format_):
        raise ConfigError(
            f"{name}: Spark knows no sink format {format_!r}",
            hint="Is it spelled right? A format that is not Spark's own needs its jar: --conf spark.jars.packages=….",
        )
    doubt = "" if format_.lower() in _IDEMPOTENT else "Spark gives this sink no way to tell a batch it has already had"
    return SinkFacts(format_, options, doubt)


def _check_written(writer: Any, name: str, format_: str) -> None:
    """Columns that a file sink is to write, or to cut its files by."""
    columns = {f.name: f.dataType.simpleString() for f in writer._df.schema.fields}
    cut = _private(writer._jwrite, "partitioningColumns")
    by = [str(column) for column in items_of(cut.get())] if cut.isDefined() else []
    for column in by:
        if column not in columns:
            raise ConfigError(f"{name}: no column named {column!r}", detail=f"There are {', '.join(columns)}.")
    rest = [kind for column, kind in columns.items() if column not in by]
    if format_.lower() == "text" and rest != ["string"]:
        raise ConfigError(
            f"{name}: a text sink takes one column of type string",
            detail=f"There are {', '.join(f'{column} {kind}' for column, kind in columns.items())}.",
            hint="Use json or csv, or put the row into one text before writeStream.",
        )


def _is_there(writer: Any, format_: str) -> bool:
    """Does this Spark have such a sink? Only "not found" counts: what else goes wrong, the stage will tell."""
    if format_.lower() in _BUILT_IN:
        return True
    session = writer._spark
    state = session._jsparkSession.sessionState()
    if state.dataSourceManager().dataSourceExists(format_):  # one in Python
        return True
    try:
        session._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(format_, state.conf())
    except Exception as error:
        return "DATA_SOURCE_NOT_FOUND" not in str(error) and "ClassNotFoundException" not in str(error)
    return True


def _private(inner: Any, name: str) -> Any:
    """A private field of Spark's DataStreamWriter: it has no getters."""
    found = inner.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(inner)


def _options(options: Any) -> dict[str, str]:
    pairs = options.toSeq()
    return {pair._1(): pair._2() for pair in items_of(pairs)}
