"""How a node judges the silence of a peer: methods behind one small interface, of which a setting chooses one.

`Level` is all that the rest of the core knows of it: heard in time, suspicious on the first missing heartbeat, or taken
for dead (hybrid-ha §IV-A, §IV-B). `core/detector.py` keeps one `Judge` per peer.
"""

from __future__ import annotations

from holdfast.core.detect.judge import Judge, Level
from holdfast.core.detect.misses import Misses
from holdfast.core.detect.phi import PhiAccrual

#: By the name that `Config.detector` has for it (`model/config.py` knows the names).
METHODS: dict[str, type[Misses | PhiAccrual]] = {"misses": Misses, "phi": PhiAccrual}

__all__ = ["METHODS", "Judge", "Level", "Misses", "PhiAccrual"]
