"""A plan as people read it, and as data for `--json`. Without Spark: stages, operators, shards and edges; with: schemas
and sinks too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.model.plan import AUTO, MICRO_BATCH, REAL_TIME
from holdfast.pipeline import durations
from holdfast.pipeline.api import Pipeline
from holdfast.pipeline.checks import ARROW, KAFKA
from holdfast.pipeline.graph import Aggregate, JoinOf, Session, Source, Stateful
from holdfast.pipeline.layout import Layout, OperatorLayout, Stage, lay_out


def explain(pipeline: Pipeline, spark: Session | None = None, latency: str = "", not_real_time: str = "") -> str:
    """What will run, as text. `latency`, `not_real_time`: as the planner's."""
    return to_text(describe(pipeline, spark, latency, not_real_time))


def describe(
    pipeline: Pipeline, spark: Session | None = None, latency: str = "", not_real_time: str = ""
) -> dict[str, Any]:
    """What will run, as data: for `--json`."""
    layout = lay_out(pipeline)
    outputs: dict[str, pa.Schema] = {}
    sinks: dict[str, Any] = {}
    in_real_time: dict[str, str] = {}
    query = ""
    if spark is not None:
        from holdfast.pipeline.planner import Planner

        planner = Planner(pipeline, spark, latency=latency, not_real_time=not_real_time)
        query = planner.plan().query
        outputs, sinks, in_real_time = planner.outputs, planner.sinks, planner.in_real_time
    topology = layout.topology(query)
    return {
        "pipeline": pipeline.name,
        "query": query,
        "stages": [_stage(stage, layout, sinks, in_real_time) for stage in layout.stages.values()],
        "operators": [_operator(op, layout, outputs) for op in layout.operators.values()],
        "shards": len(topology.shards),
        "edges": len(topology.producer),
        "warnings": list(pipeline.warnings) if spark is not None else [],
    }


