"""Which resiliency strategy meets an uptime SLA at the least cost (paper: shrink.txt).

    from holdfast.prescriber import Scenario, prescribe
    found = prescribe(Scenario(sla=0.9999, window=600, checkpoint_size=300e6, input_rate=2e6, mtbf=30 * 86400))
    print(found.sentence)

Needs neither Spark nor a cluster, and says nothing about how a strategy is carried out: that is `holdfast.core`.
"""

from __future__ import annotations

from .compose import Cached, Distributed, cache, distribute, shard
from .decide import Decider, Decision
from .models import catalogue
from .recommend import Prescription, Recommendation, prescribe
from .resources import Prices, Resources, slowest
from .scenario import Scenario
from .sensitivity import Turn, sensitivity

__all__ = [
    "Cached", "Decider", "Decision", "Distributed", "Prescription", "Prices", "Recommendation", "Resources",
    "Scenario", "Turn", "cache", "catalogue", "distribute", "prescribe", "sensitivity", "shard", "slowest",
]  # fmt: skip
