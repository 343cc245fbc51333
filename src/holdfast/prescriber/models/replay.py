"""Replay strategies: read one window of journalled input again (paper §2.1, §3).

Published. R_T = W_T·U/(1-U) = W_T·a spends the budget F_T·(1-SLA) of one failure. Active-active: the query is down
from the moment the last of the other N_F - 1 copies fails until the first one is back, so a failure costs
∫ G(t) dt over 0..R_T with G the probability that all others have failed by t (§4's method; no copy is reserved
here, hence k = N_F - 1).

Exact. A copy starts one window before its last output, reads W_T at RR_F times the input rate (no output moves: the
share of time spent there is 1 - exp(-W_T·U), because at any moment the age of the last failure is exponential), and
then works off its lag. Output advances at RR_F while it lags and at 1 while it does not, and must advance at 1 on
average; so catching up takes a times as long as standing still, and the share of time down is
(1 - exp(-W_T·U)) · (1 + a), failures during recovery included, without approximation. Copies do not talk to each
other, so N of them are all down for that share to the power N.

Missing output allowed: a copy starts so late that it has read one window exactly when it is level with the input:
W_T·U in all, and a failure on the way simply starts again, so the share is 1 - exp(-W_T·U).

Nothing here models detection: it is instantaneous, as in the paper (§3.2).
"""

from __future__ import annotations

import math

from holdfast.errors import InvariantError
from holdfast.prescriber.numerics import all_fail_within, integrate
from holdfast.prescriber.scenario import Params

from .base import MULTI, Model, StrategyPlan, base_cost


def window_of(params: Params) -> float:
    """W_T / F_T of a scenario whose window is known."""
    if params.window is None:
        raise InvariantError("a strategy that needs a window was asked about a scenario without one")
    return params.window


# --- published ---------------------------------------------------------------------------------------------------


def replay_downtime(params: Params, plan: StrategyPlan) -> float:
    """W_T·U/(1-U) per failure (§3.5)."""
    return window_of(params) * plan.a


def replay_cost(params: Params, plan: StrategyPlan) -> float:
    """(2·W_T + (K_F+3)·F_T) / ((K_F+3)·F_T) (§3.5)."""
    return 1.0 + 2.0 * window_of(params) / base_cost(params)


def missing_downtime(params: Params, plan: StrategyPlan) -> float:
    """W_T·U per failure: no catching up, the window is read so as to end at the present."""
    return window_of(params) * plan.u


def missing_cost(params: Params, plan: StrategyPlan) -> float:
    """One window is read again instead of the W_T·U of live input that passes meanwhile."""
    return 1.0 + 2.0 * window_of(params) * (1.0 - plan.u) / base_cost(params)


def aa_replay_downtime(params: Params, plan: StrategyPlan) -> float:
    """N_F failures per F_T, each costing ∫ G over the recovery of a single node."""
    recovery = window_of(params) * plan.a
    return plan.copies * integrate(lambda t: all_fail_within(t, plan.copies - 1), 0.0, recovery)


def aa_replay_cost(params: Params, plan: StrategyPlan) -> float:
    """K_F+1+2·N_F live flows, and N_F windows read again per F_T at both ends."""
    live = params.storage_copies + 1.0 + 2.0 * plan.copies
    return (live + plan.copies * 2.0 * window_of(params)) / base_cost(params)


# --- exact -------------------------------------------------------------------------------------------------------


def copy_down_share(window: float, plan: StrategyPlan) -> float:
    """Share of time that one copy is not level with its input: (1 - exp(-W·U))·(1 + a)."""
    return min(1.0, -math.expm1(-window * plan.u) * (1.0 + plan.a))


def replay_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """One copy that may miss no output."""
    return copy_down_share(window_of(params), plan)


def missing_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """One copy that may miss output while it recovers."""
    return -math.expm1(-window_of(params) * plan.u)


def aa_replay_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """All of N independent copies down."""
    return copy_down_share(window_of(params), plan) ** plan.copies


def _replayed(window: float, plan: StrategyPlan) -> float:
    """Input read again per F_T and copy: reserved RR while down instead of 1, i.e. share·(RR-1) = share/a."""
    return -math.expm1(-window * plan.u) * plan.rr


def replay_cost_exact(params: Params, plan: StrategyPlan) -> float:
    """Reservation RR_F while down and 1 otherwise, at both ends of the replay flow."""
    return 1.0 + 2.0 * _replayed(window_of(params), plan) / base_cost(params)


def missing_cost_exact(params: Params, plan: StrategyPlan) -> float:
    """Reservation RR_F for the share of time spent reading the window."""
    share = -math.expm1(-window_of(params) * plan.u)
    return 1.0 + 2.0 * share * (plan.rr - 1.0) / base_cost(params)


def aa_replay_cost_exact(params: Params, plan: StrategyPlan) -> float:
    """As published, with the windows that are read again after failures during recovery."""
    live = params.storage_copies + 1.0 + 2.0 * plan.copies
    return (live + plan.copies * 2.0 * _replayed(window_of(params), plan)) / base_cost(params)


PUBLISHED = (
    Model(
        name="replay", title="Replay", needs_window=True, downtime=replay_downtime, cost=replay_cost,
    ),
    Model(
        name="replay_missing", title="Replay, missing output allowed", needs_window=True,
        downtime=missing_downtime, cost=missing_cost,
    ),
    Model(
        name="aa_replay", title="Active-active replay", needs_window=True, copies=MULTI,
        downtime=aa_replay_downtime, cost=aa_replay_cost,
    ),
)  # fmt: skip

EXACT = (
    Model(
        name="replay", title="Replay", needs_window=True,
        downtime=replay_downtime_exact, cost=replay_cost_exact,
    ),
    Model(
        name="replay_missing", title="Replay, missing output allowed", needs_window=True,
        downtime=missing_downtime_exact, cost=missing_cost_exact,
    ),
    Model(
        name="aa_replay", title="Active-active replay", needs_window=True, copies=MULTI,
        downtime=aa_replay_downtime_exact, cost=aa_replay_cost_exact,
    ),
)  # fmt: skip
