"""A run with one sink without Spark, `r0`: who runs it, its end, and what it should hold."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from support.nodes import Nodes
from support.plans import WINDOW_US
from support.source import rows


def home_of(nodes: Nodes) -> str:
    """The node that runs the sink, once another one stands by."""

    def found() -> str:
        place = nodes.status()["places"]["r0"]
        warm = nodes.status(place["backup"].partition("#")[0])["drivers"].get("r0", {}) if place["backup"] else {}
        return place["primary"].partition("#")[0] if warm.get("warmth") == "warm" else ""

    return nodes.until("a warm standby of the sink", found, 60)


def told(nodes: Nodes, event: str) -> list[dict]:
    return [e for name in nodes.names for e in nodes.events(name) if e["event"] == event and e.get("stage") == "r0"]


def finish(nodes: Nodes) -> None:
    (nodes.dir / "closed").write_text(str(nodes.available() + nodes.rate))
    nodes.until("someone to be told to finish", lambda: nodes.caller.call(nodes.alive()[0], "finish", timeout=20))
    nodes.until("the sink to end", lambda: told(nodes, "stage-finished"), 180)


def difference_of(nodes: Nodes, held: pa.Table) -> tuple[int, int]:
    """How many results are missing in what the sink holds, and how many are too many or wrong."""
    given = pa.Table.from_batches([rows(0, int((nodes.dir / "closed").read_text()), nodes.rate, nodes.keys)])
    start = pc.multiply(pc.divide(given["ts"].cast(pa.int64()), WINDOW_US), WINDOW_US)
    made = (
        given.append_column("start", start).group_by(["start", "key"]).aggregate([([], "count_all"), ("value", "sum")])
    )
    right = list(zip(*(made[c].to_pylist() for c in ("start", "key", "count_all", "value_sum")), strict=True))
    starts = held["window_start"].cast(pa.int64()).to_pylist()
    mine = list(zip(starts, *(held[c].to_pylist() for c in ("key", "n", "total")), strict=True))
    return len(set(right) - set(mine)), len(mine) - len(set(right) & set(mine))
