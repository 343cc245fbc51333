"""Captures go out in rounds: one at a time, the same positions for every target, complete when all have pasted it.

A target is the backup, and while one joins also the joining seat. Input is acknowledged when a round is *complete*,
so no target can be left behind of what producers have trimmed, whichever of them is promoted next. A target that is
new, or whose image does not stand where the round starts, gets the whole capture of the same moment.

Rounds decide when input is safe; they never send: `core/host.py` does.
"""

from __future__ import annotations

import msgspec

from holdfast.core.checkpoint.method import Method
from holdfast.core.copy import Copy
from holdfast.model.ids import Edge, Seat
from holdfast.model.messages import Capture


class Rounds:
    __slots__ = (
        "base", "epoch", "made", "number", "output_base", "safe", "sent_ns", "since", "started_ns",
        "waiting", "wants_whole",
    )  # fmt: skip

    def __init__(self, copy: Copy, epoch: int, now_ns: int) -> None:
        self.epoch = epoch
        #: Version of the place under which captures are sent.
        self.since = 0
        self.number = 0
        self.started_ns = now_ns
        self.sent_ns = now_ns
        #: Where the last round was taken: the next delta starts here.
        self.base = copy.positions()
        self.output_base = {queue.edge: queue.next for queue in copy.outputs}
        #: Positions that a complete round covers: what may be acknowledged. Never goes back.
        self.safe = copy.positions()
        #: Captures of the round in flight, per target that has not answered.
        self.waiting: dict[Seat, Capture] = {}
        #: Targets that need a whole capture in the next round.
        self.wants_whole: dict[Seat, None] = {}
        #: Targets that have pasted a round under `since`.
        self.made: dict[Seat, None] = {}

    def retarget(self, targets: tuple[Seat, ...], joining: Seat | None, since: int) -> None:
        """The place changed: forget targets that are gone. What they had not pasted goes into the next round."""
        self.since = since
        self.made.clear()
        self.waiting = {
            seat: msgspec.structs.replace(capture, since=since)
            for seat, capture in self.waiting.items()
            if seat in targets and seat != joining
        }
        self.wants_whole = {seat: None for seat in self.wants_whole if seat in targets}
        if joining:
            self.wants_whole[joining] = None

    def begin(self, copy: Copy, targets: tuple[Seat, ...], method: Method, now_ns: int) -> dict[Seat, Capture]:
        """Take a round: a capture for each target, all of this moment."""
        self.number += 1
        self.started_ns = self.sent_ns = now_ns
        delta = None if method.always_whole else self._capture(copy, method, whole=False)
        whole = self._capture(copy, method, whole=True) if method.always_whole or self.wants_whole else None
        for seat in targets:
            capture = whole if delta is None or seat in self.wants_whole else delta
            if capture is not None:
                self.waiting[seat] = capture
        self.wants_whole = {}
        self.base = copy.positions()
        self.output_base = {queue.edge: queue.next for queue in copy.outputs}
        copy.consumed_since = 0
        return self.waiting

    def _capture(self, copy: Copy, method: Method, *, whole: bool) -> Capture:
        return Capture(
            shard=copy.id,
            epoch=self.epoch,
            since=self.since,
            round=self.number,
            whole=whole,
            start=self.base,
            to=copy.positions(),
            watermarks={i.edge: i.watermark for i in copy.inputs},
            state=method.state(copy, whole=whole),
            outputs={q.edge: q.part(0 if whole else self.output_base[q.edge]) for q in copy.outputs},
            handed={edge: inbox.part() for edge, inbox in copy.inboxes.items()} if whole else {},
        )

    def on_pasted(self, seat: Seat, number: int, fits: bool) -> bool:
        """A target answered. True if that completed the round."""
        if number != self.number or seat not in self.waiting:
            return False
        if not fits:
            self.wants_whole[seat] = None
            del self.waiting[seat]
            return False
        del self.waiting[seat]
        self.made[seat] = None
        return not self.waiting and not self.wants_whole

    def complete(self) -> dict[Edge, int]:
        """Everything up to the last round is safe."""
        self.safe = self.base
        return self.safe
