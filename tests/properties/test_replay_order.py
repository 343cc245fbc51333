"""Mode replay, for any input and any moment: what is made again from a horizon is what was made the first time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.core import CONFIG, TWO, copy_of, op, place

from holdfast.core.copy import DEAD_LETTERS, Copy
from holdfast.core.protect import Horizons
from holdfast.core.quiet import keep_input
from holdfast.core.ready import Ready
from holdfast.model import messages as m
from holdfast.model.block import Block, batch_block
from holdfast.model.ids import Edge

EDGES = ("s0>u0", "s1>u0")
REPLAY = place(mode="replay")

#: Of one batch: its edge, how far its watermark is behind its newest row, and rows (key, time from here on).
batches = st.lists(
    st.tuples(
        st.sampled_from(EDGES),
        st.integers(0, 15),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=4),
    ),
    min_size=1,
    max_size=40,
)


def blocks_of(drawn: list) -> dict[Edge, list[Block]]:
    """Blocks of both edges: no row is late, and what is said about the highest time is true."""
    made: dict[Edge, list[Block]] = {edge: [] for edge in EDGES}
    marks = dict.fromkeys(EDGES, 0)
    highest = dict.fromkeys(EDGES, 0)
    for edge, behind, rows in drawn:
        taken = tuple((key, marks[edge] + time, 1 + time) for key, time in rows)
        highest[edge] = max([highest[edge], *(row[1] for row in taken)])
        marks[edge] = max(marks[edge], highest[edge] - behind)
        start = made[edge][-1].end if made[edge] else 0
        made[edge].append(batch_block(start, taken, marks[edge], len(made[edge]), highest[edge]))
    return made


def give(copy: Copy, blocks: dict[Edge, list[Block]], seen: list) -> None:
    """All input from where it stands on; what its operator is given is written down."""
    for i in copy.inputs:
        i.queue.extend(block for block in blocks[i.edge] if block.start >= i.position)
    step = copy.op.step

    def step_and_tell(edge, rows, watermark):
        seen.append((edge, rows, watermark))
        return step(edge, rows, watermark)

    copy.op = Overheard(copy.op, step_and_tell)


class Overheard:
    """An operator that tells what it is given."""

    def __init__(self, inner, step) -> None:
        self.inner, self.step = inner, step

    def __getattr__(self, name):
        return getattr(self.inner, name)


@given(batches, st.lists(st.booleans(), min_size=40, max_size=40), st.integers(0, 39))
def test_what_comes_after_a_horizon_comes_again_at_the_same_positions_and_in_the_same_order(drawn, reads, dies):
    blocks = blocks_of(drawn)
    first, seen = copy_of(TWO), []
    guard = Horizons(first, REPLAY, CONFIG, 0)
    first.promote(0)
    give(first, blocks, seen)
    out, named, length, now = [], [], {}, 0
    while True:
        length[tuple(first.positions().values())] = len(seen)
        now += guard.protection.period_ns
        ready = Ready()
        guard.on_tick(now, ready)
        named += [x for _, x in ready.send if isinstance(x, m.Horizon)]
        made = first.step()
        if made is None:
            break
        out += [block for queue, block in made if queue in first.outputs]
        if reads[len(length) % len(reads)]:
            for queue in first.queues:
                queue.ack("r0" if queue in first.outputs else DEAD_LETTERS, queue.next)
    if not named:
        return
    message = named[min(dies, len(named) - 1)]
    again, told = copy_of(TWO), []
    keep_input(again, message, lambda: op(TWO.shards[0]))
    assert again.positions() == message.start
    give(again, blocks, told)
    again.promote(0)
    came = []
    while (made := again.step()) is not None:
        came += [block for queue, block in made if queue in again.outputs]
    at = message.outputs[first.outputs[0].edge].next
    assert came == [block for block in out if block.start >= at]
    order = seen[length[tuple(message.start[e] for e in EDGES)] :]
    assert told[-len(order) :] == order if order else True
