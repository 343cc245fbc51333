"""Input instead of state: what a second node keeps in mode `replay`, and how a copy is made again from it.

The *keeper* holds what stages hand over, as every backup does, and of the state only a few numbers: two points of the
primary's history (`core/protect/horizon.py`). Whoever knows nothing at the first one, the *horizon*, and takes the same
input from there in the same order, knows at the second one whatever the primary knew of windows that were open. All
windows that had been closed by then are behind every consumer, so what is made between the two is passed over, and
from the second on everything comes again, at the same positions.

The order is exact: a copy takes its next block from the edge with the lowest watermark, and the watermarks at the
horizon are among those numbers. So the rows of each window come in the order in which they came the first time, and
results are the same to the last bit.

A keeper may begin with an image (it had one in another mode, or was brought up by a scan). It runs from that one until
the primary names a horizon that is not before it: then the state is let go of.

What it never does: begin before its own position. What came before that is not here. A horizon that its own blocks
speak against it refuses; one that only later blocks speak against ends in an empty start, with a gap (`core/quiet.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.protect.horizon import Horizons
from holdfast.core.quiet import keep_input, objection
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition, State
from holdfast.errors import refuse_if
from holdfast.model import notes
from holdfast.model.ids import Address, Seat
from holdfast.model.messages import Horizon, HorizonKept

if TYPE_CHECKING:
    from holdfast.core.host import Host


class Replays:
    """Of one node."""

    __slots__ = ("host",)

    def __init__(self, host: Host) -> None:
        self.host = host

    def on_horizon(self, source: Address, message: Horizon, now_ns: int, ready: Ready) -> None:
        shard, host = message.shard, self.host
        place, copy = host.record.places[shard], host.copies.get(shard)
        if copy is None or place.keeper != host.seat or host.states[shard] is not State.BACKUP:
            return
        host.paste_all(shard, ready)
        if copy.condition not in (Condition.COMPLETE, Condition.HOLLOW):
            return
        if any(message.start[i.edge] < i.position for i in copy.inputs):
            return  # a later one will do
        why = objection(copy, message, place.epoch)
        refuse_if(bool(why), "a horizon that cannot be", why)
        keep_input(copy, message, lambda: host.factory(copy.spec))
        host.spills.look(copy, ready)
        start, to = tuple(copy.positions().values()), tuple(message.to[i.edge] for i in copy.inputs)
        ready.notes.append(notes.InputKept(shard, host.seat, place.epoch, start, to))
        ready.send.append((source, HorizonKept(shard=shard, since=message.since, round=message.round)))

    def on_horizon_kept(self, source: Address, message: HorizonKept, now_ns: int, ready: Ready) -> None:
        runner = self.host.runners.get(message.shard)
        if runner is None:
            return
        for guard in runner.guards:
            if isinstance(guard, Horizons):
                guard.hear(Seat(source), message)
        runner.acknowledge(now_ns, ready)
