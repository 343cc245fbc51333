"""How a node judges the silence of a peer: methods behind one small interface, of which a setting chooses one.

`Level` is all that the rest of the core knows of it: heard in time, suspicious on the first missing heartbeat, or taken
for dead (hybrid-ha §IV-A, §IV-B). `core/detector.py` keeps one `Judge` per peer.
"""

from __future__ import annotations

from holdfast.core.detect.judge import Judge, Level
from holdfast.core.detect.misses import Misses
from holdfast.core.detect.phi import PhiAccrual

#: How silence is judged, by the name that `Config.detector` has for it (`model/config.py` knows the names). A node that
#: runs the benchmark says itself that it is slow; one that is frozen cannot, so its silence is counted beside that.
METHODS: dict[str, type[Misses | PhiAccrual]] = {"misses": Misses, "phi": PhiAccrual, "benchmark": Misses}

__all__ = ["METHODS", "Judge", "Level", "Misses", "PhiAccrual"]
