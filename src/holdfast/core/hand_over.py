"""A node's side of the hand-over from stages: hold a batch, seal it, for every copy this node holds.

Whoever holds a copy takes part, the joining one too: a delivery names the version of each shard's place, and a holder
that knows another version refuses. So when a joining seat becomes the backup it has every batch that any driver may
have committed: either its primary held it when the whole capture was taken, or the driver that came later knew the
seat and asked it. An older stage epoch than the record's, or than one heard of, is refused. Both are for the node's
fence to see, which has let pass whatever is taken here. (The record does not place a foreign stage: what keeps its
older drivers from committing is the ledger, as with every stage.)

The answer to a delivery says which rows are held (`Digest`), so that two holders never hold two different tries, or one
try with different rows, when the driver commits. A delivery brings the commit before it, and that is sealed first,
even if the delivery itself must wait: a driver goes on when a batch counts, not when it is sealed.
"""

from __future__ import annotations

from holdfast.core.copy import Copy
from holdfast.core.fence import Behind
from holdfast.core.host import Host
from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.block import Digest
from holdfast.model.ids import Address, Asset, Edge, stage_edge
from holdfast.model.message import FencedBy
from holdfast.model.messages import Deliver, Delivered, Refused, Seal, Sealed
from holdfast.model.parts import CommitRecord
from holdfast.model.reasons import HandOverReason

#: How many batches of an edge may wait while earlier ones are looked up in the log.
HELD_MAX = 4


class HandOver:
    __slots__ = ("host",)

    def __init__(self, host: Host) -> None:
        self.host = host

    def _refuse(self, source: Address, message: Deliver | Seal, reason: HandOverReason, ready: Ready) -> None:
        batch = message.commit.batch if isinstance(message, Seal) else message.batch
        ready.notes.append(notes.TurnedAway(message.stage, message.epoch, batch, self.host.seat, reason))
        ready.send.append(
            (
                source,
                Refused(
                    stage=message.stage,
                    epoch=message.epoch,
                    batch=batch,
                    reason=reason,
                    version=self.host.record.version,
                ),
            )
        )

    def refuse_deliver(self, source: Address, message: Deliver | Seal, behind: Behind, ready: Ready) -> None:
        over = behind.by is FencedBy.EPOCH
        self._refuse(source, message, HandOverReason.EPOCH_OVER if over else HandOverReason.PLACE_CHANGED, ready)

    refuse_seal = refuse_deliver

    def on_deliver(self, source: Address, message: Deliver, now_ns: int, ready: Ready) -> None:
        copies = self.host.copies
        for shard in message.shards:
            if shard not in copies:
                self._refuse(source, message, HandOverReason.PLACE_CHANGED, ready)
                return
        for shard in message.shards:  # whatever becomes of this batch: the one before counts
            if message.last is not None:
                self._seal(copies[shard], message.stage, message.last, now_ns, ready)
            else:
                self._tell(copies[shard], stage_edge(message.stage, shard), None, now_ns, ready)
        limit = self.host.config.retained_hard_max  # of each edge: another may wait for it
        inboxes = [copies[shard].inboxes[stage_edge(message.stage, shard)] for shard in message.shards]
        if any(i.retained >= limit or (i.owed and len(i.held) >= HELD_MAX) for i in inboxes):
            self._refuse(source, message, HandOverReason.FULL, ready)
            return
        digests: dict[Edge, Digest] = {}
        for shard in message.shards:
            edge = stage_edge(message.stage, shard)
            rows = message.parts.get(edge, ())
            digest = copies[shard].inboxes[edge].hold(message.batch, message.epoch, message.attempt, rows)
            if digest is None:
                return  # it comes late: the driver has gone on to another try, or to another batch
            digests[edge] = digest
        ready.notes.append(
            notes.Delivered(message.stage, message.batch, self.host.seat, message.epoch, message.attempt)
        )
        ready.send.append(
            (
                source,
                Delivered(
                    stage=message.stage,
                    epoch=message.epoch,
                    batch=message.batch,
                    attempt=message.attempt,
                    seat=self.host.seat,
                    shards=message.shards,
                    digests=digests,
                ),
            )
        )

    def on_seal(self, source: Address, message: Seal, now_ns: int, ready: Ready) -> None:
        """What the driver's record and ours say of a shard may differ: those that agree are sealed, and named."""
        places = self.host.record.places
        done: dict[Asset, int] = {}
        for shard, since in message.shards.items():
            if shard in self.host.copies and places[shard].since == since:
                self._seal(self.host.copies[shard], message.stage, message.commit, now_ns, ready)
                done[shard] = since
        ready.send.append(
            (
                source,
                Sealed(
                    stage=message.stage,
                    epoch=message.epoch,
                    batch=message.commit.batch,
                    seat=self.host.seat,
                    shards=done,
                ),
            )
        )

    def _seal(self, copy: Copy, stage: Asset, commit: CommitRecord, now_ns: int, ready: Ready) -> None:
        edge = stage_edge(stage, copy.id)
        block = copy.seal(edge, commit)
        if block is not None:
            ready.notes.append(notes.Sealed(copy.id, edge, self.host.seat, block))
            ready.again = True
        self.host.lookups.look(copy, ready)
        self._tell(copy, edge, commit, now_ns, ready)

    def _tell(self, copy: Copy, edge: Edge, commit: CommitRecord | None, now_ns: int, ready: Ready) -> None:
        """Tell a running copy that the stage has spoken, under the present place."""
        runner = self.host.runners.get(copy.id)
        if runner is not None:
            runner.on_heard(edge, commit, now_ns, ready)
        else:
            self.host.restores.hear(copy.id, edge, commit)

    def on_again(self, now_ns: int, ready: Ready) -> None:
        """Step what was sealed: the driver, which has been told that it is, need not wait for it."""
        for runner in self.host.runners.values():
            runner.pump(now_ns, ready)
        self.host.stand_ins.on_again(ready)
