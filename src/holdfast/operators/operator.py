"""What every stateful operator can do for high availability, whatever its state looks like.

    capture()   what changed since the last capture, as a message          paste(capture)   take that into an image
    snapshot()  the page ids of its state, for a paged checkpoint           restore(...)     an operator from pages
    changes()   how much a capture would carry now                          costs            what it would cost

An operator belongs to one thread at a time. It knows no clock: whoever wants costs measured gives it one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from holdfast.errors import ConfigError, InputError, MemoryLimitError
from holdfast.operators.capture import Capture, Part
from holdfast.operators.costs import LinearCost
from holdfast.state.checkpoint import Checkpoint, restore
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.pagetable import HEADER_WORDS

#: Watermark before anything is known, and after everything has been seen.
NEVER = -(2**63)
FOREVER = 2**63 - 1


@dataclass(frozen=True)
class StateConfig:
    """Where an operator keeps its state."""

    page_bytes: int = 65536
    limit_bytes: int = 1 << 30
    #: Nanoseconds, to measure captures and pastes with; None: costs are not measured.
    clock: Callable[[], int] | None = None


class _Meta(msgspec.Struct, frozen=True):
    """What a checkpoint keeps beside the pages."""

    operator: str
    layout: int  # a hash of everything that shapes the state
    rows: int
    watermark: int
    extra: dict[str, int]


class StatefulOperator(ABC):
    """Base of aggregate and join. Subclasses own maps in `self.pool`."""

    def __init__(self, name: str, config: StateConfig, layout: str, cost_features: tuple[str, str]) -> None:
        self.name = name
        self.config = config
        layout = f"{type(self).__name__}|{config.page_bytes}|{layout}"
        self._layout = xxhash.xxh3_64_intdigest(layout.encode()) >> 1  # fits a signed word
        self.pool = PagePool(page_bytes=config.page_bytes, limit_bytes=config.limit_bytes)
        self.watermark = NEVER
        #: Rows taken in, ever: the number of the next row.
        self.rows = 0
        #: Number of the last capture taken from this operator, or pasted into it; -1: none.
        self.captured = -1
        self.capture_cost = LinearCost(*cost_features)
        self.paste_cost = LinearCost(*cost_features)

    # -- what subclasses provide --------------------------------------------------------------------------------

    @abstractmethod
    def _open_maps(self) -> None:
        """Make the maps, or find them again in a pool that was restored."""

    @abstractmethod
    def _take_parts(self, whole: bool) -> list[Part]: ...

    @abstractmethod
    def _put_parts(self, parts: list[Part]) -> None: ...

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _set_ids(self) -> list[int]:
        """Page sets that make up the state."""

    @abstractmethod
    def changes(self) -> tuple[int, int]:
        """How much a capture would carry now: (new, updated) windows, or tuples of either side of a join."""

    def _extra(self) -> dict[str, int]:
        """Numbers to keep beside the pages."""
        return {}

    def _set_extra(self, extra: dict[str, int]) -> None:
        del extra

    # -- captures -----------------------------------------------------------------------------------------------

    def capture(self, *, whole: bool = False) -> Capture:
        """What changed since the last capture (or everything). Counts as captured from now on."""
        started = self._now()
        amounts = self.changes()
        whole = whole or self.captured < 0
        parts = self._take_parts(whole)
        base = -1 if whole else self.captured
        self.captured += 1
        message = Capture(self.name, base, self.captured, self.rows, self.watermark, parts, self._layout, self._extra())
        if started is not None:
            if whole:
                amounts = (message.n_new, 0)
            self.capture_cost.observe((self.config.clock() - started) / 1e9, *amounts)  # type: ignore[misc]
        return message

    def paste(self, capture: Capture) -> None:
        """Take a capture into this image. It must start where the image stands; otherwise ask for a whole one."""
        if capture.operator != self.name:
            raise InputError(f"{self.name}: got a capture of operator {capture.operator!r}")
        if capture.layout != self._layout:
            raise InputError(
                f"{self.name}: a capture of another pipeline",
                detail="It was made with another schema, window, key, list of aggregates or page size.",
                hint="Primary and backup must run the same pipeline with the same page size.",
            )
        if not capture.whole and capture.base != self.captured:
            raise InputError(
                f"{self.name}: a capture does not start where the image stands",
                detail=f"It continues capture {capture.base}; the image has {self.captured} (-1: nothing).",
                hint="Ask the primary for a whole capture.",
            )
        started = self._now()
        try:
            if capture.whole:
                self._clear()
            self._put_parts(capture.parts)
        except (InputError, MemoryLimitError):
            self._start_over()  # half an image is worse than none
            raise
        self.captured = capture.number
        self.rows = capture.rows
        self.watermark = capture.watermark
        self._set_extra(capture.extra)
        if started is not None:
            self.paste_cost.observe(
                (self.config.clock() - started) / 1e9,  # type: ignore[misc]
                *self._paste_amounts(capture),
            )

    def _start_over(self) -> None:
        """Forget everything, in a new pool: clearing the old one may need memory that it has not got."""
        self.pool = PagePool(page_bytes=self.config.page_bytes, limit_bytes=self.config.limit_bytes)
        self._open_maps()
        self._clear()
        self.rows, self.watermark, self.captured = 0, NEVER, -1

    def _paste_amounts(self, capture: Capture) -> tuple[int, int]:
        return capture.n_new, capture.n_updated

    def estimate_capture(self) -> float:
        """Seconds that a capture would take now."""
        return self.capture_cost.estimate(*self.changes())

    def _now(self) -> int | None:
        return None if self.config.clock is None else self.config.clock()

    # -- paged checkpoints --------------------------------------------------------------------------------------

    def snapshot(self, base: Snapshot | None = None) -> tuple[Snapshot, bytes]:
        """The state's pages as they are now, and the meta to store with them (`checkpoint.write`)."""
        self.pool.reclaim()
        self._flush()
        meta = _Meta(self.name, self._layout, self.rows, self.watermark, self._extra())
        return self.pool.snapshot(self._set_ids(), base=base), msgspec.msgpack.encode(meta)

    def restore(self, checkpoints: Iterable[Checkpoint], *, lazy: bool = False) -> None:
        """Become what these checkpoints hold (a full one, then incremental ones). Whatever was here is forgotten."""
        pool = PagePool(page_bytes=self.config.page_bytes, limit_bytes=self.config.limit_bytes)
        meta = msgspec.msgpack.decode(restore(checkpoints, pool, lazy=lazy), type=_Meta)
        if meta.layout != self._layout:
            raise ConfigError(
                f"{self.name}: the checkpoint is of another operator",
                detail=f"It was written by {meta.operator!r} with another schema, window, key or list of aggregates.",
                hint="Restore into the same pipeline, or start without state.",
            )
        self.pool = pool
        self._open_maps()
        self.rows, self.watermark, self.captured = meta.rows, meta.watermark, -1
        self._set_extra(meta.extra)

    def reserve(self, heap_bytes: int) -> None:
        """Make sure that so many bytes of long values fit, so that nothing runs out of memory half-way."""
        reserve(self.pool, heap_bytes)

    # -- figures ------------------------------------------------------------------------------------------------

    def state_bytes(self) -> int:
        """Memory that the state takes, the pages that snapshots still hold included."""
        return self.pool.stats().bytes


def pages_for(page_bytes: int, heap_bytes: int) -> int:
    """Pages that so many bytes of long values take at most, each on a whole word and mostly on one page."""
    payload = page_bytes - 8 * HEADER_WORDS
    return 0 if heap_bytes == 0 else 2 + 2 * (heap_bytes // payload)


def reserve(pool: PagePool, heap_bytes: int) -> None:
    """Make sure that so many bytes of long values fit a pool."""
    pool.ensure_room(pages_for(pool.page_bytes, heap_bytes))


def check_outputs(operator: str, leading: tuple[str, ...], keys: list[str], results: list[str]) -> None:
    """No two output columns may have the same name."""
    taken = set(leading)
    for output in (*keys, *results):
        if output in taken:
            raise ConfigError(f"{operator}: two output columns are named {output!r}", hint="Rename one of them.")
        taken.add(output)


def check_overflow(operator: str, overflow: str) -> None:
    if overflow not in ("error", "wrap"):
        raise ConfigError(f"{operator}: overflow must be 'error' or 'wrap'", detail=f"It is {overflow!r}.")


def numbers(rows: int, n: int) -> NDArray[np.int64]:
    """Numbers of the next n rows."""
    return np.arange(rows, rows + n, dtype=np.int64)
