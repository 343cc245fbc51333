"""A checkpoint of an operator on its way: taken in a moment while its shard is suspended, written while it goes on.

sguard §4.4 has five steps; here are the second (`take`: page ids are copied, nothing else) and what the third one
needs. The first, fourth and fifth (what the inputs note, who is told, what is acknowledged) are the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from holdfast.checkpoint.keys import part_name
from holdfast.checkpoint.manifest import CheckpointManifest, Fit, PartFile, Stand
from holdfast.checkpoint.pages import STAGE_BYTES, PageStreams, PageTable
from holdfast.errors import check
from holdfast.model.ids import Asset, Edge
from holdfast.operators.operator import StatefulOperator
from holdfast.state.pages import Snapshot
from holdfast.store.port import Buffer

WRITERS = 4
#: An incremental checkpoint keeps old files alive. When they hold this many times the pages that are still of use, or
#: there are this many of them, the next checkpoint is a full one, and they can go.
KEPT_TIMES_MAX = 2
FILES_MAX = 64


@dataclass(frozen=True)
class BuiltOn:
    """What the next incremental checkpoint builds on: the last one that counts. It holds page numbers, not pages."""

    snapshot: Snapshot
    table: PageTable
    sequence: int

    @property
    def is_worth_it(self) -> bool:
        """Is it better to build on it than to write everything anew?"""
        small = 4 * WRITERS
        few = self.table.kept_pages <= KEPT_TIMES_MAX * self.table.live_pages + small
        return few and len(self.table.files) <= FILES_MAX


@dataclass(frozen=True)
class Parts:
    """Bytes that go with the pages, by name; each list of buffers may be walked again."""

    buffers: Mapping[str, Sequence[Buffer]]

    def files(self, sequence: int) -> list[tuple[str, Sequence[Buffer]]]:
        return [(part_name(sequence, name), chunks) for name, chunks in sorted(self.buffers.items())]

    def told(self, sequence: int) -> tuple[PartFile, ...]:
        found = []
        for name, chunks in sorted(self.buffers.items()):
            digest = xxhash.xxh3_64()
            for chunk in chunks:
                digest.update(chunk)
            found.append(PartFile(part_name(sequence, name), sum(map(_length, chunks)), digest.intdigest()))
        return tuple(found)


def _length(chunk: Buffer) -> int:
    return memoryview(chunk).nbytes


class PagedJob:
    """What `tenure.publish` publishes. It holds a snapshot until it is closed."""

    def __init__(
        self,
        shard: Asset,
        snapshot: Snapshot,
        meta: bytes,
        fit: Fit,
        stand: Stand,
        *,
        base: BuiltOn | None,
        parts: Mapping[str, Sequence[Buffer]],
        now_ms: Callable[[], int],
        suspended_ns: int = 0,
        writers: int = WRITERS,
        stage_bytes: int = STAGE_BYTES,
        even: bool = False,
    ) -> None:
        self._shard, self._snapshot, self._meta, self._fit, self._stand = shard, snapshot, meta, fit, stand
        self._base = base
        self._parts = Parts(parts)
        self._now_ms = now_ms
        self._taken_ms = now_ms()
        self._suspended_ns = suspended_ns
        self._streams = PageStreams(snapshot, writers, stage_bytes, even=even)
        self._table: PageTable | None = None

    @property
    def nbytes(self) -> int:
        """Of pages that will be written: what Peace has to find room for."""
        return self._snapshot.nbytes

    @property
    def writers(self) -> int:
        """Files of pages."""
        return self._streams.writers

    def files(self, sequence: int) -> list[tuple[str, object]]:
        pages = [(f"{sequence}/pages-{i}", self._streams.stream(i)) for i in range(self._streams.writers)]
        return [*pages, *self._parts.files(sequence)]

    def manifest(self, sequence: int) -> CheckpointManifest:
        self._table = self._streams.table(sequence, self._base.table if self._base else None)
        return CheckpointManifest(
            shard=self._shard,
            sequence=sequence,
            epoch=self._stand.epoch,
            base=self._base.sequence if self._base else -1,
            taken_ms=self._taken_ms,
            suspended_ns=self._suspended_ns,
            fit=self._fit,
            stand=self._stand,
            files=self._table.files,
            parts=self._parts.told(sequence),
            sets=self._table.for_manifest(),
            meta=self._meta,
        )

    def written_ms(self) -> int:
        return self._now_ms()

    def log_from(self) -> dict[Edge, int]:
        return self._stand.batches

    def close(self) -> None:
        self._snapshot.close()

    def kept(self, sequence: int) -> BuiltOn:
        """Once it counts: what the next one builds on."""
        check(self._table is not None, "a checkpoint was built on before it was written")
        assert self._table is not None
        return BuiltOn(self._snapshot, self._table, sequence)


def fit_of(op: StatefulOperator, deployment: str, schema: bytes = b"") -> Fit:
    """What a state must be to fit this operator."""
    return Fit(
        operator=op.name,
        fingerprint=op.fingerprint,
        page_bytes=op.config.page_bytes,
        deployment=deployment,
        schema=schema,
    )


def take(
    op: StatefulOperator,
    shard: Asset,
    stand: Stand,
    fit: Fit,
    *,
    now_ms: Callable[[], int],
    clock_ns: Callable[[], int] | None = None,
    base: BuiltOn | None = None,
    parts: Mapping[str, Sequence[Buffer]] | None = None,
    writers: int = WRITERS,
    stage_bytes: int = STAGE_BYTES,
) -> PagedJob:
    """Note the pages of an operator as they are now. The shard is suspended meanwhile, and no longer than that.

    With `base` only pages that were written since go out, unless a full one has become the better choice.
    """
    started = clock_ns() if clock_ns else 0
    base = base if base is not None and base.is_worth_it and base.snapshot.pool is op.pool else None
    snapshot, meta = op.snapshot(base.snapshot if base else None)
    took = clock_ns() - started if clock_ns else 0
    return PagedJob(
        shard, snapshot, meta, fit, stand, base=base, parts=parts or {}, now_ms=now_ms, suspended_ns=took,
        writers=writers, stage_bytes=stage_bytes,
    )  # fmt: skip
