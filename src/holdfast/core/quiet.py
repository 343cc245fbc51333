"""A copy that makes its state again from input, quietly: nothing comes out before a point that it was told.

What mode `replay` does to a copy (`core/replays.py` says why that is exact).

Where its history is cut its primary alone knows. What was named is held against the blocks that are here (`objection`);
blocks that come later may still show that it cannot be true. Then the state is of no position and what came before is
let go of, here and by those that feed it: the copy is cut off, and starts empty with a gap. A node never ends for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.operator import Operator
from holdfast.core.roles import Change, Condition
from holdfast.errors import check
from holdfast.model.block import base_of
from holdfast.model.messages import Horizon

if TYPE_CHECKING:
    from holdfast.core.copy import Copy


def objection(copy: Copy, message: Horizon, epoch: int) -> str:
    """Why its primary, at this epoch, cannot have stood at these points; empty: nothing that is here says so."""
    for edge, inbox in copy.inboxes.items():
        for at in (message.start[edge], message.to[edge]):
            if any(block.start < at < block.end for block in inbox.sealed):
                return f"{at} of {edge} is inside a batch"
    for edge, part in message.outputs.items():
        if part.next > base_of(epoch + 1):
            return f"{part.next} of {edge} is beyond epoch {epoch}"
    return ""


def keep_input(copy: Copy, message: Horizon, make_op: Callable[[], Operator]) -> None:
    """Stand at the horizon, knowing nothing; keep the input from there on."""
    if copy.quiet_to is None or copy.consumed_since or copy.condition is Condition.HOLLOW:
        copy.op = make_op()
        copy.consumed_since = 0
    copy.change(Change.KEEPS_INPUT)
    for i in copy.inputs:
        i.position, i.watermark = message.start[i.edge], message.watermarks[i.edge]
        if i.inbox is not None:
            i.named = i.position > i.inbox.next
            i.inbox.drop(i.position)
    for queue in copy.queues:
        queue.paste(message.outputs[queue.edge], True)
    copy.watermark = min(i.watermark for i in copy.inputs)
    copy.gap, copy.highest = message.gap
    copy.quiet_to = message.to


def begin_quietly(copy: Copy) -> None:
    """Run from the horizon: what was late there is late again."""
    made = copy.op.step(copy.inputs[0].edge, (), copy.watermark)
    check(not any(map(len, made)), "a copy that knows nothing has made rows", copy.id)
    _look(copy)


def pass_over(copy: Copy, gap: int, watermark: int) -> None:
    """A step before the point from which output counts: its results are behind every consumer."""
    copy.gap, copy.watermark = max(copy.gap, gap), watermark
    _look(copy)


def _look(copy: Copy) -> None:
    to = copy.quiet_to or {}
    left = [to[i.edge] - i.position for i in copy.inputs]
    if min(left) < 0:  # no block ends there
        copy.change(Change.CUT_OFF)
    elif not any(left):
        copy.quiet_to = None
