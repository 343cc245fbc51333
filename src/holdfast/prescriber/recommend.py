"""Rank all strategies for a scenario, and say in a sentence why the winner wins (paper §7).

The ranking is by Cost_F among the strategies that meet the SLA, the durability SLA and every bound given. A strategy
that may miss output is listed behind those, and does not win unless that is allowed: the paper's promise is exactly
once (§2). What cannot be done is listed too, with the reason; nothing is left out silently.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from holdfast.errors import ConfigError, InvariantError

from .models import Model, catalogue
from .optimise import Choice, best, least_cost
from .resources import Prices, Resources, resources
from .scenario import COPIES_MAX, Scenario
from .units import positive, show_duration, show_factor, show_fraction


@dataclass(frozen=True)
class Recommendation:
    """One strategy at its best setting. `checkpoint_interval` in seconds, `bandwidth` in bytes per second."""

    name: str
    title: str
    copies: int
    rr: float | None
    cost: float | None
    checkpoint_interval: float | None
    feasible: bool
    why: str
    bandwidth: float | None = None
    resources: Resources | None = None
    money: float | None = None

    def as_json(self) -> dict[str, object]:
        """Plain values only."""
        return asdict(self)


@dataclass(frozen=True)
class Prescription:
    """All strategies: those that may win, the cheapest first; those that may not; those that cannot be done."""

    scenario: Scenario
    models: str
    strategies: tuple[Recommendation, ...]
    winner: Recommendation | None
    sentence: str

    def as_json(self) -> dict[str, object]:
        """The object that `holdfast prescribe --json` prints."""
        return {
            "models": self.models,
            "scenario": asdict(self.scenario),
            "winner": None if self.winner is None else self.winner.name,
            "sentence": self.sentence,
            "strategies": [strategy.as_json() for strategy in self.strategies],
        }


def known(value: float | None) -> float:
    """A number that every feasible strategy has."""
    if value is None:
        raise InvariantError("a feasible strategy lacks its RR or its cost")
    return value


def _cannot(model: Model, copies: int, why: str) -> Recommendation:
    return Recommendation(model.name, model.title, copies, None, None, None, False, why)


def _why(model: Model, choice: Choice, scenario: Scenario) -> str:
    plan = choice.plan
    speed = f"must recover at {show_factor(choice.rr)} the input rate"
    if model.multi:
        speed = f"{plan.copies} copies; " + speed
    if choice.floor > 1.0 and choice.rr <= choice.floor * (1.0 + 1e-9):
        reason = {"on_demand": "durability", "aa_periodic": "the checkpointer's own load"}.get(
            model.name, "live traffic"
        )
        speed += f", set by {reason}"
    if model.has_interval:
        speed += f", checkpoints every {show_duration(plan.interval * scenario.mtbf)}"
    if model.name == "replay_missing":
        speed += "; output is missing while it recovers"
    return speed


def assess(
    model: Model,
    scenario: Scenario,
    *,
    copies: int | None = None,
    checkpoint_interval: float | None = None,
    rr_max: float | None = None,
    prices: Prices | None = None,
) -> Recommendation:
    """One strategy at its best setting within the bounds given."""
    shown = copies if copies is not None and model.multi else model.copies_min
    if model.needs_window and scenario.window is None:
        return _cannot(model, shown, "needs a window, which is not known")
    if model.needs_checkpoint and scenario.checkpoint_size is None:
        return _cannot(model, shown, "needs a checkpoint size, which is not known")
    if model.multi and copies is not None and copies < model.copies_min:
        return _cannot(model, copies, f"needs at least {model.copies_min} copies")
    params = scenario.params()
    interval = None if checkpoint_interval is None else checkpoint_interval / scenario.mtbf
    choice = best(model, params, copies, interval, rr_max)
    if choice is None or not (math.isfinite(choice.rr) and math.isfinite(choice.cost)):
        bound = f" with RR of at most {rr_max:g}" if rr_max is not None else ""
        return _cannot(model, shown, f"no setting meets an SLA of {show_fraction(scenario.sla)}{bound}")
    used = resources(model.name, scenario, choice.plan, choice.rr, choice.cost)
    return Recommendation(
        name=model.name,
        title=model.title,
        copies=choice.plan.copies,
        rr=choice.rr,
        cost=choice.cost,
        checkpoint_interval=choice.plan.interval * scenario.mtbf if model.has_interval else None,
        feasible=True,
        why=_why(model, choice, scenario),
        bandwidth=choice.rr * scenario.input_rate,
        resources=used,
        money=None if prices is None else used.money(prices),
    )


def _sentence(ranked: list[Recommendation], scenario: Scenario) -> str:
    if not ranked:
        return f"No strategy meets an SLA of {show_fraction(scenario.sla)} within these bounds."
    first = ranked[0]
    text = (
        f"{first.title} wins: it meets {show_fraction(scenario.sla)} at {first.cost:.3g} times the cost of running "
        f"non-resiliently ({first.why})"
    )
    if len(ranked) == 1:
        return text + "; nothing else meets the SLA within these bounds."
    second = ranked[1]
    more = 100.0 * (known(second.cost) / known(first.cost) - 1.0)
    return text + f"; {second.title.lower()} comes next and costs {more:.3g}% more."


def check_choices(copies: int | None, checkpoint_interval: float | None, rr_max: float | None) -> None:
    """Refuse what cannot be fixed or bounded that way."""
    if copies is not None and (isinstance(copies, bool) or not 1 <= copies <= COPIES_MAX):
        raise ConfigError(f"copies must be a whole number from 1 to {COPIES_MAX}, not {copies}")
    if checkpoint_interval is not None:
        positive(float(checkpoint_interval), "checkpoint interval")
    if rr_max is not None and not (math.isfinite(rr_max) and rr_max >= 1.0):
        raise ConfigError(f"rr_max must be at least 1 (the input rate itself), not {rr_max}")


def prescribe(
    scenario: Scenario,
    *,
    copies: int | None = None,
    checkpoint_interval: float | None = None,
    rr_max: float | None = None,
    models: str = "exact",
    prices: Prices | None = None,
    allow_missing: bool = False,
    only: frozenset[str] | None = None,
) -> Prescription:
    """Rank every strategy of one set of models, or `only` some of them, for a scenario."""
    check_choices(copies, checkpoint_interval, rr_max)
    found = [
        assess(
            model, scenario, copies=copies, checkpoint_interval=checkpoint_interval, rr_max=rr_max, prices=prices
        )
        for model in catalogue(models).values()
        if only is None or model.name in only
    ]  # fmt: skip
    ranked = sorted((f for f in found if f.feasible), key=lambda f: known(f.cost))
    eligible = [f for f in ranked if allow_missing or f.name != "replay_missing"]
    return Prescription(
        scenario=scenario,
        models=models,
        strategies=tuple(eligible + [f for f in ranked if f not in eligible] + [f for f in found if not f.feasible]),
        winner=eligible[0] if eligible else None,
        sentence=_sentence(eligible, scenario),
    )


def front_runners(
    scenario: Scenario,
    *,
    count: int = 2,
    models: str = "exact",
    allow_missing: bool = False,
    quick: bool = False,
    copies: int | None = None,
    checkpoint_interval: float | None = None,
    rr_max: float | None = None,
) -> list[Recommendation]:
    """The `count` cheapest strategies, for when thousands of scenarios are ranked.

    Whatever cannot be cheaper than those found is not solved for; the search uses the models' rough stand-ins, and the
    winner is then settled with its own model, unless `quick`.
    """
    check_choices(copies, checkpoint_interval, rr_max)
    params = scenario.params()

    def solve(model: Model) -> Recommendation:
        return assess(model, scenario, copies=copies, checkpoint_interval=checkpoint_interval, rr_max=rr_max)

    def cost(option: Recommendation) -> float:
        return known(option.cost)

    found: list[Recommendation] = []
    candidates = [m for m in catalogue(models, rough=True).values() if allow_missing or m.name != "replay_missing"]
    bounds = {model.name: least_cost(model, params) for model in candidates}
    for model in sorted(candidates, key=lambda model: bounds[model.name]):
        if len(found) >= count and bounds[model.name] >= cost(found[-1]):
            continue
        option = solve(model)
        if option.feasible:
            found = sorted([*found, option], key=cost)[:count]
    if quick:
        return found
    precise = catalogue(models)
    while found and precise[found[0].name].rough is not None:
        settled = solve(precise[found[0].name])
        if settled.feasible:
            return sorted([settled, *found[1:]], key=cost)
        found = found[1:]
    return found
