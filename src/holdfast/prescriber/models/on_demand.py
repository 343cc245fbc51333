"""On-demand checkpoints: a running copy stops and gives its state to the one that replaces a failed copy (§2.3, §5).

Published. When a node fails, another one stops, so k = N_F - 2 are left; both are level again after
U·S_T·(1 + a) = S_T·a, and a failure costs ∫ G over that time. Nothing is in storage: the state is lost when the
other N_F - 1 nodes all fail while the checkpoint moves (U·S_T), which the durability SLA bounds over its span. The
reservation is the greater of the two (§7.5), and every copy keeps it permanently, since any may become a donor (§5).

Exact. The mechanism in full: recovery goes in rounds, one at a time. A round takes one donor that is level and every
copy that has failed by then; the donor stops and sends its state, each receiver passes it on, so that every NIC
carries it once each way and all have it after U·S_T. Then all of them catch up. Copies that fail during a round wait
for the next. If the donor dies before the transfer is complete the round is void; if everyone in it dies later, too.
Between rounds only the number of level copies matters, so the number at the start of each round is a Markov chain of
N + 1 states; those inside a round and those outside fail independently, so its length, its survivors, and the time
with no level copy are sums and integrals in one variable. When no copy is left with the state it is lost: counted,
after which the emulator and the model start afresh.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from holdfast.prescriber.numerics import Z_MAX, all_fail_within, integrate, largest_a
from holdfast.prescriber.scenario import Params

from .base import MULTI, Model, StrategyPlan, base_cost
from .periodic import transfer_of


def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre on 0..1."""
    at, weights = np.polynomial.legendre.leggauss(nodes)
    return 0.5 * (at + 1.0), 0.5 * weights


_AT, _WEIGHTS = _rule(16)
_SIZES, _SIZE_WEIGHTS = 2.0 * _rule(3)[0] - 1.0, _rule(3)[1]
LONG = 30.0  # in units of F_T: a round this long has long failed

# --- published ---------------------------------------------------------------------------------------------------


def on_demand_downtime(params: Params, plan: StrategyPlan) -> float:
    """N_F failures per F_T, each costing ∫ G_{N-2} over S_T·a."""
    recovery = transfer_of(params) * plan.a
    if plan.copies == 2:
        return plan.copies * recovery
    return plan.copies * integrate(lambda t: all_fail_within(t, plan.copies - 2), 0.0, recovery)


def on_demand_cost(params: Params, plan: StrategyPlan) -> float:
    """RR_F at each copy, permanently; recovery flows fit into it."""
    return (params.storage_copies + 1.0 + plan.copies + plan.copies * plan.rr) / base_cost(params)


def durability_floor(params: Params, copies: int, interval: float) -> float:
    """The least RR_F with which N_F·span failures, each losing the state with probability G_{N-1}(U·S_T), are rare."""
    allowed = -math.log1p(-params.loss) / (copies * params.span)
    if allowed >= 1.0:
        return 1.0
    root = allowed ** (1.0 / (copies - 1.0))
    u = -math.log1p(-root) / transfer_of(params)
    return max(1.0, 1.0 / u)


# --- exact -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _binomial(n, k, p):  # pragma: no cover - compiled
    ways = 1.0
    for i in range(k):
        ways = ways * (n - i) / (i + 1)
    return ways * p**k * (1.0 - p) ** (n - k)


@njit(cache=True)
def _end(weight, length, survivors, copies, others, at, weights, row):  # pragma: no cover - compiled
    """Add one way in which a round can end to `row`: where it leads, then its expected time and time down."""
    for left in range(others + 1):
        row[copies - survivors - left] += weight * _binomial(others, left, np.exp(-length))
    free = 0.0  # share of the round without a level copy: all others have failed by then
    for i in range(len(at)):
        free += weights[i] * (-np.expm1(-length * at[i])) ** others
    row[copies + 1] += weight * length
    row[copies + 2] += weight * length * free


