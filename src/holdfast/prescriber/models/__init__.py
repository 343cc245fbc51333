"""The models, one module per family; `catalogue("exact")` or `catalogue("published")` lists them by name."""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import ConfigError

from . import aa_periodic, on_demand, periodic, replay, standby
from .base import Model, StrategyPlan

FAMILIES = (replay, periodic, aa_periodic, on_demand, standby)
SETS = ("published", "exact")


def catalogue(models: str = "exact", *, rough: bool = False) -> dict[str, Model]:
    """All strategies of one set, by name, in the order of the paper's figure 5; `rough` ones only for searching."""
    if models not in SETS:
        raise ConfigError(f"unknown set of models {models!r}", hint="Choose published or exact.")
    found = [model for family in FAMILIES for model in getattr(family, models.upper())]
    if rough:
        found = [model if model.rough is None else replace(model, downtime=model.rough, rough=None) for model in found]
    return {model.name: model for model in found}


__all__ = ["SETS", "Model", "StrategyPlan", "catalogue"]
