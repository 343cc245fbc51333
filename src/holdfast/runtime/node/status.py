"""What a node says about itself: for `holdfast status`, for metrics, for tests. Read on the loop's thread."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.core.agenda import exposures, images_of
from holdfast.core.copy import Input
from holdfast.core.election import Standing
from holdfast.core.node import Node
from holdfast.core.recovery import Outlook
from holdfast.core.roles import State
from holdfast.model.ids import Asset, Name, is_ledger, name_of, stage_of
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import FOREVER_US, NEVER_US, to_micros
from holdfast.runtime.node.metrics import Figures
from holdfast.runtime.node.operators import ShardOperator
from holdfast.runtime.node.skipping import told_of_skips


def status(node: Node, now_ns: int) -> dict[str, Any]:
    record = node.record
    running, images = node.loads.measured()
    return {
        "name": node.name,
        "seat": node.seat,
        "coordinator": node.election.coordinator,
        "term": node.election.term,
        "version": record.version,
        "members": dict(record.members),
        "draining": list(record.draining),
        "degraded": record.unprotected(),
        "false_alarms": {level.name.lower(): count for level, count in node.detector.false_alarms.items()},
        "false_by": {"detector": node.config.detector, **node.detector.false_by},
        "cuts": [list(pair) for pair in node.links.cuts()],
        "lost": [a for a, p in record.places.items() if p.primary is None and not p.is_stage],
        "places": {
            asset: {
                "primary": p.primary,
                "backup": p.backup,
                "joining": p.joining,
                "epoch": p.epoch,
                "moving": p.moving,
                "stage": p.is_stage,
                "mode": p.mode,
                "wants_backup": record.wants_backup(asset),
            }
            for asset, p in record.places.items()
        },
        "shards": {shard: _shard(node, shard, now_ns) for shard in node.host.copies},
        "disk_full": bool(node.host.spills.refused),
        "stages": dict(node.stages),
        "passed_over": node.standbys.passed_over(record, now_ns),
        "load_percent": _percent(sum(running.values()) + sum(images.values())),
        "recovery": _recovery(node, now_ns),
        "stage_memory_bytes": node.loads.memory(),
        "stage_load_percent": {asset: _percent(running[asset]) for asset in node.stages if asset in running},
        "ledgers": {
            ledger.stage: {
                "primary": ledger.is_primary,
                "fence": ledger.page.fence,
                "batch": ledger.page.commit.batch if ledger.page.commit else -1,
                **_aside(ledger.page.commit),
            }
            for ledger in node.ledgers.values()
        },
    }


def _aside(commit: CommitRecord | None) -> dict[str, int]:
    """What a stage has set aside so far, and how far it is."""
    if commit is None:
        return {"late": 0, "bad": 0, "watermark_us": NEVER_US}
    return {"late": commit.late_total, "bad": commit.bad_total, "watermark_us": to_micros(commit.watermark)}


def _recovery(node: Node, now_ns: int) -> dict[str, Any]:
    """What a failure of this node would cost now: who would recover what, beside each other, and how long each would
    take once it is decided. What has no backup is not in it."""
    mine = [each for each in exposures(node.host, now_ns) if each.segment.primary == node.name]
    outlook = Outlook(mine)
    worst = outlook.worst(node.name)
    by_backup: dict[Name, dict[str, Any]] = {}
    for segment in sorted(outlook.segments.get(node.name, ())):
        shards = sorted(each.unit for each in mine if each.segment == segment)
        by_backup[segment.backup] = {"expected_ms": _ms(outlook.segment_ns(segment)), "shards": shards}
    return {
        "expected_ms": _ms(outlook.query_ns(node.name)),
        "worst": worst.backup if worst else None,
        "segments": by_backup,
        "scheduler": node.config.scheduler,
        "too_long_ms": {name: _ms(expected_ns) for name, expected_ns in node.objective.missed.items()},
    }


def _costs(node: Node, shard: Asset, now_ns: int) -> dict[str, Any]:
    """Of a shard that runs here: what its recovery would take, and what its captures cost, estimated and measured. One
    with a twin is not captured."""
    runner = node.host.runners.get(shard)
    guard = images_of(runner) if runner else None
    if guard is None or guard.place.backup is None or not guard.place.targets:
        return {}
    tally = guard.tally
    return {
        "expected_recovery_ms": _ms(guard.replay_ns + guard.pasting_ns),
        "capture_ms": {"estimated": _ms(tally.capture.estimated_ns), "measured": _ms(tally.capture.measured_ns)},
        "paste_ms": {"estimated": _ms(tally.paste.estimated_ns), "measured": _ms(tally.paste.measured_ns)},
    }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


def _percent(load: int | None) -> float | None:
    """Of a core, over about the last minute; None: not measured yet."""
    return None if load is None else round(load / 1e7, 2)


def _shard(node: Node, shard: Asset, now_ns: int) -> dict[str, Any]:
    copy = node.host.copies[shard]
    place = node.record.places[shard]
    op = copy.op
    return {
        "role": node.host.states.get(shard, State.ABSENT).value,
        "epoch": place.epoch,
        "failed": copy.why,
        **told_of_skips(node, shard, now_ns),
        "watermark_us": to_micros(copy.watermark),
        "lag": op.lag,
        "inputs": {i.edge: _input(i) for i in copy.inputs},
        "outputs": {
            q.edge: {"next": q.next, "trimmed": q.trimmed, "spilled": q.spilled, "acks": dict(q.acks)}
            for q in copy.outputs
        },
        "dead_waiting": copy.dead.next - copy.dead.trimmed,
        "state_bytes": op.op.state_bytes() if isinstance(op, ShardOperator) else 0,
        "load_percent": _percent(copy.gauge.load),
        **_costs(node, shard, now_ns),
        **(asdict(op.figures) if isinstance(op, ShardOperator) else {}),
        **_restored(op),
        **_extent(op),
        "mode": place.mode,
        "stands_in": copy.fork is not None,
        "capture_period_ms": node.record.protection_of(shard).period_ns / 1e6,
        "checkpoint": node.record.protection_of(shard).checkpoint,
        "checkpoint_every_ms": node.record.protection_of(shard).checkpoint_ns / 1e6,
    }


def _input(i: Input) -> dict[str, int]:
    """Watermarks in the core's terms: the one that was consumed, and the one before the last block that waits."""
    before_last = max(i.watermark, i.queue[-2].watermark) if len(i.queue) > 1 else i.watermark
    waiting = sum(b.end - b.start for b in i.queue)
    return {"position": i.position, "waiting": waiting, "watermark": i.watermark, "before_last": before_last}


