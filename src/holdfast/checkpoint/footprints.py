"""A log of footprints in the store (cec): entries under the head of a shard, as checkpoints are.

Each entry is one object, and a manifest that names it and the earlier ones that it needs. So the head does for a log
what it does for checkpoints: it says what counts, keeps earlier holders out, and lets nothing go that an entry needs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import xxhash

from holdfast.checkpoint import keys
from holdfast.checkpoint.head import damaged, pack, unpack
from holdfast.checkpoint.manifest import ENTRY, CheckpointManifest, Fit, PartFile, Stand
from holdfast.errors import check
from holdfast.model.footprint import Control
from holdfast.model.ids import Asset, Edge
from holdfast.store.plan import All, GetWhole, Steps

MAGIC = b"HFFP"
FORMAT = 1


class FootprintEntry(msgspec.Struct, frozen=True, array_like=True):
    """What an entry has: what a step has left, and, packed, the output blocks that are new in it and what was taken."""

    control: Control
    outputs: bytes
    taken: bytes


class EntryJob:
    """What `tenure.publish` publishes: one entry."""

    def __init__(
        self,
        shard: Asset,
        entry: FootprintEntry,
        fit: Fit,
        stand: Stand,
        *,
        needs: tuple[PartFile, ...],
        log_from: dict[Edge, int],
        now_ms: Callable[[], int],
    ) -> None:
        self._shard, self._fit, self._stand = shard, fit, stand
        self._raw = pack(msgspec.msgpack.encode(entry), MAGIC, FORMAT)
        self._needs, self._log_from = needs, log_from
        self._now_ms = now_ms
        self._taken_ms = now_ms()
        self.own: PartFile | None = None

    @property
    def nbytes(self) -> int:
        return len(self._raw)

    def files(self, sequence: int) -> list[tuple[str, object]]:
        return [(keys.part_name(sequence, ENTRY), [self._raw])]

    def manifest(self, sequence: int) -> CheckpointManifest:
        digest = xxhash.xxh3_64_intdigest(self._raw)
        self.own = PartFile(keys.part_name(sequence, ENTRY), len(self._raw), digest)
        return CheckpointManifest(
            shard=self._shard, sequence=sequence, epoch=self._stand.epoch, base=-1, taken_ms=self._taken_ms,
            fit=self._fit, stand=self._stand, files=(), parts=(*self._needs, self.own), sets=(), meta=b"",
        )  # fmt: skip

    def written_ms(self) -> int:
        return self._now_ms()

    def log_from(self) -> dict[Edge, int]:
        return self._log_from

    def close(self) -> None:
        pass


def read_entries(manifest: CheckpointManifest) -> Steps[list[FootprintEntry]]:
    """All that it needs, each checked, oldest first."""
    parts = manifest.entries
    check(bool(parts), "a checkpoint of pages was read as a log", manifest.shard)
    raws = yield All([GetWhole(keys.file_key(manifest.shard, part.name), part.nbytes) for part in parts])
    found = []
    for part, raw in zip(parts, raws, strict=True):
        what = keys.file_key(manifest.shard, part.name)
        if len(raw) != part.nbytes or xxhash.xxh3_64_intdigest(raw) != part.digest:
            raise damaged(what, "Its checksum does not match.")
        try:
            found.append(msgspec.msgpack.decode(unpack(raw, MAGIC, FORMAT, what), type=FootprintEntry))
        except msgspec.DecodeError as error:
            raise damaged(what, str(error)) from None
    return found
