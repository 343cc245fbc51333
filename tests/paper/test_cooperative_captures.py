"""cooperative-ha §7: what a delta checkpoint carries, how it is bounded, and what it costs."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from support.batches import SECOND, TIME, batch, copy_into, finish

from holdfast.operators import LEFT, RIGHT, Agg, Join, StateConfig, Window, WindowAggregate, Within
from holdfast.operators.costs import LinearCost

EVENTS = pa.schema([("ts", TIME), ("src", pa.string()), ("bytes", pa.int64())])
WINDOW = Window(10 * SECOND, SECOND)  # §8.1: every second, over a window of 10 seconds


def counter(config: StateConfig | None = None) -> WindowAggregate:
    aggs = {"packets": Agg("count"), "bytes": Agg("sum", "bytes"), "largest": Agg("max", "src")}
    return WindowAggregate("w", EVENTS, event_time="ts", window=WINDOW, by=["src"], aggs=aggs, config=config)


def events(times: list[int], sources: list[str]) -> pa.RecordBatch:
    return batch(EVENTS, times, sources, [40] * len(times))


# -- §7.1 aggregate -------------------------------------------------------------------------------------------------


def test_a_capture_takes_new_windows_in_full_and_of_updated_ones_the_summary():
    """§7.1: "(1) the entire content of each window with its dirty bit on and (2) only the summary of each window with
    its dirty bit off"."""
    op = counter()
    op.process(events([0] * 100, [f"10.0.0.{i}" for i in range(100)]))
    assert op.changes() == (100, 0)
    full = op.capture()
    assert (full.n_new, full.n_updated) == (100, 0)
    op.process(events([0] * 30 + [SECOND] * 5, [f"10.0.0.{i}" for i in range(30)] + ["new"] * 5))
    assert op.changes() == (1, 30)
    delta = op.capture()
    assert (delta.n_new, delta.n_updated) == (1, 30)
    (part,) = delta.parts
    key_words = 1 + len(op.state.kinds)
    assert len(part.new_words) == 8 * (key_words + op.program.words)
    assert len(part.updated_words) == 30 * 8 * op.program.words, "a summary carries no key"
    (first,) = full.parts
    assert part.nbytes - len(part.new_words) < 31 / 100 * first.nbytes


def test_what_a_capture_has_taken_is_clean_and_what_nobody_touched_is_not_taken():
    """§7.1: dirty bits are cleared at the end of the capture."""
    op = counter()
    op.process(events([0] * 100, [f"{i}" for i in range(100)]))
    op.capture()
    assert op.changes() == (0, 0)
    assert op.capture().nbytes == 0


def test_windows_that_have_closed_travel_as_one_bound():
    op, image = counter(), counter()
    op.process(events(list(range(0, 20 * SECOND, SECOND)), ["a"] * 20))
    image.paste(op.capture())
    op.on_watermark(25 * SECOND)
    delta = op.capture()
    assert (delta.n_new, delta.n_updated, delta.nbytes) == (0, 0, 0)
    assert delta.parts[0].drop_below == 16  # the first pane that a window which is still open needs
    image.paste(delta)
    assert len(image.state) == len(op.state) == 4


def test_a_full_paste_makes_a_window_and_a_partial_one_overwrites_it():
    op, image = counter(), counter()
    for turn in range(5):
        op.process(events([turn * SECOND] * 10, [f"{i % (turn + 3)}" for i in range(10)]))
        image.paste(op.capture())
        assert finish(copy_into(image, counter())) == finish(copy_into(op, counter()))


@pytest.mark.parametrize("groups", [20, 200])
def test_captures_grow_with_their_interval_and_level_off_at_the_window(groups):
    """§8.2, figure 7: "all curves tend to plateau after a 10 second checkpoint interval mainly because the operator can
    contain at most a 10-second worth of tuples"."""
    sizes = {interval: _capture_bytes(interval, groups) for interval in (1, 2, 5, 10, 20, 40)}
    assert sizes[1] < sizes[2] < sizes[5] < sizes[10]
    assert sizes[40] <= 1.02 * sizes[20] <= 1.3 * sizes[10]
    assert sizes[40] < 4 * sizes[5], "40 times the input is not 40 times the capture"


def _capture_bytes(interval: int, groups: int) -> int:
    """Bytes of a capture taken `interval` seconds after the one before, in steady operation."""
    op = counter()
    sources = [f"source {i}" for i in range(groups)]
    for second in range(60):
        op.process(events([second * SECOND + i for i in range(groups)], sources))
        op.on_watermark(second * SECOND)
        if second == 59 - interval:
            op.capture()
    return op.capture().nbytes


# -- §7.2 join ------------------------------------------------------------------------------------------------------


def pairing(how: str = "inner") -> Join:
    left = pa.schema([("a", TIME), ("x", pa.string()), ("u", pa.int64())])
    right = pa.schema([("b", TIME), ("y", pa.string()), ("v", pa.int64())])
    return Join("j", left, right, times=("a", "b"), on=[("x", "y")], window=Within(0, 10 * SECOND), how=how)


def tuples(op: Join, which: int, times: list[int]) -> pa.RecordBatch:
    return batch(op.sides[which].schema, times, [f"key {t % 7}" for t in times], times)


