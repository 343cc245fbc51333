"""What a machine noted, as events that a person can follow and as counts for metrics.

The core's notes are many; most are only counted. Told are failures, suspicions, promotions, what stands still, and
what was refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from holdfast.core.ready import Note
from holdfast.model.ids import Name, Seat, name_of
from holdfast.runtime.node.events import EventLog

#: note -> (at most once in so many seconds, event, text with {1}, {2}, … for the note's fields).
_TOLD: dict[str, tuple[float, str, str]] = {
    "suspects": (1, "suspicion", "{1} has not heard {2} (life {3}) for too long."),
    "unreachable": (0, "unreachable", "Nothing listens any more where {2} (life {3}) did."),
    "dismissed": (1, "dismissed", "{1} has heard {2} itself: it is not gone."),
    "no-quorum": (5, "no-quorum", "{2} seems gone, but without it there would be no majority: it stays a member."),
    "spared": (5, "spared", "{2} seems gone, but it may hold the last copy of something: it stays for now."),
    "campaign": (0, "campaign", "{1} stands for coordinator in term {2}."),
    "elected": (0, "elected", "{1} is coordinator of term {2}."),
    "degraded": (5, "degraded", "Only one node is left: {3} shards and ledgers have no second copy."),
    "lost": (0, "lost", "Every copy of {1} is gone: its stage stands still."),
    "joining": (0, "joining", "{2} begins to back up {1}."),
    "demoted": (0, "demoted", "{2} has handed {1} over."),
    "dropped": (0, "dropped", "{2} no longer holds {1}."),
    "failed": (0, "shard-failed", "{3}"),
    "paste-failed": (5, "paste-failed", "{2} cannot take a capture of {1}: {3}"),
    "misfit": (5, "misfit", "{2} needs a whole capture of {1}."),
    "refused": (1, "fenced", "{1} refused rows of {2} at epoch {3}: the shard is at epoch {4}."),
    "fenced": (1, "fenced", "{1} refused consumer {3} at epoch {4}: it is at epoch {5}."),
    "stale-capture": (1, "fenced", "{2} refused a capture of {1} at epoch {3}."),
    "lapsed": (0, "lease-lapsed", "Reader {3} of {2} was silent too long; its rows are given up."),
    "gone": (5, "trimmed", "Reader {3} asks {2} from {4}; it starts at {5} now."),
    "barred": (5, "refused", "Reader {3} of {2} is refused: {4}."),
    "turned-away": (1, "turned-away", "Batch {3} of {1} was turned away by {4}: {5}."),
}
_COUNTED = frozenset(("captured", "pasted", "promoted", "suspects", "sealed", "misfit", "failed"))


class Story:
    """Turns notes into events and counts. Used on the loop's thread."""

    def __init__(self, events: EventLog, silent_for_s: Callable[[Name], float | None]) -> None:
        self._events = events
        self._silent_for_s = silent_for_s
        self.counts: Counter[str] = Counter()
        self.gap_s = 0.0
        self.rows_emitted = 0
        #: Where each shard sat before: to say how long its old node was silent when it was promoted.
        self.sat: dict[str, Seat | None] = {}
        self._captures = [0, 0, 0]
        self._captures_told = time.monotonic()

    def tell(self, notes: list[Note]) -> None:
        for note in notes:
            word = note[0]
            if word in _COUNTED:
                self.counts[word] += 1
            told = _TOLD.get(word)
            if told is not None:
                every_s, event, text = told
                text = text.format(*note)
                if every_s:
                    self._events.limited(note[:3], every_s, event, text)
                else:
                    self._events.write(event, text)
            elif word == "promoted":
                self._on_promoted(note)
            elif word == "captured":
                self._captures[1 if note[4] else 0] += 1
            elif word == "pasted":
                self._captures[2] += 1
            elif word == "emitted":
                self.rows_emitted += len(note[6].rows)
            elif word == "decided":
                self._events.write("record", f"Record {note[2]} is decided (term {note[3]}).", version=note[2])
            elif word == "stable-again":
                seconds = note[3] / 1e9
                self._events.write(
                    "stable", f"Everything has a second copy again, after {seconds:.2f} s.", seconds=seconds
                )
        now = time.monotonic()
        if now - self._captures_told >= 10 and any(self._captures):
            deltas, wholes, pastes = self._captures
            seconds = now - self._captures_told
            text = f"{deltas} deltas and {wholes} whole captures sent, {pastes} pasted in {seconds:.0f} s."
            self._events.write("captures", text, deltas=deltas, wholes=wholes, pastes=pastes)
            self._captures, self._captures_told = [0, 0, 0], now

    def _on_promoted(self, note: Note) -> None:
        _, shard, seat, epoch, positions = note
        before = self.sat.get(shard)
        if epoch == 1 and before in (None, seat):
            return  # the start of the pipeline
        silent_s = self._silent_for_s(name_of(before)) if before and before != seat else None
        text = f"{seat} takes over {shard} at epoch {epoch}"
        fields = {"shard": shard, "epoch": epoch, "positions": positions}
        if silent_s is not None:
            self.gap_s += silent_s
            self._events.write(
                "promotion", f"{text}; {name_of(before or '')} was last heard {silent_s * 1e3:.0f} ms ago.",
                **fields, silent_s=round(silent_s, 4),
            )  # fmt: skip
        else:
            self._events.write("promotion", f"{text}.", **fields)
