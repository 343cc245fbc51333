"""Find the cheapest setting of one strategy: RR_F, C_T and N_F under a bound on RR_F (paper §7.1, §7.5).

For given copies and interval RR_F is the root of the downtime function. Over the interval both RR_F and Cost_F have
one valley, so golden-section search suffices; with a bound on RR_F the cheapest interval lies at the edge of the
feasible stretch, which bisection finds from the interval that is down the least. All searches have fixed bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .models import Model, StrategyPlan
from .numerics import a_of, boundary, largest_a, minimise, rr_of
from .scenario import COPIES_MAX, Params

DECADES = 4.0  # how far to either side of sqrt(2·S_T·F_T) an interval may lie, in powers of ten


@dataclass(frozen=True)
class Choice:
    """A plan that meets the SLA, and what it costs."""

    plan: StrategyPlan
    rr: float
    cost: float
    floor: float  #: the part of RR_F that is not due to uptime


def settle(model: Model, params: Params, copies: int, interval: float) -> Choice | None:
    """The least RR_F for fixed copies and interval; None when no RR_F is enough."""
    floor = model.floor(params, copies, interval)
    if not math.isfinite(floor):
        return None
    ceiling = a_of(floor) if floor > 1.0 else None
    if ceiling is not None and model.downtime(params, StrategyPlan(ceiling, copies, interval)) <= params.down:
        a = ceiling
    else:
        root = _root(model, params, copies, interval, ceiling)
        if root is None:
            return None
        a = root
    plan = StrategyPlan(a, copies, interval)
    return Choice(plan, max(rr_of(a), floor), model.cost(params, plan), floor)


def _root(model: Model, params: Params, copies: int, interval: float, ceiling: float | None) -> float | None:
    """The largest a within budget, at most `ceiling`; a rough stand-in, where there is one, finds the neighbourhood."""
    search = model.rough or model.downtime
    most = math.inf if ceiling is None else ceiling
    root = largest_a(lambda a: search(params, StrategyPlan(min(a, most), copies, interval)), params.down)
    root = None if root is None else min(root, most)
    if model.rough is None or root is None:
        return root
    return _polish(lambda a: model.downtime(params, StrategyPlan(a, copies, interval)), params.down, root)


def _polish(downtime: Callable[[float], float], budget: float, near: float) -> float:
    """Secant steps on ln(downtime) over ln(a) from a point that is already close; never worse than where it began."""
    z, slope = math.log(near), 1.0
    gap = math.log(max(downtime(near), 1e-300) / budget)
    best_gap, best_z = abs(gap), z
    for _ in range(6):
        if best_gap < 2e-4:
            break
        step = max(-0.5, min(0.5, -gap / slope))
        previous, z = gap, z + step
        gap = math.log(max(downtime(math.exp(z)), 1e-300) / budget)
        if abs(gap) < best_gap:
            best_gap, best_z = abs(gap), z
        slope = min(20.0, max(0.2, (gap - previous) / step))
    return math.exp(best_z)


def _typical_interval(params: Params) -> float:
    return math.sqrt(2.0 * params.transfer) if params.transfer else 1.0


def _meets(model: Model, params: Params, copies: int, interval: float, rr_max: float) -> float:
    """Downtime over budget at RR_F = rr_max; infinite when the floor alone is above it."""
    if model.floor(params, copies, interval) > rr_max:
        return math.inf
    search = model.rough or model.downtime
    return search(params, StrategyPlan(a_of(rr_max), copies, interval)) / params.down


def _cheapest_interval(model: Model, params: Params, copies: int, steps: int = 22) -> float:
    if model.cheapest_interval is not None:
        return model.cheapest_interval(params, copies)
    middle, reach = math.log(_typical_interval(params)), DECADES * math.log(10.0)

    def cost(log_interval: float) -> float:
        choice = settle(model, params, copies, math.exp(log_interval))
        return math.inf if choice is None else choice.cost

    return math.exp(minimise(cost, middle - reach, middle + reach, steps))


def best_for_copies(
    model: Model, params: Params, copies: int, interval: float | None = None, rr_max: float | None = None
) -> Choice | None:
    """The cheapest choice with this many copies; None when the SLA or the bound cannot be met."""
    if interval is not None or not model.has_interval:
        choice = settle(model, params, copies, interval if interval is not None else 1.0)
        return choice if choice is None or rr_max is None or choice.rr <= rr_max * (1.0 + 1e-9) else None
    cheapest = _cheapest_interval(model, params, copies)
    if rr_max is None:
        return settle(model, params, copies, cheapest)
    return _within_bound(model, params, copies, cheapest, rr_max)


def _within_bound(model: Model, params: Params, copies: int, cheapest: float, rr_max: float) -> Choice | None:
    """The interval nearest to the cheapest one with which RR_F is still within its bound."""

    def over(log_interval: float) -> float:
        return _meets(model, params, copies, math.exp(log_interval), rr_max)

    def fits(log_interval: float) -> bool:
        interval = math.exp(log_interval)
        if model.floor(params, copies, interval) > rr_max:
            return False
        return model.downtime(params, StrategyPlan(a_of(rr_max), copies, interval)) <= params.down

    edge = least = math.log(cheapest)
    if over(edge) > 1.0:
        middle, reach = math.log(_typical_interval(params)), DECADES * math.log(10.0)
        least = minimise(over, middle - reach, middle + reach, steps=15)  # to 2%, and the valley is flat
        if over(least) > 1.1:
            return None
        edge = boundary(lambda z: over(z) <= 1.0, least, edge, steps=12)
    previous = edge
    for part in (0.0, 0.1, 0.3, 0.6, 1.0):  # the search may have been rough: step back until the answer holds
        at = edge + part * (least - edge)
        if fits(at):
            at = boundary(fits, at, previous, steps=3)
            chosen = settle(model, params, copies, math.exp(at))
            if chosen is not None and chosen.rr > rr_max:  # by the tolerance of the root
                plan = StrategyPlan(a_of(rr_max), copies, math.exp(at))
                return Choice(plan, rr_max, model.cost(params, plan), chosen.floor)
            return chosen
        previous = at
    return None


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
        if rr_max is None and interval is None and model.multi and model.has_interval and not model.cheapest_interval:
            return _best_of_many(model, params, candidates)
    found: Choice | None = None
    for n in candidates:
        if found is not None and _least_cost(model, params, n, interval) >= found.cost:
            continue  # so many copies cannot be cheaper, whatever their RR_F
        choice = best_for_copies(model, params, n, interval, rr_max)
        if choice is not None and (found is None or choice.cost < found.cost):
            found = choice
    return found


def _best_of_many(model: Model, params: Params, candidates: range) -> Choice | None:
    """Compare all numbers of copies at a coarse optimum (2%, the valley is flat), then refine the best one."""
    coarse = {n: settle(model, params, n, _cheapest_interval(model, params, n, steps=14)) for n in candidates}
    costs = {n: choice.cost for n, choice in coarse.items() if choice is not None}
    if not costs:
        return None
    return best_for_copies(model, params, min(costs, key=lambda n: costs[n]))


def _least_cost(model: Model, params: Params, copies: int, interval: float | None) -> float:
    """A bound below the cost with this many copies, where one is known without solving for RR_F."""
    if not model.has_interval:
        return model.cost(params, StrategyPlan(a_of(1.0), copies, 1.0))
    if model.cheapest_interval is None:
        return 1.0
    return model.cost(params, StrategyPlan(1.0, copies, interval or model.cheapest_interval(params, copies)))


def least_cost(model: Model, params: Params) -> float:
    """A bound below the cost of a strategy, whatever its setting; 0 when its needs are not met."""
    if (model.needs_window and params.window is None) or (model.needs_checkpoint and params.transfer is None):
        return 0.0
    return _least_cost(model, params, model.copies_min, None)