def _stage(stage: Stage, layout: Layout, sinks: dict[str, Any], in_real_time: dict[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": stage.id,
        "kind": stage.kind,
        "steps": [[s.label for s in b.steps] for b in stage.branches],
        "reads": list(stage.reads),
        "feeds": [name for name, _ in stage.feeds],
        "outlets": list(stage.outlets),
        "edges": sum(layout.operators[name].shards for name, _ in stage.feeds),
    }
    root = stage.branches[0].root
    if isinstance(root, Source):
        described |= {"source": root.label, "event_time": root.event_time, "watermark": durations.text(root.delay_us)}
    if stage.id in in_real_time:
        why = in_real_time[stage.id]
        described |= {"latency": MICRO_BATCH if why else REAL_TIME, "not_real_time": why}
    facts = sinks.get(stage.id)
    if stage.sink is not None:
        described["sink"] = stage.sink.where
    if facts is not None:
        described |= {"format": facts.format, "path": facts.path or facts.where, "idempotent": not facts.doubt}
    return described


def _operator(op: OperatorLayout, layout: Layout, outputs: dict[str, pa.Schema]) -> dict[str, Any]:
    node = op.node
    described: dict[str, Any] = {
        "name": op.name,
        "what": what_it_does(node),
        "shards": op.shards,
        "ids": [f"{op.name}-0" if op.shards == 1 else f"{op.name}-0..{op.shards - 1}"],
        "mode": node.mode,
        "checkpoint": node.checkpoint,
        "recover_in": durations.text(node.recover_ns // 1_000) if node.recover_ns else "",
        "checkpoint_every": durations.text(node.checkpoint_ns // 1_000) if node.checkpoint_ns else "",
        "inputs": [
            {
                "from": i.source,
                "by": list(i.by),
                "direct": i.branch.direct,
                "edges": sum(len(layout.edges_into(op, n, s)) for s in range(op.shards)),
            }
            for n, i in enumerate(op.inputs)
        ],
        "feeds": [name for name, _ in op.feeds],
    }
    if op.name in outputs:
        described["output"] = {f.name: str(f.type) for f in outputs[op.name]}
    return described


def what_it_does(node: Stateful) -> str:
    if isinstance(node, JoinOf):
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in node.on)
        if node.within is not None:
            after, before = (durations.text(d) for d in node.within)
            time = f"right {after} to {before} after left"
        else:
            time = f"in the same window of {durations.text(node.window_us)}"
        where = f", where {node.where_sql}" if node.where_sql else ""
        return f"{node.how} join on {keys}, {time}{where}"
    assert isinstance(node, Aggregate)
    size = f"{node.size} rows" if node.counted else durations.text(node.size)
    step = f"{node.step} rows" if node.counted else durations.text(node.step)
    every = "" if node.step == node.size else f" every {step}"
    calls = ", ".join(f"{n}={c.function}({c.column or '*'})" for n, c in node.aggs.items())
    return f"windows of {size}{every} by {', '.join(node.by) or 'nothing'}: {calls}"


def counted(number: int, what: str) -> str:
    """1 shard, 2 shards."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def to_text(d: dict[str, Any]) -> str:
    counts = {"stage": len(d["stages"]), "operator": len(d["operators"]), "shard": d["shards"], "edge": d["edges"]}
    lines = [f"pipeline {d['pipeline']}: {', '.join(counted(number, what) for what, number in counts.items())}"]
    for kind in ("source", "port", "between"):
        for stage in d["stages"]:
            if stage["kind"] == kind:
                lines += _stage_lines(stage)
    for op in d["operators"]:
        lines += _operator_lines(op)
    for stage in d["stages"]:
        if stage["kind"] == "sink":
            lines += _stage_lines(stage)
    lines += [f"warning: {w}" for w in d["warnings"]]
    return "\n".join(lines)


def _stage_lines(stage: dict[str, Any]) -> list[str]:
    lines = [f"stage {stage['id']} ({stage['kind']})"]
    if "source" in stage:
        lines.append(f"  {stage['source']}, event time {stage['event_time']}, watermark {stage['watermark']} behind")
    if stage.get("not_real_time"):
        lines.append(f"  in micro-batches, not in real time: {stage['not_real_time']}")
    elif "latency" in stage:
        lines.append("  in real time: rows are handed over as they come")
    if stage["reads"]:
        lines.append(f"  reads {', '.join(stage['reads'])}")
    for steps, outlet in zip(stage["steps"], stage["outlets"] or [""] * len(stage["steps"]), strict=True):
        if steps:
            lines.append("  " + " -> ".join(steps) + (f", for {outlet}" if outlet else ""))
    if stage["outlets"]:
        lines.append(f"  one query reads for {' and '.join(stage['outlets'])}")
    if stage["feeds"]:
        lines.append(f"  feeds {', '.join(stage['feeds'])} over {counted(stage['edges'], 'edge')}")
    if stage.get("format") == ARROW:
        lines.append("  gives every batch to a function as an Arrow table, without Spark")
    elif stage.get("format") == KAFKA:
        lines.append(f"  writes to {stage['path']}, each batch in one transaction with its position, without Spark")
    elif "format" in stage:
        sure = "" if stage["idempotent"] else ", which may hold rows twice after a failure"
        lines.append(f"  writes {stage['format']} {stage['path']}".rstrip() + sure)
    elif "sink" in stage:
        lines.append(f"  writes as {stage['sink']} says")
    return lines


def _operator_lines(op: dict[str, Any]) -> list[str]:
    lines = [f"operator {op['name']}: {op['what']}"]
    every = f" every {op['checkpoint_every']}" if op["checkpoint_every"] else ""
    kept = f", checkpoint {op['checkpoint']}{every}" if every or op["checkpoint"] != AUTO else ""
    bound = f", recovered in {op['recover_in']}" if op["recover_in"] else ""
    lines.append(f"  {counted(op['shards'], 'shard')} {', '.join(op['ids'])}, mode {op['mode']}{kept}{bound}")
    for given in op["inputs"]:
        way = " directly, shard to shard" if given["direct"] else ", handed over by Spark"
        by = f", cut by {', '.join(given['by'])}" if given["by"] else ""
        lines.append(f"  from {given['from']}{way}, {counted(given['edges'], 'edge')}{by}")
    if op["feeds"]:
        lines.append(f"  feeds {', '.join(op['feeds'])} directly")
    if "output" in op:
        lines.append("  gives " + ", ".join(f"{n} {t}" for n, t in op["output"].items()))
    return lines
