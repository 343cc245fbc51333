"""Figures 14 to 21 of shrink.txt from the published models, each headline as a claim, and the readings they rest on.

Defaults of §7.3: W_T = 1 day, checkpoint = 1 window of input, SLA 90%, K_F = 3, F_T = 30 days. Figures 16-19 end at
1 - SLA = 2^-16, where the numbers of the text lie; figures 20 and 21 use k = N_F - 1 and SLA .99999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from holdfast.prescriber import Scenario
from holdfast.prescriber.models import Model, catalogue
from holdfast.prescriber.models.aa_periodic import FIGURES
from holdfast.prescriber.optimise import Choice, best, best_for_copies
from holdfast.prescriber.plots import lines

DAY = 86400.0
LAST = 2.0**-16  # where the SLA axis of figures 16-19 ends

Series = dict[str, tuple[list[float], list[float]]]
Claim = dict[str, object]


def scenario(window: float = 1.0, blow_up: float = 1.0, down: float = 0.1) -> Scenario:
    """The paper's defaults; window in days, checkpoint in windows of input."""
    return Scenario(
        sla=1.0 - down, window=window * DAY, checkpoint_size=blow_up * window * DAY, input_rate=1.0, mtbf=30 * DAY,
        durability=0.99999, durability_span=3650 * DAY,
    )  # fmt: skip


def solve(model: Model, at: Scenario, **bounds: object) -> Choice:
    """The choice that the model must be able to make."""
    found = best(model, at.params(), **bounds)  # type: ignore[arg-type]
    if found is None:
        raise ValueError(f"{model.name} cannot meet {at}")
    return found


def model(name: str) -> Model:
    """Published, with the figures' reading of k for active-active periodic checkpoints."""
    return FIGURES[0] if name == "aa_periodic" else catalogue("published")[name]


def over(
    names: Mapping[str, tuple[str, int | None]], axis: list[float], at: Callable[[float], Scenario]
) -> tuple[Series, Series]:
    """Cost and RR of each named strategy along an axis."""
    cost: Series = {}
    reserve: Series = {}
    for label, (name, copies) in names.items():
        choices = [solve(model(name), at(x), copies=copies) for x in axis]
        cost[label] = (axis, [choice.cost for choice in choices])
        reserve[label] = (axis, [choice.rr for choice in choices])
    return cost, reserve


SINGLE = {"replay": ("replay", None), "periodic": ("periodic", None)}
PAIR = {"1 node": ("periodic", None), "2 nodes": ("aa_periodic", 2)}


def claim(text: str, source: str, goal: str, measured: float | str, holds: bool) -> Claim:
    """One row of the bench's table."""
    return {"claim": text, "source": source, "goal": goal, "measured": measured, "holds": bool(holds)}


def figure_14(out: Path | None) -> list[Claim]:
    """Checkpoint blow-up from .001 to 1000 windows."""
    axis = np.logspace(-3, 3, 25).tolist()
    cost, reserve = over(SINGLE, axis, lambda x: scenario(blow_up=x))
    if out is not None:
        lines(
            out / "figure-14.png",
            [("Cost_F", cost), ("RR_F", reserve)],
            x_label="checkpoint size, windows of input",
            title="Figure 14: replay and periodic checkpoints over the checkpoint's size",
        )
    top, rr, flat = cost["periodic"][1][-1], reserve["periodic"][1][-1], cost["replay"][1]
    return [
        claim("periodic cost at 1000 windows", "shrink fig. 14", "nearly 100x (70 to 100)", top, 70 <= top <= 100),
        claim("periodic RR at 1000 windows", "shrink fig. 14", "over 400x", rr, 400 < rr < 500),
        claim("replay's cost does not move", "shrink fig. 14", "flat", max(flat) / min(flat), max(flat) == min(flat)),
    ]


def figure_15(out: Path | None) -> list[Claim]:
    """Window from .001 to 1000 days, checkpoints of .01 windows."""
    axis = np.logspace(-3, 3, 25).tolist()
    cost, reserve = over(SINGLE, axis, lambda x: scenario(window=x, blow_up=0.01))
    if out is not None:
        lines(
            out / "figure-15.png",
            [("Cost_F", cost), ("RR_F", reserve)],
            x_label="window, days",
            title="Figure 15: replay and periodic checkpoints over the window",
        )
    found = {(kind, name): series[name][1][-1] for kind, series in (("cost", cost), ("rr", reserve)) for name in SINGLE}
    goals = {
        ("cost", "replay"): ("12x", 11.5, 12.5),
        ("cost", "periodic"): ("3.4x", 3.35, 3.45),
        ("rr", "replay"): ("over 300x", 300, 400),
        ("rr", "periodic"): ("13x", 12.5, 13.5),
    }
    return [
        claim(f"{name} {kind} at 1000 days", "shrink fig. 15", goal, found[kind, name], low <= found[kind, name] < high)
        for (kind, name), (goal, low, high) in goals.items()
    ]


