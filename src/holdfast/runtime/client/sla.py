"""`run --sla`: measure, prescribe per operator, say so in one sentence, apply it; and again when the workload changes.

Of the strategies that the prescriber knows, nodes can run one today: images of every shard in the memory of other nodes
(`cooperative`), with the capture interval as its setting. So a decision is an interval per operator; the sentence also
says which strategy would win if all could be run. A new interval is applied only when it differs by `CHANGE` or more
and has done so for `hold_s`: a workload that wobbles changes nothing. What cannot be decided or applied is told once
and tried again with the next look: a run never ends because of its guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvariantError
from holdfast.model.plan import Plan
from holdfast.prescriber import Scenario, prescribe
from holdfast.prescriber.decide import Decider
from holdfast.prescriber.scenario import COPIES_MAX
from holdfast.prescriber.units import show_duration, show_fraction
from holdfast.runtime.client.measured import Measured, Sample, compare, take_samples

#: Strategies that nodes can run today.
RUNNABLE = frozenset({"cooperative"})
#: What an interval may be set to; the bounds on retained input force captures in any case.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.05, 60.0
CHANGE = 1.5
HOLD_S = 60.0


class Applied(msgspec.Struct, frozen=True):
    """What was decided for an operator, and why."""

    operator: str
    capture_period_s: float
    sentence: str


class SlaWatch:
    """Looks at a pipeline now and then. `tune(operator, seconds)` applies, `tell(kind, text, fields)` tells."""

    def __init__(
        self,
        plan: Plan,
        sla: float,
        *,
        nodes: int,
        tune: Callable[[str, float], None],
        tell: Callable[[str, str, dict[str, Any]], None],
        hold_s: float = HOLD_S,
    ) -> None:
        self.plan = plan
        self.sla = sla
        #: An image may be on any other node; the models know no more than this many copies.
        self.copies = min(nodes, COPIES_MAX)
        self.applied: dict[str, Applied] = {}
        self._tune = tune
        self._tell = tell
        self._hold_s = hold_s
        self._deciders: dict[str, Decider] = {}
        self._before: dict[str, Sample] = {}
        #: Since when an operator's interval has called for a change.
        self._differs: dict[str, float] = {}
        self._unmet: set[str] = set()
        #: What went wrong and was told.
        self._failed: set[tuple[str, str]] = set()

    def look(self, answers: dict[str, Any], mtbf: float, now: float) -> list[Applied]:
        """Take one look at what the nodes say; what was applied because of it."""
        after = take_samples(answers.values(), now)
        found = compare(self.plan, self._before, after, mtbf)
        self._before = after
        return [made for measured in found if (made := self._try(measured, now)) is not None]

    def _try(self, measured: Measured, now: float) -> Applied | None:
        name = measured.operator
        try:
            return self._decide(measured, now)
        except InvariantError:
            raise
        except HoldfastError as error:  # no node answers just now, or the prescriber refuses what was measured
            self._deciders.pop(name, None)  # it may have decided already: decide again, or it would never be applied
            if (name, error.what) not in self._failed:
                self._failed.add((name, error.what))
                text = f"{name}: its images are refreshed as before: {error.what}. {error.detail}".strip()
                self._tell("sla-failed", text, {"operator": name})
            return None

    def _decide(self, measured: Measured, now: float) -> Applied | None:
        name = measured.operator
        scenario = Scenario(sla=self.sla, **measured.parameters())  # type: ignore[arg-type]
        decider = self._deciders.setdefault(
            name, Decider(allowed=RUNNABLE, hold_ns=int(self._hold_s * 1e9), copies=self.copies)
        )
        decision = decider.on_measured(scenario, int(now * 1e9))
        best = prescribe(scenario)
        runnable = prescribe(scenario, only=RUNNABLE, copies=self.copies)
        chosen = next((s for s in runnable.strategies if s.feasible), None)
        if chosen is None or chosen.checkpoint_interval is None:
            self._say_unmet(name, scenario)
            return None
        self._unmet.discard(name)
        interval = min(INTERVAL_MAX_S, max(INTERVAL_MIN_S, chosen.checkpoint_interval))
        if decision is None and not self._is_due(name, interval, now):
            return None
        self._differs.pop(name, None)
        because = (
            decision.sentence if decision else f"The workload of {name} has changed for {show_duration(self._hold_s)}."
        )
        winner = best.winner.name if best.winner else "none"
        others = "" if winner in RUNNABLE else f" If nodes could run it, {winner} would be the cheapest."
        sentence = f"{name}: {because} Images are refreshed every {show_duration(interval)}.{others}"
        self._tune(name, interval)
        self._tell("prescribed", sentence, {"operator": name, "capture_period_s": interval, **measured.parameters()})
        self.applied[name] = Applied(name, interval, sentence)
        return self.applied[name]

    def _is_due(self, name: str, interval: float, now: float) -> bool:
        """Does it differ enough, and for long enough?"""
        present = self.applied[name].capture_period_s if name in self.applied else interval
        if max(interval / present, present / interval) < CHANGE:
            self._differs.pop(name, None)
            return False
        return now - self._differs.setdefault(name, now) >= self._hold_s

    def _say_unmet(self, name: str, scenario: Scenario) -> None:
        if name not in self._unmet:
            self._unmet.add(name)
            text = (
                f"{name}: nothing that nodes can run today promises {show_fraction(scenario.sla)} with this workload."
            )
            self._tell("sla-unmet", text, {"operator": name})
