"""One copy of a shard: operator state, input positions, output queues. Stepped if it is primary, pasted into if not.

Primary and image are one class, so promotion moves nothing: the image starts to step where it stands, over the input
that was retained. The order of input is fixed: the next block comes from the edge whose consumed watermark is
lowest, ties by edge id. If that edge has none, the copy waits, however much the others hold; so what it emits, and
at which positions, is a function of its input edges alone.

A copy may have to start empty (mode `none`, after a failure): it lands when it is known for every input where that goes
on, and from which event time on everything will be there (`gap`). Windows that begin before that are not emitted, and
its output begins with a block that says so. A copy that comes upon such a block hides what it touches, and hands it on.

What an operator cannot put out (a sum that does not fit its type) it sets aside, by a rule that knows only state and
input. That is output too: it is numbered, captured and kept until it is written (`dead`, `core/dead_letters.py`).

A block that the operator cannot take stays, and the copy stands still, until the record says that it is skipped
(`skips`). Then its rows are set aside like that, whichever copy meets it, and its watermark counts as ever.

A copy never talks to anyone: `core/host.py` feeds it and sends what it made.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.core.arriving import Pasting
from holdfast.core.gauge import Gauge, Tidings
from holdfast.core.operator import Operator
from holdfast.core.quiet import begin_quietly, pass_over
from holdfast.core.roles import CHANGES, RISING, Change, Condition
from holdfast.errors import HoldfastError, InvariantError, MemoryLimitError, check, one_line
from holdfast.logs.inbox import Inbox
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, Block, Gap, Rows, cut_rows
from holdfast.model.config import SECOND, Config
from holdfast.model.ids import Asset, Consumer, Edge, dead_edge
from holdfast.model.messages import Capture
from holdfast.model.parts import CheckpointHead, CommitRecord, HandedPart, TakenRows, taken_rows
from holdfast.model.skips import WHY_MAX, Skip
from holdfast.model.topology import ShardSpec, Topology

#: Who takes what is set aside: files.
DEAD_LETTERS = Consumer("dead letters")


class Input:
    """One input edge: what was consumed, and what waits. Blocks of a stage wait in its inbox."""

    __slots__ = ("edge", "inbox", "named", "position", "queue", "watermark")

    def __init__(self, edge: Edge, inbox: Inbox | None) -> None:
        self.edge = edge
        self.inbox = inbox
        self.queue: deque[Block] = inbox.sealed if inbox else deque()
        #: Position of the next element to consume. Never goes back while the copy lives.
        self.position = 0
        #: Only its primary has said so: no block was here that begins or ends there (`core/quiet.py`).
        self.named = False
        self.watermark = WATERMARK_MIN


class Fork(NamedTuple):
    """The image that a stand-in goes back to, but for the state of its operator."""

    inputs: dict[Edge, tuple[int, int]]
    outputs: list[OutputQueue]
    dead: OutputQueue
    #: watermark, gap, highest.
    marks: tuple[int, int, int]


class Copy:
    __slots__ = (
        "block_rows_max", "blocked", "condition", "consumed_since", "dead", "fork", "gap", "gauge", "highest",
        "inboxes", "inputs", "op", "outputs", "pasted", "pasting", "quiet_to", "replays", "skipped", "skips", "spec",
        "taken", "told", "watermark", "why",
    )  # fmt: skip

    def __init__(self, spec: ShardSpec, topology: Topology, op: Operator, config: Config, *, based: bool) -> None:
        self.spec = spec
        self.op = op
        self.block_rows_max = topology.block_rows_max
        #: What its state is good for. Only `change` sets it, by the table in `core/roles.py`.
        self.condition = Condition.COMPLETE if based else Condition.EMPTY
        #: While it holds a capture: that one, and what of it is still to be pasted.
        self.pasting: Pasting | None = None
        self.inboxes: dict[Edge, Inbox] = {e: Inbox(e, based) for e in spec.inputs if topology.is_stage_edge(e)}
        self.inputs = [Input(edge, self.inboxes.get(edge)) for edge in sorted(spec.inputs)]
        self.outputs = [
            OutputQueue(e, topology.consumers[e], config.queue_memory_max, config.queue_spill_max) for e in spec.outputs
        ]
        #: What its operator has set aside, until it is written.
        self.dead = OutputQueue(dead_edge(spec.id), (DEAD_LETTERS,), config.queue_memory_max, 0)
        #: The shard's own watermark: the lowest of its inputs.
        self.watermark = WATERMARK_MIN
        #: Windows that begin before this event time are not emitted: rows of them are missing.
        self.gap = 0
        #: The highest event time that may have been consumed.
        self.highest = WATERMARK_MIN
        #: It makes again what an earlier copy made, which may have come further: it needs the same input.
        self.replays = False
        #: Up to these positions it makes its state again, and puts nothing out (`core/replays.py`); None: it does.
        self.quiet_to: dict[Edge, int] | None = None
        #: Of an image: what its primary has told with the last capture.
        self.told = Tidings()
        #: (born, round) of the last capture in this image.
        self.pasted = (0, 0)
        #: Elements consumed since the last capture was taken.
        self.consumed_since = 0
        #: While it stands still, or waits for memory: why its operator cannot take the next block. Nothing is lost: the
        #: block stays.
        self.why = ""
        #: Meanwhile: that block, as a skip would name it.
        self.blocked: Skip | None = None
        #: Blocks that the record lets it pass over; and the one that the last step has passed over.
        self.skips: dict[tuple[Edge, int], Skip] = {}
        self.skipped: Skip | None = None
        #: What its operator has taken, while somebody notes it (`core/protect/eventual.py`).
        self.taken: list[TakenRows] | None = None
        #: While it stands in: what it goes back to.
        self.fork: Fork | None = None
        #: How busy it keeps its node in its present role.
        self.gauge = Gauge()

    @property
    def id(self) -> Asset:
        return self.spec.id

    @property
    def based(self) -> bool:
        """Is this running state, or an image that the record may name?"""
        return self.condition not in RISING

    @property
    def landing(self) -> bool:
        """It started empty, and it is not known yet where its inputs go on."""
        return self.condition is Condition.LANDING

    def can(self, change: Change) -> bool:
        return (self.condition, change) in CHANGES

    def change(self, change: Change) -> None:
        """The one place where the condition of a copy changes."""
        known = CHANGES.get((self.condition, change))
        if known is None:
            raise InvariantError(
                "the state of a copy cannot do this", detail=f"{self.id} is {self.condition.value}: {change.value}"
            )
        self.condition = known
        if change is not Change.GIVES_UP:
            self.why, self.blocked = "", None

    @property
    def expects_batch(self) -> bool:
        """It started empty, and has not sealed a batch of some stage yet: when that speaks it may have to say that more
        is missing than it knew (`pass_over`). No input says so, so no other copy would make the same of this state."""
        return any(i.inbox.landing and i.watermark < WATERMARK_MAX for i in self.inputs if i.inbox is not None)

    def holds_to(self, edge: Edge) -> int:
        """Where this copy would stand if it ran now: a held capture is pasted first, and a stand-in may go back."""
        if self.fork is not None:
            return self.fork.inputs[edge][0]
        return self.pasting.head.to[edge] if self.pasting else self.input(edge).position

    def stands_at(self, edge: Edge) -> int:
        """Where this copy stands, or the image that a stand-in may go back to."""
        return self.fork.inputs[edge][0] if self.fork else self.input(edge).position

    @property
    def queues(self) -> tuple[OutputQueue, ...]:
        """Everything that it makes, and that a capture carries."""
        return (*self.outputs, self.dead)

    def positions(self) -> dict[Edge, int]:
        return {i.edge: i.position for i in self.inputs}

    def input(self, edge: Edge) -> Input:
        return next(i for i in self.inputs if i.edge == edge)

    def retained(self) -> int:
        """Elements of stage input held back, the most of any edge."""
        return max((inbox.retained for inbox in self.inboxes.values()), default=0)

    def next_input(self) -> Input:
        """The one edge from which the next block must come."""
        return min(self.inputs, key=lambda i: i.watermark)  # inputs are sorted by edge: `min` takes the first of equals

    def step(self) -> list[tuple[OutputQueue, Block]] | None:
        """Consume one block; what it produced, or None if the right block is not there or there is no room.

        A block that the operator cannot take stays where it is, and so does the copy: any other order would be wrong.
        """
        source = self.next_input()
        if not source.queue or self.condition not in (Condition.RUNNING, Condition.STANDING_IN):
            return None
        for queue in self.queues:
            if not queue.has_room():
                return None
        block = source.queue[0]
        holds = block.start == source.position
        if not holds and (source.named or (block.jumps and self.replays)):
            self.change(Change.CUT_OFF)
            source.position = block.start if source.named else source.position
            return None
        check(
            holds or (block.jumps and block.start > source.position),
            "a shard's input has a hole",
            f"{self.id} {source.edge}: {block.start} != {source.position}",
        )
        source.queue.popleft()
        to = block.gap.to if block.gap else 0
        self.op.hide(max(to, self.gap))
        mark = max(block.watermark, source.watermark)
        lowest = min(mark if i is source else i.watermark for i in self.inputs)
        skip = self.skipped = self.skips.get((source.edge, block.start))
        try:
            letters = self.op.letters(source.edge, block.rows, skip.reason) if skip else ()
            rows = self.op.step(source.edge, () if skip else block.rows, lowest)
        except InvariantError:
            raise
        except HoldfastError as error:
            source.queue.appendleft(block)
            self._stand_still(source.edge, block, error)
            return None
        if self.taken is not None and skip is None and len(block.rows):
            self.taken.append(taken_rows(source.edge, block))
        source.position, source.named = block.end, False
        source.watermark = mark
        self.highest = max(self.highest, block.highest)
        self.consumed_since += block.end - block.start
        if self.quiet_to is not None:
            pass_over(self, to, lowest)
            return []
        hidden = self.hide(to)
        aside = self._set_aside(letters) + self._set_aside(self.op.aside)
        if lowest == self.watermark and not any(map(len, rows)):
            return hidden + aside
        before, self.watermark = self.promised, lowest
        return hidden + aside + self._emit(rows, before)

    def _stand_still(self, edge: Edge, block: Block, error: HoldfastError) -> None:
        full = isinstance(error, MemoryLimitError)  # not a function of the input: another node may have room
        self.change(Change.TORN if self.op.torn else Change.NO_ROOM if full else Change.REFUSED)
        batch = f", batch {block.batch}" if block.batch >= 0 else ""
        self.why = f"{self.id} cannot take [{block.start}, {block.end}) of {edge}{batch}: {error}"
        why = one_line(error).removeprefix("error: ")
        shown = "".join(c if c.isprintable() else "?" for c in why[:WHY_MAX])
        self.blocked = Skip(edge, block.start, block.end, block.batch, shown)

    def _set_aside(self, letters: Rows) -> list[tuple[OutputQueue, Block]]:
        """What the step could not put out, or has passed over: a function of state, input and record, so every copy
        sets the same aside."""
        if not len(letters):
            return []
        parts = cut_rows(letters, self.block_rows_max)
        return [(self.dead, self.dead.append(part, self.promised)) for part in parts]

    def _emit(
        self, rows: tuple[Rows, ...], before: int = WATERMARK_MIN, gap: Gap | None = None
    ) -> list[tuple[OutputQueue, Block]]:
        """What one step made, for every output. Blocks before the last one promise no more than was promised before."""
        promised, highest = self.promised, self.reach() - 1
        made: list[tuple[OutputQueue, Block]] = []
        for queue, each in zip(self.outputs, rows, strict=True):
            *first, last = cut_rows(each, self.block_rows_max)
            made += [(queue, queue.append(part, before, highest)) for part in first]
            made.append((queue, queue.append(last, promised, highest, gap)))
        return made

    @property
    def promised(self) -> int:
        """The watermark of its output."""
        mark = self.watermark
        return mark if mark >= WATERMARK_MAX else max(WATERMARK_MIN, mark - self.op.lag)

    def reach(self, to: int = 0) -> int:
        """No row of its output, nor of that of a copy that consumed input up to `to`, is as late as this or later."""
        return self.op.after(max(to, self.gap, self.highest + 1))

    # --- gaps

    def hide(self, to: int) -> list[tuple[OutputQueue, Block]]:
        """Input before this event time is missing: what it has a part in is not emitted; say so on every output."""
        if to <= self.gap:
            return []
        self.gap = to
        self.op.hide(to)
        return self._emit(((),) * len(self.outputs), gap=Gap(self.op.after(to)))

    def pass_over(self, to: int) -> list[tuple[OutputQueue, Block]]:
        """An input goes on later than was thought at the landing: rows before `to` are missing, and its watermark is
        further, which no block of it will say; after its last batch none would come at all."""
        made = self.hide(to)
        lowest = min(i.watermark for i in self.inputs)
        if lowest > self.watermark:
            before, self.watermark = self.promised, lowest
            rows = self.op.step(self.inputs[0].edge, (), lowest)
            made += self._set_aside(self.op.aside) + self._emit(rows, before)
        return made

    def start_empty(self, base: int) -> None:
        """Know nothing, and number what is emitted from `base` on."""
        self.change(Change.STARTS_EMPTY)
        self.replays, self.quiet_to = False, None
        for queue in self.queues:
            queue.begin(base)

    def land(self, to: int) -> list[tuple[OutputQueue, Block]]:
        """It is known where every input goes on; what an earlier copy may have consumed lies before `to`."""
        self.change(Change.LANDS)
        self.gap, self.highest = to, to - 1
        self.op.hide(to)
        self.watermark = min(i.watermark for i in self.inputs)
        rows = self.op.step(self.inputs[0].edge, (), self.watermark)
        check(not any(map(len, rows)), "an empty shard has made rows", self.id)
        return self._emit(rows, gap=Gap(self.op.after(to), jump=True))

    def seal(self, edge: Edge, commit: CommitRecord) -> Block | None:
        """A committed batch gets its positions here. An image may have its effect already: then it is not kept."""
        inbox = self.inboxes[edge]
        landing = inbox.landing
        block = inbox.seal(commit)
        if landing:  # that batch, or the next one, is where the edge goes on
            here = self.input(edge)
            here.position = block.start if block else inbox.next
            here.watermark = max(here.watermark, WATERMARK_MIN if block else commit.watermark)
        if block is not None:
            inbox.drop(self.stands_at(edge))
        return block

    def fits(self, capture: Capture) -> bool:
        """An image accepts only what starts where it stands; the first chunk of a scan fits everywhere."""
        whole = capture.scan == 0
        if not all(queue.takes(capture.outputs[queue.edge], whole) for queue in self.queues):
            return False
        if whole:
            return True
        if self.condition is not (Condition.SCANNING if capture.rising else Condition.COMPLETE):
            return False
        stands = capture.scan == self.op.scanned and all(capture.start[i.edge] == i.position for i in self.inputs)
        return stands and self.op.fits(capture.state)

    def hold(self, pasting: Pasting) -> None:
        """A capture is here, complete, and fits: it will be pasted, whatever happens to its primary."""
        self.change(Change.HELD_LAST if pasting.head.done else Change.HELD_PART)
        pasting.before_ns = self.op.busy_ns
        self.pasting = pasting
        self.told = Tidings(pasting.head.load, pasting.head.element_ns, pasting.at_ns)

    def pasting_ns(self) -> int:
        """What is still to be pasted will take, as measured so far."""
        return sum(map(self.op.paste_ns, self.pasting.left)) if self.pasting is not None else 0

    def exposed_ns(self, now_ns: int) -> int:
        """Of an image: what it would take to run from it now (`core/recovery.py`). What stages have handed over is here
        and can be counted; of what other shards send again only its load tells."""
        told = self.told
        if len(self.inboxes) < len(self.inputs):
            return self.pasting_ns() + told.load * max(0, now_ns - told.at_ns) // SECOND
        to = self.pasting.head.to if self.pasting is not None else self.positions()
        waiting = sum(b.end - b.start for e, inbox in self.inboxes.items() for b in inbox.sealed if b.start >= to[e])
        return self.pasting_ns() + told.element_ns * waiting

    def give_up(self) -> None:
        """A piece could not be pasted: only a new scan makes this image good."""
        self.change(Change.PASTE_FAILED)
        self.pasting = None

    def paste_piece(self) -> list[tuple[Edge, Block]] | None:
        """Paste one piece of the capture that is held; after the last, stand where it was taken.

        Returns the blocks that the start of a scan let this copy seal, once everything is pasted; None: not yet.
        """
        pasting = self.pasting
        if pasting is None:
            raise InvariantError("nothing is held that could be pasted", detail=self.id)
        head = pasting.head
        self.op.paste(pasting.left[-1])
        pasting.left.pop()
        if pasting.left:
            return None
        self.change(Change.PASTED)
        self.pasting = None
        sealed: list[tuple[Edge, Block]] = []
        for i in self.inputs:
            i.position = head.to[i.edge]
            i.watermark = head.watermarks[i.edge]
            if i.inbox is None:
                continue
            if head.scan == 0:
                sealed.extend((i.edge, block) for block in i.inbox.rebase(head.handed[i.edge]))
                i.queue = i.inbox.sealed
            i.inbox.drop(i.position)
        for queue in self.queues:
            queue.paste(head.outputs[queue.edge], head.scan == 0)
        self.watermark = min(i.watermark for i in self.inputs)
        self.gap, self.highest = head.gap
        self.pasted = (head.born, head.round)
        return sealed

    # --- the store

    def checkpoint_head(self) -> CheckpointHead:
        """Where it stands, for a checkpoint of this moment."""
        batches = {e: inbox.sealed[0].batch - 1 if inbox.sealed else inbox.last for e, inbox in self.inboxes.items()}
        return CheckpointHead(
            to=self.positions(),
            watermarks={i.edge: i.watermark for i in self.inputs},
            gap=(self.gap, self.highest),
            outputs={queue.edge: queue.part(queue.trimmed) for queue in self.queues},
            batches=batches,
        )

    def load(self, head: CheckpointHead | None, image: object) -> list[tuple[Edge, Block]]:
        """Stand where a checkpoint stands (None: none was ever made, so at the beginning). Returns the blocks that it
        can seal already; what else it owes has to be loaded."""
        self.change(Change.LOADED)
        if head is not None:
            self.op.load(image)
            self.gap, self.highest = head.gap
            for queue in self.queues:
                queue.paste(head.outputs[queue.edge], True)
        sealed: list[tuple[Edge, Block]] = []
        for i in self.inputs:
            i.position = head.to[i.edge] if head else 0
            i.watermark = head.watermarks[i.edge] if head else WATERMARK_MIN
            if i.inbox is not None:
                last = head.batches[i.edge] if head else -1
                sealed.extend((i.edge, block) for block in i.inbox.rebase(HandedPart(i.position, last, (), ())))
                i.queue = i.inbox.sealed
        self.watermark = min(i.watermark for i in self.inputs)
        return sealed

    def promote(self, leases_until_ns: int) -> None:
        """Start to run: from the image, over the retained input. Readers on a lease get a new one."""
        self.change(Change.RUNS)
        self.op.restore()
        self.op.hide(self.gap)
        self.replays = True
        if self.quiet_to is not None:
            begin_quietly(self)
        self.consumed_since = 0
        self.gauge = Gauge()
        for queue in self.outputs:
            queue.renew_leases(leases_until_ns)

    # --- standing in

    def stand_in(self) -> None:
        """Run on from the image, over the retained input, so that `stand_down` can go back to it. (What its operator
        raises leaves everything as it was.)"""
        self.op.fork()
        self.change(Change.STANDS_IN)
        inputs = {i.edge: (i.position, i.watermark) for i in self.inputs}
        self.fork = Fork(inputs, self.outputs, self.dead, (self.watermark, self.gap, self.highest))
        self.outputs, self.dead = [queue.fork() for queue in self.outputs], self.dead.fork()
        for i in self.inputs:
            i.queue = deque()
        self.op.restore()
        self.op.hide(self.gap)
        self.replays = True

    def retake(self) -> None:
        """A stand-in takes what stages have handed over since it last looked; the inbox keeps it for the image."""
        for i in self.inputs:
            end, new = i.queue[-1].end if i.queue else i.position, deque[Block]()
            for block in reversed(i.inbox.sealed if i.inbox else ()):
                if block.start < end:
                    break
                new.appendleft(block)
            i.queue.extend(new)

    def stand_down(self, *, keep: bool) -> list[Block]:
        """Be the image again, or keep what came of it; then the dead letters of it, which nobody has noted."""
        image = self.fork
        if image is None:
            raise InvariantError("a copy stands down that does not stand in", detail=self.id)
        letters = [block for block in self.dead.blocks if block.start >= image.dead.next] if keep else []
        self.change(Change.STANDS_DOWN)
        self.op.settle(keep=keep)
        self.fork = None
        if not keep:
            self.outputs, self.dead = image.outputs, image.dead
            self.watermark, self.gap, self.highest = image.marks
        for i in self.inputs:
            if not keep:
                i.position, i.watermark = image.inputs[i.edge]
            i.queue = i.inbox.sealed if i.inbox else deque()
            if i.inbox is not None:
                i.inbox.drop(i.position)
        return letters

    def demote(self) -> None:
        """Become an image again: what was received from other shards will come again by captures."""
        self.change(Change.STOPS)
        self.gauge, self.taken = Gauge(), None
        for i in self.inputs:
            if i.inbox is None:
                i.queue.clear()
