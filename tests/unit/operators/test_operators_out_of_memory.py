"""The memory limit while a checkpoint is being written: what an operator gives up, and what it takes later."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.batches import SECOND, batch, copy_into, finish, rows
from support.small_operators import SLIDING, TUMBLING, WORDS, aggregate, join

from holdfast.errors import MemoryLimitError
from holdfast.operators import (
    FOREVER,
    LEFT,
    NEVER,
    RIGHT,
    Agg,
    CountWindow,
    CountWindowAggregate,
    StateConfig,
    Window,
)


def fill(give, sizes=(30, 1)):
    """Give batches of these sizes until memory runs out: give(number, size)."""
    number = 0
    for size in sizes:
        with suppress(MemoryLimitError):
            while number < 10_000:
                give(number, size)
                number += 1
    assert 0 < number < 10_000


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, Window(10 * SECOND, 3 * SECOND)], ids=str)
@pytest.mark.parametrize("watermark", [13 * SECOND, 15 * SECOND, FOREVER])
def test_a_close_that_runs_out_of_memory_under_a_checkpoint_loses_nothing_and_works_later(window, watermark):
    """Dropping windows clones what the checkpoint still reads: at the limit there is nothing to clone into."""
    aggs = {"most": Agg("max", "s"), "n": Agg("count")}
    op = aggregate(WORDS, window=window, config=StateConfig(page_bytes=4096, limit_bytes=48 * 4096), **aggs)

    def give(number, size):
        times = [(number + j) % 20 * SECOND for j in range(size)]
        op.process(batch(WORDS, times, [f"key {number} {j}" for j in range(size)], ["v" * 20] * size))

    fill(give)
    large = copy_into(op, aggregate(WORDS, window=window, config=StateConfig(page_bytes=4096), **aggs))
    wanted = rows(large.on_watermark(watermark))
    rest = finish(large)
    held, _ = op.snapshot()
    with pytest.raises(MemoryLimitError):
        op.on_watermark(watermark)
    assert op.watermark == NEVER
    held.close()
    assert rows(op.on_watermark(watermark)) == wanted
    assert finish(op) == rest


@pytest.mark.parametrize("window", [TUMBLING, SLIDING], ids=str)
def test_results_come_in_batches_of_a_bounded_size_and_in_one_order_over_all_of_them(window, monkeypatch):
    """So that a large window takes little memory beside its results, and each batch fits a message of Flight."""

    def closed():
        op = aggregate(WORDS, window=window, most=Agg("max", "s"), n=Agg("count"))
        for number in range(5):
            times = [(number + j) % 20 * SECOND for j in range(50)]
            op.process(batch(WORDS, times, [f"key {(7 * j) % 50}" for j in range(50)], [f"{number} {'v' * 20}"] * 50))
        return op.on_watermark(FOREVER)

    whole = closed()
    monkeypatch.setattr("holdfast.operators.aggregate.CLOSE_ROWS", 7)
    some = closed()
    assert max(b.num_rows for b in some.to_batches()) == 7
    assert rows(some) == rows(whole)


@pytest.mark.parametrize("how", ["inner", "left_outer"])
def test_a_join_that_runs_out_of_memory_while_it_expires_loses_nothing_and_works_later(how):
    op = join(how=how, config=StateConfig(page_bytes=4096, limit_bytes=60 * 4096))

    def give(number, size):
        times = [(number * 7 + j) % 200 for j in range(size)]
        which = number % 2
        op.process(which, batch(op.sides[which].schema, times, [number * 30 + j for j in range(size)], times))

    fill(give)
    large = copy_into(op, join(how=how, config=StateConfig(page_bytes=4096)))
    assert large.on_watermark(LEFT, 90).num_rows == 0
    wanted = rows(large.on_watermark(RIGHT, 90))
    rest = finish(large)
    held, _ = op.snapshot()
    op.on_watermark(LEFT, 90)
    with pytest.raises(MemoryLimitError):
        op.on_watermark(RIGHT, 90)
    assert op.watermark == NEVER
    held.close()
    assert rows(op.on_watermark(RIGHT, 90)) == wanted
    assert finish(op) == rest


def test_count_windows_that_run_out_of_memory_under_a_checkpoint_take_the_batch_later():
    def make(config=None):
        aggs = {"most": Agg("max", "s"), "n": Agg("count")}
        return CountWindowAggregate("c", WORDS, window=CountWindow(4, 2), by=["k"], aggs=aggs, config=config)

    op = make(StateConfig(page_bytes=4096, limit_bytes=48 * 4096))

    def some(number, size):
        return batch(WORDS, [0] * size, [f"key {number} {j % 10}" for j in range(size)], [f"{number}" * 20] * size)

    fill(lambda number, size: op.process(some(number, size)))
    large = copy_into(op, make(StateConfig(page_bytes=4096)))
    last = some(0, 30)  # completes windows, so panes go
    wanted = rows(large.process(last))
    assert wanted
    held, _ = op.snapshot()
    for _ in range(2):
        with pytest.raises(MemoryLimitError):
            op.process(last)
    held.close()
    small = copy_into(op, make(StateConfig(page_bytes=4096)))
    assert rows(small.process(last)) == wanted
    again = some(1, 30)
    assert rows(small.process(again)) == rows(large.process(again))
