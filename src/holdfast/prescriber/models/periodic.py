"""Periodic checkpoints to resilient storage, with one node (paper §2.2, §5).

The paper prints no formulas for one node. Published is what its text says by the method of §4: a failure costs the
restore and the catching up of §4.1, U·S_T + (2·U·S_T + C_T/2)·a, and each of the F_T/C_T checkpoints stops the node
for U·S_T and then makes it catch up. The reservation stays at RR_F (§5, figure 12), so the compute node
costs RR_F; the other ends are the storage nodes that take K_F copies of each checkpoint, and the recovery flow
counted at both ends as C_2 is everywhere in the paper.

Exact. Checkpoints are due at fixed points of the input (multiples of C_T), also while the node catches up. Let x be
the input position reached and c that of the last complete checkpoint. Position must advance at 1 on average, moves
at RR_F while lagging, at 1 while level, not at all in a pause, and falls back by x - c at each failure. Hence
    down = pause·(1 + a) + a·E[x - c]      (in units of F_T)
with no approximation. pause = (1 - exp(-U·S)) for restores plus (exp(U·S) - 1)/C for writes: each due checkpoint is
completed exactly once, after as many attempts as failures during it require. E[x - c] is a time average (failures
are Poisson): while the node is level, x - c is the time modulo C, which is where C/2 comes from; pauses and
recoveries replace parts of that saw-tooth, and are put in to first order. The error left is of second order in
1 - SLA; the emulator puts it below 0.1% at two nines (docs/prescriber/models.md).
"""

from __future__ import annotations

import math

from holdfast.errors import InvariantError
from holdfast.prescriber.scenario import Params

from .base import Model, StrategyPlan, base_cost


def transfer_of(params: Params) -> float:
    """S_T / F_T of a scenario whose checkpoint size is known."""
    if params.transfer is None:
        raise InvariantError("a strategy that needs a checkpoint size was asked about a scenario without one")
    return params.transfer


# --- published ---------------------------------------------------------------------------------------------------


def periodic_downtime(params: Params, plan: StrategyPlan) -> float:
    """One recovery and F_T/C_T checkpoints per failure period."""
    pause = plan.u * transfer_of(params)
    recovery = pause + (2.0 * pause + 0.5 * plan.interval) * plan.a
    return recovery + pause * (1.0 + plan.a) / plan.interval


def periodic_cost(params: Params, plan: StrategyPlan) -> float:
    """RR_F at the compute node permanently, K_F checkpoint copies at storage, recovery at both ends."""
    size = transfer_of(params)
    live = params.storage_copies + 2.0 + plan.rr
    writes = params.storage_copies * size / plan.interval
    recovery = 2.0 * (size + 0.5 * plan.interval)
    return (live + writes + recovery) / base_cost(params)


# --- exact -------------------------------------------------------------------------------------------------------


def _pauses(pause: float, interval: float) -> tuple[float, float]:
    """Shares of time spent restoring and writing."""
    if pause > 700.0:  # exp would overflow; such a plan never finishes a checkpoint
        return 1.0, math.inf
    return -math.expm1(-pause), math.expm1(pause) / interval


def _rollback(pause: float, plan: StrategyPlan) -> float:
    """E[x - c], the input processed since the last complete checkpoint, averaged over time."""
    c, a = plan.interval, plan.a
    steady = 0.5 * c + pause - pause * pause * (1.0 + a) / (2.0 * c)
    # A recovery from rollback r lasts R = pause + (r + pause)·a; x - c is 0, then climbs at RR, instead of r..r+R.
    fixed = pause * (1.0 + a)
    r1, r2 = 0.5 * c, c * c / 3.0
    climbed = 0.5 * a * (1.0 + a) * (r2 + 2.0 * r1 * pause + pause * pause)
    replaced = (fixed * r1 + a * r2) + 0.5 * (fixed * fixed + 2.0 * fixed * a * r1 + a * a * r2)
    # Where recoveries are as long as the interval first order fails; but x - c is at least the age of the last failure
    # modulo C, which averages 1 - C/(exp(C) - 1).
    least = 0.5 * c if c < 1e-4 else 1.0 - c / math.expm1(min(c, 700.0))
    return min(c, max(least, steady + climbed - replaced))


def periodic_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """pause·(1 + a) + a·E[x - c]; at most 1."""
    pause = plan.u * transfer_of(params)
    restores, writes = _pauses(pause, plan.interval)
    paused = (restores + writes) * (1.0 + plan.a)
    if not math.isfinite(paused):
        return 1.0
    # And while level, x - c averages C/2, so E[x - c] >= (1 - down)·C/2: another bound from below, for long intervals.
    half = 0.5 * plan.a * plan.interval
    return min(1.0, max((paused + half) / (1.0 + half), paused + plan.a * _rollback(pause, plan)))


def periodic_cost_exact(params: Params, plan: StrategyPlan) -> float:
    """As published, with the writes and restores that failures repeat."""
    pause = plan.u * transfer_of(params)
    restores, writes = _pauses(pause, plan.interval)
    live = params.storage_copies + 2.0 + plan.rr
    moved = params.storage_copies * writes * plan.rr + 2.0 * (restores * plan.rr + _rollback(pause, plan))
    return (live + moved) / base_cost(params)


PUBLISHED = (
    Model(
        name="periodic", title="Periodic checkpoints", needs_checkpoint=True, has_interval=True,
        downtime=periodic_downtime, cost=periodic_cost,
    ),
)  # fmt: skip

EXACT = (
    Model(
        name="periodic", title="Periodic checkpoints", needs_checkpoint=True, has_interval=True,
        downtime=periodic_downtime_exact, cost=periodic_cost_exact,
    ),
)  # fmt: skip
