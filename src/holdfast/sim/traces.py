"""The log of a shard that leaves footprints, in the modelled store: what a restore makes of it, by the book.

Only entries that the newest one needs are kept, so whoever needs another one is found. A gather goes from the newest
entry to the oldest; a replay gives every row to the window that it belongs to, if that is open and does not know it.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.ready import PutFootprints
from holdfast.errors import check
from holdfast.model.block import Row, Rows
from holdfast.model.ids import Edge
from holdfast.model.parts import CheckpointHead, LoggedBatch, OutputPart, TakenRows
from holdfast.sim.operators import Window, WindowImage, WindowPrints

#: Every try of every batch, by edge.
Tries = dict[Edge, dict[tuple[int, int, int], LoggedBatch]]


class TraceLog:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], PutFootprints] = {}

    def _needed(self, effect: PutFootprints) -> list[tuple[int, int]]:
        return [(effect.epoch, number) for number in effect.trace.needs]

    def has(self, effect: PutFootprints) -> bool:
        return all(key in self.entries for key in self._needed(effect))

    def add(self, effect: PutFootprints) -> None:
        kept = {key: self.entries[key] for key in self._needed(effect)}
        self.entries = {**kept, (effect.epoch, effect.trace.number): effect}

    def bring_back(self, log: Tries) -> tuple[CheckpointHead, WindowImage]:
        *earlier, last = self.entries.values()
        slots, known = self._gather()
        windows = {at: (slot, value) for slot, (at, value) in slots.items()}
        for entry in (*earlier, last):
            if entry.trace.number > last.trace.since:
                for taken in entry.trace.taken:
                    for row in _rows(taken, log):
                        at = _window(row, entry)
                        if at in windows and known[at] < entry.trace.number:
                            slot, value = windows[at]
                            windows[at] = (slot, value + row[2])
        image = _prints(last)
        number = hash((last.epoch, last.trace.number)) & 0xFFFFFFFFFFFF
        back = {slot: (at, value) for at, (slot, value) in windows.items()}
        return self._head(), WindowImage(number, image.watermark, back)

    def _gather(self) -> tuple[dict[int, tuple[Window, int]], dict[Window, int]]:
        """The newest footprint of every window that is open at the end, by slot; and which entry each is from."""
        *_, last = self.entries.values()
        end = _prints(last)
        slots: dict[int, tuple[Window, int]] = {}
        known: dict[Window, int] = {}
        for entry in reversed(self.entries.values()):
            for slot, (at, value) in _prints(entry).slots.items():
                if len(known) < end.count and at not in known and at[0] > end.watermark:
                    slots[slot], known[at] = (at, value), entry.trace.number
        check(len(known) == end.count, "an open window has no footprint", f"{last.shard}: {len(known)} of {end.count}")
        check(
            min(known.values(), default=last.trace.number) >= last.trace.since,
            "an open window has an older footprint than its log says",
            last.shard,
        )
        return slots, known

    def _head(self) -> CheckpointHead:
        """Where the newest entry stands, with the output of all entries that nobody has acknowledged."""
        *_, last = self.entries.values()
        return replace(last.head, outputs={edge: self._output(edge, part) for edge, part in last.head.outputs.items()})

    def _output(self, edge: Edge, part: OutputPart) -> OutputPart:
        blocks = [block for entry in self.entries.values() for block in entry.head.outputs[edge].blocks]
        kept = tuple(block for block in blocks if block.start >= part.trimmed)
        return replace(part, start=part.trimmed, blocks=kept)


def _prints(entry: PutFootprints) -> WindowPrints:
    check(isinstance(entry.image, WindowPrints), "an entry without footprints", entry.shard)
    assert isinstance(entry.image, WindowPrints)
    return entry.image


def _window(row: Row, entry: PutFootprints) -> Window:
    """As the operator has it (`WindowSum.step`)."""
    key, time, _ = row
    width = _prints(entry).width
    return (time - time % width + width, key)


def _rows(taken: TakenRows, log: Tries) -> Rows:
    if taken.batch < 0:
        return taken.rows
    tries = (one.held for (batch, *_), one in sorted(log[taken.edge].items()) if batch == taken.batch)
    found = next((held.rows for held in tries if held.digest == taken.digest), None)
    check(found is not None, "a batch that is to be replayed is not in the log", f"{taken.edge}: {taken.batch}")
    return found if found is not None else ()
