"""Active-active periodic checkpoints: N_F copies, one of them reserved for checkpoints (paper §2.2, §4).

Published is §4 as printed: k = N_F - 2 other nodes must fail during a recovery of
U·(S_T + 2·U·S_T/(1-U)) + a·p with p uniform in 0..C_T; B1 + B2 is the same as ∫ G(t)·P(recovery > t) dt, which is
how it is computed here (substitute and integrate by parts; `tests/unit/prescriber` checks it against the printed
integrals). `others` lets the figures be drawn with k = N_F - 1, which is what figure 20 was drawn with.

Exact. What the printed model leaves out, and this one does not:
- the checkpointer's failures are not outages by themselves: the query is down when all N_F - 1 output copies are;
- it has a reservation of its own, Q, not RR_F, so a checkpoint is complete S_T/Q after its point of the input, not
  U·S_T; Q covers the largest checkpoint (1 + S_T·(1+spread)/C_T), since with the average it would fall behind for
  good after any large one; Q is also the least RR_F the checkpointer's node must offer;
- copies that fail near each other restore the same checkpoint, so their recoveries are long or short together;
- any copy may fail again while it recovers, and the checkpointer too: then checkpoints come late for everybody.

Method. Fix a moment. A copy whose last failure was at age A (exponential) is down when the checkpoint complete at
that time does not let it be level by now; given the history of completions, copies are independent, so the share of
time down is E[d^(N-1)] over that history, with d in closed form. The history depends only on the phase of the
moment, the ages of the checkpointer's last few failures and the sizes, over which we integrate with a fixed
low-discrepancy set: deterministic, the same answer every time, right to about 0.5%.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numba import njit

from holdfast.prescriber.numerics import all_fail_within, integrate
from holdfast.prescriber.scenario import Params

from .base import MULTI, Model, StrategyPlan, base_cost
from .periodic import transfer_of

POINTS, POINTS_ROUGH = 32768, 256
POINTS_LEAST, WORK = 8192, 2_000_000  # fewer points when each takes long: at most so many steps in all
QUIET = 512  # points for the stratum without failures of the checkpointer
FAILURES = 24  # how many of the checkpointer's last failures are followed
HORIZON, CYCLES_MAX = 10.0, 160  # how far back, in longest recoveries and in checkpoint intervals
SIZES = POINTS

# --- published ---------------------------------------------------------------------------------------------------


def recovery_spent(params: Params, plan: StrategyPlan, others: int) -> float:
    """B1 + B2 of §4.1: expected downtime charged to one failure, in units of F_T."""
    size, u, a = transfer_of(params), plan.u, plan.a
    fixed = u * (size + 2.0 * a * size)
    variable = a * plan.interval
    if others == 0:
        return fixed + 0.5 * variable
    first = integrate(lambda t: all_fail_within(t, others), 0.0, fixed)
    second = integrate(lambda t: all_fail_within(fixed + t, others) * (1.0 - t / variable), 0.0, variable)
    return first + second


def aa_periodic_downtime(params: Params, plan: StrategyPlan) -> float:
    """N_F failures per F_T; k = N_F - 2 as §4 prints it."""
    return plan.copies * recovery_spent(params, plan, plan.copies - 2)


def aa_periodic_downtime_figures(params: Params, plan: StrategyPlan) -> float:
    """The same with k = N_F - 1: the reading that gives figure 20."""
    return plan.copies * recovery_spent(params, plan, plan.copies - 1)


def aa_periodic_cost(params: Params, plan: StrategyPlan) -> float:
    """§4's Cost_F."""
    size, copies = transfer_of(params), plan.copies
    live = params.storage_copies + 1.0 + 2.0 * copies
    recovery = copies * 2.0 * (size + 0.5 * plan.interval)
    writes = (params.storage_copies + 1.0) * size / plan.interval
    return (live + recovery + writes) / base_cost(params)


def cheapest_interval(params: Params, copies: int) -> float:
    """Where N_F·C_T + (K_F+1)·S_T/C_T is least; the SLA does not enter."""
    return math.sqrt((params.storage_copies + 1.0) * transfer_of(params) / copies)


# --- exact -------------------------------------------------------------------------------------------------------


def checkpointer_rate(params: Params, interval: float) -> float:
    """Q: the reservation, as a factor of the input, that keeps the checkpointer up with its largest checkpoints."""
    return 1.0 + transfer_of(params) * (1.0 + params.spread) / interval


