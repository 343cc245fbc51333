"""How hard Hypothesis looks, everywhere."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# no deadline: the first call of a kernel compiles it
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000, stateful_step_count=100)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", "default"))
