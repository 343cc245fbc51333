"""Keep a shard's output until every consumer has acknowledged it.

Trimming follows the slowest consumer, not the fastest: one that lags costs memory, but trimming early would make its
recovery impossible. A consumer may be ahead of the queue (its producer was restored from an image): then blocks are
trimmed as soon as they are made again. Readers that are not sinks of the pipeline hold retention only while their
lease lives.

The queue is bounded: memory first, then disk, then `has_room` is false and the shard waits. It never drops. What is to
go to disk counts as memory until it is there (`spilled_to`). It is written in pieces, one at a time, and as much as
memory may hold may wait for that once more: a disk that is slow, or takes nothing, makes the shard wait. The bounds are
checked before a step, so they can be passed by the output of one step.
Only the arithmetic is here; `core/spills.py` asks for writes, and drivers do them.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from holdfast.errors import check
from holdfast.model.block import WATERMARK_MIN, Block, Gap, Rows, shard_block
from holdfast.model.ids import NO_SEAT, Consumer, Edge, Seat
from holdfast.model.parts import OutputPart


class OutputQueue:
    __slots__ = (
        "acks", "blocks", "counted", "edge", "filed", "files_to", "gone", "leases", "memory_max", "next", "owners",
        "said", "spill_max", "spilled_to", "trimmed", "writing",
    )  # fmt: skip

    def __init__(self, edge: Edge, consumers: tuple[Consumer, ...], memory_max: int, spill_max: int) -> None:
        self.edge = edge
        #: First position that is still here. Invariant: trimmed <= next, trimmed <= every ack (but for what an empty
        #: start has passed over). Never goes back.
        self.trimmed = 0
        self.next = 0
        self.blocks: deque[Block] = deque()
        #: The consumers that hold retention without a lease.
        self.owners = consumers
        #: Last acknowledged position of each consumer that holds retention; may be beyond `next`.
        self.acks: dict[Consumer, int] = dict.fromkeys(consumers, 0)
        #: Which running copies of a consuming shard count, and what each of them has acknowledged.
        self.counted: dict[Consumer, tuple[Seat, ...]] = {}
        self.said: dict[Consumer, dict[Seat, int]] = {}
        #: Until when each leased consumer holds retention.
        self.leases: dict[Consumer, int] = {}
        self.memory_max = memory_max
        self.spill_max = spill_max
        #: Positions below this one are on disk, and their rows no longer in memory.
        self.spilled_to = 0
        #: The ticket under which blocks are being written; 0: none are. An answer with another one is for nobody here.
        self.writing = 0
        #: What was ever to be written ends here; below `filed` its files may go, and a driver was told so.
        self.files_to = 0
        self.filed = 0
        #: Files of what was here before an image began anew: all below this may go, and no driver was told so.
        self.gone = 0

    def fork(self) -> OutputQueue:
        """The same queue again, to go on from beside this one. Blocks never change, so they are shared."""
        made = OutputQueue(self.edge, self.owners, self.memory_max, self.spill_max)
        for name in ("trimmed", "next", "spilled_to", "files_to", "filed", "gone"):
            setattr(made, name, getattr(self, name))
        made.blocks, made.acks, made.leases = self.blocks.copy(), dict(self.acks), dict(self.leases)
        return made

    @property
    def spilled(self) -> int:
        return max(0, self.spilled_to - self.trimmed)

    @property
    def in_memory(self) -> int:
        return self.next - max(self.trimmed, self.spilled_to)

    def has_room(self) -> bool:
        waits_max = min(self.memory_max, self.spill_max)
        held = self.next - self.trimmed
        return held < self.memory_max + self.spill_max and self.in_memory < self.memory_max + waits_max

    def append(self, rows: Rows, watermark: int, highest: int = WATERMARK_MIN, gap: Gap | None = None) -> Block:
        block = shard_block(self.next, rows, watermark, highest, gap)
        self._add(block)
        return block

    def begin(self, base: int) -> None:
        """An empty start: what was here is lost, and what comes is numbered from `base` on."""
        self.blocks.clear()
        self.trimmed = self.next = base

    @property
    def landed(self) -> int:
        """Where an empty start began, as long as somebody may still have to be told of it; else -1."""
        return self.blocks[0].start if self.blocks and self.blocks[0].jumps else -1

    def _add(self, block: Block) -> None:
        check(block.start == self.next, "an output block leaves a hole", f"{self.edge}: {block.start} != {self.next}")
        self.blocks.append(block)
        self.next = block.end
        self._trim()

    def to_spill(self) -> tuple[Block, ...]:
        """The oldest blocks in memory, if more are there than fit: they are asked for least. Not more than memory may
        hold at once, and none while others are being written."""
        over = self.in_memory - self.memory_max
        if self.writing or over <= 0:
            return ()
        found: list[Block] = []
        taken = 0
        for block in self.blocks:
            if block.start < self.spilled_to:
                continue
            size = block.end - block.start
            if taken >= over or block.end - self.trimmed > self.spill_max or (found and taken + size > self.memory_max):
                break
            found.append(block)
            taken += size
        return tuple(found)

    def write(self, ticket: int, blocks: tuple[Block, ...]) -> None:
        """These blocks are being written. They stay in memory until `wrote`."""
        self.writing = ticket
        self.files_to = max(self.files_to, blocks[-1].end)

    def wrote(self, blocks: tuple[Block, ...], kept: tuple[Rows, ...]) -> None:
        """These blocks are on disk, and `kept` stands for their rows: those that are not trimmed leave memory."""
        self.writing = 0
        stands = {block.start: rows for block, rows in zip(blocks, kept, strict=True)}
        for i, block in enumerate(self.blocks):
            if block.start >= blocks[-1].end:
                break
            if block.start in stands:
                self.blocks[i] = replace(block, rows=stands[block.start])
        self.spilled_to = max(self.spilled_to, blocks[-1].end)

    def unfiled(self) -> int:
        """Below which position files may go, once; 0: nothing new."""
        if self.gone:
            gone, self.gone = self.gone, 0
            return gone
        if self.filed >= min(self.trimmed, self.files_to):
            return 0
        self.filed = self.trimmed
        return self.trimmed

    def forget_files(self) -> None:
        """All that was written may go, and the end of what is being written will mean nothing."""
        self.gone = max(self.gone, self.files_to)
        self.writing = self.spilled_to = self.files_to = self.filed = 0

    def lease(self, consumer: Consumer, until_ns: int) -> None:
        """Let a guest hold retention from here on until its lease ends."""
        self.leases[consumer] = until_ns
        self.acks.setdefault(consumer, self.trimmed)

    def renew_leases(self, until_ns: int) -> None:
        """A new primary cannot know how old the leases in its image are: each gets a full one."""
        for consumer in self.acks:
            if consumer not in self.owners:
                self.leases[consumer] = until_ns

    def lapse(self, now_ns: int) -> list[Consumer]:
        """End the leases that ran out, and trim what they held."""
        gone = sorted(c for c, until_ns in self.leases.items() if until_ns < now_ns)
        for consumer in gone:
            del self.leases[consumer]
            self._forget(consumer)
        if gone:
            self._trim()
        return gone

    def leave(self, consumer: Consumer) -> bool:
        """A reader lets go of its lease; true if it had one. A sink of the pipeline has none, and holds on."""
        if self.leases.pop(consumer, None) is None:
            return False
        self._forget(consumer)
        self._trim()
        return True

    def _forget(self, consumer: Consumer) -> None:
        self.acks.pop(consumer, None)
        self.said.pop(consumer, None)

    def count(self, consumer: Consumer, seats: tuple[Seat, ...]) -> None:
        """The record lets these copies of a consumer run: what each of them still needs is kept."""
        self.counted[consumer] = seats
        said = self.said.get(consumer, {})
        self.said[consumer] = {seat: said[seat] for seat in seats if seat in said}

    def ack(self, consumer: Consumer, position: int, seat: Seat = NO_SEAT) -> bool:
        """Take a cumulative acknowledgement of one copy; true if it freed anything. A late one frees nothing.

        A copy that counts and has not spoken yet holds everything: nobody knows where it stands.
        """
        known = self.acks.get(consumer)
        if known is None:
            return False
        said = self.said.setdefault(consumer, {})
        said[seat] = max(position, said.get(seat, 0))
        counted = self.counted.get(consumer, (seat,))
        if any(copy not in said for copy in counted):
            return False
        lowest = min(said[copy] for copy in counted)
        if lowest <= known:
            return False
        self.acks[consumer] = lowest
        return self._trim()

    def _trim(self) -> bool:
        safe = min(min(self.acks.values(), default=self.next), self.next)
        before = self.trimmed
        blocks = self.blocks
        while blocks and blocks[0].end <= safe:
            self.trimmed = blocks.popleft().end
        return self.trimmed > before

    def read(self, at: int, elements_max: int) -> tuple[Block, ...] | None:
        """Blocks from position `at` on: at least one if there is any, about `elements_max` elements at most. None: `at`
        is inside a block."""
        found: list[Block] = []
        for block in reversed(self.blocks):  # consumers ask for the newest, nearly always
            if block.start < at:
                if block.end > at:
                    return None
                break
            found.append(block)
        while len(found) > 1 and found[0].end - at > elements_max:
            del found[0]
        found.reverse()
        return tuple(found)

    def between(self, start: int, end: int) -> tuple[Block, ...] | None:
        """The blocks of [start, end), all of which must be here; None: none of them begins or ends there."""
        found = tuple(block for block in self.blocks if start <= block.start and block.end <= end)
        if start == end:
            return ()
        return found if found and found[0].start == start and found[-1].end == end else None

    def part(self, start: int, elements_max: int | None = None) -> OutputPart:
        """What a capture carries: the unacknowledged blocks from `start` on (all of them if it was trimmed); at least
        one, and then about `elements_max` elements at most."""
        start = max(start, self.trimmed)
        blocks = [b for b in self.blocks if b.start >= start]
        if elements_max is not None:
            blocks = [b for b in blocks if b.end - start <= elements_max] or blocks[:1]
        end = blocks[-1].end if blocks else self.next
        return OutputPart(start, end, self.trimmed, tuple(blocks), dict(self.acks))

    def takes(self, part: OutputPart, whole: bool) -> bool:
        """Does what a capture carries continue this queue, or begin it anew?"""
        if whole or part.start > self.next:
            return part.start == part.trimmed
        return part.next == self.next or any(block.start == self.next for block in part.blocks)

    def paste(self, part: OutputPart, whole: bool) -> None:
        """Make an image's queue stand where the primary's stood."""
        if whole or part.start > self.next:
            self.blocks.clear()
            self.forget_files()
            self.trimmed = self.next = part.trimmed
        self.acks = dict(part.acks)
        self.leases.clear()  # of a time when this copy was primary; if it is again, everyone in `acks` gets a new one
        for block in part.blocks:
            if block.start >= self.next:
                self._add(block)
        check(self.next == part.next, "an image's output is not where the capture says", f"{self.edge} {self.next}")
        self._trim()
