"""Find the cheapest setting of one strategy: RR_F, C_T and N_F under a bound on RR_F (paper §7.1, §7.5).

For given copies and interval RR_F is the root of the downtime function. Over the interval both RR_F and Cost_F have
one valley, so golden-section search suffices; with a bound on RR_F the cheapest interval lies at the edge of the
feasible stretch, which bisection finds from the interval that is down the least. All searches have fixed bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .models import Model, Plan
from .numerics import a_of, boundary, largest_a, minimise, rr_of
from .scenario import COPIES_MAX, Params

DECADES = 6.0  # how far to either side of sqrt(2·S_T·F_T) an interval may lie, in powers of ten


@dataclass(frozen=True)
class Choice:
    """A plan that meets the SLA, and what it costs."""

    plan: Plan
    rr: float
    cost: float
    floor: float  #: the part of RR_F that is not due to uptime


def settle(model: Model, params: Params, copies: int, interval: float) -> Choice | None:
    """The least RR_F for fixed copies and interval; None when no RR_F is enough."""
    floor = model.floor(params, copies, interval)
    if not math.isfinite(floor):
        return None
    ceiling = a_of(floor) if floor > 1.0 else None
    if ceiling is not None and model.downtime(params, Plan(ceiling, copies, interval)) <= params.down:
        a = ceiling
    else:
        root = largest_a(lambda a: model.downtime(params, Plan(a, copies, interval)), params.down)
        if root is None:
            return None
        a = root
    plan = Plan(a, copies, interval)
    return Choice(plan, max(rr_of(a), floor), model.cost(params, plan), floor)


def _typical_interval(params: Params) -> float:
    return math.sqrt(2.0 * params.transfer) if params.transfer else 1.0


def _meets(model: Model, params: Params, copies: int, interval: float, rr_max: float) -> float:
    """Downtime over budget at RR_F = rr_max; infinite when the floor alone is above it."""
    if model.floor(params, copies, interval) > rr_max:
        return math.inf
    return model.downtime(params, Plan(a_of(rr_max), copies, interval)) / params.down


def _cheapest_interval(model: Model, params: Params, copies: int) -> float:
    if model.cheapest_interval is not None:
        return model.cheapest_interval(params, copies)
    middle, reach = math.log(_typical_interval(params)), DECADES * math.log(10.0)

    def cost(log_interval: float) -> float:
        choice = settle(model, params, copies, math.exp(log_interval))
        return math.inf if choice is None else choice.cost

    return math.exp(minimise(cost, middle - reach, middle + reach))


def best_for_copies(
    model: Model, params: Params, copies: int, interval: float | None = None, rr_max: float | None = None
) -> Choice | None:
    """The cheapest choice with this many copies; None when the SLA or the bound cannot be met."""
    if interval is not None or not model.has_interval:
        choice = settle(model, params, copies, interval if interval is not None else 1.0)
        return choice if choice is None or rr_max is None or choice.rr <= rr_max * (1.0 + 1e-9) else None
    cheapest = _cheapest_interval(model, params, copies)
    choice = settle(model, params, copies, cheapest)
    if rr_max is None or (choice is not None and choice.rr <= rr_max):
        return choice
    middle, reach = math.log(_typical_interval(params)), DECADES * math.log(10.0)
    least = minimise(lambda z: _meets(model, params, copies, math.exp(z), rr_max), middle - reach, middle + reach, 40)
    if _meets(model, params, copies, math.exp(least), rr_max) > 1.0:
        return None
    edge = boundary(
        lambda z: _meets(model, params, copies, math.exp(z), rr_max) <= 1.0, least, math.log(cheapest)
    )  # fmt: skip
    chosen = settle(model, params, copies, math.exp(edge))
    return chosen if chosen is not None and chosen.rr <= rr_max * (1.0 + 1e-6) else None


def best(
    model: Model,
    params: Params,
    copies: int | None = None,
    interval: float | None = None,
    rr_max: float | None = None,
) -> Choice | None:
    """The cheapest choice over all copies allowed."""
    if copies is not None and model.multi:
        candidates = range(copies, copies + 1)
    else:
        candidates = range(model.copies_min, min(model.copies_max, COPIES_MAX) + 1)
    found = [best_for_copies(model, params, n, interval, rr_max) for n in candidates]
    return min((choice for choice in found if choice is not None), key=lambda choice: choice.cost, default=None)
