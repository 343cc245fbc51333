"""The right of one primary to publish and collect checkpoints of a shard, as plans for a store (`store/plan.py`).

    tenure = run(claim(shard, deployment, epoch=..., holder=...))     # fences every earlier one
    run(publish(tenure, job))                                         # data, then manifest, then the head names it
    run(collect(tenure, keep=3))                                      # the head forgets some, then their files go
    run(sweep(tenure))                                                # what dead writers have left

A tenure ends when somebody else claims: the next change of its head is refused, FencedError, and it must stop.

Whether a change of the head was done is not always known: a store may do it and not answer. Then the head is looked at:
it has the stamp of the change that made it. If ours is not there, it may still come, late; so files of a checkpoint
whose publication is in doubt are deleted only after a later change of ours, which makes the late one impossible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.checkpoint.head import HeadEntry, ShardHead
from holdfast.checkpoint.manifest import CheckpointManifest, digest_of, encode
from holdfast.errors import (
    FencedError,
    InvariantError,
    ObjectExistsError,
    StateError,
    StoreUnreachableError,
    SwapConflictError,
)
from holdfast.model.ids import Asset, Edge
from holdfast.store.plan import All, DeleteKeys, GetWhole, ListKeys, LookAt, PutNew, Steps, SwapSmall
from holdfast.store.port import StoredObject, Version

#: How often a change is tried that others come before: they are people with a command, or a successor, who ends it.
_TRIES = 20


@dataclass
class Tenure:
    """Who holds the head, and what it was when it was last seen. Plans change it; one plan at a time."""

    shard: Asset
    holder: str
    head: ShardHead
    version: Version
    claim: int
    #: The first sequence of this tenure: what is lower and in no entry was left by somebody who may not write any more.
    first: int
    changes: int = 0
    #: The sequence of a try that has not ended well (0: there is none), and the keys that it may have written.
    tried: int = 0
    debris: list[str] = field(default_factory=list)
    fenced: bool = False


class Job(Protocol):
    """What is to be published: files to write under a sequence, and then the manifest that names them."""

    def files(self, sequence: int) -> list[tuple[str, object]]:
        """(name, chunks) of each; walked once, on any thread."""
        ...

    def manifest(self, sequence: int) -> CheckpointManifest:
        """Once all files are written."""
        ...

    def written_ms(self) -> int: ...

    def log_from(self) -> dict[Edge, int]:
        """The last batch by edge that a restore does not need from the log of its stage."""
        ...

    def close(self) -> None:
        """Called once, however it ends: lets go of what the files were made from."""
        ...


def read_head(raw: bytes, shard: str) -> ShardHead:
    return heads.decode(raw, f"the head of {shard}")


def claim(shard: Asset, deployment: str, *, epoch: int, holder: str, restoring: bool = False) -> Steps[Tenure]:
    """Take the head of a shard. `holder` must differ from call to call: by it a claim knows itself again."""
    key, stamp = keys.head_key(shard), f"{holder}.claim"
    last: Exception = StoreUnreachableError(f"the head of {shard} changes all the time")
    for _ in range(_TRIES):
        found = yield LookAt(key)
        if found is None:
            yield from _check_new(shard)
        head = read_head(found[0], shard) if found else None
        if found is not None and head is not None and head.stamp == stamp:  # done by a try that was not answered
            return Tenure(shard, holder, head, found[1], head.claim, head.reserved)
        made = heads.claimed(head, shard, deployment, epoch=epoch, holder=holder, restoring=restoring)
        made = msgspec.structs.replace(made, stamp=stamp)
        try:
            version = yield SwapSmall(key, heads.encode(made), found[1] if found else None)
        except (SwapConflictError, StoreUnreachableError) as error:
            last = error
            continue
        return Tenure(shard, holder, made, version, made.claim, made.reserved)
    raise last


def _check_new(shard: Asset) -> Steps[None]:
    """A shard without a head must not have checkpoints: they would look like leftovers, and be deleted."""
    found: list[StoredObject] = yield ListKeys(keys.folder_prefix(shard))
    places = [place for one in found if (place := keys.parse(one.key)) and place.shard == shard]
    if any(place.is_manifest for place in places):
        sequences = sorted(place.sequence for place in places if place.is_manifest)
        raise StateError(
            f"{shard} has checkpoints but no head",
            detail=f"There are {len(sequences)}, the newest {sequences[-1]}; {keys.head_key(shard)} is not there. "
            "Nothing was changed.",
            hint="Bring that object back, or move the checkpoints away if they are not wanted.",
        )


def _change(
    tenure: Tenure, change: Callable[[ShardHead], ShardHead], is_done: Callable[[ShardHead], bool]
) -> Steps[ShardHead]:
    """Change the head, if it is still ours; the head before. `change` may be asked again, of a newer one."""
    key = keys.head_key(tenure.shard)
    last: Exception = FencedError(f"{tenure.shard} has another holder")
    if tenure.fenced:
        raise last
    for _ in range(_TRIES):
        before = tenure.head
        tenure.changes += 1
        made = msgspec.structs.replace(change(before), stamp=f"{tenure.holder}.{tenure.changes}")
        try:
            tenure.version = yield SwapSmall(key, heads.encode(made), tenure.version)
            tenure.head = made
            return before
        except (SwapConflictError, StoreUnreachableError) as error:
            last = error
        yield from refresh(tenure)
        if tenure.head.stamp == made.stamp or is_done(tenure.head):
            return before
    raise last


def refresh(tenure: Tenure) -> Steps[None]:
    """See what the head is now; FencedError if it is somebody else's."""
    found = yield LookAt(keys.head_key(tenure.shard))
    if found is None:
        raise StateError(f"the head of {tenure.shard} is gone", hint="Somebody has deleted it from the store.")
    head = read_head(found[0], tenure.shard)
    if head.claim != tenure.claim:
        tenure.fenced = True
        raise FencedError(
            f"{tenure.shard} has a newer primary",
            detail=f"Its checkpoints are held at epoch {head.epoch} by {head.holder}; ours was claim {tenure.claim}.",
        )
    tenure.head, tenure.version = head, found[1]