def _extent(op: object) -> dict[str, Any]:
    """Of a shard that leaves footprints: what a restart would read and replay by its newest entry (cec: q, u)."""
    extent = op.traces.extent if isinstance(op, ShardOperator) else None
    if extent is None:
        return {}
    return {"windows": extent.windows, "extent": extent.tuples, "replay": extent.rows}


def _restored(op: object) -> dict[str, Any]:
    """How long the phases took, if this copy came back from the store."""
    times = op.times if isinstance(op, ShardOperator) else None
    return {} if times is None else {"restored": asdict(times)}


def unheard(node: Node, now_ns: int) -> list[Name]:
    """Members without whom nothing can be decided, and that are silent; none: whoever decides is there."""
    election, limit_ns = node.election, node.config.misses_max * node.config.heartbeat_ns
    silent = [name for name in sorted(node.record.members) if election.silence_ns(name, now_ns) > limit_ns]
    if election.standing is not Standing.COORDINATOR:
        return [] if election.hears(now_ns) or not node.record.version else [n for n in silent if n != node.name]
    return [] if election.hears_majority(now_ns) else silent


def unheard_text(node: Node, silent: list[Name]) -> str:
    """What does not go on until these are back."""
    places = node.record.places
    on_them = [
        stage_of(asset)
        for asset, place in sorted(places.items())
        if is_ledger(asset) and {name_of(seat) for seat in (place.primary, place.backup) if seat} & set(silent)
    ]
    members = ", ".join(sorted(node.record.members))
    waits = f" {', '.join(on_them)} cannot commit: a ledger of theirs is there." if on_them else ""
    return f"{node.name} waits for {', '.join(silent)}: without it there is no majority of {members}.{waits}"


def waiting(node: Node) -> dict[str, int]:
    """Elements that wait on each edge: handed over and not consumed, or made and not acknowledged."""
    found: dict[str, int] = {}
    for runner in node.host.runners.values():
        for i in runner.copy.inputs:
            found[i.edge] = sum(b.end - b.start for b in i.queue)
        for q in runner.copy.outputs:
            found[q.edge] = q.next - q.trimmed
    return {edge: count for edge, count in found.items() if count}


def waiting_text(queues: dict[str, int]) -> str:
    longest = max(queues, key=lambda edge: queues[edge])
    return f"{sum(queues.values())} elements wait on {len(queues)} edges, most on {longest}: {queues[longest]}."


def figures(node: Node) -> Figures:
    found: Figures = [
        ("record_version", (), node.record.version),
        ("members", (), len(node.record.members)),
        ("coordinator", (), float(node.election.standing is Standing.COORDINATOR)),
        ("unprotected", (), len(node.record.unprotected())),
        ("disk_full", (), float(bool(node.host.spills.refused))),
        ("failed_shards", (), sum(1 for copy in node.host.copies.values() if copy.why)),
    ]
    for level, count in node.detector.false_alarms.items():
        found.append(("false_alarms", (level.name.lower(),), count))
    for ledger in node.ledgers.values():
        if ledger.is_primary and ledger.page.commit is not None:  # one of its holders tells them
            aside = _aside(ledger.page.commit)
            found += [("late_rows", (ledger.stage,), aside["late"]), ("bad_rows", (ledger.stage,), aside["bad"])]
            if NEVER_US < aside["watermark_us"] < FOREVER_US:
                found.append(("watermark_seconds", (ledger.stage,), aside["watermark_us"] / 1e6))
    captures = captured_bytes = pastes = 0
    for shard, copy in node.host.copies.items():
        op = copy.op
        role = node.host.states.get(shard, State.ABSENT).value
        if isinstance(op, ShardOperator):
            captures += op.figures.captures
            captured_bytes += op.figures.captured_bytes
            pastes += op.figures.pastes
            found.append(("state_bytes", (shard, role), op.op.state_bytes()))
            found.append(("busy_seconds", (shard, role), op.busy_ns / 1e9))
        if shard not in node.host.runners:
            continue
        if isinstance(op, ShardOperator):
            found += [("rows_in", (shard,), op.figures.rows_in), ("rows_out", (shard,), op.figures.rows_out)]
            found.append(("rows_aside", (shard,), op.figures.rows_aside))
        for i in copy.inputs:
            found.append(("input_position", (shard, i.edge), i.position))
            found.append(("input_waiting_rows", (shard, i.edge), sum(b.end - b.start for b in i.queue)))
        for q in copy.outputs:
            found.append(("queue_rows", (q.edge,), q.next - q.trimmed))
            found.append(("queue_spilled_rows", (q.edge,), q.spilled))
            found.append(("output_position", (q.edge,), q.next))
    found += [("captures", (), captures), ("captured_bytes", (), captured_bytes), ("pastes", (), pastes)]
    return found
