"""What would change this choice: how far each parameter may move before another strategy wins.

Every parameter is moved up and down by up to a factor of ten thousand (the SLA in its share of downtime) while the
others stay; the first point at which the winner is another one is found by bisection on the logarithm. The search uses
the rough stand-ins of the models (right to a per cent or two), which is finer than the steps it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .recommend import front_runners
from .scenario import Scenario

REACH = 10_000.0
COARSE, FINE = 6, 6  # steps outward, then bisections


@dataclass(frozen=True)
class Turn:
    """At `value` (and beyond) of `parameter`, `winner` wins instead."""

    parameter: str
    value: float
    factor: float
    winner: str


def _movers(scenario: Scenario) -> dict[str, Callable[[float], Scenario]]:
    movers: dict[str, Callable[[float], Scenario]] = {
        "sla": lambda factor: scenario.but(sla=1.0 - min(0.99, (1.0 - scenario.sla) * factor)),
        "mtbf": lambda factor: scenario.but(mtbf=scenario.mtbf * factor),
        "input_rate": lambda factor: scenario.but(input_rate=scenario.input_rate * factor),
    }
    window, size = scenario.window, scenario.checkpoint_size
    if window is not None:
        movers["window"] = lambda factor: scenario.but(window=window * factor)
    if size is not None:
        movers["checkpoint_size"] = lambda factor: scenario.but(checkpoint_size=size * factor)
    return movers


def sensitivity(scenario: Scenario, **choices: object) -> list[Turn]:
    """The nearest change of winner in each direction of each parameter; the smallest move first."""

    def winner(changed: Scenario) -> str | None:
        found = front_runners(changed, count=1, quick=True, **choices)  # type: ignore[arg-type]
        return found[0].name if found else None

    now = winner(scenario)
    turns: list[Turn] = []
    for name, moved in _movers(scenario).items():
        for direction in (1.0, -1.0):
            inside = 0.0
            for step in range(1, COARSE + 1):
                outside = direction * math.log(REACH) * step / COARSE
                if winner(moved(math.exp(outside))) != now:
                    break
                inside = outside
            else:
                continue
            for _ in range(FINE):
                middle = 0.5 * (inside + outside)
                if winner(moved(math.exp(middle))) == now:
                    inside = middle
                else:
                    outside = middle
            factor = math.exp(outside)
            other = winner(moved(factor))
            turns.append(Turn(name, getattr(moved(factor), name), factor, other or "nothing"))
    return sorted(turns, key=lambda turn: abs(math.log(turn.factor)))
