"""What a machine noted, as events that a person can follow and as counts for metrics.

The core's notes are many; most are only counted. Told are failures, suspicions, promotions, what stands still, and
what was refused. The class of a note says how it is told
(`model/notes.py`); here is only what needs more than its fields.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import notes
from holdfast.model.ids import Asset, Name, Seat, name_of, operator_of
from holdfast.model.parts import DEAD
from holdfast.model.store_notes import LookedUp
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.letters import first_reason
from holdfast.runtime.node.metrics import Figures
from holdfast.runtime.node.operators import ShardOperator
from holdfast.runtime.node.tracer import Tracer

if TYPE_CHECKING:  # only nodes with a store need it
    from holdfast.checkpoint.restore import RestoreTimes


class Story:
    """Turns notes into events and counts. Used on the loop's thread."""

    def __init__(self, events: EventLog, silent_for_s: Callable[[Name], float | None]) -> None:
        self._events = events
        self._silent_for_s = silent_for_s
        self.counts: Counter[str] = Counter()
        self.gap_s = 0.0
        self.rows_emitted = 0
        #: Where a row's time goes.
        self.tracer = Tracer()
        #: Where each shard sat before: to say how long its old node was silent when it was promoted.
        self.sat: dict[str, Seat | None] = {}
        #: The copy of a shard on this node.
        self.operator_of: Callable[[Asset], object] = lambda shard: None
        self._captures = [0, 0, 0]
        self._captures_told = time.monotonic()

    def tell(self, noted: list[notes.Note]) -> None:
        self.tracer.on_notes(noted)
        for note in noted:
            self.counts[note.word] += 1
            if note.told is not None:
                self._write(note, note.told)
                continue
            match note:
                case notes.Promoted():
                    self._on_promoted(note)
                case notes.Captured():
                    self._captures[1 if note.whole else 0] += 1
                case notes.Pasted():
                    self._captures[2] += 1
                case notes.Emitted():
                    self.rows_emitted += len(note.block.rows)
                case notes.Restored():
                    self._on_restored(note)
                case LookedUp():
                    self._on_looked_up(note)
                case notes.SetAside():
                    self._on_set_aside(note)
                case notes.Decided():
                    text = f"Record {note.version} is decided (term {note.term})."
                    self._events.write("record", text, version=note.version)
                case notes.Recovered():
                    self._on_recovered(note)
                case notes.StableAgain():
                    seconds = note.after_ns / 1e9
                    text = f"Everything has a second copy again, after {seconds:.2f} s."
                    self._events.write("stable", text, seconds=seconds)
                case _:
                    pass  # only counted
        now = time.monotonic()
        if now - self._captures_told >= 10 and any(self._captures):
            deltas, wholes, pastes = self._captures
            seconds = now - self._captures_told
            text = f"{deltas} deltas and {wholes} whole captures sent, {pastes} pasted in {seconds:.0f} s."
            self._events.write("captures", text, deltas=deltas, wholes=wholes, pastes=pastes)
            self._captures, self._captures_told = [0, 0, 0], now

    def figures(self) -> Figures:
        """Of what was told so far, for `/metrics`."""
        counts = self.counts
        found: Figures = [("promotions", (), counts["promoted"]), ("gap_seconds", (), self.gap_s)]
        return [*found, ("suspicions", (), counts["suspects"]), *self.tracer.figures()]

    def _write(self, note: notes.Note, told: notes.Told) -> None:
        text = told.text.format_map(msgspec.structs.asdict(note))
        if told.every_s:
            self._events.limited((note.word, *note.parts()[:2]), told.every_s, told.event, text)
        else:
            self._events.write(told.event, text)

    def _on_set_aside(self, note: notes.SetAside) -> None:
        rows, folder = len(note.block.rows), f"{DEAD}/{operator_of(note.shard)}"
        text = f"{note.shard} has set aside {rows} rows ({folder} has them): {first_reason(note.block.rows)}."
        self._events.limited((note.word, note.shard), 1.0, "set-aside", text, shard=note.shard, rows=rows)

    def _on_restored(self, note: notes.Restored) -> None:
        text, times = f"{note.seat} goes on with {note.shard} from ", self._times_of(note.shard)
        if times is None:
            self._events.write("restored", f"{text}the beginning: the store has no checkpoint of it.", shard=note.shard)
            return
        text += f"checkpoint {times.sequence}: {times.state_bytes / 1e6:,.1f} MB, claimed in {times.claim_s:.3f} s, "
        text += f"read in {times.read_s:.3f} s, maps found in {times.maps_s:.3f} s."
        self._events.write("restored", text, shard=note.shard, **_told_times(times))

    def _times_of(self, shard: Asset) -> RestoreTimes | None:
        operator = self.operator_of(shard)
        if not isinstance(operator, ShardOperator) or operator.times is None:
            return None
        operator.times.step_s = operator.busy_ns / 1e9
        return operator.times

    def _on_looked_up(self, note: LookedUp) -> None:
        times = self._times_of(note.shard)
        if times is not None:
            text = f"{note.shard} has the batches after its checkpoint: {times.log_batches}, "
            text += f"read from the log in {times.log_s:.3f} s, taken in {times.step_s:.3f} s."
            self._events.write("replayed", text, shard=note.shard, **_told_times(times))

    def _on_recovered(self, note: notes.Recovered) -> None:
        expected_ms, worked_ms, took_ms = (ns / 1e6 for ns in (note.expected_ns, note.worked_ns, note.took_ns))
        what = "1 shard" if note.shards == 1 else f"{note.shards} shards"
        text = f"{note.seat} has caught up with {what} of {note.failed}: {worked_ms:.0f} ms of work in "
        text += f"{took_ms:.0f} ms, {expected_ms:.0f} ms were expected."
        self._events.write(
            "recovered", text, failed=note.failed, shards=note.shards, expected_ms=round(expected_ms, 3),
            worked_ms=round(worked_ms, 3), took_ms=round(took_ms, 3),
        )  # fmt: skip

    def _on_promoted(self, note: notes.Promoted) -> None:
        shard, seat, epoch, positions = note.shard, note.seat, note.epoch, note.positions
        before = self.sat.get(shard)
        if epoch == 1 and before in (None, seat):
            return  # the start of the pipeline
        silent_s = self._silent_for_s(name_of(before)) if before and before != seat else None
        text = f"{seat} {'goes on with' if before == seat else 'takes over'} {shard} at epoch {epoch}"
        fields = {"shard": shard, "epoch": epoch, "positions": positions}
        if silent_s is not None:
            self.gap_s += silent_s
            self._events.write(
                "promotion", f"{text}; {name_of(before or '')} was last heard {silent_s * 1e3:.0f} ms ago.",
                **fields, silent_s=round(silent_s, 4),
            )  # fmt: skip
        else:
            self._events.write("promotion", f"{text}.", **fields)


def _told_times(times: RestoreTimes) -> dict[str, float]:
    return {phase: round(value, 4) for phase, value in asdict(times).items()}
