"""Twins: second copies that run all the time, at the epoch of their primary (mode `active`, hybrid-ha §III).

Output is a function of the input edges and of the record, so both make the same rows at the same positions, and whoever
reads takes each from whichever has it first. If one of them is late or gone, output goes on without a pause; the record
then only has to say who the primary is, which captures, acknowledges and writes for both (`core/protect/twin.py`).

A new twin joins as a backup does: captures of the primary bring up an image, and input is acknowledged only as far as
the image holds it. The record that names it as the twin lets it run. From then on the primary acknowledges what both
have consumed, and nothing before the twin has spoken under that record.

What keeps it exact:

* Whatever changes what a shard makes of its input comes with a new epoch, and before a primary gives up a block, its
  twin has promised not to take it at this one (`promise`).
* Input that is lost with its producer (mode `none`) may have been taken by one of them only. So neither passes over it:
  both stop there, and the one that the record then names starts empty at a new epoch, as one that was promoted does.
* A copy that started empty and has not sealed a batch yet does not know where its input goes on: no twin runs from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.ready import Ready
from holdfast.core.roles import Condition, State
from holdfast.model.ids import Address, Asset, Edge
from holdfast.model.messages import Abreast, Back, FellBack, Message, StoodDown
from holdfast.model.record import Place
from holdfast.model.skips import SKIPS_MAX

if TYPE_CHECKING:
    from holdfast.core.host import Host


class Twins:
    """Of one node."""

    __slots__ = ("host", "promised")

    def __init__(self, host: Host) -> None:
        self.host = host
        #: Which blocks of a shard are not taken here, and at which epoch.
        self.promised: dict[Asset, tuple[int, tuple[tuple[Edge, int], ...]]] = {}

    def start(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        """Run from the image. One that cannot be run from says so (`reports`), and joins anew."""
        host = self.host
        host.paste_all(shard, ready)
        copy = host.copies[shard]
        if copy.condition is not Condition.COMPLETE or any(inbox.landing for inbox in copy.inboxes.values()):
            return
        host.begin(shard, place, now_ns, ready)

    def barred(self, shard: Asset, place: Place) -> tuple[tuple[Edge, int], ...]:
        """What a copy of this shard that begins to run here has promised not to take."""
        epoch, blocks = self.promised.get(shard, (0, ()))
        return blocks if place.twin and epoch == place.epoch else ()

    def start_late(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        """The place of a twin that could not run has changed: perhaps it is the primary now."""
        if place.primary == self.host.seat:
            self.host.paste_all(shard, ready)
            self.host.begin(shard, place, now_ns, ready)
        else:
            self.start(shard, place, now_ns, ready)

    def promise(self, source: Address, message: Back, now_ns: int, ready: Ready) -> None:
        """The primary may give up a block: it is not taken here at this epoch, if it has not been. What was promised
        before stays so: a question may come late, after that of another block."""
        shard, host, block = message.shard, self.host, message.block
        runner = host.runners.get(shard)
        if runner is None or not message.firm or block is None:
            return
        to = runner.copy.positions()
        barred = tuple(each for each in dict.fromkeys((*runner.barred, block)) if each[1] >= to[each[0]])
        if len(barred) > SKIPS_MAX:
            return
        self.promised[shard] = (runner.epoch, barred)
        runner.barred = barred
        answer = StoodDown(shard=shard, since=message.since, to=to, firm=True, block=block)
        ready.send.append((source, answer))

    def on_abreast(self, source: Address, message: Abreast, now_ns: int, ready: Ready) -> None:
        runner = self.host.runners.get(message.shard)
        if runner is not None:
            runner.on_abreast(source, message, now_ns, ready)

    def reports(self) -> list[Message]:
        """Those that cannot run. After every step: only what is kept here is looked at, not all of the record."""
        host = self.host
        idle = [s for s in host.copies if host.states[s] is State.TWIN and s not in host.runners]
        places = host.record.places
        return [FellBack(shard=shard, since=places[shard].since, seat=host.seat) for shard in idle]
