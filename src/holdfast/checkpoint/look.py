"""A checkpoint for a reader who is not the primary: nothing is claimed, pinned or set aside, only read.

So whoever reads needs no right to write, and a primary never notices. The price is that a primary may collect the
checkpoint meanwhile. Its files then go one by one, and no name is ever used twice: a reader finds all bytes as they
were published, or finds that a file is missing. The head says which it was, damage or collection. A reader that wants
the newest one takes the next; one that wants a certain one is told that it is gone.

Damage is an error here, and stays as it is: to set a checkpoint aside is for a primary that restores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.checkpoint import keys
from holdfast.checkpoint.head import ShardHead
from holdfast.checkpoint.inspect import entry_of, head_of
from holdfast.checkpoint.manifest import CheckpointManifest, check_fits, from32
from holdfast.checkpoint.restore import read_manifest, read_pages
from holdfast.checkpoint.tenure import read_head
from holdfast.checkpoint.write import fit_of
from holdfast.errors import CorruptPageError, ObjectMissingError, StateError
from holdfast.model.ids import Asset
from holdfast.operators.operator import StateConfig, StatefulOperator
from holdfast.store.plan import LookAt, Steps

Op = TypeVar("Op", bound=StatefulOperator)

#: A newest one is collected while it is read only if reading takes as long as several checkpoints.
_TRIES = 5
#: Pages beyond those of the checkpoint: a pool has to have a few, and nothing is written here.
_SPARE_PAGES = 16


@dataclass(frozen=True)
class SeenState(Generic[Op]):
    """An operator that holds what a checkpoint holds; its pool is the reader's to abandon."""

    manifest: CheckpointManifest
    op: Op


def heads_of(shards: Iterable[Asset]) -> Steps[dict[Asset, ShardHead]]:
    """Of those that have one. It may have no checkpoint in it yet."""
    found: dict[Asset, ShardHead] = {}
    for shard in shards:
        raw = yield LookAt(keys.head_key(shard))
        if raw is not None:
            found[shard] = read_head(raw[0], shard)
    return found


def look_at(
    shard: Asset, sequence: int | None, make: Callable[[StateConfig], Op], deployment: str, *, firm: bool = True
) -> Steps[SeenState[Op]]:
    """The state of one checkpoint (None: of the newest good one). `firm`: of that one and no other; else, if it was
    collected meanwhile, of the newest good one of that moment."""
    for _ in range(_TRIES):
        head = yield from head_of(shard)
        if sequence is not None and not firm and head.entry(sequence) is None:
            sequence = None
        entry = entry_of(head, sequence)
        try:
            manifest = yield from read_manifest(shard, entry)
            op = make(_config_for(manifest))
            check_fits(manifest, fit_of(op, deployment))
            pool = op.new_pool()
            yield from read_pages(manifest, pool)
            op.become(pool, manifest.meta)
            return SeenState(manifest, op)
        except (ObjectMissingError, CorruptPageError):
            now = yield from head_of(shard)
            if now.entry(entry.sequence) is not None:
                raise
            if sequence is not None and firm:
                raise StateError(
                    f"checkpoint {sequence} of {shard} was collected while it was read",
                    detail="Newer ones have taken its place.",
                    hint="Read the newest one, or let the nodes keep more of them (`checkpoints_kept`).",
                ) from None
    raise StateError(
        f"checkpoints of {shard} are collected faster than they can be read",
        detail=f"Tried {_TRIES} of them.",
        hint="Let the nodes keep more of them (`checkpoints_kept`), or checkpoint less often (`checkpoint_every`).",
    )


def _config_for(manifest: CheckpointManifest) -> StateConfig:
    """As large as the state is, and no larger: what its node was allowed to use does not matter here. A set may have
    holes, so its highest page number counts as well."""
    numbers = [from32(pages.numbers) for pages in manifest.sets]
    most = max([manifest.pages, *(int(n.max()) + 1 for n in numbers if len(n))])
    page_bytes = manifest.fit.page_bytes
    return StateConfig(page_bytes=page_bytes, limit_bytes=(most + _SPARE_PAGES) * page_bytes)
