"""A round's capture on its way into an image: pieces in any order, complete, held, then pasted piece by piece.

A capture that is held survives whatever happens to its primary: it is pasted before its copy runs. Pasting can be
interrupted after every piece, so that a burst of input waits for one piece at the most.
"""

from __future__ import annotations

from holdfast.model.ids import Seat
from holdfast.model.messages import Capture, CapturePiece

#: (epoch, since, round): later ones replace earlier ones.
Key = tuple[int, int, int]


def key_of(message: Capture | CapturePiece) -> Key:
    return (message.epoch, message.since, message.round)


class Arriving:
    """Whatever has come of the newest round."""

    __slots__ = ("head", "key", "pieces", "source")

    def __init__(self, source: Seat, key: Key) -> None:
        self.source = source
        self.key = key
        self.head: Capture | None = None
        self.pieces: dict[int, object] = {}

    def add(self, message: Capture | CapturePiece) -> None:
        if isinstance(message, Capture):
            self.head = message
            self.pieces[0] = message.state
        else:
            self.pieces[message.index] = message.state

    def capture(self) -> Capture | None:
        """The head, once everything is there."""
        head = self.head
        return head if head is not None and len(self.pieces) == head.pieces else None

    def state(self) -> list[object]:
        return [self.pieces[i] for i in sorted(self.pieces)]


class Pasting:
    """A held capture, and the pieces of it that are still to be pasted."""

    __slots__ = ("head", "left", "source")

    def __init__(self, source: Seat, head: Capture, state: list[object]) -> None:
        self.source = source
        self.head = head
        #: In reverse, so that the next one is the last: what was pasted is let go at once.
        self.left = state[::-1]