@njit(cache=True)
def _round(weight, pause, catch, copies, level, at, weights, row):  # pragma: no cover - compiled
    """All ways in which a round that starts with `level` level copies can end. Each copy fails at rate 1."""
    others, receivers = level - 1, copies - level
    given, kept = np.exp(-pause), np.exp(-catch)
    for i in range(len(at)):  # the donor dies during the transfer
        t = pause * at[i]
        _end(weight * pause * weights[i] * np.exp(-t), t, 0, copies, others, at, weights, row)
    for received in range(receivers + 1):
        holders = received + 1
        chance = weight * given * _binomial(receivers, received, given)
        for alive in range(1, holders + 1):
            joint = chance * _binomial(holders, alive, kept)
            _end(joint, pause + catch, alive, copies, others, at, weights, row)
        for i in range(len(at)):  # all holders die while they catch up, the last of them at t
            t = catch * at[i]
            joint = chance * catch * weights[i] * holders * np.exp(-t) * (-np.expm1(-t)) ** (holders - 1)
            _end(joint, pause + t, 0, copies, others, at, weights, row)


def stationary(step: np.ndarray) -> np.ndarray:
    """Long-run visit shares of a Markov chain by elimination without subtraction (GTH): tiny ones keep their digits."""
    p = step.copy()
    n = len(p)
    for k in range(n - 1, 0, -1):
        p[:k, k] /= p[k, :k].sum()
        p[:k, :k] += np.outer(p[:k, k], p[k, :k])
    visits = np.zeros(n)
    visits[0] = 1.0
    for k in range(1, n):
        visits[k] = np.dot(visits[:k], p[:k, k])
    return visits / visits.sum()


def recovery_chain(params: Params, plan: StrategyPlan) -> tuple[float, float]:
    """(share of time down, losses of the state per F_T)."""
    copies, size = plan.copies, transfer_of(params)
    # States from N level copies (index 0) down to none (index N); then two columns: time, time down.
    rows = np.zeros((copies + 1, copies + 3))
    rows[0, 1], rows[0, copies + 1] = 1.0, 1.0 / copies
    rows[copies, 0] = 1.0  # a loss: start afresh
    rule = [(0.0, 1.0)] if params.spread == 0.0 else zip(_SIZES, _SIZE_WEIGHTS, strict=True)
    for node, weight in rule:
        pause = min(plan.u * size * (1.0 + params.spread * float(node)), LONG)
        catch = min(plan.a * pause, LONG)
        for level in range(1, copies):
            _round(float(weight), pause, catch, copies, level, _AT, _WEIGHTS, rows[copies - level])
    visits = stationary(rows[:, : copies + 1])
    time, down = float(np.dot(visits, rows[:, copies + 1])), float(np.dot(visits, rows[:, copies + 2]))
    return min(1.0, down / time), float(visits[copies]) / time


def on_demand_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """Share of time without a level copy."""
    return recovery_chain(params, plan)[0]


def durability_floor_exact(params: Params, copies: int, interval: float) -> float:
    """The least RR_F with which the chain loses the state rarely enough over the span."""
    allowed = -math.log1p(-params.loss) / params.span
    a = largest_a(lambda a: recovery_chain(params, StrategyPlan(a, copies, interval))[1], allowed)
    if a is None:
        return math.inf
    return 1.0 if a >= math.exp(Z_MAX) else 1.0 + 1.0 / a


def _on_demand(**functions: object) -> Model:
    return Model(
        name="on_demand", title="On-demand checkpoints", needs_checkpoint=True, cost=on_demand_cost, copies=MULTI,
        **functions,  # type: ignore[arg-type]
    )  # fmt: skip


PUBLISHED = (_on_demand(downtime=on_demand_downtime, floor=durability_floor),)
EXACT = (_on_demand(downtime=on_demand_downtime_exact, floor=durability_floor_exact),)
