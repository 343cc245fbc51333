"""Notes about balance: what moves though nothing has failed.

They are notes as those of `model/notes.py`, which brings all of them together, are.
"""

from __future__ import annotations

from holdfast.model.ids import Asset, Name
from holdfast.model.note import Note, Told


class Balanced(Note, frozen=True):
    """Something is moved only because its node has more to do than another: (busier node, lighter node, what goes)."""

    checked = True
    told = Told("balance", "The {what} {asset} moves from {source} to {target}, which has less to do.")
    name: Name
    asset: Asset
    source: Name
    target: Name
    version: int
    loads: tuple[int, int, int]
    #: "backup of" a shard, "standby of" a stage, or "stage".
    what: str = "backup of"


class Reassigned(Note, frozen=True):
    """A backup is moved since a failure would take longest there: times of (longer segment, shorter segment, unit)."""

    checked = True
    told = Told(
        "reassigned", "The backup of {asset} moves from {source} to {target}: a recovery takes less time there."
    )
    name: Name
    asset: Asset
    source: Name
    target: Name
    version: int
    epoch: int
    times: tuple[int, int, int]


class SpreadOut(Note, frozen=True):
    """A second copy goes to another failure domain than that of the first one."""

    checked = True
    told = Told(
        "spread", "The second copy of {asset} moves from {source} to {target}, which shares less with the first."
    )
    name: Name
    asset: Asset
    source: Name
    target: Name
    version: int
