"""Planted bugs in what keeps frames small: output of one step in blocks, and output that comes to images in parts."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import copy as copies
from holdfast.core.arriving import Arriving
from holdfast.core.protect import images
from holdfast.core.protect.images import Images
from holdfast.logs.output_queue import OutputQueue


@mutant
def an_image_counts_as_complete_without_its_output() -> list[Patch]:
    """Once it has all of the state: the record may name it, and what no consumer has yet is gone with the primary."""
    right = Images._next_outputs

    def without(self, stand):
        parts = right(self, stand)
        ends = {queue.edge: queue.next for queue in self.copy.outputs}
        return {edge: images.msgspec.structs.replace(part, next=ends[edge]) for edge, part in parts.items()}

    def paste(self, part, whole):
        if part.blocks and part.blocks[-1].end < part.next:  # so that no other rule stops it
            part = images.msgspec.structs.replace(part, next=part.blocks[-1].end)
        right_paste(self, part, whole)

    right_paste = OutputQueue.paste
    return [(Images, "_next_outputs", without), (OutputQueue, "paste", paste)]


@mutant
def cargo_of_the_first_piece_alone_is_taken() -> list[Patch]:
    right = Arriving.add

    def add(self, message):
        right(self, message)
        self.cargo = {index: load for index, load in self.cargo.items() if not index}

    return [(Arriving, "add", add)]


@mutant
def every_block_of_a_step_promises_its_watermark() -> list[Patch]:
    """The first one too: a consumer closes windows whose rows are in the blocks behind it."""
    right = copies.Copy._emit

    def emit(self, rows, before=0, gap=None):
        return right(self, rows, self.promised, gap)

    return [(copies.Copy, "_emit", emit)]
