"""What every model answers: the downtime of a plan, its cost factor, and the least reservation it can run with.

A plan is (a, copies, interval): a = U/(1-U) stands for RR_F = 1 + 1/a, times are in units of F_T. The optimiser
(`..optimise`) knows nothing else about a strategy, so a new one is one more `Model`.

Two sets exist for each strategy. `published` is the paper's: its printed formulas, or, where it points to its
technical report, what its text says by the same method. `exact` is the downtime of a mechanism stated in full, with
failures during recovery and everything else that the mechanism does; the emulator runs that same mechanism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.prescriber.scenario import COPIES_MAX, Params


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """One setting of everything that can be chosen; times in units of F_T."""

    a: float
    copies: int
    interval: float

    @property
    def u(self) -> float:
        """U = 1/RR_F."""
        return self.a / (1.0 + self.a)

    @property
    def rr(self) -> float:
        """RR_F."""
        return 1.0 + 1.0 / self.a


def no_floor(params: Params, copies: int, interval: float) -> float:
    """Most strategies can run with a reservation of the input rate itself."""
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """One strategy as the optimiser sees it."""

    name: str
    title: str
    needs_window: bool = False
    needs_checkpoint: bool = False
    has_interval: bool = False
    copies: tuple[int, int] = (1, 1)  #: fewest and most
    #: Expected share of time that the query is down.
    downtime: Callable[[Params, StrategyPlan], float]
    #: Cost_F: reserved bandwidth over that of running non-resiliently, (K_F + 3) · F_T (§3.4).
    cost: Callable[[Params, StrategyPlan], float]
    #: The least RR_F for reasons other than uptime: durability, a checkpointer that must keep up.
    floor: Callable[[Params, int, float], float] = no_floor
    #: A cheaper stand-in for `downtime` to search with; the answer is always settled with `downtime`.
    rough: Callable[[Params, StrategyPlan], float] | None = None
    #: The interval with the least cost when it has a closed form; Cost_F then depends on RR_F in no way.
    cheapest_interval: Callable[[Params, int], float] | None = None

    @property
    def copies_min(self) -> int:
        """The fewest copies it can run with."""
        return self.copies[0]

    @property
    def copies_max(self) -> int:
        """The most copies that are searched."""
        return self.copies[1]

    @property
    def multi(self) -> bool:
        """Whether the number of copies is a choice."""
        return self.copies_max > self.copies_min


MULTI = (2, COPIES_MAX)


def base_cost(params: Params) -> float:
    """Cost of running non-resiliently: ingress 2, compute 1, storage K_F (§3.4)."""
    return params.storage_copies + 3.0
