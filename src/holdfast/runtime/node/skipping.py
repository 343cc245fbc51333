"""What a node says about a shard that stands still, and to a person who wants one batch of it skipped."""

from __future__ import annotations

from typing import Any

from holdfast.core.node import Node
from holdfast.core.roles import Condition
from holdfast.model.ids import Asset, Edge, stage_edge
from holdfast.model.skips import Skip, command


def skip_of(node: Node, shard: Asset, source: str, number: int) -> tuple[Skip | None, dict[str, Any]]:
    """What is to be skipped, if it can be and is not, and the answer to whoever asks for it."""
    runner = node.host.runners.get(shard)
    if runner is None or not runner.is_primary:
        return None, {"waits": f"{shard} does not run on {node.name}."}
    edges = node.topology.shard[shard].inputs
    edge = next((e for e in edges if e in (source, stage_edge(Asset(source), shard))), None)  # type: ignore[arg-type]
    if edge is None:
        return None, {"refused": f"{shard} reads nothing from {source!r}", "hint": f"It reads {_sources(edges)}."}
    place, skips = runner.place, runner.skips
    known = skips.known(edge, number, place)
    if known is not None and skips.has_passed(known):
        return None, {"passed": True}
    if known is not None:
        return None, {"granted": True, "waits": f"The record says so; {shard} has not come to it."}
    why = skips.objection(edge, number, place)
    if why:
        return None, {"refused": why, "hint": skips.way_on(place)}
    return skips.copy.blocked, {"waits": "The record does not say so yet."}


def _sources(edges: tuple[Edge, ...]) -> str:
    return ", ".join(Skip(edge, 0, 1).source for edge in edges)


def told_of_skips(node: Node, shard: Asset, now_ns: int) -> dict[str, Any]:
    """For status: at which batch a shard stands still, since when, and what can be done; and skips in force."""
    runner = node.host.runners.get(shard)
    place = node.record.places[shard]
    found: dict[str, Any] = {
        "skips": [
            {"source": s.source, "number": s.number, "edge": s.edge, "start": s.start, "end": s.end, "why": s.why}
            for s in place.skips
        ],
        "stands": None,
    }
    if runner is not None and runner.copy.blocked is not None:
        skips, blocked = runner.skips, runner.copy.blocked
        found["stands"] = {
            "source": blocked.source,
            "number": blocked.number,
            "seconds": round((now_ns - skips.since_ns) / 1e9, 1),
            "tries_again": runner.copy.condition is Condition.WAITING,
            "command": "" if skips.objection(blocked.edge, blocked.number, place) else command(shard, blocked),
            "way_on": skips.way_on(place),
        }
    return found
