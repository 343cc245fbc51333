"""A state of a few small pages that says what it should be: for tests of checkpoints that do not need an operator."""

from __future__ import annotations

from holdfast.checkpoint import BuiltOn, Fit, PagedJob, Stand
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.model.ids import asset_id
from holdfast.state.pages import PagePool
from holdfast.state.pagetable import HEADER_WORDS

SHARD = asset_id("counts-0")
DEPLOYMENT = "d1"
PAGE = 4096
KIND = 9
FIT = Fit(operator="counts", fingerprint=7, page_bytes=PAGE, deployment=DEPLOYMENT)


def new_pool(manifest: CheckpointManifest | None = None) -> PagePool:
    del manifest
    return PagePool(page_bytes=PAGE, limit_bytes=64 * PAGE)


class SmallState:
    """Pages with a number each, and the same as a dictionary."""

    def __init__(self, pool: PagePool | None = None) -> None:
        self.pool = pool or new_pool()
        self.pages = self.pool.create(1, KIND)

    def says(self) -> dict[int, int]:
        return {int(lp): int(self.pages.resolve(int(lp))[HEADER_WORDS]) for lp in self.pages.logical()}

    def write(self, which: int, value: int) -> None:
        """Into one of its pages, or into a new one."""
        there = self.pages.logical()
        lp = int(there[which % len(there)]) if len(there) and which % 5 else self.pages.allocate()
        self.pages.resolve(lp, write=True)[HEADER_WORDS] = value

    def drop(self, which: int) -> None:
        there = self.pages.logical()
        if len(there) > 1:
            self.pages.release(int(there[which % len(there)]))

    def job(self, epoch: int, base: BuiltOn | None = None, cargo: bytes = b"", writers: int = 2) -> PagedJob:
        """A checkpoint of it as it is now."""
        usable = base if base is not None and base.snapshot.pool is self.pool else None
        snapshot = self.pool.snapshot(base=usable.snapshot if usable else None)
        parts = {"cargo": [cargo]} if cargo else {}
        return PagedJob(
            SHARD, snapshot, b"meta", FIT, Stand(epoch=epoch), base=usable, parts=parts, now_ms=lambda: 1,
            writers=writers, stage_bytes=PAGE,
        )  # fmt: skip
