"""Where a shard's state is kept, and what may therefore be acknowledged: guards, and which of them a mode has."""

from holdfast.core.protect.eventual import Eventual
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.horizon import Horizons
from holdfast.core.protect.images import Images
from holdfast.core.protect.modes import MakeGuard, guard_names, maker
from holdfast.core.protect.pace import Pace
from holdfast.core.protect.paged import Paged
from holdfast.core.protect.twin import Twin

__all__ = ["Eventual", "Guard", "Horizons", "Images", "MakeGuard", "Pace", "Paged", "Twin", "guard_names", "maker"]
