"""A round's capture on its way into an image: pieces in any order, complete, held, then pasted piece by piece.

The first piece, the head, says where everything stands. Rows of output, and of input that was handed over, are its
cargo; what is more than a block of it goes in pieces of its own.

A capture that is held survives whatever happens to its primary: it is pasted before its copy runs. Pasting can be
interrupted after every piece, so that a burst of input waits for one piece at the most.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.model.block import Block
from holdfast.model.ids import Edge, Seat
from holdfast.model.messages import Capture, CapturePiece
from holdfast.model.parts import Cargo, HandedPart, HeldBatch, OutputPart

#: (epoch, since, round): later ones replace earlier ones.
Key = tuple[int, int, int]


def key_of(message: Capture | CapturePiece) -> Key:
    return (message.epoch, message.since, message.round)


def cargo_of(outputs: dict[Edge, OutputPart], handed: dict[Edge, HandedPart], rows_max: int) -> list[tuple[Cargo, ...]]:
    """All rows of these parts, in loads of about so many, each a block or a batch at least; the first may be empty."""
    all_blocks = {edge: part.blocks for edge, part in outputs.items()}
    all_blocks |= {edge: part.sealed for edge, part in handed.items()}
    single = [Cargo(edge, (block,)) for edge, blocks in all_blocks.items() for block in blocks]
    single += [Cargo(edge, (), (held,)) for edge, part in handed.items() for held in part.held]
    loads: list[list[Cargo]] = [[]]
    size = 0
    for cargo in single:
        if loads[-1] and size + len(cargo) > rows_max:
            loads.append([])
            size = 0
        loads[-1].append(cargo)
        size += len(cargo)
    return [tuple(load) for load in loads]


class Arriving:
    """Whatever has come of the newest round."""

    __slots__ = ("at_ns", "cargo", "head", "key", "pieces", "source")

    def __init__(self, source: Seat, key: Key, at_ns: int) -> None:
        self.source = source
        self.key = key
        #: When the first piece came.
        self.at_ns = at_ns
        self.head: Capture | None = None
        self.pieces: dict[int, object] = {}
        self.cargo: dict[int, tuple[Cargo, ...]] = {}

    def add(self, message: Capture | CapturePiece) -> None:
        index = 0
        if isinstance(message, Capture):
            self.head = message
        else:
            index = message.index
        self.pieces[index], self.cargo[index] = message.state, message.cargo

    def capture(self) -> Capture | None:
        """The head with all cargo in its parts, once everything is there."""
        head = self.head
        if head is None or not all(i in self.pieces for i in range(head.pieces)):
            return None
        blocks: dict[Edge, list[Block]] = {}
        held: dict[Edge, list[HeldBatch]] = {}
        for index in range(head.pieces):
            for cargo in self.cargo[index]:
                blocks.setdefault(cargo.edge, []).extend(cargo.blocks)
                held.setdefault(cargo.edge, []).extend(cargo.held)
        outputs = {e: replace(part, blocks=tuple(blocks.get(e, ()))) for e, part in head.outputs.items()}
        handed = {
            e: replace(part, sealed=tuple(blocks.get(e, ())), held=tuple(held.get(e, ())))
            for e, part in head.handed.items()
        }
        return replace(head, outputs=outputs, handed=handed, cargo=())

    def state(self) -> list[object]:
        count = self.head.pieces if self.head else 0
        return [self.pieces[i] for i in range(count) if self.pieces[i] is not None]


class Pasting:
    """A held capture, and the pieces of it that are still to be pasted."""

    __slots__ = ("at_ns", "before_ns", "head", "left", "number", "source")

    def __init__(self, source: Seat, head: Capture, state: list[object], number: int = 0, at_ns: int = 0) -> None:
        self.source = source
        self.at_ns = at_ns
        #: What the operator of the image had worked before.
        self.before_ns = 0
        self.head = head
        #: In reverse, so that the next one is the last: what was pasted is let go at once.
        self.left = state[::-1]
        #: How many captures this node had held before: they are pasted in the order in which they came.
        self.number = number
