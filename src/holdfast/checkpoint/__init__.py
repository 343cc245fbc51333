"""Checkpoints of shards in a stable store: sguard §4.4 and §5, with a fence that does not need a coordinator.

    keys.py      where everything is                  head.py      which checkpoints count, and who may add to them
    manifest.py  what a checkpoint says of itself     tenure.py    claim, publish, collect, sweep: plans for a store
    pages.py     pages to files and back              write.py     a checkpoint of an operator, taken in a moment
    restore.py   the newest one that is whole         inspect.py   list, verify, delete: for people
    look.py      one that is only read

Nothing here does I/O: what is to be done with a store is yielded (`store/plan.py`). Read `head.py` first.
"""

from holdfast.checkpoint.head import HeadEntry, ShardHead
from holdfast.checkpoint.manifest import CheckpointManifest, Fit, Stand, head_of, stand_of
from holdfast.checkpoint.restore import RestoredState, restore, restore_operator
from holdfast.checkpoint.tenure import Tenure, claim, clear, collect, publish, settle, sweep
from holdfast.checkpoint.write import BuiltOn, PagedJob, fit_of, take

__all__ = [
    "BuiltOn",
    "CheckpointManifest",
    "Fit",
    "HeadEntry",
    "PagedJob",
    "RestoredState",
    "ShardHead",
    "Stand",
    "Tenure",
    "claim",
    "clear",
    "collect",
    "fit_of",
    "head_of",
    "publish",
    "restore",
    "restore_operator",
    "settle",
    "stand_of",
    "sweep",
    "take",
]
