"""When transient failures come and how long they last: regular or Poisson arrivals (hybrid-ha §V-A).

A load spike, a freeze or a slow disk is there for a *spell* and then gone again. Both generators take the mean time
from the beginning of one spell to that of the next, and the mean length of a spell: their ratio is the share of the
time with a failure, by which the paper draws figures 4 and 5. The simulator turns spells into faults, tests and benches
on real nodes into hogs and signals (`tests/support/transient.py`).
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.errors import ConfigError


class Spell(msgspec.Struct, frozen=True):
    at_s: float
    for_s: float


def regular(every_s: float, for_s: float, until_s: float) -> tuple[Spell, ...]:
    """One after the other, each as long as all others. The first begins after the first pause."""
    _check(every_s, for_s)
    found: list[Spell] = []
    while (at_s := (len(found) + 1) * every_s - for_s) < until_s:
        found.append(Spell(at_s, min(for_s, until_s - at_s)))
    return tuple(found)


def poisson(every_s: float, for_s: float, until_s: float, rng: Random) -> tuple[Spell, ...]:
    """Pauses and lengths are both exponential, so nobody can tell when the next one comes or the present one ends."""
    _check(every_s, for_s)
    found: list[Spell] = []
    at_s = rng.expovariate(1 / (every_s - for_s))
    while at_s < until_s:
        lasts_s = min(rng.expovariate(1 / for_s), until_s - at_s)
        found.append(Spell(at_s, lasts_s))
        at_s += lasts_s + rng.expovariate(1 / (every_s - for_s))
    return tuple(found)


def share(spells: tuple[Spell, ...], until_s: float) -> float:
    """Of the time until then, how much of it lies in a spell."""
    return sum(max(0.0, min(s.at_s + s.for_s, until_s) - s.at_s) for s in spells) / until_s


def _check(every_s: float, for_s: float) -> None:
    if not 0 < for_s < every_s:
        raise ConfigError(
            "spells must be shorter than the time between them",
            detail=f"One begins every {every_s:g} s and lasts {for_s:g} s.",
            hint="The ratio of the two is the share of the time with a failure.",
        )
