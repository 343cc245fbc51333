"""What people ask of the checkpoints in a store: which there are, what they share, if they are whole; and deleting.

Nothing here claims a head: a running primary is not disturbed. Deleting is a change of the head like any other, so a
primary that builds on what was deleted is told so at its next publication, and writes a full checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.checkpoint.head import HeadEntry, ShardHead
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.pages import PageReads, PageTable
from holdfast.checkpoint.restore import read_manifest, read_parts
from holdfast.checkpoint.tenure import delete_forgotten, read_head
from holdfast.errors import ConfigError, CorruptPageError, ObjectMissingError, StateError, SwapConflictError
from holdfast.model.ids import Asset
from holdfast.store.plan import All, ListKeys, LookAt, Steps, SwapSmall
from holdfast.store.port import StoredObject

_TRIES = 20


@dataclass(frozen=True)
class Survey:
    """All heads of a store, and the sizes of what lies under them."""

    heads: dict[Asset, ShardHead]
    #: Heads that cannot be read: shard -> why.
    unreadable: dict[Asset, str]
    sizes: dict[str, int]

    def orphans(self, shard: Asset) -> list[str]:
        """Keys of a shard that no entry names: left by writers that died, or about to be published."""
        head = self.heads[shard]
        found = []
        for key in self.sizes:
            place = keys.parse(key)
            if place and place.shard == shard:
                known = head.entry(place.sequence) if place.is_manifest else place.file in head.files
                found += [] if known else [key]
        return found


@dataclass(frozen=True)
class Sharing:
    """What one checkpoint takes up: bytes of its own files, bytes that it needs of earlier ones, bytes that only it
    needs (what deleting it would free)."""

    own: int
    shared: int
    alone: int


def is_of(key: str, shard: Asset) -> bool:
    place = keys.parse(key)
    return place is not None and place.shard == shard


def files_of(manifest: CheckpointManifest, sizes: dict[str, int]) -> list[dict[str, object]]:
    """Every file that a checkpoint needs: its pages, how many of them are used, and the bytes that are there."""
    table = PageTable.of(manifest)
    used = [0] * len(table.files)
    for one in table.sets.values():
        for index, count in enumerate(np.bincount(one.files, minlength=len(used))):
            used[index] += int(count)
    pages = [(f.name, f.pages, n) for f, n in zip(table.files, used, strict=True)]
    return [
        {"name": name, "pages": n, "pages_used": u, "bytes_there": sizes.get(keys.file_key(manifest.shard, name))}
        for name, n, u in [*pages, *((p.name, 0, 0) for p in manifest.parts)]
    ]


def sharing(head: ShardHead, entry: HeadEntry, sizes: dict[str, int]) -> Sharing:
    def nbytes(names: set[str]) -> int:
        return sum(sizes.get(keys.file_key(head.shard, name), 0) for name in names)

    mine = {name for name in entry.files if keys.made_by(name) == entry.sequence}
    others = {name for e in head.entries if e.sequence != entry.sequence for name in e.files}
    manifest = sizes.get(keys.manifest_key(head.shard, entry.sequence), 0)
    return Sharing(
        nbytes(mine) + manifest, nbytes(set(entry.files) - mine), nbytes(set(entry.files) - others) + manifest
    )


def survey(shard: Asset | None = None) -> Steps[Survey]:
    """Of one shard, or of all."""
    if shard is None:
        found: list[StoredObject] = yield ListKeys(keys.HEADS)
        shards = sorted({keys.shard_of_head(one.key) for one in found})
    else:
        shards = [shard]
    told: dict[Asset, ShardHead] = {}
    unreadable: dict[Asset, str] = {}
    for one in shards:
        raw = yield LookAt(keys.head_key(one))
        if raw is None:
            continue
        try:
            told[one] = read_head(raw[0], one)
        except (CorruptPageError, ConfigError) as error:
            unreadable[one] = f"{error.what} {error.detail}".strip()
    listed: list[StoredObject] = yield ListKeys("checkpoint/" if shard is None else keys.folder_prefix(shard))
    return Survey(told, unreadable, {one.key: one.nbytes for one in listed})


def head_of(shard: Asset) -> Steps[ShardHead]:
    found = yield LookAt(keys.head_key(shard))
    if found is None:
        raise ConfigError(f"the store has no checkpoints of {shard!r}", hint="`holdfast checkpoint list` shows all.")
    return read_head(found[0], shard)


def entry_of(head: ShardHead, sequence: int | None) -> HeadEntry:
    """That one, or the newest that is good."""
    if sequence is None:
        if not head.good:
            raise ConfigError(f"{head.shard} has no good checkpoint", hint="`holdfast checkpoint list` shows why.")
        return head.good[0]
    entry = head.entry(sequence)
    if entry is None:
        there = ", ".join(str(e.sequence) for e in head.entries) or "none"
        raise ConfigError(f"{head.shard} has no checkpoint {sequence}", hint=f"There are: {there}.")
    return entry


@dataclass(frozen=True)
class Verified:
    """What reading all of a checkpoint has shown. `why`: what is wrong with it, "" if nothing is."""

    sequence: int
    why: str
    pages: int = 0
    collected: bool = False


def verify(head: ShardHead, entry: HeadEntry) -> Steps[Verified]:
    """Read every page and part of a checkpoint and compare digests; keeps a few megabytes."""
    try:
        manifest: CheckpointManifest = yield from read_manifest(head.shard, entry)
        for turn in PageReads(manifest).checks():
            yield All(turn)
        yield from read_parts(manifest)
    except (ObjectMissingError, CorruptPageError) as error:
        now = yield from head_of(head.shard)  # a primary may have collected it while we read
        gone = now.entry(entry.sequence) is None
        return Verified(entry.sequence, "" if gone else f"{error.what} {error.detail}".strip(), collected=gone)
    return Verified(entry.sequence, "", manifest.pages)


def delete(shard: Asset, sequences: tuple[int, ...], *, force: bool = False) -> Steps[tuple[int, ...]]:
    """Forget these checkpoints, then delete what nobody else needs. Refuses what a restore may want, unless forced."""
    for _ in range(_TRIES):
        found = yield LookAt(keys.head_key(shard))
        if found is None:
            raise ConfigError(
                f"the store has no checkpoints of {shard!r}", hint="`holdfast checkpoint list` shows all."
            )
        head = read_head(found[0], shard)
        for sequence in sequences:
            entry_of(head, sequence)
        if not force:
            _check_unneeded(head, sequences)
        stamp = f"deleted.{head.claim}.{head.stamp}.{'.'.join(map(str, sequences))}"[:200]
        after = msgspec.structs.replace(heads.without(head, sequences), stamp=stamp)
        try:
            yield SwapSmall(keys.head_key(shard), heads.encode(after), found[1])
        except SwapConflictError:
            continue
        return (yield from delete_forgotten(head, after))
    raise StateError(f"the head of {shard} changes all the time", detail=f"Tried {_TRIES} times.", hint="Try again.")


def _check_unneeded(head: ShardHead, sequences: tuple[int, ...]) -> None:
    hint = "--force deletes it all the same."
    if head.restoring:
        raise ConfigError(
            f"{head.shard} is being restored",
            detail=f"By {head.holder}, at epoch {head.epoch}.",
            hint=f"Wait for it; {hint}",
        )
    for name, sequence in sorted(head.pins.items()):
        if sequence in sequences:
            raise ConfigError(f"checkpoint {sequence} of {head.shard} is kept as {name!r}", hint=hint)
    if head.good and head.good[0].sequence in sequences:
        raise ConfigError(
            f"{head.good[0].sequence} is the newest good checkpoint of {head.shard}",
            detail="Input before it may not be kept anywhere any more, so an older one could not catch up.",
            hint=hint,
        )


def pin(shard: Asset, name: str, sequence: int | None = None) -> Steps[HeadEntry]:
    """Keep one (None: the newest good one) until `unpin`: a savepoint, or a reader that is not the primary."""
    for _ in range(_TRIES):
        found = yield LookAt(keys.head_key(shard))
        if found is None:
            raise ConfigError(
                f"the store has no checkpoints of {shard!r}", hint="`holdfast checkpoint list` shows all."
            )
        head = read_head(found[0], shard)
        entry = entry_of(head, sequence)
        if head.pins.get(name) == entry.sequence:
            return entry
        after = msgspec.structs.replace(heads.pinned(head, name, entry.sequence), stamp=f"pinned.{head.stamp}"[:200])
        try:
            yield SwapSmall(keys.head_key(shard), heads.encode(after), found[1])
        except SwapConflictError:
            continue
        return entry
    raise StateError(f"the head of {shard} changes all the time", detail=f"Tried {_TRIES} times.", hint="Try again.")


def unpin(shard: Asset, name: str) -> Steps[bool]:
    """Whether there was such a pin."""
    for _ in range(_TRIES):
        found = yield LookAt(keys.head_key(shard))
        head = read_head(found[0], shard) if found else None
        if head is None or name not in head.pins:
            return False
        after = msgspec.structs.replace(heads.unpinned(head, name), stamp=f"unpinned.{head.stamp}"[:200])
        try:
            yield SwapSmall(keys.head_key(shard), heads.encode(after), found[1])
        except SwapConflictError:
            continue
        return True
    raise StateError(f"the head of {shard} changes all the time", detail=f"Tried {_TRIES} times.", hint="Try again.")
