"""Which guards a shard has. The table of modes is data (`model/protection.py`); here its names become objects."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.images import Images
from holdfast.core.protect.pace import Pace
from holdfast.model.config import Config
from holdfast.model.protection import MODES
from holdfast.model.record import Place

#: (name, place, now) -> the guard of a shard that runs.
MakeGuard = Callable[[str, Place, int], Guard]

_GUARDS: dict[str, Callable[[Copy, Place, Config, Pace, int], Guard]] = {Images.name: Images}


def guard_names(mode: str, place: Place) -> tuple[str, ...]:
    """The guards of a mode; and images wherever the record has somebody brought up, whatever the mode says."""
    names = MODES[mode].guards
    return names if not place.targets or Images.name in names else (*names, Images.name)


def maker(copy: Copy, config: Config, pace: Pace) -> MakeGuard:
    return lambda name, place, now_ns: _GUARDS[name](copy, place, config, pace, now_ns)