@lru_cache(maxsize=1)
def _histories() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fixed points: phase in 0..1, latest failure in 0..1, gaps between earlier ones in F_T, sizes in -1..1.

    Kronecker sequence: multiples of irrational steps, modulo 1, fill the cube more evenly than chance does. It serves
    the phase and the latest failures, which matter most; older ones and sizes are a fixed table of random numbers.
    """
    table = np.random.default_rng(20170105)
    steps = np.sqrt(np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])) % 1.0
    even = (0.5 + np.arange(1, POINTS + 1)[:, None] * steps[None, :]) % 1.0
    gaps = np.concatenate([even[:, 2:], table.random((POINTS, FAILURES - 5))], axis=1)
    return even[:, 0], even[:, 1], -np.log1p(-gaps), 2.0 * table.random(SIZES) - 1.0


@njit(cache=True)
def _complete(cycles, interval, rate, fast, sizes, phase, fails, done):  # pragma: no cover - compiled
    """Fill `done` with the times at which the last `cycles` + 1 checkpoints were complete; inf if not yet.

    The present is 0; checkpoint k is due at input position interval·(k - cycles - phase). The first one is taken to
    be on schedule. The checkpointer runs at Q (`rate`) while on schedule and at RR_F (`fast`) from a failure until it
    is level with its input.
    """
    done[:] = np.inf
    done[0] = interval * (-cycles - phase) + sizes[0] / rate
    start, speed, struck = done[0], rate, 0
    while struck < len(fails) and fails[struck] < start:
        struck += 1
    k = 1
    while k <= cycles:
        due = interval * (k - cycles - phase)
        ready = start + interval / speed
        lagging = speed > rate and ready > due
        finish = max(ready, due) + sizes[k] / (fast if lagging else rate)
        if struck < len(fails) and fails[struck] < finish:
            start, speed = fails[struck] + sizes[k - 1] / fast, fast
            struck += 1
            continue
        if finish > 0.0:
            break
        done[k], start, speed = finish, finish, (fast if lagging else rate)
        k += 1


@njit(cache=True)
def _all_down(cycles, interval, rate, fast, u, sizes, phases, fails, copies):  # pragma: no cover - compiled
    """E[d^copies] over the histories given, d = P(an output copy is down now | history)."""
    total = 0.0
    done = np.empty(cycles + 1)
    size = np.empty(cycles + 1)
    for i in range(len(phases)):
        for k in range(cycles + 1):
            size[k] = sizes[(i * 31 + k * 101) % len(sizes)]
        _complete(cycles, interval, rate, fast, size, phases[i], fails[i], done)
        down = 0.0
        for k in range(cycles + 1):
            until = min(0.0, done[k + 1]) if k < cycles else 0.0
            # Whoever restored checkpoint k is level now if it failed before u·(due point) - u·size.
            since = max(done[k], u * (interval * (k - cycles - phases[i]) - size[k]))
            if since < until:
                down += np.exp(until) - np.exp(since)
        total += min(1.0, down) ** copies
    return total / len(phases)


def _downtime(params: Params, plan: StrategyPlan, points: int) -> float:
    size, u, interval = transfer_of(params), plan.u, plan.interval
    rate = checkpointer_rate(params, interval)
    fast = max(plan.rr, rate * (1.0 + 1e-9))
    longest = u * size + (2.0 * interval + u * size) * plan.a
    cycles = int(min(CYCLES_MAX, 3 + math.ceil(min(HORIZON * longest / interval, CYCLES_MAX))))
    points = min(points, max(POINTS_LEAST, WORK // cycles))
    phases, latest, gaps, jitter = (table[:points] for table in _histories())
    sizes = size * (1.0 + params.spread * jitter)
    # Two strata: the checkpointer has failed within the horizon, or it has not (then only phase and sizes matter).
    within = -math.expm1(-cycles * interval)
    ages = np.cumsum(np.concatenate([-np.log1p(-latest * within)[:, None], gaps], axis=1), axis=1)
    common = (cycles, interval, rate, fast, u, sizes)
    struck = _all_down(*common, phases, -ages[:, ::-1], plan.copies - 1)
    calm = _all_down(*common, phases[:QUIET], np.empty((min(points, QUIET), 0)), plan.copies - 1)
    return within * struck + (1.0 - within) * calm


def aa_periodic_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """E[d^(N-1)]: all output copies down, the checkpointer being none of them."""
    return _downtime(params, plan, POINTS)


def aa_periodic_downtime_rough(params: Params, plan: StrategyPlan) -> float:
    """The same with fewer points: for searching, never for an answer."""
    return _downtime(params, plan, POINTS_ROUGH)


def aa_periodic_cost_exact(params: Params, plan: StrategyPlan) -> float:
    """As published, with Q at the checkpointer and the rollback S_T/Q + C_T/2 that recoveries replay."""
    size, copies, interval = transfer_of(params), plan.copies, plan.interval
    rate = checkpointer_rate(params, interval)
    live = params.storage_copies + 1.0 + copies + (copies - 1.0) + rate
    recovery = copies * 2.0 * (size + 0.5 * interval + size / rate)
    writes = params.storage_copies * size / interval
    return (live + recovery + writes) / base_cost(params)


def checkpointer_floor(params: Params, copies: int, interval: float) -> float:
    """RR_F cannot be below what the checkpointer itself needs to come back from its own failures.

    Each leaves it C/2 + S/Q of input and a restore of S behind; what it has beyond Q must work that off in two thirds
    of the time between failures, or else its lag, and with it everybody's rollback, grows out of bounds.
    """
    size, rate = transfer_of(params), checkpointer_rate(params, interval)
    return rate + 1.5 * (0.5 * interval + size / rate + size)


def _aa_periodic(**functions: object) -> Model:
    return Model(
        name="aa_periodic", title="Active-active periodic checkpoints", needs_checkpoint=True, has_interval=True,
        cheapest_interval=cheapest_interval, copies=MULTI, **functions,  # type: ignore[arg-type]
    )  # fmt: skip


PUBLISHED = (_aa_periodic(downtime=aa_periodic_downtime, cost=aa_periodic_cost),)
FIGURES = (_aa_periodic(downtime=aa_periodic_downtime_figures, cost=aa_periodic_cost),)
EXACT = (
    _aa_periodic(
        downtime=aa_periodic_downtime_exact,
        cost=aa_periodic_cost_exact,
        floor=checkpointer_floor,
        rough=aa_periodic_downtime_rough,
    ),
)
