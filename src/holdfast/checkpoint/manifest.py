"""The manifest of a checkpoint: which page is where and what its digest is, and everything else that a restore needs.

It is self-contained. An incremental checkpoint does not say "as before, but": its table has every page, most of them
in files of earlier checkpoints. So a restore reads one manifest, each file it needs is known beforehand, and no chain
can be cut in the middle. (24 bytes a page: 39 KB for 100 MB of state on pages of 64 KiB.)

Beside the pages it has where inputs and outputs stood, watermarks and batches (`Stand`); and what tells whether the
state fits who wants it: fingerprint of the operator, schema, page size, deployment, format. Rows of output queues are
parts, files of their own with a digest.
"""

from __future__ import annotations

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from holdfast.checkpoint.head import damaged, pack, unpack
from holdfast.checkpoint.keys import is_file_name, made_by
from holdfast.errors import ConfigError
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Asset, Edge
from holdfast.model.parts import CheckpointHead, OutputPart

MAGIC = b"HFMF"
FORMAT = 1
#: The part with an entry of a log of footprints.
ENTRY = "entry"
#: A manifest larger than this is garbage: 24 bytes a page allow for terabytes of state.
MANIFEST_BYTES_MAX = 1 << 30


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard stood. Rows of its output queues are not in here, but in a part."""

    epoch: int = 0
    positions: dict[Edge, int] = {}
    watermarks: dict[Edge, int] = {}
    gap: tuple[int, int] = (0, WATERMARK_MIN)
    outputs: dict[Edge, OutputPart] = {}
    #: The last batch that was consumed of each edge from a stage.
    batches: dict[Edge, int] = {}


def stand_of(head: CheckpointHead, epoch: int) -> Stand:
    """What the core says of a checkpoint beside its state; its rows are left to the caller, as a part."""
    return Stand(
        epoch=epoch,
        positions=dict(head.to),
        watermarks=dict(head.watermarks),
        gap=head.gap,
        outputs={edge: msgspec.structs.replace(part, blocks=()) for edge, part in head.outputs.items()},
        batches=dict(head.batches),
    )


def head_of(stand: Stand, outputs: dict[Edge, OutputPart]) -> CheckpointHead:
    """And back, with the rows of that part."""
    return CheckpointHead(
        to=stand.positions, watermarks=stand.watermarks, gap=stand.gap, outputs=outputs, batches=stand.batches
    )


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whether a state fits an operator."""

    operator: str
    #: A hash of all that shapes the records (`StatefulOperator.fingerprint`).
    fingerprint: int
    page_bytes: int
    deployment: str
    #: Arrow schema of what the operator emits, as IPC, for whoever reads the state elsewhere; empty: not said.
    schema: bytes = b""


class PageFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of pages: its name ("12/pages-0") and how many it has. Its length says nothing else."""

    name: str
    pages: int


class PartFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of other bytes."""

    name: str
    nbytes: int
    digest: int


