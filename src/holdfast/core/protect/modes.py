"""Which guards a shard has. The table of modes is data (`model/protection.py`); here its names become objects."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.protect.eventual import Eventual
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.horizon import Horizons
from holdfast.core.protect.images import Images
from holdfast.core.protect.pace import Pace
from holdfast.core.protect.paged import Paged
from holdfast.core.protect.twin import Twin
from holdfast.core.tickets import Tickets
from holdfast.model.config import Config
from holdfast.model.ids import Seat
from holdfast.model.protection import MODES, Protection
from holdfast.model.record import Place

#: (name, place, now) -> the guard of a shard that runs.
MakeGuard = Callable[[str, Place, int], Guard]


def guard_names(protection: Protection, place: Place) -> tuple[str, ...]:
    """The guards of a mode; a twin, a keeper, and images, wherever the record has somebody run, keep input or be
    brought up, whatever the mode says; and the store, beside any mode."""
    names = dict.fromkeys(MODES[protection.mode].guards)
    there = (
        (Twin.name, place.twin),
        (Horizons.name, place.keeper),
        (Images.name, place.targets),
        (protection.checkpoint, protection.is_stored),
    )
    return tuple(names | {name: None for name, is_there in there if is_there})


def maker(copy: Copy, seat: Seat, config: Config, pace: Pace, tickets: Tickets) -> MakeGuard:
    guards: dict[str, Callable[[Place, int], Guard]] = {
        Horizons.name: lambda place, now_ns: Horizons(copy, place, config, now_ns),
        Images.name: lambda place, now_ns: Images(copy, place, config, pace, now_ns),
        Paged.name: lambda place, now_ns: Paged(copy, place, tickets, now_ns),
        Eventual.name: lambda place, now_ns: Eventual(copy, place, tickets, now_ns),
        Twin.name: lambda place, now_ns: Twin(copy, place, seat, config),
    }
    return lambda name, place, now_ns: guards[name](place, now_ns)
