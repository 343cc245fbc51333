"""Holdfast's own modes: hybrid (a suspended standby) and cooperative (peers hold each other's units). In no paper.

Both keep an image of the state in the memory of other nodes, refreshed at fixed points of the input, C_T apart, by
copy-on-write, so that refreshing stops nobody; and both keep the input since then beside the image. So a recovery
restores nothing: it processes again the r since the last refresh, then catches up. A refresh moves
δ = S·(1 - exp(-churn·C/S)): what changed, at most everything; it arrives U·δ after its point, so r is uniform in
U·δ .. C + U·δ.

Redoing D takes D·U, in which output stands still, unless the next failure cuts it short: 1 - exp(-D·U) of the time per
failure of rate 1. Output must advance at 1 on average, so catching up takes a times as long as standing still:
    down = (1 + a) · Σ rate · (1 - exp(-D·U)).
D is r when the image was ready, and the whole window W, read from the journal, when it was not.

Hybrid: either node's failure makes the pair build a new image, U·S long; after a fall-back both read the window, W·U
long. A primary that fails before that is over falls back. Which kind the last failure was is a chain of two states.
Both nodes reserve RR_F permanently, as either may have to take over or to feed the other.

Cooperative: N nodes with a pipeline each; the units of a pipeline have their images on the N - 1 others, which recover
them together, each with what it reserves beyond its own input: RR_F - 1, so N - 1 times that in all. While units are
away from home (U·S after their node failed) a peer's failure makes its unit fall back, and so does home's failure
within U·S/(N-1) of a peer's. The units that peers lose are taken as independent of each other and of what home's
failure does; they are not quite, and the emulator shows the term of second order that this leaves.

Published, for these two, means the same without double failures, as the paper would do it (§3.2).
"""

from __future__ import annotations

import math

from holdfast.prescriber.scenario import Params

from .base import MULTI, Model, StrategyPlan, base_cost
from .periodic import transfer_of
from .replay import window_of


def refresh_size(params: Params, interval: float) -> float:
    """δ: what one refresh moves."""
    size = transfer_of(params)
    return -size * math.expm1(-params.churn * interval / size)


def _redo_share(first: float, interval: float, u: float) -> float:
    """E[1 - exp(-U·r)] for r uniform in first .. first + interval."""
    x = u * interval
    if x < 1e-6:
        return -math.expm1(-u * (first + 0.5 * interval))
    return 1.0 + math.exp(-u * first) * math.expm1(-x) / x


def _longer_share(first: float, interval: float, window: float, u: float) -> float:
    """E[1 - exp(-U·max(r, W))] for r uniform in first .. first + interval."""
    below = min(1.0, max(0.0, (window - first) / interval))
    share = below * -math.expm1(-u * window)
    if below < 1.0:
        share += (1.0 - below) * _redo_share(first + below * interval, (1.0 - below) * interval, u)
    return share


# --- hybrid ------------------------------------------------------------------------------------------------------


def fall_back_rate(build: float, reread: float) -> float:
    """Failures of the primary that find no image, per F_T, when both nodes fail at rate 1."""
    after_any, after_fall_back = -math.expm1(-2.0 * build), -math.expm1(-2.0 * reread)
    share = 0.5 * after_any / (1.0 - 0.5 * after_fall_back + 0.5 * after_any)
    return 2.0 * share


def hybrid_downtime(params: Params, plan: StrategyPlan) -> float:
    """First order: every failure finds the image."""
    delta = refresh_size(params, plan.interval)
    return plan.a * (0.5 * plan.interval + plan.u * delta)


def hybrid_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """With failures during recovery, and those that find no image."""
    u, window = plan.u, window_of(params)
    lost = fall_back_rate(u * transfer_of(params), u * window)
    redo = _redo_share(u * refresh_size(params, plan.interval), plan.interval, u)
    return min(1.0, (1.0 + plan.a) * ((1.0 - lost) * redo + lost * -math.expm1(-u * window)))


def hybrid_cost(params: Params, plan: StrategyPlan) -> float:
    """Input to storage and to both nodes; RR_F at both nodes permanently."""
    return (params.storage_copies + 3.0 + 2.0 * plan.rr) / base_cost(params)


