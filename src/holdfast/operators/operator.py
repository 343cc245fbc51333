"""What every stateful operator can do for high availability, whatever its state looks like.

    capture()   what changed since the last capture, as a message          paste(capture)       take that into an image
    chunk()     some of everything, of the moment of the last capture       paste_chunk(chunk)   bring up a new image
    snapshot()  the page ids of its state, for a paged checkpoint           restore(...)         an operator from pages
    changes()   how much a capture would carry now                          costs            what it would cost
    fork()      run on from an image, as a stand-in does                    settle(keep)     keep that, or go back

An operator belongs to one thread at a time. It knows no clock: whoever wants costs measured gives it one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from holdfast.errors import ConfigError, CorruptPageError, InputError, MemoryLimitError, StateError, check
from holdfast.operators.aside import ASIDE, ERROR, WRAP
from holdfast.operators.capture import NULL_BITS, Part, StateCapture, bytes_of, digest_of, part_of, take_part
from holdfast.operators.chunk import END, START, Chunk, cursor_at, rids_below
from holdfast.operators.costs import LinearCost
from holdfast.state.checkpoint import Checkpoint, restore
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.pagetable import HEADER_WORDS
from holdfast.state.revert import revert
from holdfast.state.scan import records_from
from holdfast.state.slots import SlotStore

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


class _Fork(NamedTuple):
    """What an operator goes back to."""

    snapshot: Snapshot
    #: rows, watermark, captured, the moment of that capture, hidden.
    numbers: tuple[int, int, int, tuple[int, ...], int]
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
        #: Rows before this are missing: what they could have a part in is not emitted. Set from outside, in no capture.
        self.hidden = NEVER
        #: Results of the last call that do not fit their types, each with its reason. None: all fit.
        self.aside: pa.Table | None = None
        #: Rows taken in, ever: the number of the next row.
        self.rows = 0
        #: Number of the last capture taken from this operator, or pasted into it; -1: none.
        self.captured = -1
        #: Where it stood when that capture was taken: a chunk is of the same moment.
        self._moment: tuple[int, ...] = ()
        #: Up to which cursor this image has been brought up; END: it has everything.
        self.scanned = END
        #: While it runs on from an image: what it goes back to.
        self._forked: _Fork | None = None
        self.capture_cost = LinearCost(*cost_features)
        self.paste_cost = LinearCost(*cost_features)

    # -- what subclasses provide --------------------------------------------------------------------------------

    @abstractmethod
    def _open_maps(self) -> None:
        """Make the maps, or find them again in a pool that was restored."""

    @abstractmethod
    def _stores(self) -> list[SlotStore]:
        """The records that captures and chunks carry, one part each."""

    @abstractmethod
    def _put_part(self, index: int, part: Part, below: int) -> None:
        """Take records with numbers lower than `below` into this image."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget what is known beside the maps: they have just been made."""

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _set_ids(self) -> list[int]:
        """Page sets that make up the state."""

    @abstractmethod
    def changes(self) -> tuple[int, int]:
        """How much a capture would carry now: (new, updated) windows, or tuples of either side of a join."""

    #: What of a record's first word captures carry.
    _KEEP = NULL_BITS

    def _drops(self) -> list[int]:
        """For every part, the bound below which everything is gone."""
        return [NEVER] * len(self._stores())

    def _take_removed(self) -> list[NDArray[np.int64]]:
        """For every part, records that the last capture had and that went one by one; they then count as captured."""
        return [np.zeros(0, np.int64) for _ in self._stores()]

    def _extra(self) -> dict[str, int]:
        """Numbers to keep beside the pages."""
        return {}

    def _set_extra(self, extra: dict[str, int]) -> None:
        del extra

    # -- captures -----------------------------------------------------------------------------------------------

    def capture(self) -> StateCapture:
        """What changed since the last capture (or ever). Counts as captured from now on."""
        self._check_complete("captured")
        started = self._now()
        parts = [
            take_part(store, keep=self._KEEP, drop_below=drop, removed=removed)
            for store, drop, removed in zip(self._stores(), self._drops(), self._take_removed(), strict=True)
        ]
        base, self._moment = self.captured, self._digits()
        self.captured = digest_of(base, self._moment, (b for p in parts for b in p.buffers))
        message = StateCapture(
            self.name, base, self.captured, self.rows, self.watermark, parts, self._layout, self._extra()
        )
        if started is not None:
            seconds = (self.config.clock() - started) / 1e9  # type: ignore[misc]
            self.capture_cost.observe(seconds, *self._amounts(message))
        return message

    def skip(self) -> None:
        """Count everything as captured and carry nothing: for a moment at which nobody could use a capture.

        After a long time without a backup a capture would be as large as the state, and only a new image is there to
        take it, which gets everything in chunks anyway.
        """
        self._check_complete("captured")
        marks = [m for store in self._stores() for m in store.forget_changed()]
        marks += [bytes_of(removed) for removed in self._take_removed()]
        self._moment = self._digits()
        self.captured = digest_of(self.captured, self._moment, marks)

    def mark_all(self) -> None:
        """Let the next capture carry everything."""
        for store in self._stores():
            store.touch_all()

    def chunk(self, cursor: int, bytes_max: int) -> tuple[Chunk, int]:
        """(records from a cursor on that weigh at most `bytes_max`, the cursor after them or END). START starts.

        To be called right after `capture` or `skip`, whose moment it belongs to. One record comes in any case, so that
        the walk goes on. Leaves the marks of what has changed as they are.
        """
        check(self._digits() == self._moment, "a chunk was taken of another moment than its capture", self.name)
        parts, at_least, end = [], 1, END
        for index, (store, drop) in enumerate(zip(self._stores(), self._drops(), strict=True)):
            rids = np.zeros(0, np.int64)
            if end == END and cursor < cursor_at(index + 1, 0):
                start = max(0, cursor - cursor_at(index, 0))
                rids, following, weight = records_from(store, start, bytes_max, at_least)
                bytes_max -= weight
                at_least = 0 if len(rids) else at_least
                end = END if following < 0 else cursor_at(index, following)
            parts.append(part_of(store, rids, keep=self._KEEP, drop_below=drop))
        numbers = (self.captured, cursor, end, self.rows, self.watermark)
        return Chunk(self.name, *numbers, parts, self._layout, self._extra()), end

    def fits(self, message: StateCapture | Chunk) -> bool:
        """Whether this image could take it now. A chunk that starts a walk fits anywhere."""
        if isinstance(message, StateCapture):
            return message.base == self.captured
        return message.start == START or (message.number == self.captured and message.start == self.scanned)

    def paste(self, capture: StateCapture) -> None:
        """Take a capture into this image. It must start where the image stands.

        An image that is still being brought up takes only what concerns records that it has been given.
        """
        self._check_mine(capture)
        if not self.fits(capture):
            raise InputError(
                f"{self.name}: a capture does not start where the image stands",
                detail=f"It continues capture {capture.base}; the image has {self.captured} (-1: nothing).",
                hint="The primary must bring up the image anew.",
            )
        started = self._now()
        self._put(capture, self.scanned)
        if started is not None:
            seconds = (self.config.clock() - started) / 1e9  # type: ignore[misc]
            self.paste_cost.observe(seconds, *self._amounts(capture))

    def paste_chunk(self, chunk: Chunk) -> None:
        """Take a chunk into this image, after the capture of the same moment. One that starts a walk empties it."""
        self._check_mine(chunk)
        if not self.fits(chunk):
            raise InputError(
                f"{self.name}: a chunk does not start where the image stands",
                detail=f"It is of capture {chunk.number} from {chunk.start} on; "
                f"the image has capture {self.captured} up to {self.scanned} (-1: everything).",
                hint="The primary must bring up the image anew.",
            )
        if chunk.start == START:
            self._start_over()
        self._put(chunk, END)
        self.scanned = chunk.end

    def _put(self, message: StateCapture | Chunk, cursor: int) -> None:
        """Take what lies behind a cursor."""
        try:
            for index, part in enumerate(message.parts):
                self._put_part(index, part, rids_below(cursor, index))
        except (InputError, MemoryLimitError):
            self._start_over()  # half an image is worse than none
            raise
        self.captured = message.number
        self.rows = message.rows
        self.watermark = message.watermark
        self._set_extra(message.extra)

    def _check_complete(self, what: str) -> None:
        check(self.scanned == END, f"an image was {what} before it had everything", f"{self.name}, {self.scanned}")

    def _check_mine(self, message: StateCapture | Chunk) -> None:
        """Whether it is of this operator, as this node runs it."""
        if message.operator != self.name:
            raise InputError(f"{self.name}: got a capture of operator {message.operator!r}")
        if message.layout != self._layout or len(message.parts) != len(self._stores()):
            raise InputError(
                f"{self.name}: a capture of another pipeline",
                detail="It was made with another schema, window, key, list of aggregates or page size.",
                hint="Primary and backup must run the same pipeline with the same page size.",
            )

    def _digits(self) -> tuple[int, ...]:
        return (self.rows, self.watermark, *self._drops(), *self._extra().values())

    def _start_over(self) -> None:
        """Forget everything, in a new pool: clearing the old one may need memory that it has not got."""
        self.pool.abandon()
        self.pool = PagePool(page_bytes=self.config.page_bytes, limit_bytes=self.config.limit_bytes)
        self._open_maps()
        self._forget()
        self.rows, self.watermark, self.captured, self.scanned = 0, NEVER, -1, END

    # -- standing in ------------------------------------------------------------------------------------------------

    def fork(self) -> None:
        """Run on from this image, in such a way that `settle` can go back to it. Copies a page when it is written."""
        self._check_complete("forked")
        check(self._forked is None, "an image was forked twice", self.name)
        self.pool.reclaim()
        self._flush()
        snapshot = self.pool.snapshot(self._set_ids())
        numbers = (self.rows, self.watermark, self.captured, self._moment, self.hidden)
        self._forked = _Fork(snapshot, numbers, self._extra())

    def settle(self, *, keep: bool) -> None:
        """End a fork: keep what came of it, or be the image again that it began with. Going back copies no page."""
        fork, self._forked = self._forked, None
        if fork is None:
            raise StateError(f"{self.name}: there is no fork to settle", hint="Call fork first.")
        if keep:
            fork.snapshot.close()
            self.pool.reclaim()
            return
        revert(fork.snapshot)
        self._open_maps()
        self._forget()
        self.rows, self.watermark, self.captured, self._moment, self.hidden = fork.numbers
        self.aside = None
        self._set_extra(fork.extra)

    def _amounts(self, capture: StateCapture) -> tuple[int, int]:
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
        pool = self.new_pool()
        self.become(pool, restore(checkpoints, pool, lazy=lazy))

    @property
    def fingerprint(self) -> int:
        """A hash of everything that shapes the state: a state fits only an operator with the same one."""
        return self._layout

    def new_pool(self) -> PagePool:
        """An empty one, for a state that is about to be brought back."""
        return PagePool(page_bytes=self.config.page_bytes, limit_bytes=self.config.limit_bytes)

    def become(self, pool: PagePool, raw: bytes) -> None:
        """Become what is in this pool, with the meta that `snapshot` gave. Whatever was here is forgotten."""
        try:
            meta = msgspec.msgpack.decode(raw, type=_Meta)
        except msgspec.DecodeError as error:
            raise CorruptPageError(
                f"{self.name}: what a checkpoint has beside its pages is damaged", detail=str(error)
            ) from None
        if meta.layout != self._layout:
            raise ConfigError(
                f"{self.name}: the checkpoint is of another operator",
                detail=f"It was written by {meta.operator!r} with another schema, window, key or list of aggregates.",
                hint="Restore into the same pipeline, or start without state.",
            )
        self.pool = pool
        self._open_maps()
        self.rows, self.watermark = meta.rows, meta.watermark
        self._set_extra(meta.extra)
        # no image has this: what is restored is not marked, and no capture could carry it
        self.captured, self.scanned = digest_of(-1, self._digits(), [memoryview(b"restored")]), END

    def reserve(self, heap_bytes: int) -> None:
        """Make sure that this many bytes of long values fit, so that nothing runs out of memory half-way."""
        reserve(self.pool, heap_bytes)

    # -- figures ------------------------------------------------------------------------------------------------

    def state_bytes(self) -> int:
        """Memory that the state takes, the pages that snapshots still hold included."""
        return self.pool.stats().bytes


def pages_for(page_bytes: int, heap_bytes: int) -> int:
    """Pages that this many bytes of long values take at most, each on a whole word and mostly on one page."""
    payload = page_bytes - 8 * HEADER_WORDS
    return 0 if heap_bytes == 0 else 2 + 2 * (heap_bytes // payload)


def reserve(pool: PagePool, heap_bytes: int) -> None:
    """Make sure that this many bytes of long values fit a pool."""
    pool.ensure_room(pages_for(pool.page_bytes, heap_bytes))


def check_outputs(operator: str, leading: tuple[str, ...], keys: list[str], results: list[str]) -> None:
    """No two output columns may have the same name."""
    taken = set(leading)
    for output in (*keys, *results):
        if output in taken:
            raise ConfigError(f"{operator}: two output columns are named {output!r}", hint="Rename one of them.")
        taken.add(output)


def check_overflow(operator: str, overflow: str) -> None:
    if overflow not in (ERROR, WRAP, ASIDE):
        raise ConfigError(f"{operator}: overflow must be 'error' or 'wrap'", detail=f"It is {overflow!r}.")


def numbers(rows: int, n: int) -> NDArray[np.int64]:
    """Numbers of the next n rows."""
    return np.arange(rows, rows + n, dtype=np.int64)
