"""Planted bugs in live switches between modes."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import placement
from holdfast.core.runner import Runner
from holdfast.model.protection import MODES


@mutant
def going_down_acknowledges_before_the_backup_is_dropped() -> list[Patch]:
    """What the operator wants counts, not what the record still names."""
    safe, right = Runner.safe, placement._protect

    def weaker(self):
        return self.copy.positions() if self.guards and self.guards[0].protection.mode == "none" else safe(self)

    def protect(made, asset, reports):
        before = made.places[asset]
        right(made, asset, reports)
        if made.before.places[asset].mode != made.places[asset].mode == "none":
            made.put(asset, backup=before.backup, mode=before.mode)  # in the next record

    return [(Runner, "safe", weaker), (placement, "_protect", protect)]


@mutant
def going_up_is_in_force_before_the_copy_is_there() -> list[Patch]:
    right = placement._protect

    def protect(made, asset, reports):
        right(made, asset, reports)
        if MODES[made.mode_of(asset)].has_backup:
            made.put(asset, mode=made.mode_of(asset))

    return [(placement, "_protect", protect)]


@mutant
def a_mode_without_a_backup_keeps_naming_it() -> list[Patch]:
    """The shard acknowledges what it consumed, and the record would still promote the old copy."""
    put, safe = placement.Draft.put, Runner.safe

    def keeps(self, asset, **fields):
        if fields.get("backup", "") is None and fields.get("joining", "") is None and "epoch" not in fields:
            fields = {name: value for name, value in fields.items() if name != "backup"}
        put(self, asset, **fields)

    def weaker(self):
        return self.copy.positions() if self.place.mode == "none" else safe(self)

    return [(placement.Draft, "put", keeps), (Runner, "safe", weaker)]
