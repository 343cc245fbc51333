"""Bring back the newest checkpoint of a shard that is whole. What is not is set aside, loudly; an older one is used.

Whoever restores has claimed the head first (`tenure.claim(..., restoring=True)`): from then on nobody else publishes or
collects, so what the head names stays where it is until it has been read.

Missing, cut off, flipped in a bit, mixed up: such a checkpoint is marked in the head with the reason, and stays for
whoever wants to look at it. A store that does not answer is something else: then nothing is known about the checkpoint,
nothing is marked, and the restore fails and can be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from holdfast.checkpoint import keys
from holdfast.checkpoint.footprints import FootprintEntry, read_entries
from holdfast.checkpoint.head import HeadEntry, damaged
from holdfast.checkpoint.manifest import MANIFEST_BYTES_MAX, CheckpointManifest, Fit, check_fits, decode, digest_of
from holdfast.checkpoint.pages import PageReads, PageTable
from holdfast.checkpoint.tenure import Tenure, refresh, set_aside
from holdfast.checkpoint.write import BuiltOn
from holdfast.errors import CorruptPageError, HoldfastError, ObjectMissingError, StateError, check
from holdfast.model.ids import Asset
from holdfast.operators.operator import StatefulOperator
from holdfast.state.pages import PagePool
from holdfast.store.plan import All, GetWhole, Steps

#: A part is read whole; it holds rows of queues, which are bounded by a node's memory.
PART_BYTES_MAX = 1 << 32

BadCheckpoint = Callable[[HeadEntry, HoldfastError], None]


@dataclass
class RestoreTimes:
    """Seconds that the phases of a recovery took (sguard §6.1.4). The page table is rebuilt while pages are read."""

    sequence: int = 0
    state_bytes: int = 0
    #: Until no earlier primary could add a checkpoint any more.
    claim_s: float = 0.0
    #: Manifest, pages and parts, with every checksum, and the page table.
    read_s: float = 0.0
    #: Until the operator has found its maps and lists in the pages.
    maps_s: float = 0.0
    #: Batches that came after the checkpoint: how many, to read them from the log, and the shard's CPU until it had
    #: taken them.
    log_batches: int = 0
    log_s: float = 0.0
    step_s: float = 0.0
    #: From footprints: tuples of the log that were read, and rows that were replayed (in `log_s` and `step_s`).
    extent: int = 0
    replayed: int = 0


@dataclass(frozen=True)
class RestoredState:
    """A state that has come back, and what the next incremental checkpoint builds on."""

    entry: HeadEntry
    manifest: CheckpointManifest
    pool: PagePool
    parts: dict[str, bytes]
    kept: BuiltOn
    #: Newer ones that could not be used: (sequence, why).
    passed_over: list[tuple[int, str]] = field(default_factory=list)
    times: RestoreTimes = field(default_factory=RestoreTimes)


def read_manifest(shard: Asset, entry: HeadEntry) -> Steps[CheckpointManifest]:
    """The manifest that the head means, and no other."""
    what = f"the manifest of checkpoint {entry.sequence} of {shard}"
    if entry.manifest_bytes > MANIFEST_BYTES_MAX:
        raise damaged(what, f"It is said to have {entry.manifest_bytes} bytes.")
    raw = yield GetWhole(keys.manifest_key(shard, entry.sequence), entry.manifest_bytes)
    if len(raw) != entry.manifest_bytes or digest_of(raw) != entry.manifest_digest:
        raise damaged(what, "It is not the one that was published.")
    found = decode(raw, what)
    if (found.shard, found.sequence) != (shard, entry.sequence) or set(found.names) != set(entry.files):
        raise damaged(what, f"It says that it is {found.sequence} of {found.shard}.")
    return found


def read_parts(manifest: CheckpointManifest) -> Steps[dict[str, bytes]]:
    raws = yield All(
        [GetWhole(keys.file_key(manifest.shard, p.name), min(p.nbytes, PART_BYTES_MAX)) for p in manifest.parts]
    )
    for part, raw in zip(manifest.parts, raws, strict=True):
        if len(raw) != part.nbytes or xxhash.xxh3_64_intdigest(raw) != part.digest:
            raise damaged(keys.file_key(manifest.shard, part.name), "Its checksum does not match.")
    return {p.name.partition("/part-")[2]: raw for p, raw in zip(manifest.parts, raws, strict=True)}


def read_pages(manifest: CheckpointManifest, pool: PagePool) -> Steps[None]:
    """Every page of a checkpoint into an empty pool, each checked. On an error the pool is given back."""
    if manifest.entries:
        pool.abandon()
        raise StateError(
            f"checkpoint {manifest.sequence} of {manifest.shard} has footprints, and no pages",
            detail='Its operator has checkpoint="eventual".',
            hint='Only a restart reads those. For savepoints, upgrades and reading the state take checkpoint="paged".',
        )
    reads = PageReads(manifest)
    try:
        yield All(reads.into(pool))
        reads.finish(pool)
    except BaseException:
        reads.give_up()
        pool.abandon()
        raise


@dataclass(frozen=True)
class RestoredLog:
    """Entries of a log of footprints, oldest first. `runtime/stable/traces.py` makes a state of them."""

    entry: HeadEntry
    manifest: CheckpointManifest
    entries: list[FootprintEntry]
    times: RestoreTimes = field(default_factory=RestoreTimes)


def load(
    shard: Asset, entry: HeadEntry, make_pool: Callable[[CheckpointManifest], PagePool], wanted: Fit | None = None
) -> Steps[RestoredState | RestoredLog]:
    """One checkpoint into a new pool, or an error. The caller sees to it that nobody collects it meanwhile."""
    manifest = yield from read_manifest(shard, entry)
    if wanted is not None:
        check_fits(manifest, wanted)
    if manifest.entries:
        return RestoredLog(entry, manifest, (yield from read_entries(manifest)))
    pool = make_pool(manifest)
    yield from read_pages(manifest, pool)
    try:
        parts = yield from read_parts(manifest)
    except BaseException:
        pool.abandon()
        raise
    return RestoredState(entry, manifest, pool, parts, BuiltOn(pool.mark(), PageTable.of(manifest), entry.sequence))


def restore(
    tenure: Tenure,
    make_pool: Callable[[CheckpointManifest], PagePool],
    *,
    wanted: Fit | None = None,
    on_bad: BadCheckpoint = lambda entry, error: None,
) -> Steps[RestoredState | RestoredLog | None]:
    """The newest good checkpoint; None: there has never been one. If there are only bad ones, that is an error: the
    caller must not take it for an empty beginning."""
    passed_over: list[tuple[int, str]] = []
    for entry in tenure.head.good:
        try:
            found = yield from load(tenure.shard, entry, make_pool, wanted)
        except (ObjectMissingError, CorruptPageError) as error:
            yield from refresh(tenure)  # a newer primary may have collected it: then it is not damaged, but not ours
            if tenure.head.entry(entry.sequence) is None:
                continue  # somebody has deleted it by force
            on_bad(entry, error)
            passed_over.append((entry.sequence, error.what))
            yield from set_aside(tenure, entry.sequence, f"{error.what} {error.detail}".strip())
            continue
        if isinstance(found, RestoredState):
            found.passed_over.extend(passed_over)
        return found
    if not tenure.head.entries:
        return None
    aside = "; ".join(f"{e.sequence}: {e.aside}" for e in tenure.head.entries if e.aside)
    raise StateError(
        f"no checkpoint of {tenure.shard} can be restored",
        detail=f"All of them are set aside: {aside}"[:1000],
        hint="Bring the files back, or start the shard empty on purpose.",
    )


def restore_operator(
    tenure: Tenure,
    op: StatefulOperator,
    wanted: Fit,
    on_bad: BadCheckpoint = lambda entry, error: None,
) -> Steps[RestoredState | None]:
    """The same, into an operator: it becomes what the checkpoint holds, or stays as it is."""
    found = yield from restore(tenure, lambda _: op.new_pool(), wanted=wanted, on_bad=on_bad)
    check(not isinstance(found, RestoredLog), "a log of footprints was to be restored without its input", op.name)
    if not isinstance(found, RestoredState):
        return None
    op.become(found.pool, found.manifest.meta)
    return found
