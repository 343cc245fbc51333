"""The models, one module per family; `catalogue("exact")` or `catalogue("published")` lists them by name."""

from __future__ import annotations

from ...errors import ConfigError
from . import aa_periodic, on_demand, periodic, replay, standby
from .base import Model, Plan

FAMILIES = (replay, periodic, aa_periodic, on_demand, standby)
SETS = ("published", "exact")


def catalogue(models: str = "exact") -> dict[str, Model]:
    """All strategies of one set, by name, in the order of the paper's figure 5."""
    if models not in SETS:
        raise ConfigError(f"unknown set of models {models!r}", hint="Choose published or exact.")
    return {model.name: model for family in FAMILIES for model in getattr(family, models.upper())}


__all__ = ["SETS", "Model", "Plan", "catalogue"]
