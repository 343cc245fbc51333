"""What a running shard does about a block that its operator cannot take, and that a person wants to be skipped.

The shard gives the block up: it will not step it at this epoch, whatever happens. Only then does it ask the coordinator
for the record that skips it, under the version of its place that it knows. So no copy has stepped the block when
the record names it, and whoever runs the shard from then on, at a higher epoch, passes over it. A primary
whose state is whole goes on in place; one whose state is torn leaves that to its backup. One that was promoted may meet
a block that its predecessor took: it gives up nothing before every consumer has said that it stands no further, and
before it is known that no dead letter of it is in a file.

A skip is forgotten when every guard stands behind it. Until then a copy could be promoted that meets the block.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.copy import Copy
from holdfast.core.dead_letters import DeadLetters
from holdfast.core.outlet import Outlet
from holdfast.core.roles import Change, Condition
from holdfast.core.stood import Stood
from holdfast.model.ids import Asset, Edge, operator_of, producer_stage
from holdfast.model.messages import GivenUp, Message, SkipsPassed
from holdfast.model.parts import DEAD
from holdfast.model.record import Place
from holdfast.model.skips import SKIPS_MAX, Skip, command

#: A copy in one of these stands still, or tries the same block again and again.
STANDS = (Condition.FAILED, Condition.TORN, Condition.WAITING)


class Skips:
    """Of one shard that runs."""

    __slots__ = ("copy", "given_up", "letters", "outlet", "past", "since_ns", "stood")

    def __init__(self, copy: Copy, outlet: Outlet, letters: DeadLetters, stood: Stood) -> None:
        self.copy = copy
        self.outlet = outlet
        self.letters = letters
        self.stood = stood
        #: What it has given up, until the record skips it.
        self.given_up: Skip | None = None
        #: The latest that it has passed over, the record may have forgotten them.
        self.past: deque[Skip] = deque(maxlen=SKIPS_MAX)
        #: Since when it stands still; 0: it does not.
        self.since_ns = 0

    @property
    def stands(self) -> bool:
        return self.copy.condition in STANDS

    def look(self, now_ns: int) -> None:
        """After a step, or an attempt at one."""
        self.since_ns = (self.since_ns or now_ns) if self.stands else 0

    def known(self, edge: Edge, number: int, place: Place) -> Skip | None:
        """The skip of this block (of a stage: of this batch), if it is in force or was."""
        found = (skip for skip in (*place.skips, *self.past) if (skip.edge, skip.number) == (edge, number))
        return next(found, None)

    def has_passed(self, skip: Skip) -> bool:
        return self.copy.input(skip.edge).position >= skip.end

    def objection(self, edge: Edge, number: int, place: Place) -> str:
        """Why this block cannot be skipped now; empty: it can."""
        copy, blocked = self.copy, self.copy.blocked
        if blocked is not None and (blocked.edge, blocked.number) == (edge, number):
            return self._cannot(place) or self._unheard()
        inbox, here = copy.inboxes.get(edge), copy.input(edge)
        what = f"batch {number} of {producer_stage(edge)}" if inbox else f"{number} of {edge}"
        if any((block.batch if inbox else block.start) == number for block in here.queue):
            stands = f"stands still at {blocked}" if blocked else "does not stand still"
            return f"{copy.id} has not come to {what}: it {stands}"
        if number <= inbox.last if inbox else number < here.position:
            return f"{copy.id} has taken {what}: it cannot be skipped any more"
        return f"{what} has not come to {copy.id}" if inbox else f"no block that begins at {what} waits for {copy.id}"

    def _cannot(self, place: Place) -> str:
        if self.copy.condition is Condition.TORN and place.backup is None:
            return f"the state of {self.copy.id} is torn, and no second node has a copy to go on from"
        if len(place.skips) >= SKIPS_MAX:
            return f"{self.copy.id} has {SKIPS_MAX} skips in force: wait until its backup has passed some of them"
        return self.stood_in(place) or self.was_read()

    def stood_in(self, place: Place) -> str:
        """A stand-in may have taken the block, which this node alone cannot take, and what came of it may be on its way
        to whoever reads it. (A twin goes on with it, and this copy joins anew.)"""
        blocked = self.copy.blocked
        if blocked is None or place.twin or self.stood.reached(blocked.edge) <= blocked.start:
            return ""
        return "a second node has taken it while it stood in for this one; drain this node, and another goes on with it"

    def was_read(self) -> str:
        """An earlier primary may have taken the block: on this node alone it cannot be taken, for want of memory, say.
        Whoever has read what came of it would get other rows in its place. (In mode replay a copy comes to what was
        read again: its rows are in windows that are still open.)"""
        if self.copy.quiet_to is not None:
            return "another node has taken it, and what came of it was read"
        for queue in self.copy.outputs:
            for consumer in queue.owners:
                if (self.outlet.stands(queue.edge, consumer) or 0) > queue.next:
                    return f"another node has taken it, and {consumer} has read what came of it"
        if self.letters.kept.get(self.copy.id, 0) > self.copy.dead.next:
            return "another node has taken it, and dead letters that came of it are in a file"
        return ""

    def _unheard(self) -> str:
        """Is it not known yet how far somebody who reads this shard has come, or how far its dead letters are kept?"""
        for queue in self.copy.outputs:
            for consumer in queue.owners:
                if self.outlet.stands(queue.edge, consumer) is None:
                    return f"{consumer}, which reads it, has not said yet where it stands: try again in a moment"
        if self.copy.id not in self.letters.kept:
            return f"it is being looked up how far dead letters of {self.copy.id} are kept: try again in a moment"
        return ""

    def way_on(self, place: Place) -> str:
        """What a person can do about it, in a sentence."""
        blocked = self.copy.blocked
        if blocked is None:
            return ""
        why = self._cannot(place)
        if why:
            return f"It cannot be skipped: {why}."
        folder = f"{DEAD}/{operator_of(self.copy.id)}"
        return f"`{command(self.copy.id, blocked)}` passes over it and keeps its rows in {folder}."

    def give_up(self, edge: Edge, start: int, place: Place) -> Skip | None:
        """Never step this block at this epoch; None: it is not where this shard stands still, or was given up."""
        blocked = self.copy.blocked
        if blocked is None or blocked.key != (edge, start) or self.given_up is not None:
            return None
        if self._cannot(place) or self._unheard():
            return None
        self.copy.change(Change.GIVES_UP)
        self.given_up = blocked
        return blocked

    def is_granted(self, place: Place) -> bool:
        """Does this place skip what was given up here, so that this copy goes on at a new epoch?"""
        return self.given_up is not None and self.given_up in place.skips

    def reports(self, shard: Asset, place: Place, safe: dict[Edge, int]) -> list[Message]:
        """What the coordinator must know, until it has acted on it."""
        found: list[Message] = []
        if self.given_up is not None:
            torn = self.copy.condition is Condition.TORN
            found.append(GivenUp(shard=shard, since=place.since, skip=self.given_up, torn=torn))
        passed = tuple(skip for skip in place.skips if skip.end <= safe[skip.edge])
        if passed:
            found.append(SkipsPassed(shard=shard, since=place.since, skips=passed))
        return found