# --- publishing


def publish(tenure: Tenure, job: Job) -> Steps[HeadEntry]:
    """Write files and manifest under the reserved sequence, then let the head name them. Closes the job.

    Ends with an error if anything could not be done: then the checkpoint does not count, as far as is known, and the
    next try gets another sequence.
    """
    try:
        yield from clear(tenure)
        sequence = tenure.head.reserved
        files = [(keys.file_key(tenure.shard, name), chunks) for name, chunks in job.files(sequence)]
        at = keys.manifest_key(tenure.shard, sequence)
        tenure.tried, tenure.debris = sequence, [*(key for key, _ in files), at]
        yield All([PutNew(key, chunks) for key, chunks in files])  # type: ignore[arg-type]
        manifest = job.manifest(sequence)
    finally:
        job.close()
    raw = encode(manifest)
    yield from _put_manifest(at, raw)
    entry = HeadEntry(
        sequence=sequence, epoch=manifest.epoch, manifest_bytes=len(raw), manifest_digest=digest_of(raw),
        files=manifest.names, own_bytes=manifest.own_bytes + len(raw), state_bytes=manifest.state_bytes,
        base=manifest.base, taken_ms=manifest.taken_ms, written_ms=job.written_ms(),
        consumed=sum(manifest.stand.positions.values()), batches=job.log_from(),
    )  # fmt: skip
    yield from _change(tenure, lambda h: heads.published(h, entry), lambda h: h.entry(sequence) is not None)
    tenure.tried, tenure.debris = 0, []
    empty = tuple(key for key, _ in files if key not in {keys.file_key(tenure.shard, name) for name in manifest.names})
    if empty:  # of writers that came too late to get a page
        yield DeleteKeys(empty)
    return entry


def _put_manifest(key: str, raw: bytes) -> Steps[None]:
    try:
        yield PutNew(key, [raw], again=True)
    except ObjectExistsError:  # an earlier try of the same was done and not answered
        found = yield GetWhole(key, len(raw))
        if found != raw:
            raise InvariantError("two manifests have one name", detail=key) from None


def clear(tenure: Tenure) -> Steps[None]:
    """Give up what the last try has written. The head changes first: a publication that is still on its way would
    otherwise come after its files are gone."""
    sequence = tenure.tried
    if not sequence:
        return
    yield from _change(tenure, lambda h: heads.skipped(h, sequence), lambda h: h.reserved != sequence)
    if tenure.head.entry(sequence) is None:
        yield DeleteKeys(tuple(tenure.debris))
    tenure.tried, tenure.debris = 0, []


def settle(tenure: Tenure) -> Steps[None]:
    """Say that the restore is over."""
    if not tenure.head.restoring:
        return
    yield from _change(tenure, heads.settled, lambda h: not h.restoring)


def set_aside(tenure: Tenure, sequence: int, why: str) -> Steps[None]:
    def is_done(head: ShardHead) -> bool:
        entry = head.entry(sequence)
        return entry is None or bool(entry.aside)

    yield from _change(tenure, lambda h: heads.set_aside(h, sequence, why), is_done)


# --- collecting


def collect(tenure: Tenure, keep: int) -> Steps[tuple[int, ...]]:
    """Forget what retention lets go, then delete what nobody needs any more; which checkpoints went."""
    if not heads.superfluous(tenure.head, keep):
        return ()
    before: ShardHead = yield from _change(
        tenure, lambda h: heads.without(h, heads.superfluous(h, keep)), lambda h: not heads.superfluous(h, keep)
    )
    return (yield from delete_forgotten(before, tenure.head))


def delete_forgotten(before: ShardHead, after: ShardHead) -> Steps[tuple[int, ...]]:
    """Delete the files of entries that `after` has not any more. Safe however late it comes: see `head.py`."""
    gone = [e for e in before.entries if after.entry(e.sequence) is None]
    needed = after.files
    files = sorted({name for e in gone for name in e.files} - needed)
    doomed = [keys.manifest_key(after.shard, e.sequence) for e in gone] + [keys.file_key(after.shard, f) for f in files]
    if doomed:  # manifests first: what is half deleted must not look whole
        yield DeleteKeys(tuple(doomed))
    return tuple(e.sequence for e in gone)


def sweep(tenure: Tenure) -> Steps[tuple[str, ...]]:
    """Delete what writers of earlier tenures have left: files with a lower sequence than our first that no entry names.
    What is not called like a file of ours stays."""
    yield from refresh(tenure)
    found: list[StoredObject] = yield ListKeys(keys.folder_prefix(tenure.shard))
    head = tenure.head
    doomed = []
    for one in found:
        place = keys.parse(one.key)
        if place is None or place.shard != tenure.shard or place.sequence >= tenure.first:
            continue
        needed = head.entry(place.sequence) is not None if place.is_manifest else place.file in head.files
        if not needed:
            doomed.append(one.key)
    if doomed:
        yield DeleteKeys(tuple(doomed))
    return tuple(doomed)
