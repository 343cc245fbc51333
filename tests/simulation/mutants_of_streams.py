"""Planted bugs in a shard at work: the order of its input, its queues, what it streams, takes and acknowledges."""

from __future__ import annotations

from mutants import Patch, mutant, unfenced

from holdfast.core.copy import Copy
from holdfast.core.feed import Feed
from holdfast.core.protect.images import Images
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.message import FencedBy
from holdfast.model.messages import Data


@mutant
def acknowledge_before_the_checkpoint_is_safe() -> list[Patch]:
    """When a round is taken, not when it is held."""
    right = Images.take

    def take(self, now_ns, ready):
        right(self, now_ns, ready)
        self.safe_at = self.base

    return [(Images, "take", take)]


@mutant
def no_fence_at_the_consumer() -> list[Patch]:
    return [unfenced(FencedBy.PRODUCER, Data)]


@mutant
def trim_by_the_fastest_consumer() -> list[Patch]:
    def trim(self):
        safe = min(max(self.acks.values(), default=self.next), self.next)
        before = self.trimmed
        while self.blocks and self.blocks[0].end <= safe:
            self.trimmed = self.blocks.popleft().end
        return self.trimmed > before

    return [(OutputQueue, "_trim", trim)]


@mutant
def replay_from_the_wrong_position() -> list[Patch]:
    right = Copy.promote

    def promote(self, until_ns):
        right(self, until_ns)
        for i in self.inputs:
            if i.queue:
                i.position = i.queue.popleft().end

    return [(Copy, "promote", promote)]


@mutant
def image_pasted_out_of_order() -> list[Patch]:
    """The next round does not wait for the last one, and nobody looks whether it fits."""
    due = Images.due

    def due_anyway(self, now_ns, *, frozen):
        if now_ns - self.started_ns >= self.protection.period_ns:
            self.waiting.clear()
        return due(self, now_ns, frozen=frozen)

    return [(Images, "due", due_anyway), (Copy, "fits", lambda self, capture: True)]


@mutant
def capture_without_the_unacknowledged_output() -> list[Patch]:
    right = OutputQueue.part

    def part(self, start):
        made = right(self, start)
        return type(made)(made.start, made.next, made.next, (), made.acks)

    return [(OutputQueue, "part", part)]


@mutant
def input_in_the_order_of_arrival() -> list[Patch]:
    def next_input(self):
        return next((i for i in self.inputs if i.queue), self.inputs[0])

    return [(Copy, "next_input", next_input)]


@mutant
def queue_without_a_bound() -> list[Patch]:
    return [(OutputQueue, "has_room", lambda self: True)]


@mutant
def holes_are_skipped() -> list[Patch]:
    right = Feed.take

    def take(self, message, source, now_ns, ready):
        if message.blocks and message.blocks[0].start > self.next:
            self.next = message.blocks[0].start
        return right(self, message, source, now_ns, ready)

    return [(Feed, "take", take)]
