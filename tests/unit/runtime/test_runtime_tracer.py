"""What a node makes of its notes and of its stages' news: a histogram for each part and shard or stage."""

from __future__ import annotations

import pytest

from holdfast.cli.trace import by_operator, merged, milliseconds, trace_view
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.ids import asset_id, shard_edge, stage_edge
from holdfast.model.latency import PARTS, Histogram
from holdfast.runtime.node.metrics import _Collector
from holdfast.runtime.node.tracer import KEPT, Tracer

U = asset_id("talkers-3")
IN = stage_edge(asset_id("s0"), U)
OUT = shard_edge(U)
MS = 1_000_000


class SetClock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def tracer(clock: SetClock) -> Tracer:
    return Tracer(clock)


def block(start: int, watermark: int, rows: int = 1) -> Block:
    return Block(start, start + rows + 1, ((),) * rows, watermark)


def sealed(start: int, watermark: int) -> notes.Sealed:
    return notes.Sealed(U, IN, "n0#1", block(start, watermark))


def times(tracer: Tracer, part: str, of: str = U) -> tuple[int, float]:
    found = tracer.parts.get((part, of), Histogram())
    return found.count, round(1e3 * found.total_s, 3)


def test_a_block_waits_from_its_seal_to_its_step_and_its_result_until_it_is_fetched(tracer: Tracer, clock: SetClock):
    clock.ns = 10 * MS
    tracer.on_notes([sealed(0, 5)])
    clock.ns = 16 * MS
    tracer.on_step(U, IN, 1, 5, began_ns=13 * MS)
    assert (times(tracer, "inbox"), times(tracer, "step")) == ((1, 3.0), (1, 3.0))
    tracer.on_notes([notes.Emitted(U, OUT, 1, block(0, 5)), notes.Emitted(U, OUT, 1, block(2, 6, rows=0))])
    clock.ns = 21 * MS
    tracer.on_notes([notes.Served(U, OUT, (0, 3), 1, asset_id("r0"), 1)])
    tracer.on_notes([notes.Served(U, OUT, (0, 3), 1, asset_id("r1"), 1)])
    assert times(tracer, "stream") == (1, 5.0)


def test_a_shard_behind_another_one_waits_for_what_it_has_accepted(tracer: Tracer, clock: SetClock):
    clock.ns = 4 * MS
    tracer.on_notes([notes.Accepted(U, OUT, 1, block(0, 5), 1)])
    tracer.on_step(U, OUT, 1, 5, began_ns=6 * MS)
    assert times(tracer, "inbox") == (1, 2.0)


def test_blocks_without_rows_are_no_samples_but_pass(tracer: Tracer, clock: SetClock):
    tracer.on_notes([sealed(0, 5), sealed(2, 5)])
    clock.ns = MS
    tracer.on_step(U, IN, 0, 5, began_ns=MS)
    assert times(tracer, "step") == (0, 0.0)
    tracer.on_step(U, IN, 1, 5, began_ns=MS)
    assert times(tracer, "step") == (1, 0.0)


def test_a_backup_that_takes_nothing_forgets_and_is_right_when_it_takes_over(tracer: Tracer, clock: SetClock):
    for i in range(3 * KEPT):
        clock.ns = (i + 1) * MS
        tracer.on_notes([sealed(2 * i, i)])
    assert all(len(kept) <= KEPT for kept in tracer._waiting.values())
    clock.ns += 5 * MS
    tracer.on_step(U, IN, 1, 3 * KEPT - 1, began_ns=clock.ns)
    assert times(tracer, "inbox") == (1, 5.0)
    tracer.on_step(U, IN, 1, 9_999, began_ns=clock.ns)  # one that it never heard of: no sample of its wait
    assert (times(tracer, "inbox")[0], times(tracer, "step")[0]) == (1, 2)


FED = {"collect": 12, "handOver": 9, "triggerExecution": 21}
SPARK = {"addBatch": 200, "triggerExecution": 320}


@pytest.mark.parametrize(
    ("rows", "spans", "hand_over", "found"),
    [
        (5, FED, {"deliver": [4], "seal": [1, 2]}, {"collect": 12.0, "deliver": 4.0, "seal": 3.0}),
        (0, {}, {"deliver": [4]}, {"deliver": 4.0}),
        (5, {"fetch": 3, "write": 8, "commit": 1}, {}, {"fetch": 3.0, "write": 8.0}),
        (5, SPARK, {}, {"plan": 120.0, "write": 200.0}),
        (0, SPARK, {}, {}),
    ],
)
def test_stages_and_sinks_tell_what_their_batches_took(tracer: Tracer, rows, spans, hand_over, found):
    progress = {"numInputRows": rows, "durationMs": spans, "handOverMs": hand_over}
    tracer.on_news("out_0", "batch", {"progress": progress})
    tracer.on_news("out_0", "late", {"progress": progress})
    tracer.on_news("out_0", "batch", {})
    made = {part: times(tracer, part, "out_0") for part in PARTS}
    assert {part: ms for part, (count, ms) in made.items() if count} == found


def test_what_nodes_tell_is_added_up_in_the_order_of_a_rows_way(tracer: Tracer, clock: SetClock):
    other = Tracer(clock)
    for each, shard in ((tracer, "talkers-0"), (other, "talkers-1"), (other, "talkers-0")):
        each.add("step", shard, 0.01)
    other.add("collect", "s0", 0.3)
    parts = merged({"n0": tracer.told(), "n1": other.told()})
    assert list(parts) == ["collect", "step"]
    assert {of: h.count for of, h in parts["step"].items()} == {"talkers-0": 2, "talkers-1": 1}
    assert {of: h.count for of, h in by_operator("step", parts["step"]).items()} == {"talkers": 3}
    assert len(trace_view("p", parts).renderables) == 3
    assert "Nothing has been measured" in str(trace_view("p", {}).renderables[-1])
    assert (milliseconds(None), milliseconds(0.0051), milliseconds(1.25)) == ("-", "5.10 ms", "1,250 ms")


def test_metrics_have_it_by_operator(tracer: Tracer):
    tracer.add("step", "talkers-0", 0.01)
    tracer.add("step", "talkers-1", 0.02)
    tracer.add("collect", "s0", 0.3)
    (family,) = _Collector("n0", tracer.figures).collect()
    samples = {(s.name, s.labels["part"], s.labels["of"], s.labels.get("le")): s.value for s in family.samples}
    assert samples["holdfast_latency_seconds_count", "step", "talkers", None] == 2
    assert samples["holdfast_latency_seconds_bucket", "step", "talkers", "0.01"] == 1
    assert samples["holdfast_latency_seconds_sum", "collect", "s0", None] == 0.3