class SetPages(msgspec.Struct, frozen=True, array_like=True):
    """The pages of one set: numbers (int32, ascending), file and place in it (int32 each), digests (int64)."""

    id: int
    kind: int
    numbers: bytes
    files: bytes
    places: bytes
    digests: bytes


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    shard: Asset
    sequence: int
    epoch: int
    #: The checkpoint that it goes on from; -1: it has everything itself.
    base: int
    taken_ms: int
    #: Nanoseconds for which the shard was suspended while its pages were noted.
    suspended_ns: int = 0
    fit: Fit
    stand: Stand
    files: tuple[PageFile, ...]
    parts: tuple[PartFile, ...] = ()
    sets: tuple[SetPages, ...]
    #: What the operator keeps beside its pages.
    meta: bytes

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that it needs."""
        return (*(f.name for f in self.files), *(p.name for p in self.parts))

    @property
    def entries(self) -> tuple[PartFile, ...]:
        """Of a log of footprints: the entries that it needs, oldest first, its own the last (`footprints.py`)."""
        return tuple(part for part in self.parts if part.name.endswith(f"/part-{ENTRY}"))

    @property
    def pages(self) -> int:
        return sum(len(s.numbers) // 4 for s in self.sets)

    @property
    def state_bytes(self) -> int:
        return self.pages * self.fit.page_bytes

    @property
    def own_bytes(self) -> int:
        own = sum(f.pages for f in self.files if made_by(f.name) == self.sequence) * self.fit.page_bytes
        return own + sum(p.nbytes for p in self.parts if made_by(p.name) == self.sequence)


def int32(values: NDArray[np.int64]) -> bytes:
    return values.astype("<i4").tobytes()


def int64(values: NDArray[np.int64]) -> bytes:
    return values.astype("<i8").tobytes()


def from32(raw: bytes) -> NDArray[np.int64]:
    return np.frombuffer(raw, "<i4").astype(np.int64)


def from64(raw: bytes) -> NDArray[np.int64]:
    return np.frombuffer(raw, "<i8").astype(np.int64)


def encode(manifest: CheckpointManifest) -> bytes:
    return pack(msgspec.msgpack.encode(manifest), MAGIC, FORMAT)


def digest_of(raw: bytes) -> int:
    return xxhash.xxh3_64_intdigest(raw)


def decode(raw: bytes, what: str) -> CheckpointManifest:
    """What these bytes say, checked: numbers in it become addresses."""
    body = unpack(raw, MAGIC, FORMAT, what)
    try:
        found = msgspec.msgpack.decode(body, type=CheckpointManifest)
    except msgspec.DecodeError as error:
        raise damaged(what, str(error)) from None
    why = _objection(found)
    if why:
        raise damaged(what, why)
    return found


def _objection(m: CheckpointManifest) -> str:
    if m.fit.page_bytes < 4096 or m.fit.page_bytes & (m.fit.page_bytes - 1):
        return f"pages of {m.fit.page_bytes} bytes"
    if not all(is_file_name(name) and made_by(name) <= m.sequence for name in m.names):
        return "it names a file that cannot be one"
    if len(set(m.names)) != len(m.names) or len({s.id for s in m.sets}) != len(m.sets):
        return "it names something twice"
    sizes = np.array([f.pages for f in m.files], np.int64)
    for s in m.sets:
        n = len(s.numbers)
        if n % 4 or len(s.files) != n or len(s.places) != n or len(s.digests) != 2 * n:
            return f"set {s.id} has fields of different lengths"
        numbers, files, places = from32(s.numbers), from32(s.files), from32(s.places)
        if n and (numbers[0] < 0 or (np.diff(numbers) <= 0).any()):
            return f"page numbers of set {s.id} do not ascend"
        if n and (files.min() < 0 or files.max() >= len(sizes)):
            return f"set {s.id} has a page in no file"
        if n and (places.min() < 0 or (places >= sizes[files]).any()):
            return f"set {s.id} has a page behind the end of its file"
        if not (0 <= s.id < 1 << 31 and 0 <= s.kind < 1 << 15):
            return f"there is no set {s.id} of kind {s.kind}"
    return ""


def check_fits(manifest: CheckpointManifest, wanted: Fit) -> None:
    """Refuse a state that another operator wrote, with what differs."""
    got = manifest.fit
    differs = [
        f"{name} {theirs!r} instead of {ours!r}"
        for name, theirs, ours in (
            ("operator", got.operator, wanted.operator),
            ("deployment", got.deployment, wanted.deployment),
            ("page size", got.page_bytes, wanted.page_bytes),
        )
        if theirs != ours
    ]
    if got.fingerprint != wanted.fingerprint:
        differs.append("another schema, window, key or list of aggregates")
    if differs:
        raise ConfigError(
            f"checkpoint {manifest.sequence} of {manifest.shard} is of another operator",
            detail=f"It has {', '.join(differs)}.",
            hint="Restore it into the pipeline that wrote it. Nothing was changed.",
        )
