"""Operators as the core drives them: captures in lock-step, ports, joins that speak before the watermark moves."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pytest
from support.plans import ROWS, layered_plan
from support.source import rows

from holdfast.core.copy import Copy
from holdfast.core.roles import Change, Condition
from holdfast.errors import InputError
from holdfast.model.block import WATERMARK_MAX, batch_block
from holdfast.model.config import Config
from holdfast.model.ids import shard_id
from holdfast.model.plan import InputPlan, OperatorPlan, Plan, to_core
from holdfast.model.topology import ShardSpec, Topology
from holdfast.operators import END, START, StateCapture, StateConfig
from holdfast.operators.build import build
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.wire import OperatorState, StateChunk, StateSlice
from holdfast.runtime.node.letters import first_reason
from holdfast.runtime.node.operators import ShardOperator
from holdfast.runtime.node.warm import warm

STATE = StateConfig(page_bytes=4096, limit_bytes=1 << 24)


def make(shard: str = "u0", plan: Plan | None = None) -> ShardOperator:
    plan = plan or layered_plan()
    return ShardOperator(plan.topology.shard[shard], plan, STATE)


def wired(state: OperatorState | StateChunk) -> OperatorState | StateChunk:
    """As it arrives elsewhere."""
    if isinstance(state, StateChunk):
        return StateChunk(bytearray(state.raw))
    return OperatorState(StateCapture.from_bytes(state.capture.to_bytes()))


def delta(op: ShardOperator) -> OperatorState:
    """A delta that is one piece."""
    (piece,) = op.delta(1 << 30)
    assert isinstance(piece, OperatorState)
    return piece


def feed(op: ShardOperator, start: int, end: int, watermark: int) -> tuple:
    return op.step("s0>u0", ArrowRows([rows(start, end, 1000)]), watermark)


def test_an_operator_counts_the_work_of_steps_deltas_and_their_pastes_and_of_nothing_else():
    primary, backup, joining = make(), make(), make()
    before = time.thread_time_ns()
    feed(primary, 0, 20_000, to_core(50_000))
    stepped = primary.busy_ns
    assert 0 < stepped <= time.thread_time_ns() - before
    taken = wired(delta(primary))
    assert primary.busy_ns > stepped
    backup.paste(taken)
    assert backup.busy_ns > 0
    captured = primary.busy_ns
    chunk, _ = primary.chunk(START, 1 << 20)
    joining.paste(wired(chunk))
    assert (primary.busy_ns, joining.busy_ns) == (captured, 0)


def test_a_step_that_fails_was_work_too():
    op = make()
    with pytest.raises(InputError):
        op.step("s0>u0", ArrowRows([pa.record_batch({"nothing": [1]})]), to_core(50_000))
    assert op.busy_ns > 0


def test_an_image_brought_up_at_the_moment_of_a_delta_accepts_the_next_delta_too():
    primary, backup, joining = make(), make(), make()
    feed(primary, 0, 100, to_core(50_000))
    backup.paste(wired(delta(primary)))
    feed(primary, 100, 200, to_core(150_000))
    second = delta(primary)
    chunk, cursor = primary.chunk(START, 1 << 20)
    assert cursor == END
    backup.paste(wired(second))
    joining.paste(wired(chunk))
    feed(primary, 200, 300, to_core(250_000))
    following = wired(delta(primary))
    for image in (backup, joining):
        assert image.fits(following)
        image.paste(following)
        out = image.step("s0>u0", (), WATERMARK_MAX)[0].table()
        assert out.num_rows
    expected = primary.step("s0>u0", (), WATERMARK_MAX)[0].table()
    assert expected.num_rows


def test_images_close_the_same_windows_as_the_primary():
    primary, image = make(), make()
    feed(primary, 0, 250, to_core(120_000))
    image.paste(wired(delta(primary)))
    feed(primary, 250, 400, to_core(300_000))
    image.paste(wired(delta(primary)))
    image.restore()
    left = primary.step("s0>u0", (), WATERMARK_MAX)[0].table()
    assert image.step("s0>u0", (), WATERMARK_MAX)[0].table().equals(left)


def test_after_a_hand_over_the_old_primary_takes_captures_of_the_new_one():
    a, b = make(), make()
    feed(a, 0, 100, to_core(50_000))
    b.paste(wired(delta(a)))
    b.restore()
    feed(b, 100, 200, to_core(150_000))
    state = wired(delta(b))
    assert a.fits(state)
    a.paste(state)
    feed(b, 200, 260, to_core(200_000))
    a.paste(wired(delta(b)))
    left = b.step("s0>u0", (), WATERMARK_MAX)[0].table()
    assert a.step("s0>u0", (), WATERMARK_MAX)[0].table().equals(left)


def test_a_delta_that_was_skipped_does_not_fit():
    primary, image = make(), make()
    feed(primary, 0, 100, to_core(50_000))
    image.paste(wired(delta(primary)))
    delta(primary)
    assert not image.fits(wired(delta(primary)))
    assert image.fits(wired(primary.chunk(START, 1 << 20)[0]))


def test_a_large_delta_travels_in_slices_and_counts_with_the_last_one():
    primary, image = make(), make()
    feed(primary, 0, 2_000, to_core(0))
    pieces = primary.delta(4_096)
    assert len(pieces) > 2
    assert all(isinstance(piece, StateSlice) and len(piece) <= 4_096 for piece in pieces)
    assert image.fits(pieces[0])
    assert not image.fits(pieces[1])
    for piece in pieces[:-1]:
        image.paste(StateSlice.from_bytes(memoryview(piece.to_bytes())))
        assert image.fits(pieces[0])  # it still stands where it stood
    image.paste(pieces[-1])
    assert not image.fits(pieces[0])
    image.restore()
    left = primary.step("s0>u0", (), WATERMARK_MAX)[0].table()
    assert image.step("s0>u0", (), WATERMARK_MAX)[0].table().equals(left)


def test_a_slice_that_is_missing_stops_the_paste_and_a_new_first_one_begins_it_anew():
    primary, image = make(), make()
    feed(primary, 0, 2_000, to_core(0))
    pieces = primary.delta(4_096)
    image.paste(pieces[0])
    with pytest.raises(InputError, match="a slice of a delta is missing"):
        image.paste(pieces[2])
    for piece in pieces:
        image.paste(piece)
    assert image.fits(wired(delta(primary)))


def test_event_time_of_an_aggregates_output_is_the_last_moment_of_its_window():
    plan = layered_plan()
    below, top = make("u0", plan), make("v0", plan)
    out = below.step("s0>u0", ArrowRows([rows(0, 1000, 1000)]), WATERMARK_MAX)[0]
    (results,) = top.step("u0.0", out, WATERMARK_MAX)
    table = results.table()
    assert sum(table["n"].to_pylist()) == 1000
    assert table.schema.equals(pa.ipc.read_schema(pa.py_buffer(plan.operator("v0").output)))


def test_a_batch_with_another_schema_stops_its_shard_and_nothing_else():
    plan = layered_plan()
    spec = plan.topology.shard["u0"]
    copy = Copy(spec, plan.topology, make("u0", plan), Config(), based=True)
    copy.promote(0)
    inbox = copy.inboxes["s0>u0"]
    good = ArrowRows([rows(0, 50, 1000)])
    bad = ArrowRows([pa.record_batch({"ts": [1], "key": ["text"], "value": [1.5]})])
    inbox.sealed.append(batch_block(0, good, to_core(10_000), 0))
    inbox.sealed.append(batch_block(52, bad, to_core(20_000), 1))
    assert copy.step() is not None
    before = copy.positions()
    assert copy.step() is None
    assert "u0 cannot take [52, 55) of s0>u0, batch 1" in copy.why
    assert "schema has changed" in copy.why
    assert copy.condition is Condition.FAILED
    assert copy.positions() == before
    assert len(inbox.sealed) == 1
    assert not copy.op.torn
    assert copy.step() is None


def test_a_batch_that_is_skipped_is_kept_row_by_row_whatever_its_schema_and_its_watermark_counts():
    plan = layered_plan()
    copy = Copy(plan.topology.shard["u0"], plan.topology, make("u0", plan), Config(), based=True)
    copy.promote(0)
    bad = ArrowRows([pa.record_batch({"ts": [1, 2], "key": ["text", None], "value": [1.5, 2.5]})])
    copy.inboxes["s0>u0"].sealed.append(batch_block(0, bad, to_core(20_000), 0))
    assert copy.step() is None
    assert copy.blocked is not None
    copy.skips = {copy.blocked.key: copy.blocked}
    copy.change(Change.SKIPS)
    assert copy.step() is not None
    kept = [letter for block in copy.dead.blocks for letter in block.rows.table().to_pylist()]
    assert [json.loads(letter["row"]) for letter in kept] == [
        {"ts": 1, "key": "text", "value": 1.5},
        {"ts": 2, "key": None, "value": 2.5},
    ]
    assert {letter["what"] for letter in kept} == {"input row"}
    assert kept[0]["reason"].startswith("skipped by hand: ")
    assert "schema has changed" in kept[0]["reason"]
    assert (copy.watermark, copy.positions(), copy.why) == (to_core(20_000), {"s0>u0": 4}, "")


def batch_of(times: list[int], keys: list[int], values: list[int]) -> ArrowRows:
    given = [pa.array(times, pa.int64()).view(ROWS.field("ts").type), pa.array(keys), pa.array(values)]
    return ArrowRows([pa.record_batch(given, schema=ROWS)])


def letters(op: ShardOperator) -> list[tuple[str, dict]]:
    table = op.aside.table() if len(op.aside) else pa.table({"what": [], "row": []})
    return [(r["what"], json.loads(r["row"])) for r in table.to_pylist()]


def test_a_sum_that_does_not_fit_is_set_aside_with_its_reason_and_the_others_come_out():
    op = make()
    out = op.step("s0>u0", batch_of([0, 1, 2], [1, 1, 2], [2**62, 2**62, 7]), WATERMARK_MAX)[0].table()
    assert out["key"].to_pylist() == [2]
    assert [(what, row["key"], row["n"]) for what, row in letters(op)] == [("result", 1, 2)]
    assert "total does not fit bigint" in first_reason(op.aside)
    assert (op.torn, op.figures.rows_aside) == (False, 1)
    assert not len(op.step("s0>u0", (), WATERMARK_MAX)[0])
    assert op.aside == ()


def test_a_hidden_window_is_not_set_aside_either():
    op = make()
    op.hide(to_core(50_000))
    op.step("s0>u0", batch_of([0, 1], [1, 1], [2**62, 2**62]), WATERMARK_MAX)
    assert op.aside == ()


def test_rows_that_an_operator_refuses_are_set_aside_one_by_one_and_the_rest_is_taken():
    op, plain = make(), make()
    beyond = 2**63 - 10
    times, keys = list(range(100)), [i % 5 for i in range(100)]
    op.step("s0>u0", batch_of([beyond if i in (3, 77, 78) else t for i, t in enumerate(times)], keys, times), 0)
    assert [(what, row["value"]) for what, row in letters(op)] == [("input row", i) for i in (3, 77, 78)]
    assert "out of range" in first_reason(op.aside)
    assert not op.torn
    good = [i for i in times if i not in (3, 77, 78)]
    plain.step("s0>u0", batch_of(good, [keys[i] for i in good], good), 0)
    ours, theirs = (each.step("s0>u0", (), WATERMARK_MAX)[0].table() for each in (op, plain))
    assert ours.equals(theirs)


def test_a_batch_without_room_leaves_the_state_and_waits():
    plan = layered_plan()
    spec = plan.topology.shard["u0"]
    op = ShardOperator(spec, plan, StateConfig(page_bytes=4096, limit_bytes=24 * 4096))
    copy = Copy(spec, plan.topology, op, Config(), based=True)
    copy.promote(0)
    keys = list(range(5_000))
    copy.inboxes["s0>u0"].sealed.append(batch_block(0, batch_of([1] * 5_000, keys, keys), to_core(1), 0))
    assert copy.step() is None
    assert copy.condition is Condition.WAITING
    assert (op.torn, len(op.op.state)) == (False, 0)
    copy.change(Change.TRIES_AGAIN)
    assert copy.step() is None
    assert copy.condition is Condition.WAITING


def test_a_state_that_tore_is_hollow_as_an_image():
    plan = layered_plan()
    spec = plan.topology.shard["u0"]
    copy = Copy(spec, plan.topology, make("u0", plan), Config(), based=True)
    copy.promote(0)
    huge = pa.record_batch(
        [pa.array([0, 1], pa.int64()).view(ROWS.field("ts").type), pa.array([1, 1]), pa.array([2**62, 2**62])],
        schema=ROWS,
    )
    copy.op.op.overflow = "error"  # as an operator that fails when windows close
    copy.inboxes["s0>u0"].sealed.append(batch_block(0, ArrowRows([huge]), WATERMARK_MAX, 0))
    assert copy.step() is None
    assert copy.condition is Condition.TORN
    copy.demote()
    assert copy.condition is Condition.HOLLOW


def join_plan(shards: int = 2) -> Plan:
    left = pa.schema([("lt", pa.timestamp("us", tz="UTC")), ("a", pa.int64())])
    right = pa.schema([("rt", pa.timestamp("us", tz="UTC")), ("b", pa.int64()), ("x", pa.string())])
    inputs = (
        InputPlan(source="l", schema=left.serialize().to_pybytes(), by=("a",), event_time="lt"),
        InputPlan(source="r", schema=right.serialize().to_pybytes(), by=("b",), event_time="rt", side=1),
    )
    settings = {"on": [["a", "b"]], "how": "inner", "within": [0, 1_000_000]}
    kind = {"kind": "join", "shards": shards, "mode": "passive", "inputs": inputs, "settings": settings}
    schema = build(OperatorPlan(name="pairs", output=b"", **kind), STATE).output_schema
    feeds = (("sums", 0, 2, ("a",)),)
    operator = OperatorPlan(name="pairs", output=schema.serialize().to_pybytes(), feeds=feeds, **kind)
    shards = tuple(
        ShardSpec(
            id=shard_id("pairs", i),
            inputs=(f"l>pairs-{i}", f"r>pairs-{i}"),
            outputs=tuple(f"pairs-{i}.{p}" for p in range(3)),
        )
        for i in range(shards)
    )
    from holdfast.model.topology import StageSpec

    ids = tuple(u.id for u in shards)
    stages = tuple(StageSpec(id=s, shards=ids, query=s) for s in "lr")
    return Plan(
        pipeline="join", query="q", topology=Topology(shards=shards, stages=stages, readers=()), operators=(operator,),
        stages=(),
    )  # fmt: skip


def times(schema_type: pa.DataType, *values: int) -> pa.Array:
    return pa.array(values, pa.int64()).view(schema_type)


def test_a_join_emits_before_the_watermark_moves_and_promises_less():
    plan = join_plan()
    time_type = pa.timestamp("us", tz="UTC")
    spec = plan.topology.shard["pairs-0"]
    copy = Copy(spec, plan.topology, ShardOperator(spec, plan, STATE), Config(), based=True)
    copy.promote(0)
    left = pa.record_batch([times(time_type, 10, 20), pa.array([1, 2])], names=["lt", "a"])
    right = pa.record_batch([times(time_type, 15, 25), pa.array([1, 2]), pa.array(["p", "q"])], names=["rt", "b", "x"])
    mark = to_core(5)
    copy.inboxes["l>pairs-0"].sealed.append(batch_block(0, ArrowRows([left]), mark, 0))
    copy.inboxes["r>pairs-0"].sealed.append(batch_block(0, ArrowRows([right]), mark, 0))
    copy.inboxes["l>pairs-0"].sealed.append(batch_block(4, (), mark + 1, 1))
    copy.inboxes["r>pairs-0"].sealed.append(batch_block(4, ArrowRows([right]), mark, 1))
    made = []
    while (blocks := copy.step()) is not None:
        made += blocks
    everything = [block for queue, block in made if queue.edge == "pairs-0.0" and len(block.rows)]
    assert sum(len(b.rows) for b in everything) == 4
    assert all(b.watermark < mark for b in everything)
    cut_rows = [block for queue, block in made if queue.edge != "pairs-0.0" and len(block.rows)]
    assert sum(len(b.rows) for b in cut_rows) == 4
    positions = {queue.edge: queue.next for queue in copy.outputs}
    assert positions["pairs-0.1"] >= 1


def test_kernels_of_a_plan_are_warmed_with_its_own_operators():
    assert warm(layered_plan()) == 5
    assert warm(join_plan()) == 1


def test_rows_without_a_window_end_cannot_have_a_window_time():
    top = make("v0")
    with pytest.raises(InputError, match="no event time"):
        top.step("u0.0", ArrowRows([pa.record_batch({"key": [1]})]), to_core(1))
