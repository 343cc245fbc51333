"""The modelled operator: real sums per key and window in plain Python, with the costs a study gives it.

Small enough to be right by inspection, so that a checker can compare rows exactly with a batch computation. Captures
and chunks mean what they mean to the state engine: a capture fits only the image that has all captures before it, a
window has a slot of its own for life, an image brought up in chunks takes of a capture only what lies in slots that it
has been given, and slots of closed windows are used again. A protocol that mixes up captures or chunks then loses sums
here as it would lose them there.
"""

from __future__ import annotations

import heapq
from copy import copy
from typing import Any

import msgspec

from holdfast.errors import InputError, check
from holdfast.model.block import WATERMARK_MIN, Row, Rows
from holdfast.model.ids import Edge, Name
from holdfast.model.topology import ShardSpec
from holdfast.sim.costs import Costs

#: No sum is larger, unless a study says so.
SUM_MAX = 1 << 62
#: What a window weighs in a chunk: `bytes_max` is counted in these.
WINDOW_BYTES = 32
#: Where a walk starts, and what stands for its end.
START, END = 0, -1

#: All that a step changes.
FORKED = ("aside", "captured", "dirty", "free", "hidden", "moved", "slot_of", "slots", "torn", "watermark", "windows")

#: (window end, key).
Window = tuple[int, int]


class Meter:
    """CPU that operators have used since a driver last looked."""

    __slots__ = ("spent_ns",)

    def __init__(self) -> None:
        self.spent_ns = 0

    def take(self) -> int:
        spent, self.spent_ns = self.spent_ns, 0
        return spent


class Poison(msgspec.Struct, frozen=True):
    """A row that operators on this node cannot take (on none in particular: on no node); it may tear their state."""

    node: Name
    tears: bool = False


class WindowState(msgspec.Struct, frozen=True):
    """What a capture carries: windows that changed, as slot -> (window, sum). Its length is its number of windows."""

    #: The capture that it continues (-1: none), and its own number: a digest, as in the state engine.
    base: int
    number: int
    watermark: int
    slots: dict[int, tuple[Window, int]]

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        return WINDOW_BYTES * len(self.slots)


class WindowChunk(msgspec.Struct, frozen=True):
    """Windows in the slots from `start` to `end` (END: to the last), at the moment of capture `number`."""

    number: int
    start: int
    end: int
    watermark: int
    slots: dict[int, tuple[Window, int]]

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        return WINDOW_BYTES * len(self.slots)


class WindowImage(msgspec.Struct, frozen=True):
    """What a checkpoint has: all windows."""

    number: int
    watermark: int
    slots: dict[int, tuple[Window, int]]


class WindowPrints(msgspec.Struct, frozen=True):
    """What an entry of a log has: footprints of some windows, and how many were open."""

    width: int
    watermark: int
    count: int
    slots: dict[int, tuple[Window, int]]