def figure_16_17(out: Path | None) -> list[Claim]:
    """SLA from 50% to 1 - 2^-16."""
    axis = [2.0**-k for k in range(1, 17)]
    cost, reserve = over(SINGLE, axis, lambda x: scenario(down=x))
    if out is not None:
        lines(out / "figure-16.png", [("Cost_F", cost)], x_label="1 - SLA", title="Figure 16: cost over the SLA")
        lines(out / "figure-17.png", [("RR_F", reserve)], x_label="1 - SLA", title="Figure 17: RR over the SLA")
    top, rr = cost["periodic"][1][-1], reserve["periodic"][1][-1]
    replay, flat = reserve["replay"][1][-1], cost["replay"][1][-1]
    return [
        claim("periodic cost at 1 - 2^-16", "shrink fig. 16", "over 3000x", top, 3000 < top < 3500),
        claim("periodic RR at 1 - 2^-16", "shrink fig. 17", "almost 20,000x", rr, 18_000 < rr < 20_000),
        claim("replay RR at 1 - 2^-16", "shrink fig. 17", "over 2000x", replay, 2000 < replay < 2500),
        claim("replay cost at 1 - 2^-16", "shrink fig. 16", "about 1", flat, abs(flat - 1) < 0.05),
    ]


def figure_18_19(out: Path | None) -> list[Claim]:
    """One against two nodes."""
    axis = [2.0**-k for k in range(1, 17)]
    cost, reserve = over(PAIR, axis, lambda x: scenario(down=x))
    if out is not None:
        lines(
            out / "figure-18.png",
            [("Cost_F", cost)],
            x_label="1 - SLA",
            title="Figure 18: one and two nodes, cost over the SLA",
        )
        lines(
            out / "figure-19.png",
            [("RR_F", reserve)],
            x_label="1 - SLA",
            title="Figure 19: one and two nodes, RR over the SLA",
        )
    one, two = (solve(model(name), scenario(), copies=n).cost for name, n in PAIR.values())
    half = [solve(model(name), scenario(down=0.5), copies=n).cost for name, n in PAIR.values()]
    flat = cost["2 nodes"][1]
    return [
        claim("two nodes cheaper at one nine", "shrink fig. 18", "below 1 of one node's cost", two / one, two < one),
        claim(
            "one node cheaper at 50%",
            "shrink fig. 18",
            "above 1 of one node's cost",
            half[1] / half[0],
            half[1] > half[0],
        ),
        claim(
            "two nodes' cost does not depend on the SLA",
            "shrink fig. 18",
            "flat",
            max(flat) / min(flat),
            max(flat) == min(flat),
        ),
    ]


def figure_20(out: Path | None) -> list[Claim]:
    """N_F from 2 to 8 at five nines."""
    axis = [float(n) for n in range(2, 9)]
    found = [solve(model("aa_periodic"), scenario(down=1e-5), copies=int(n)) for n in axis]
    printed = [solve(catalogue("published")["aa_periodic"], scenario(down=1e-5), copies=int(n)) for n in axis]
    if out is not None:
        series: Series = {
            "Cost_F": (axis, [c.cost for c in found]), "RR_F, k = N-1": (axis, [c.rr for c in found]),
            "RR_F, k = N-2 as printed": (axis, [c.rr for c in printed]),
        }  # fmt: skip
        lines(
            out / "figure-20.png",
            [("factor", series)],
            x_label="N_F",
            title="Figure 20: copies at five nines",
            log_x=False,
        )
    five = found[3]
    before = found[2].rr > found[2].cost and five.rr < five.cost
    return [
        claim(
            "cost and RR cross between 4 and 5 nodes",
            "shrink fig. 20",
            "about 5",
            "4 to 5" if before else "elsewhere",
            before,
        ),
        claim("RR at 5 nodes", "shrink fig. 20", "about 2.5", five.rr, abs(five.rr - 2.5) < 0.25),
        claim("cost at 5 nodes", "shrink fig. 20", "about 2.5", five.cost, abs(five.cost - 2.5) < 0.25),
    ]


def cheapest_under(model: Model, at: Scenario, rr_max: float) -> float | None:
    """Least cost with RR of at most rr_max, over N_F from 2 to 10."""
    found = [best_for_copies(model, at.params(), n, rr_max=rr_max) for n in range(2, 11)]
    return min((choice.cost for choice in found if choice is not None), default=None)


def crossing(periodic: Model, on_demand: Model, at: Scenario) -> float:
    """RR_F from which on periodic is the cheaper, by bisection."""
    low, high = 1.2, 8.0
    for _ in range(24):
        middle = (low * high) ** 0.5
        ours, theirs = cheapest_under(periodic, at, middle), cheapest_under(on_demand, at, middle)
        wins = ours is not None and (theirs is None or ours < theirs)
        low, high = (low, middle) if wins else (middle, high)
    return high


def figure_21(out: Path | None) -> list[Claim]:
    """Periodic against on-demand over a bound on RR_F, five nines, durability five nines over ten years."""
    at, on_demand = scenario(down=1e-5), model("on_demand")
    axis = np.geomspace(1.15, 64, 28).tolist()
    series: Series = {}
    readings = {
        "periodic, k = N-1": FIGURES[0],
        "periodic, k = N-2": catalogue("published")["aa_periodic"],
        "on-demand": on_demand,
    }
    for label, one in readings.items():
        points = [(x, cost) for x in axis if (cost := cheapest_under(one, at, x)) is not None]
        series[label] = ([x for x, _ in points], [cost for _, cost in points])
    if out is not None:
        lines(
            out / "figure-21.png",
            [("Cost_F", series)],
            x_label="RR_F allowed",
            title="Figure 21: periodic against on-demand checkpoints",
        )
    return [
        claim(f"cross-over, {label}", "shrink fig. 21", "at about 2 (1.6 to 2.4)", x, 1.6 <= x <= 2.4)
        for label, one in list(readings.items())[:2]
        for x in [crossing(one, on_demand, at)]
    ]


FIGURES_IN_ORDER = (figure_14, figure_15, figure_16_17, figure_18_19, figure_20, figure_21)
