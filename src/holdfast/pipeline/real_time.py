"""Which source stages can run in Spark's real-time mode, and the frame that such a stage runs: with its positions.

Only a narrow plan over Kafka, in which one row gives one row or none: projections and filters. Then a row's position in
its partition says exactly which rows were handed over. Everything else stays in micro-batches, and the reason is told:
state is refused anyway, a shuffle reads ahead, Python functions hold rows back until an Arrow batch is full, and
several rows of one could be cut apart by the end of a batch.

The user's function may drop the columns `partition` and `offset`, as most do. So they are carried along: the source's
frame gets them once more under names of ours, and every projection above it passes them on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from holdfast.pipeline.checks import items_of, nodes_of, source_name
from holdfast.pipeline.graph import Frame

#: Columns that say where a row stands in its source, behind those of the user's.
TOPIC, PARTITION, OFFSET = POSITION = ("__holdfast_topic", "__holdfast_partition", "__holdfast_offset")
_PASSED = ("Project", "Filter", "SubqueryAlias")
_STREAM = "StreamingRelationV2"
#: Options that make a partition be read by several tasks, or end; and those that real-time mode does not know.
_SPLITS = ("minpartitions", "maxrecordsperpartition", "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_LIMITS = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
_WHAT = {
    "Generate": "explode makes several rows of one",
    "Join": "it joins with a table",
    "Union": "it brings several streams, or chains of steps, together",
    "RepartitionByExpression": "it repartitions its rows",
    "Repartition": "it repartitions its rows",
}


def why_not(frame: Frame) -> str:
    """Why a stage with this frame cannot be real-time; "": it can."""
    if "realTime" not in inspect.signature(type(frame.writeStream).trigger).parameters:
        return "this PySpark has no real-time mode"
    for node in nodes_of(_plan(frame)):
        kind = node.nodeName()
        if kind == _STREAM:
            name = source_name(node)
            if name != "kafka":
                return f"source {name!r} has no real-time mode that is known to give exact positions; kafka has"
            return _why_not_with(node.extraOptions())
        if node.isStreaming() and not node.children().size():
            return f"source {source_name(node) or kind!r} has no real-time mode that is known to give exact positions"
        if kind not in _PASSED:
            return f"{_WHAT.get(kind, f'its plan has {kind}')}; only projections and filters are known to be exact"
        python = next((name for e in items_of(node.expressions()) for name in _names(e) if _holds_back(name)), "")
        if python:
            return f"{python} holds rows back"
    return "it reads nothing"


def _why_not_with(options: Any) -> str:
    """Of Kafka, with these options."""
    for names, what in ((_SPLITS, "cuts its partitions"), (_LIMITS, "limits micro-batches, and there are none")):
        if option := next((name for name in names if options.containsKey(name)), ""):
            return f"option {option} {what}"
    if str(options.getOrDefault("failondataloss", "true")).lower() == "false":
        return "with failOnDataLoss=false Spark passes over lost rows in micro-batches only"
    return ""


def _holds_back(name: str) -> bool:
    return "Python" in name or "Subquery" in name or name.startswith("Arrow")


def _names(expression: Any) -> Iterator[str]:
    yield expression.nodeName()
    for child in items_of(expression.children()):
        yield from _names(child)


def with_positions(frame: Frame) -> Frame:
    """The same rows, with the columns that say where each of them stands in its source."""
    plan, _ = _carried(_plan(frame), frame)
    return _frame_of(plan, frame)


def _carried(node: Any, like: Frame) -> tuple[Any, list[Any]]:
    """A plan that passes the positions on, and the attributes that they are."""
    if node.nodeName() == _STREAM:
        named = (f"{column} as {name}" for column, name in zip(("topic", "partition", "offset"), POSITION, strict=True))
        plan = _plan(_frame_of(node, like).selectExpr("*", *named))
        found = {a.name(): a for a in items_of(plan.output())}
        return plan, [found[name] for name in POSITION]
    jvm = like.sparkSession._jvm
    child, attributes = _carried(node.children().apply(0), like)
    if node.nodeName() == "Project":
        listed = _to_seq([*items_of(node.projectList()), *attributes], jvm)
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(listed, child), attributes
    if node.nodeName() == "SubqueryAlias":  # it names its columns anew, and everything above it is resolved
        return child, attributes
    return node.withNewChildren(_to_seq([child], jvm)), attributes


def _to_seq(items: list[Any], jvm: Any) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)


def _frame_of(plan: Any, like: Frame) -> Frame:
    spark = like.sparkSession
    whole = getattr(getattr(spark._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    return type(like)(whole.ofRows(spark._jsparkSession, plan), spark)


def _plan(frame: Frame) -> Any:
    return frame._jdf.queryExecution().analyzed()
