"""Traces and stories: what was decided, as text. Same run, same text, byte for byte.

A trace has one line per note and fault (and, on request, per message). A story is the trace of one shard, edge, stage
or node: the lines that name it.
"""

from __future__ import annotations

from holdfast.model.ids import Address
from holdfast.model.messages import Message
from holdfast.model.notes import Note


class Trace:
    """Collects lines while a world runs."""

    def __init__(self, *, messages: bool = False) -> None:
        self.lines: list[str] = []
        self.messages = messages

    def on_notes(self, at_ns: int, source: Address, notes: list[Note]) -> None:
        for note in notes:
            self.lines.append(f"{at_ns / 1e6:10.3f}  {source:<6} {note}")

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
