"""Run one strategy on the virtual clock until the answer is precise enough, and say how precise it is.

A pilot run finds out how many failures that takes (at most an allowance). The answer comes from a second run of that
length alone: independent batches of equal size, each from its own seeded stream, mean and 99.9% interval by Student's t
over the batches. Stopping a run when its interval looks narrow enough would favour runs whose interval is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast.errors import ConfigError
from holdfast.prescriber.models import StrategyPlan
from holdfast.prescriber.models.aa_periodic import checkpointer_rate
from holdfast.prescriber.models.periodic import transfer_of
from holdfast.prescriber.models.standby import refresh_size
from holdfast.prescriber.scenario import Params

from . import kernels
from .failures import Lifetimes

BATCHES = 64
T_999 = 3.449  # Student's t, 63 degrees of freedom, 99.9%, two-sided
PILOT = 4_000  # failures in each batch of the first pilot


@dataclass(frozen=True)
class Emulation:
    """What an emulation saw. `half_width` is that of the 99.9% confidence interval of `down`."""

    down: float
    half_width: float
    losses_per_mtbf: float
    failures: int

    def agrees(self, budget: float, tolerance: float = 0.01) -> bool:
        """Within the tolerance of the budget, or the budget within the interval."""
        return abs(self.down - budget) <= max(tolerance * budget, self.half_width)


def varied_sizes(params: Params, rng: np.random.Generator, count: int = 4096) -> np.ndarray:
    """Checkpoint sizes, as times, uniform within ± spread of the mean."""
    return transfer_of(params) * (1.0 + params.spread * (2.0 * rng.random(count) - 1.0))


def _kernel(
    name: str, params: Params, plan: StrategyPlan, sizes: np.ndarray | None
) -> Callable[[np.ndarray, np.random.Generator], tuple[float, float, int]]:
    rr = plan.rr
    if rr <= 1.0 and name != "replay_missing":
        raise ConfigError("with an RR of 1 a copy that lags never catches up", hint="Emulate a plan with a higher RR.")
    if name in ("replay", "replay_missing", "aa_replay"):
        keep = name != "replay_missing"
        return lambda lives, rng: kernels.replay(lives, params.window, rr, plan.copies, keep)

    def drawn(rng: np.random.Generator) -> np.ndarray:
        return varied_sizes(params, rng) if sizes is None else np.roll(sizes, int(rng.integers(len(sizes))))

    if name == "periodic":
        return lambda lives, rng: kernels.periodic(lives, drawn(rng), plan.interval, rr)
    if name == "aa_periodic":
        rate = checkpointer_rate(params, plan.interval)
        return lambda lives, rng: kernels.aa_periodic(lives, drawn(rng), plan.interval, rr, rate, plan.copies)
    if name == "on_demand":
        return lambda lives, rng: kernels.on_demand(lives, drawn(rng), rr, plan.copies)
    delta = refresh_size(params, plan.interval)
    if name == "hybrid":
        return lambda lives, rng: kernels.hybrid(lives, drawn(rng), params.window, plan.interval, delta, rr)
    if name == "cooperative":
        return lambda lives, rng: kernels.cooperative(
            lives, drawn(rng), params.window, plan.interval, delta, rr, plan.copies
        )
    raise ConfigError(f"no such strategy: {name}")


def emulate(
    name: str,
    params: Params,
    plan: StrategyPlan,
    *,
    seed: int = 1,
    lifetimes: Lifetimes | None = None,
    sizes: np.ndarray | None = None,
    precision: float = 0.01,
    failures_max: int = 20_000_000,
) -> Emulation:
    """Emulate `plan` with enough failures for an interval of ± `precision` (a share of the downtime), if allowed."""
    lifetimes = lifetimes or Lifetimes()
    run = _kernel(name, params, plan, sizes)
    streams = np.random.SeedSequence(seed)

    def measured(lives: int) -> Emulation:
        rows = []
        for stream in streams.spawn(BATCHES):
            rng = np.random.default_rng(stream)
            rows.append(run(lifetimes.draw(rng, lives), rng))
        time, down = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        share = float(down.sum() / time.sum())
        spread = float(np.sum((down - share * time) ** 2))  # ratio estimator: batches weigh by their length
        error = math.sqrt(spread * BATCHES / (BATCHES - 1.0)) / float(time.sum())
        losses = float(sum(row[2] for row in rows) / time.sum())
        return Emulation(share, T_999 * error, losses, lives * BATCHES)

    most = max(PILOT, failures_max // BATCHES)
    lives = min(PILOT, most)
    pilot = measured(lives)
    while pilot.down == 0.0 and lives < most:
        lives = min(most, 8 * lives)
        pilot = measured(lives)
    if pilot.down == 0.0 or lives == most:
        return pilot
    wanted = lives * (pilot.half_width / (precision * pilot.down)) ** 2
    return measured(int(min(most, max(lives, 1.1 * wanted))))
