"""Which guards a shard has. The table of modes is data (`model/protection.py`); here its names become objects."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.images import Images
from holdfast.core.protect.pace import Pace
from holdfast.core.protect.paged import Paged
from holdfast.core.tickets import Tickets
from holdfast.model.config import Config
from holdfast.model.protection import MODES, Protection
from holdfast.model.record import Place

#: (name, place, now) -> the guard of a shard that runs.
MakeGuard = Callable[[str, Place, int], Guard]


def guard_names(protection: Protection, place: Place) -> tuple[str, ...]:
    """The guards of a mode; images wherever the record has somebody brought up, whatever the mode says; and the store,
    beside any mode."""
    names = MODES[protection.mode].guards
    if place.targets and Images.name not in names:
        names = (*names, Images.name)
    return (*names, Paged.name) if protection.is_stored else names


def maker(copy: Copy, config: Config, pace: Pace, tickets: Tickets) -> MakeGuard:
    guards: dict[str, Callable[[Place, int], Guard]] = {
        Images.name: lambda place, now_ns: Images(copy, place, config, pace, now_ns),
        Paged.name: lambda place, now_ns: Paged(copy, place, tickets, now_ns),
    }
    return lambda name, place, now_ns: guards[name](place, now_ns)
