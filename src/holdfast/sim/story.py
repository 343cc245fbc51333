"""Traces and stories: what was decided, as text. Same run, same text, byte for byte.

A trace has one line per note and fault (and, on request, per message). A story is the trace of one shard, edge, stage
or node: the lines that name it.
"""

from __future__ import annotations

from holdfast.core.ready import Note
from holdfast.model.block import WATERMARK_MAX, Block
from holdfast.model.ids import Address
from holdfast.model.messages import CommitRecord, Message


def _text(part: object) -> str:
    if isinstance(part, Block):
        mark = "end" if part.watermark == WATERMARK_MAX else str(part.watermark)
        return f"[{part.start},{part.end}) rows={len(part.rows)} wm={mark}"
    if isinstance(part, CommitRecord):
        mark = "end" if part.watermark == WATERMARK_MAX else str(part.watermark)
        tries = ",".join(f"{task}.{attempt}" for task, attempt in part.accepted.items())
        return f"batch={part.batch} epoch={part.epoch} try={part.attempt} tasks={tries} wm={mark} {part.offsets}"
    return str(part)


def note_text(note: Note) -> str:
    """One note as a line; positions that a block repeats are left out."""
    if note[0] in ("emitted", "accepted"):
        note = (*note[:3], f"epoch={note[5]}", note[6])
    return " ".join(_text(part) for part in note)


class Trace:
    """Collects lines while a world runs."""

    def __init__(self, *, messages: bool = False) -> None:
        self.lines: list[str] = []
        self.messages = messages

    def on_notes(self, at_ns: int, source: Address, notes: list[Note]) -> None:
        for note in notes:
            self.lines.append(f"{at_ns / 1e6:10.3f}  {source:<6} {note_text(note)}")

    def on_fault(self, at_ns: int, fault: object) -> None:
        self.lines.append(f"{at_ns / 1e6:10.3f}  FAULT  {fault}")

    def on_message(self, at_ns: int, source: Address, target: Address, message: Message) -> None:
        self.lines.append(f"{at_ns / 1e6:10.3f}  {source:<6} -> {target} {message}")

    def story(self, thing: str) -> list[str]:
        """The lines that name one shard, edge, stage or node (any of its lives, any of its edges)."""
        starts = (f"{thing}#", f"{thing}@", f"{thing}>", f"{thing}.")

        def names(word: str) -> bool:
            return word == thing or word.startswith(starts) or word.endswith(f">{thing}")

        return [line for line in self.lines if any(map(names, line.split()))]
