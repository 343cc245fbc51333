"""What every note is: its word, who reads it, its text.

A note (`model/notes.py`) is a class that says

    word       what it is called in traces and in the `when` of a fault: "stale-capture" for `StaleCapture`
    checked    that a rule reads it (`core/invariants.py`, or the simulator's checker), or that none needs to. There is
               no default: a note that does not say which fails the checker, and so does one whose rule is gone
    told       how a real node tells it to a person, if it does

Its text (`str`) is a line of a trace: the word, then the fields in their order. Notes change nothing.
"""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from holdfast.model.block import WATERMARK_MAX, Block
from holdfast.model.parts import CommitRecord


class Told(msgspec.Struct, frozen=True):
    """An event in a node's log. `text` names fields of the note; of those that agree in the first two fields, at most
    one is told every `every_s` seconds."""

    event: str
    text: str
    every_s: float = 0


class Note(msgspec.Struct, frozen=True):
    word: ClassVar[str]
    checked: ClassVar[bool]
    told: ClassVar[Told | None] = None

    def __init_subclass__(cls) -> None:
        cls.word = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def parts(self) -> tuple[object, ...]:
        """What a trace shows of it."""
        return msgspec.structs.astuple(self)

    def __str__(self) -> str:
        return " ".join((self.word, *map(_text, self.parts())))


def _text(part: object) -> str:
    if isinstance(part, Block):
        mark = "end" if part.watermark == WATERMARK_MAX else str(part.watermark)
        gap = f" gap={part.gap.to}" if part.gap else ""
        return f"[{part.start},{part.end}) rows={len(part.rows)} wm={mark}{gap}"
    if isinstance(part, CommitRecord):
        mark = "end" if part.watermark == WATERMARK_MAX else str(part.watermark)
        rows = sum(digest.rows for digest in part.digests.values())
        stands = "".join(f" {name}@{at}" for name, at in sorted(part.positions.items()))
        return f"batch={part.batch} epoch={part.epoch} try={part.attempt} rows={rows} wm={mark} {part.offsets}{stands}"
    return str(part)
