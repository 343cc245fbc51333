"""When a running pipeline should change its strategy: prescribe again, but only for a change that lasts and pays.

A machine without clock or I/O: it is told what was measured and when, and answers with a decision or None. Two rules
keep it from flapping. The workload must have called for the same other strategy for `hold_ns` without a break, and
that strategy must be cheaper than the present one by at least `gain`, unless the present one no longer meets the SLA,
in which case waiting would cost uptime and only the hold applies. Applying the decision is somebody else's task.
"""

from __future__ import annotations

from dataclasses import dataclass

from .recommend import Recommendation, known, prescribe
from .scenario import Scenario
from .units import show_duration, show_factor, show_fraction


@dataclass(frozen=True)
class Decision:
    """What to run from now on, and one sentence for the event log."""

    at_ns: int
    strategy: Recommendation
    previous: str | None
    sentence: str


class Decider:
    """`on_measured(scenario, now_ns)` -> a `Decision` when the strategy should change, else None."""

    def __init__(
        self,
        *,
        allowed: frozenset[str],
        hold_ns: int = 600_000_000_000,
        gain: float = 0.1,
        rr_max: float | None = None,
        copies: int | None = None,
    ) -> None:
        self._allowed = allowed
        self._copies = copies
        self._hold_ns = hold_ns
        self._gain = gain
        self._rr_max = rr_max
        #: What runs now; None until the first decision.
        self.current: str | None = None
        self._candidate: str | None = None
        self._since_ns = 0

    def on_measured(self, scenario: Scenario, now_ns: int) -> Decision | None:
        """Take one measurement; times must not go back."""
        found = prescribe(scenario, rr_max=self._rr_max, only=self._allowed, copies=self._copies)
        ranked = [strategy for strategy in found.strategies if strategy.feasible]
        if not ranked:
            self._candidate = None
            return None
        top = ranked[0]
        if self.current is None:
            return self._decide(top, scenario, now_ns, "the pipeline starts")
        present = next((s for s in ranked if s.name == self.current), None)
        if top.name == self.current or not self._pays(top, present):
            self._candidate = None
            return None
        if self._candidate != top.name:
            self._candidate, self._since_ns = top.name, now_ns
        if now_ns - self._since_ns < self._hold_ns:
            return None
        held = show_duration((now_ns - self._since_ns) / 1e9)
        if present is None:
            return self._decide(top, scenario, now_ns, f"{self.current} has not met the SLA for {held}")
        saving = 100.0 * (1.0 - known(top.cost) / known(present.cost))
        return self._decide(
            top, scenario, now_ns, f"for {held} it would have cost {saving:.3g}% less than {self.current}"
        )

    def _pays(self, top: Recommendation, present: Recommendation | None) -> bool:
        return present is None or known(top.cost) <= known(present.cost) * (1.0 - self._gain)

    def _decide(self, strategy: Recommendation, scenario: Scenario, now_ns: int, because: str) -> Decision:
        previous, self.current, self._candidate = self.current, strategy.name, None
        interval = strategy.checkpoint_interval
        checkpoints = "" if interval is None else f", checkpoints every {show_duration(interval)}"
        speed, uptime = show_factor(known(strategy.rr)), show_fraction(scenario.sla)
        sentence = (
            f"Running {strategy.name} with {strategy.copies} {'copies' if strategy.copies > 1 else 'copy'} at "
            f"{speed} the input rate for recovery{checkpoints}, for {uptime} uptime "
            f"at {known(strategy.cost):.3g} times the non-resilient cost: {because}."
        )
        return Decision(now_ns, strategy, previous, sentence)
