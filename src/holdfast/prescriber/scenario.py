"""What a user knows about a pipeline and its machines, checked once, in base units.

`Scenario` is the paper's parameter list (§3.3, §4): SLA, W_T, C_S, I_R, F_T, K_F, and the durability SLA of §7.5.
`Scenario.params()` gives the same numbers as the models use them: every time divided by F_T, every size turned into
a time at input rate, so that a model never sees a unit and never multiplies 1e-3 s by 1e9 s.

A window or a checkpoint size may be unknown (None): the strategies that need it are then not available, which the
ranking says; nothing is assumed in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from holdfast.errors import ConfigError

from .units import YEAR_S, positive

COPIES_MAX = 10  # the paper searches N_F from 2 to 10 (§7.5)


@dataclass(frozen=True, kw_only=True)
class Params:
    """A scenario in the models' own terms; times in units of the mean time between failures."""

    down: float  #: the budget 1 - SLA, as a share of time
    window: float | None  #: W_T / F_T
    transfer: float | None  #: S_T / F_T, S_T = checkpoint size / input rate
    spread: float  #: checkpoint sizes lie within ± this share of the mean
    storage_copies: int  #: K_F
    loss: float  #: allowed probability of losing the state within `span`
    span: float  #: the durability span / F_T
    churn: float  #: state rewritten per byte of input, for delta refreshes (hybrid, cooperative)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One pipeline on one kind of machine. Times in seconds, sizes in bytes."""

    sla: float
    input_rate: float
    mtbf: float
    window: float | None = None
    checkpoint_size: float | None = None
    replicas: int = 3
    durability: float = 0.99999
    durability_span: float = 10 * YEAR_S
    checkpoint_spread: float = 0.0
    churn: float = 1.0

    def __post_init__(self) -> None:
        for name in ("sla", "durability"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0.0 < value < 1.0):
                raise ConfigError(f"{name} must lie strictly between 0 and 1 (100%), not {value}")
        for name in ("input_rate", "mtbf", "window", "checkpoint_size", "durability_span", "churn"):
            value = getattr(self, name)
            if value is not None:
                positive(float(value), name)
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int) or not 1 <= self.replicas <= 1000:
            raise ConfigError(f"replicas must be a whole number from 1 to 1000, not {self.replicas}")
        if not (math.isfinite(self.checkpoint_spread) and 0.0 <= self.checkpoint_spread < 1.0):
            raise ConfigError(f"checkpoint_spread must be at least 0 and below 1, not {self.checkpoint_spread}")
        if self.window is None and self.checkpoint_size is None:
            raise ConfigError(
                "neither a window nor a checkpoint size is known",
                hint="Give --window for the replay strategies, --checkpoint-size for the others.",
            )

    @property
    def transfer_s(self) -> float | None:
        """S_T: seconds of input that weigh as much as one checkpoint."""
        return None if self.checkpoint_size is None else self.checkpoint_size / self.input_rate

    def params(self) -> Params:
        """The scenario in units of F_T."""
        transfer = self.transfer_s
        return Params(
            down=1.0 - self.sla,
            window=None if self.window is None else self.window / self.mtbf,
            transfer=None if transfer is None else transfer / self.mtbf,
            spread=self.checkpoint_spread,
            storage_copies=self.replicas,
            loss=1.0 - self.durability,
            span=self.durability_span / self.mtbf,
            churn=self.churn,
        )

    def but(self, **changes: object) -> Scenario:
        """The same scenario with some parameters changed: what-if."""
        return replace(self, **changes)  # type: ignore[arg-type]
