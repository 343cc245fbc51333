"""Shards of this node that wait for the store: asked until it answers, told once why it does not.

The store claims a shard for the epoch before it reads (`LoadCheckpoint`): from then on no earlier primary can add a
checkpoint, so nothing is acknowledged anywhere that what is read does not have.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.ready import Done, LoadCheckpoint, Ready
from holdfast.core.tickets import Tickets
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge
from holdfast.model.parts import CommitRecord


class Restores:
    __slots__ = ("_open", "config", "on_loaded", "tickets")

    def __init__(self, tickets: Tickets, config: Config, on_loaded: Callable[..., None]) -> None:
        self.tickets = tickets
        self.config = config
        #: Called with (shard, epoch, done, now_ns, ready).
        self.on_loaded = on_loaded
        self._open: dict[Asset, _Restore] = {}

    def is_under_way(self, shard: Asset, epoch: int) -> bool:
        return shard in self._open and self._open[shard].epoch == epoch

    def ask(self, shard: Asset, epoch: int, ready: Ready) -> None:
        self.forget(shard)
        self._open[shard] = waiting = _Restore(self, shard, epoch)
        waiting.ask(ready)

    def hear(self, shard: Asset, edge: Edge, commit: CommitRecord | None) -> None:
        """A stage has spoken, under the present place, to a shard that does not run yet. It may have ended with that,
        so whoever runs the shard has to know it."""
        waiting = self._open.get(shard)
        if waiting is not None and (commit is not None or edge not in waiting.heard):
            waiting.heard[edge] = commit

    def end(self, shard: Asset) -> dict[Edge, CommitRecord | None]:
        """It runs now; what stages have said meanwhile."""
        heard = self._open[shard].heard
        self.forget(shard)
        return heard

    def forget(self, shard: Asset) -> None:
        waiting = self._open.pop(shard, None)
        if waiting is not None:
            self.tickets.cancel(waiting.ticket)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        for waiting in self._open.values():
            if not waiting.ticket and waiting.again_ns <= now_ns:
                waiting.ask(ready)

    def on_done(self, waiting: _Restore, done: Done, now_ns: int, ready: Ready) -> None:
        waiting.ticket = 0
        if done.ok:
            self.on_loaded(waiting.shard, waiting.epoch, done, now_ns, ready)
        else:
            self.refuse(waiting.shard, waiting.epoch, done.why, now_ns, ready)

    def refuse(self, shard: Asset, epoch: int, why: str, now_ns: int, ready: Ready) -> None:
        """The store does not answer, or what it has cannot be used: told once, asked again later."""
        waiting = self._open[shard]
        waiting.again_ns = now_ns + self.config.spill_retry_ns
        if not waiting.told:
            waiting.told = True
            ready.notes.append(notes.RestoreFailed(shard, epoch, why))


class _Restore:
    """Waits for one answer of the store."""

    __slots__ = ("again_ns", "epoch", "heard", "restores", "shard", "ticket", "told")

    def __init__(self, restores: Restores, shard: Asset, epoch: int) -> None:
        self.restores = restores
        self.shard = shard
        self.epoch = epoch
        self.ticket = 0
        #: When to ask again, once it has refused; and whether that was told.
        self.again_ns = 0
        self.told = False
        #: The last commit that the stage of an edge has told meanwhile.
        self.heard: dict[Edge, CommitRecord | None] = {}

    def ask(self, ready: Ready) -> None:
        self.ticket = self.restores.tickets.issue(self, long=True)
        ready.apply.append(LoadCheckpoint(ticket=self.ticket, shard=self.shard, epoch=self.epoch))

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        self.restores.on_done(self, done, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self.on_done(Done(ticket=ticket, ok=False, why="The store does not answer."), now_ns, ready)