def test_a_join_captures_the_tuples_that_are_new_and_the_bound_of_those_that_left():
    """§7.2: "each checkpoint captures those tuples. It also captures the upper bound of the tuples that have left the
    window"."""
    op, image = pairing(), pairing()
    for which, n in ((LEFT, 50), (RIGHT, 30)):
        op.process(which, tuples(op, which, list(range(n))))
    image.paste(op.capture())
    op.process(LEFT, tuples(op, LEFT, [20 * SECOND + i for i in range(4)]))
    op.process(RIGHT, tuples(op, RIGHT, [20 * SECOND + i for i in range(3)]))
    for which in (LEFT, RIGHT):
        op.on_watermark(which, 20 * SECOND)
    assert op.changes() == (4, 3)
    delta = op.capture()
    assert [(p.n_new, p.n_updated) for p in delta.parts] == [(4, 0), (3, 0)]
    assert [p.drop_below for p in delta.parts] == [1, 2]
    image.paste(delta)
    assert len(image) == len(op) == 7


@pytest.mark.parametrize("rates", [(5, 3), (1, 9)])
def test_tuples_in_a_joins_capture_are_the_rates_times_the_interval_or_the_window(rates):
    """§7.2: (λ1 + λ2) · min(t − α, w), up to a bucket, which is as long as the window here."""
    per_second = sum(rates)
    for interval in (1, 3, 7, 10, 15, 30):
        op = pairing()
        for second in range(70):
            for which in (LEFT, RIGHT):
                n = rates[which]
                op.process(which, tuples(op, which, [second * SECOND + i * SECOND // n for i in range(n)]))
                op.on_watermark(which, second * SECOND)
            if second == 69 - interval:
                op.capture()
        taken = op.capture()
        assert taken.n_new >= per_second * min(interval, 1)
        assert taken.n_new <= per_second * min(interval, 20 + 1)
        if interval <= 10:
            assert taken.n_new == per_second * interval - _expired(rates, interval)


def _expired(rates: tuple[int, int], interval: int) -> int:
    """Right tuples leave with their bucket once the watermark has passed it: they wait for no left tuple."""
    last = 69
    bound = last // 10 * 10  # seconds below this are gone on the right: after_us is 0
    return rates[RIGHT] * max(0, bound - (last - interval + 1))


# -- cost model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_the_cost_model_finds_the_papers_coefficients_in_noisy_observations(noise):
    """§7.1 and §8.2: C_n · c_f + C_u · c_p, with c_f = 18.6 µs and c_p = 7.3 µs by regression over past captures."""
    rng = random.Random(11)
    model = LinearCost("new", "updated")
    for _ in range(400):
        new, updated = rng.randrange(2000), rng.randrange(5000)
        seconds = (50 + 18.6 * new + 7.3 * updated) * 1e-6
        model.observe(seconds * (1 + rng.uniform(-noise, noise)), new, updated)
    found = model.coefficients
    slack = 1e-6 + noise / 2
    assert found["new"] == pytest.approx(18.6e-6, rel=slack)
    assert found["updated"] == pytest.approx(7.3e-6, rel=slack)
    assert model.estimate(1000, 1000) == pytest.approx(25.95e-3, rel=0.01 + slack)


def test_the_cost_model_follows_a_machine_that_gets_slower():
    rng = random.Random(5)
    model = LinearCost("left", "right")
    for factor in (1.0, 3.0):
        for _ in range(600):
            a, b = rng.randrange(1000), rng.randrange(1000)
            model.observe(factor * (2e-6 * a + 5e-6 * b + 1e-5), a, b)
    assert model.coefficients["left"] == pytest.approx(6e-6, rel=0.1)
    assert model.coefficients["right"] == pytest.approx(15e-6, rel=0.1)


def test_costs_are_never_negative_and_nothing_observed_costs_nothing():
    model = LinearCost("new", "updated")
    assert model.estimate(10, 10) == 0.0
    rng = np.random.default_rng(3)
    for _ in range(50):  # the second feature does nothing: noise would make its cost negative half of the time
        new, updated = rng.integers(1, 100, 2)
        model.observe(1e-6 * new * rng.uniform(0.5, 1.5), new, updated)
    assert min(model.coefficients.values()) >= 0.0
    assert model.estimate(0, 10**6) >= 0.0


def test_an_operator_with_a_clock_learns_what_its_captures_and_pastes_cost():
    """The clock advances by what the model is to find: 30 µs for a new window, 7 for an updated one."""
    ticking = {"now": 0, "step": 0}

    def clock() -> int:
        ticking["now"] += ticking["step"]
        return ticking["now"]

    config = StateConfig(clock=clock)
    op, image = counter(config), counter(config)
    rng = random.Random(2)
    for turn in range(60):
        count = rng.randrange(1, 200)
        op.process(events([turn * SECOND] * count, [f"{rng.randrange(150)}" for _ in range(count)]))
        if rng.random() < 0.5:
            op.process(events([max(0, turn - 1) * SECOND] * 50, [f"{rng.randrange(150)}" for _ in range(50)]))
        new, updated = op.changes()
        ticking["step"] = 1000 * (30 * new + 7 * updated + 1)
        image.paste(op.capture())
    for cost in (op.capture_cost, image.paste_cost):
        assert cost.observations == 60
        assert cost.coefficients["new"] == pytest.approx(30e-6, rel=0.02)
        assert cost.coefficients["updated"] == pytest.approx(7e-6, rel=0.05)
    op.process(events([100 * SECOND] * 10, [f"{i}" for i in range(10)]))
    assert op.estimate_capture() == pytest.approx(301e-6, rel=0.05)
