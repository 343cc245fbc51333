"""What a running pipeline measures of itself, in the prescriber's terms: `prescribe --from RUN` and `run --sla`.

Per operator: the window (from the plan), the input rate (from what its shards have counted between two looks), how much
of its state is rewritten, and the size of its state now; and for all of them the mean time between failures, from the
event log. With few failures seen the log says little, so one failure at the prior's mean time is counted in: the
estimate starts at the prior and moves to what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.ids import operator_of
from holdfast.model.plan import OperatorPlan, Plan

#: A node that has no history is taken to fail this rarely.
PRIOR_MTBF_S = 30 * 86_400.0


class Sample(msgspec.Struct, frozen=True):
    """Counters of one operator at one moment, over its primaries."""

    at: float
    bytes_in: int
    rows_in: int
    captured_bytes: int
    state_bytes: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the prescriber needs to know of one operator. Times in seconds, sizes in bytes."""

    operator: str
    window: float | None
    input_rate: float
    rows_rate: float
    checkpoint_size: float
    churn: float
    mtbf: float

    def parameters(self) -> dict[str, float]:
        """As `holdfast prescribe` takes them."""
        found = {
            "input_rate": self.input_rate,
            "checkpoint_size": self.checkpoint_size,
            "churn": self.churn,
            "mtbf": self.mtbf,
        }
        return found if self.window is None else {**found, "window": self.window}


def take_samples(answers: Iterable[dict[str, Any]], now: float) -> dict[str, Sample]:
    """Sum what every node says of the shards that run on it."""
    found: dict[str, list[int]] = {}
    for answer in answers:
        for shard, told in answer.get("shards", {}).items():
            if told["role"] not in ("primary", "yielding"):
                continue
            sums = found.setdefault(operator_of(shard), [0, 0, 0, 0])
            for i, name in enumerate(("bytes_in", "rows_in", "captured_bytes", "state_bytes")):
                sums[i] += told.get(name, 0)
    return {operator: Sample(now, *sums) for operator, sums in found.items()}


def window_s(operator: OperatorPlan) -> float | None:
    """How much input its state remembers; None if that is not a time (windows of rows)."""
    settings = operator.settings
    if operator.kind == "aggregate":
        return settings["size_us"] / 1e6
    if operator.kind == "join":
        within = settings.get("within")
        return max(1, settings["same_window"] if not within else max(map(abs, within))) / 1e6
    return None


def compare(plan: Plan, before: dict[str, Sample], after: dict[str, Sample], mtbf: float) -> list[Measured]:
    """What happened between two looks. An operator that took in nothing, or moved meanwhile, is left out."""
    found = []
    for operator in plan.operators:
        first, last = before.get(operator.name), after.get(operator.name)
        if first is None or last is None or last.at <= first.at or last.bytes_in <= first.bytes_in:
            continue
        seconds, taken = last.at - first.at, last.bytes_in - first.bytes_in
        found.append(
            Measured(
                operator=operator.name,
                window=window_s(operator),
                input_rate=taken / seconds,
                rows_rate=(last.rows_in - first.rows_in) / seconds,
                checkpoint_size=float(max(1, last.state_bytes)),
                # over all it has run: captures may be further apart than two looks
                churn=max(0.01, last.captured_bytes / last.bytes_in),
                mtbf=mtbf,
            )
        )
    return found


def mtbf_s(events: list[dict[str, Any]], nodes: int, observed_s: float, prior_s: float = PRIOR_MTBF_S) -> float:
    """Mean time between failures of one node: (prior + node time seen) / (1 + failures seen)."""
    return (prior_s + nodes * max(0.0, observed_s)) / (1 + failures(events))


def failures(events: list[dict[str, Any]]) -> int:
    """Lives of nodes that ended without being told to: every one that started under a name that had started before."""
    lives: dict[str, int] = {}
    for event in events:
        if event.get("event") == "started":
            lives[event["node"]] = lives.get(event["node"], 0) + 1
    return sum(count - 1 for count in lives.values())


def look(plan: Plan, ask: Callable[[], dict[str, Any]], mtbf: float, seconds: float = 3.0) -> list[Measured]:
    """Look twice, `seconds` apart."""
    before = take_samples(ask().values(), time.monotonic())
    time.sleep(seconds)
    found = compare(plan, before, take_samples(ask().values(), time.monotonic()), mtbf)
    if not found:
        raise HoldfastError(
            "nothing can be measured",
            detail=f"No operator of {plan.pipeline} took in rows during {seconds:g} s.",
            hint="Measure while rows flow.",
        )
    return found
