"""What Prometheus may know about a node: `/metrics`, on loopback, in a thread of its own.

Figures are taken when they are asked for, from the machine itself, so that nothing is counted twice in two places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.node.scrape import PageServer

#: name -> (kind, help, labels)
_KNOWN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "queue_rows": ("gauge", "Elements of an output queue that are not acknowledged.", ("edge",)),
    "queue_spilled_rows": ("gauge", "Elements of an output queue that are on disk.", ("edge",)),
    "output_position": ("gauge", "Next position of an output edge.", ("edge",)),
    "input_position": ("gauge", "Next position of an input edge.", ("shard", "edge")),
    "input_waiting_rows": ("gauge", "Elements that were handed over and are not consumed.", ("shard", "edge")),
    "state_bytes": ("gauge", "Memory of a copy's state.", ("shard", "role")),
    "busy_seconds": ("counter", "CPU time of a copy's steps and captures, or of its pastes.", ("shard", "role")),
    "driver_processes": ("gauge", "Spark processes of this node, with a JVM each.", ()),
    "stage_busy_seconds": ("counter", "CPU time of a stage: its share of its process, by batch times.", ("stage",)),
    "take_over_seconds": ("gauge", "About what a take-over by the standby here would cost now.", ("stage",)),
    "rows_in": ("counter", "Rows taken by a shard.", ("shard",)),
    "rows_out": ("counter", "Rows emitted by a shard.", ("shard",)),
    "rows_aside": ("counter", "Rows and results that a shard has set aside as dead letters.", ("shard",)),
    "late_rows": ("counter", "Rows that came too late, by stage.", ("stage",)),
    "bad_rows": ("counter", "Rows that no operator can hold, by stage.", ("stage",)),
    "watermark_seconds": ("gauge", "Watermark of a stage, in seconds since 1970.", ("stage",)),
    "captures": ("counter", "Captures taken.", ()),
    "captured_bytes": ("counter", "Bytes of state in captures.", ()),
    "pastes": ("counter", "Captures pasted into images.", ()),
    "promotions": ("counter", "Shards that started to run here.", ()),
    "gap_seconds": ("counter", "Silence of failed nodes until their shards ran here.", ()),
    "suspicions": ("counter", "Members that missed their heartbeats, as seen from here.", ()),
    "false_alarms": ("counter", "Peers that were suspicious or taken for dead here, and then heard again.", ("level",)),
    "pulses": ("counter", "Heartbeats repeated while the loop was busy.", ()),
    "failed_shards": ("gauge", "Shards that stand still because of an error.", ()),
    "record_version": ("gauge", "Version of the placement record.", ()),
    "members": ("gauge", "Members of the cluster.", ()),
    "coordinator": ("gauge", "1 if this node is the coordinator.", ()),
    "unprotected": ("gauge", "Shards and ledgers that shall have a second copy and have none.", ()),
    "events_waiting": ("gauge", "Events that wait for the loop.", ()),
    "messages_dropped": ("counter", "Messages dropped for a peer that was slow or gone.", ("peer",)),
    "spill_bytes": ("gauge", "Bytes in spill files.", ()),
    "latency_seconds": ("histogram", "Where a row's time goes, by part, and by operator or stage.", ("part", "of")),
    "disk_full": ("gauge", "1 while spilling fails.", ()),
}

#: The value of a histogram is a `Histogram`.
Figures = list[tuple[str, tuple[str, ...], Any]]


class _Collector:
    def __init__(self, node: str, figures: Callable[[], Figures]) -> None:
        self._node = node
        self._figures = figures

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families: dict[str, Any] = {}
        for name, labels, value in self._figures():
            kind, text, label_names = _KNOWN[name]
            if name not in families:
                kinds = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
                family = kinds.get(kind, GaugeMetricFamily)
                families[name] = family(f"holdfast_{name}", text, labels=("node", *label_names))
            if kind == "histogram":
                families[name].add_metric((self._node, *labels), value.cumulative(), value.total_s)
            else:
                families[name].add_metric((self._node, *labels), value)
        return families.values()


def serve(node: str, port: int, figures: Callable[[], Figures]) -> tuple[int, Callable[[], None]]:
    """Start to answer; the port, and how to stop."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(node, figures))  # pyright: ignore[reportArgumentType]
    try:
        server = PageServer(port, "/metrics", lambda: (CONTENT_TYPE_LATEST, generate_latest(registry)))
    except OSError as error:
        raise ConfigError(
            f"{node} cannot serve its metrics on 127.0.0.1:{port}",
            detail=str(error),
            hint="Give another metrics_port; 0: any that is free, -1: none.",
        ) from None
    return server.port, server.close