def hybrid_floor(params: Params, copies: int, interval: float) -> float:
    """Live input and refreshes must fit."""
    return 1.0 + refresh_size(params, interval) / interval


# --- cooperative -------------------------------------------------------------------------------------------------


def group_speed(plan: StrategyPlan) -> float:
    """How fast N - 1 peers together recover a pipeline, as a factor of its input."""
    return (plan.rr - 1.0) * (plan.copies - 1.0)


def cooperative_downtime(params: Params, plan: StrategyPlan) -> float:
    """First order: every failure finds all images."""
    speed = group_speed(plan)
    if speed <= 1.0:
        return 1.0
    return min(1.0, (0.5 * plan.interval + plan.u * refresh_size(params, plan.interval)) / (speed - 1.0))


def cooperative_downtime_exact(params: Params, plan: StrategyPlan) -> float:
    """With failures during recovery, and units whose image or host is gone."""
    speed, peers = group_speed(plan), plan.copies - 1
    if speed <= 1.0:
        return 1.0
    u, window, interval = 1.0 / speed, window_of(params), plan.interval
    catching = 1.0 + 1.0 / (speed - 1.0)
    away = plan.u * transfer_of(params)
    at_home = _survive(away, params.spread)  # share of time that the units are at home
    rebuilt = away / peers
    # At home for an exponential time already; an image is gone if its peer failed in the last `rebuilt` of that.
    ready = -math.expm1(-plan.copies * rebuilt) / plan.copies + math.exp(-plan.copies * rebuilt)
    gone = -math.expm1(-rebuilt)
    all_gone = gone**plan.copies / plan.copies + math.exp(-rebuilt) * gone**peers
    first = plan.u * refresh_size(params, interval)
    redo, reread = _redo_share(first, interval, u), -math.expm1(-u * window)
    # Some units reread the window while others redo r: the longer of the two keeps the query down.
    mixed = _longer_share(first, interval, window, u)
    struck_home = at_home * (ready * redo + all_gone * reread + max(0.0, 1.0 - ready - all_gone) * mixed)
    lost = min(1.0, catching * reread)  # one unit's downtime per peer's failure while away
    # Two units are down together if the second peer failed within the first one's outage and while still away.
    both = min(1.0 - 1e-12, max(1e-300, min(lost, 1.0 - at_home)))
    struck_away = (1.0 - at_home) * lost * -math.expm1(peers * math.log1p(-both)) / both
    return 1.0 - (1.0 - min(1.0, catching * struck_home)) * (1.0 - min(1.0, struck_away))


def _survive(time: float, spread: float) -> float:
    """E[exp(-time·s)] for s uniform in 1 - spread .. 1 + spread."""
    x = min(time * spread, 700.0)
    return math.exp(-time) * (math.sinh(x) / x if x > 1e-6 else 1.0)


def cooperative_cost(params: Params, plan: StrategyPlan) -> float:
    """Input to storage, to its node and to its backup; RR_F at one node per pipeline."""
    return (params.storage_copies + 3.0 + plan.rr) / base_cost(params)


def cooperative_floor(params: Params, copies: int, interval: float) -> float:
    """A node's own input, that of others which it keeps, and refreshes must fit."""
    return 2.0 + refresh_size(params, interval) / interval


_BOTH = {"needs_window": True, "needs_checkpoint": True, "has_interval": True}
_HYBRID = {
    "name": "hybrid", "title": "Hybrid standby", **_BOTH, "copies": (2, 2),
    "cost": hybrid_cost, "floor": hybrid_floor,
}  # fmt: skip
_COOPERATIVE = {
    "name": "cooperative", "title": "Cooperative recovery", **_BOTH, "copies": MULTI,
    "cost": cooperative_cost, "floor": cooperative_floor,
}  # fmt: skip

PUBLISHED = (
    Model(**_HYBRID, downtime=hybrid_downtime),  # type: ignore[arg-type]
    Model(**_COOPERATIVE, downtime=cooperative_downtime),  # type: ignore[arg-type]
)
EXACT = (
    Model(**_HYBRID, downtime=hybrid_downtime_exact),  # type: ignore[arg-type]
    Model(**_COOPERATIVE, downtime=cooperative_downtime_exact),  # type: ignore[arg-type]
)
