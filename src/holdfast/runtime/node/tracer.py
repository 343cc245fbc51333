"""Where a row's milliseconds go, measured all the time: by node, a histogram for each part and shard or stage.

Nothing is done per row. A block costs two readings of a clock when its shard takes it, and a look into a table when it
is sealed and when its result is fetched; a batch of a stage or a sink tells what it took when it ends.
Clocks of different machines are never compared: each part begins and ends in one process.

A backup is given blocks, too, and takes none. So what waits is kept by edge and no more of it than `KEPT`; a step finds
its block by the watermark, and forgets what came before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.model import notes
from holdfast.model.ids import Asset, Edge, asset_id, operator_of
from holdfast.model.latency import Histogram
from holdfast.model.note import Note

#: Blocks of an edge that may wait, or be fetched later, and are remembered; the oldest are forgotten first.
KEPT = 256


class Tracer:
    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self.parts: dict[tuple[str, str], Histogram] = {}
        #: Of each shard and input edge: (watermark, when it could have been taken).
        self._waiting: dict[tuple[Asset, Edge], deque[tuple[int, int]]] = {}
        #: Of each output edge: (position after it, when it was made).
        self._made: dict[Edge, deque[tuple[int, int]]] = {}
        self._takes: dict[type[Note], Callable[[Any, int], None]] = {
            notes.Sealed: self._on_sealed,
            notes.Accepted: self._on_accepted,
            notes.Emitted: self._on_emitted,
            notes.Served: self._on_served,
        }

    def add(self, part: str, of: str, seconds: float) -> None:
        found = self.parts.get((part, of))
        if found is None:
            found = self.parts[part, of] = Histogram()
        found.add(seconds)

    # --- on the loop's thread

    def on_notes(self, noted: Iterable[Note]) -> None:
        for note in noted:
            take = self._takes.get(type(note))
            if take is not None:
                take(note, self._clock())

    def _on_sealed(self, note: notes.Sealed, now_ns: int) -> None:
        self._waits(note.shard, note.edge, note.block.watermark, now_ns)

    def _on_accepted(self, note: notes.Accepted, now_ns: int) -> None:
        self._waits(asset_id(note.consumer), note.edge, note.block.watermark, now_ns)

    def _waits(self, shard: Asset, edge: Edge, watermark: int, now_ns: int) -> None:
        self._waiting.setdefault((shard, edge), deque(maxlen=KEPT)).append((watermark, now_ns))

    def on_step(self, shard: Asset, edge: Edge, rows: int, watermark: int, began_ns: int) -> None:
        """A shard has taken a block; it began then."""
        waiting, since_ns = self._waiting.get((shard, edge), ()), 0
        while waiting and waiting[0][0] <= watermark:
            mark, since_ns = waiting.popleft()
            if mark == watermark:
                break
        if rows:
            if since_ns:
                self.add("inbox", shard, (began_ns - since_ns) / 1e9)
            self.add("step", shard, (self._clock() - began_ns) / 1e9)

    def _on_emitted(self, note: notes.Emitted, now_ns: int) -> None:
        if len(note.block.rows):
            self._made.setdefault(note.edge, deque(maxlen=KEPT)).append((note.block.end, now_ns))

    def _on_served(self, note: notes.Served, now_ns: int) -> None:
        """It is fetched once by each consumer; the first one counts."""
        made = self._made.get(note.edge, ())
        while made and made[0][0] <= note.span[1]:
            self.add("stream", note.shard, (now_ns - made.popleft()[1]) / 1e9)

    # --- on the threads of driver processes

    def on_news(self, stage: str, event: str, news: dict[str, Any]) -> None:
        """What a stage or a sink says of a batch that has ended."""
        if event == "batch":
            self._on_batch(stage, news.get("progress") or {})

    def _on_batch(self, stage: str, progress: dict[str, Any]) -> None:
        spans = progress.get("durationMs") or {}
        for part, found in (progress.get("handOverMs") or {}).items():
            for ms in found:
                self.add(part, stage, ms / 1e3)
        if not progress.get("numInputRows"):
            return
        if "addBatch" in spans:
            self.add("plan", stage, max(0, spans.get("triggerExecution", 0) - spans["addBatch"]) / 1e3)
            self.add("write", stage, spans["addBatch"] / 1e3)
        for part in ("collect", "fetch", "write"):
            if part in spans:
                self.add(part, stage, spans[part] / 1e3)

    # --- looking

    def told(self) -> dict[str, dict[str, Any]]:
        """By part, then by shard or stage."""
        found: dict[str, dict[str, Any]] = {}
        for (part, of), histogram in sorted(self.parts.copy().items()):
            found.setdefault(part, {})[of] = histogram.told()
        return found

    def figures(self) -> list[tuple[str, tuple[str, ...], Any]]:
        """For `/metrics`: by operator or stage, since a series for every shard and edge would be too many."""
        found: dict[tuple[str, str], Histogram] = {}
        for (part, of), histogram in sorted(self.parts.copy().items()):
            name = operator_of(asset_id(of)) if part in ("inbox", "step", "stream") else of
            found.setdefault((part, name), Histogram()).merge(histogram)
        return [("latency_seconds", labels, histogram) for labels, histogram in found.items()]