class WindowSum:
    """Sum of values per key over tumbling windows; windows close in order of (end, key). A sum above `sum_max` does not
    fit, and is set aside."""

    __slots__ = (
        "aside", "busy_ns", "captured", "costs", "dirty", "forked", "free", "hidden", "home", "meter", "moved",
        "outputs", "poison", "prints", "scanned", "slot_of", "slots", "sum_max", "torn", "watermark", "width",
        "windows",
    )  # fmt: skip
    lag = 0

    def __init__(self, spec: ShardSpec, width: int, costs: Costs, meter: Meter, sum_max: int = SUM_MAX) -> None:
        self.width = width
        self.sum_max = sum_max
        self.aside: Rows = ()
        self.torn = False
        #: The node that it is on, and rows that operators there cannot take.
        self.home = Name("")
        self.poison: dict[Row, Poison] = {}
        self.outputs = len(spec.outputs)
        self.costs = costs
        self.meter = meter
        self.busy_ns = 0
        #: Number of the last capture taken or pasted; -1: none. And how far an image has been brought up; END: wholly.
        self.captured = -1
        self.scanned = END
        #: Whether it has stepped since the last capture: a chunk is of the same moment as one.
        self.moved = True
        self.watermark = WATERMARK_MIN
        #: While it runs on from an image: what it goes back to.
        self.forked: dict[str, Any] | None = None
        #: Windows that begin before this are not emitted.
        self.hidden = 0
        #: The entry with the newest footprint of each window, oldest first; None: it has left none yet.
        self.prints: dict[Window, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self.windows: dict[Window, int] = {}
        self.slot_of: dict[Window, int] = {}
        #: Which window is in a slot; free slots, the lowest first.
        self.slots: dict[int, Window] = {}
        self.free: list[int] = []
        #: Windows touched since the last capture; in insertion order, so that captures are reproducible.
        self.dirty: dict[Window, None] = {}

    # --- rows

    def step(self, edge: Edge, rows: Rows, watermark: int) -> tuple[Rows, ...]:
        check(self.scanned == END, "an image was made to run before it had everything")
        if self.poison:
            self._look_for_poison(rows)
        width, windows, dirty = self.width, self.windows, self.dirty
        self.moved, self.aside = True, ()
        for key, time, value in rows:
            at = (time - time % width + width, key)
            if at not in windows:
                self._open(at)
            windows[at] += value
            dirty[at] = None
        self.meter.spent_ns += self.costs.row_ns * len(rows)
        self.busy_ns += self.costs.row_ns * len(rows)
        if watermark == self.watermark:
            return ((),) * self.outputs
        self.watermark = watermark
        closed: list[Row] = []
        for at in sorted(at for at in windows if at[0] <= watermark):
            if at[0] - width >= self.hidden:
                closed.append((at[1], at[0] - 1, windows[at]))
            self._close(at)
        self.aside = tuple(row for row in closed if row[2] > self.sum_max)
        return (tuple(row for row in closed if row[2] <= self.sum_max),) * self.outputs

    def _look_for_poison(self, rows: Rows) -> None:
        found = next((row for row in rows if self._chokes_on(row)), None)
        if found is None:
            return
        if self.poison[found].tears:
            self.torn = True
            self.windows = {at: value + 1 for at, value in self.windows.items()}  # whoever uses it is found
        raise InputError("a row that cannot be taken", detail=str(found))

    def _chokes_on(self, row: Row) -> bool:
        return row in self.poison and self.poison[row].node in ("", self.home)

    def letters(self, edge: Edge, rows: Rows, reason: str) -> Rows:
        return rows

    def hide(self, to: int) -> None:
        self.hidden = to

    def after(self, to: int) -> int:
        """The end of the last window that begins before `to`."""
        return -(-to // self.width) * self.width

    def _open(self, at: Window) -> None:
        slot = heapq.heappop(self.free) if self.free else len(self.slots)
        self.slot_of[at], self.slots[slot], self.windows[at] = slot, at, 0

    def _close(self, at: Window) -> None:
        slot = self.slot_of.pop(at)
        del self.windows[at], self.slots[slot]
        self.dirty.pop(at, None)
        if self.prints is not None:
            self.prints.pop(at, None)
        heapq.heappush(self.free, slot)

    # --- captures

    def _taken(self, slots: list[int]) -> dict[int, tuple[Window, int]]:
        self.meter.spent_ns += self.costs.capture_window_ns * len(slots)
        return {slot: (self.slots[slot], self.windows[self.slots[slot]]) for slot in slots}

    def delta_ns(self) -> int:
        return self.costs.capture_window_ns * len(self.dirty)

    def paste_ns(self, piece: object) -> int:
        return self.costs.paste_window_ns * len(piece)  # type: ignore[arg-type]

    def delta(self, bytes_max: int) -> tuple[WindowState, ...]:
        check(self.scanned == END, "an image was captured before it had everything")
        slots = list(self._taken([self.slot_of[at] for at in self.dirty]).items())
        base, each = self.captured, max(1, bytes_max // WINDOW_BYTES)
        self.busy_ns += self.costs.capture_window_ns * len(slots)
        self._count(tuple(slots))
        parts = [slots[i : i + each] for i in range(0, len(slots), each)] or [[]]
        # only the last piece makes the image stand where the delta ends
        last = len(parts) - 1
        return tuple(
            WindowState(base, self.captured if i == last else base, self.watermark, dict(part))
            for i, part in enumerate(parts)
        )

    def mark_all(self) -> None:
        self.dirty = dict.fromkeys(self.windows)

    def skip(self) -> None:
        check(self.scanned == END, "an image was captured before it had everything")
        self._count(tuple((self.slot_of[at], at) for at in self.dirty))

    def _count(self, what: tuple) -> None:
        """Everything so far counts as captured. Hashes of numbers are the same in every process."""
        self.captured = hash((self.captured, self.watermark, what)) & 0xFFFFFFFFFFFF
        self.dirty, self.moved = {}, False

    def chunk(self, cursor: int, bytes_max: int) -> tuple[WindowChunk, int]:
        check(not self.moved, "a chunk was taken of another moment than its capture")
        slots = sorted(slot for slot in self.slots if slot >= cursor)
        count = max(1, bytes_max // WINDOW_BYTES)
        end = slots[count] if len(slots) > count else END
        return WindowChunk(self.captured, cursor, end, self.watermark, self._taken(slots[:count])), end

    def fits(self, piece: object) -> bool:
        if isinstance(piece, WindowChunk):
            return piece.start == START or (piece.number == self.captured and piece.start == self.scanned)
        return isinstance(piece, WindowState) and piece.base == self.captured

    def paste(self, piece: object) -> None:
        if isinstance(piece, WindowChunk):
            self._paste_chunk(piece)
            return
        if not isinstance(piece, WindowState):
            raise TypeError(f"not a capture of this operator: {piece!r}")
        if not self.fits(piece):
            raise InputError("a capture does not start where the image stands", detail=f"{self.captured}: {piece}")
        taken = {s: v for s, v in piece.slots.items() if self.scanned == END or s < self.scanned}
        self._put(piece.watermark, taken)
        self.busy_ns += self.costs.paste_window_ns * len(taken)
        self.captured = piece.number

    def _paste_chunk(self, chunk: WindowChunk) -> None:
        if not self.fits(chunk):
            raise InputError("a chunk does not start where the image stands", detail=f"{self.scanned}: {chunk}")
        if chunk.start == START:
            self._clear()
        self._put(chunk.watermark, chunk.slots)
        self.captured, self.scanned = chunk.number, chunk.end

    def _put(self, watermark: int, slots: dict[int, tuple[Window, int]]) -> None:
        """What has closed goes first: its slot may have been given to a window that comes now."""
        self.watermark, self.prints = watermark, None
        for at in [at for at in self.windows if at[0] <= watermark]:
            del self.slots[self.slot_of.pop(at)], self.windows[at]
        for slot, (at, value) in slots.items():
            check(
                self.slots.get(slot, at) == at, "two windows are in one slot", f"{slot}: {self.slots.get(slot)}, {at}"
            )
            self.slot_of[at], self.slots[slot], self.windows[at] = slot, at, value
        self.meter.spent_ns += self.costs.paste_window_ns * len(slots)

    def image(self) -> WindowImage:
        check(self.scanned == END and not self.torn, "a state was stored that is of no position")
        return WindowImage(self.captured, self.watermark, self._taken(list(self.slots)))

    def footprints(self, number: int, least: int, recover_ns: int) -> tuple[int, WindowPrints]:
        """Windows that opened, those of entries before `least`, and the oldest one."""
        check(self.scanned == END and not self.torn, "footprints were left of a state that is of no position")
        known = self.prints if self.prints is not None and least < number else {}
        old = [at for at, left in known.items() if left < least] or list(known)[:1]
        kept = {at: left for at, left in known.items() if at not in old}
        due = [at for at in self.windows if at not in kept]
        self.prints = kept | dict.fromkeys(due, number)
        slots = self._taken([self.slot_of[at] for at in due])
        return min(self.prints.values(), default=number), WindowPrints(
            self.width, self.watermark, len(self.windows), slots
        )

    def load(self, image: object) -> None:
        if not isinstance(image, WindowImage):
            raise TypeError(f"not a checkpoint of this operator: {image!r}")
        self._put(image.watermark, image.slots)
        self.captured, self.scanned = image.number, END

    def fork(self) -> None:
        check(self.scanned == END and self.forked is None, "an image was forked that is not complete, or twice")
        self.forked = {name: copy(getattr(self, name)) for name in FORKED}

    def settle(self, *, keep: bool) -> None:
        image, self.forked = self.forked, None
        check(image is not None, "there is no fork to settle")
        for name, value in (image or {}).items() if not keep else ():
            setattr(self, name, value)

    def restore(self) -> None:
        check(self.scanned == END, "an image was made to run before it had everything")
        self.dirty = {}
        self.free = sorted(set(range(max(self.slots, default=-1) + 1)) - set(self.slots))
        self.moved = True
        self.meter.spent_ns += self.costs.load_ns

    def state_bytes(self) -> int:
        return WINDOW_BYTES * len(self.windows)
