"""A node's side of the hand-over from stages: deliver, prepare, seal, for every copy this node holds.

Whoever holds a copy takes part, the joining one too: a prepare names the version of each shard's place, and a holder
that knows another version refuses. So when a joining seat becomes the backup it has every batch that any driver may
have committed: either its primary had it prepared when the whole capture was taken, or the driver that came later
knew the seat and asked it. An older stage epoch than the record's, or than one heard of, is refused. (The record does
not place a foreign stage: what keeps its older drivers from committing is the ledger, as with every stage.)
"""

from __future__ import annotations

from holdfast.core.copy import Copy
from holdfast.core.host import Host
from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.ids import Address, Asset, stage_edge
from holdfast.model.messages import CommitRecord, Deliver, Delivered, Prepare, Prepared, Refused, Seal, Sealed
from holdfast.model.reasons import HandOverReason


class HandOver:
    __slots__ = ("epochs", "host")

    def __init__(self, host: Host) -> None:
        self.host = host
        #: Newest epoch of each stage heard of. Never goes back.
        self.epochs: dict[Asset, int] = {}

    def _refuse(self, source: Address, message: Deliver | Prepare | Seal, reason: HandOverReason, ready: Ready) -> None:
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

    def _is_over(self, source: Address, message: Deliver | Prepare | Seal, ready: Ready) -> bool:
        place = self.host.record.places.get(message.stage)
        newest = max(self.epochs.get(message.stage, 0), place.epoch if place else 0)
        if message.epoch < newest:
            self._refuse(source, message, HandOverReason.EPOCH_OVER, ready)
            return True
        self.epochs[message.stage] = message.epoch
        return False

    def on_deliver(self, source: Address, message: Deliver, now_ns: int, ready: Ready) -> None:
        if self._is_over(source, message, ready):
            return
        copies: list[tuple[Copy, str]] = []
        for edge in message.parts:
            copy = self.host.copies.get(edge.partition(">")[2])
            if copy is None:
                self._refuse(source, message, HandOverReason.NOT_A_HOLDER, ready)
                return
            if (
                copy.inboxes[edge].retained >= self.host.config.retained_hard_max
            ):  # of this edge: another may wait for it
                self._refuse(source, message, HandOverReason.FULL, ready)
                return
            copies.append((copy, edge))
        for copy, edge in copies:
            inbox = copy.inboxes[edge]
            inbox.deliver(message.batch, message.epoch, message.task, message.attempt, message.parts[edge])
        ready.notes.append(notes.Delivered(message.stage, message.batch, self.host.seat, message.task, message.attempt))
        ready.send.append(
            (
                source,
                Delivered(
                    stage=message.stage,
                    epoch=message.epoch,
                    batch=message.batch,
                    task=message.task,
                    attempt=message.attempt,
                    seat=self.host.seat,
                ),
            )
        )

    def on_prepare(self, source: Address, message: Prepare, now_ns: int, ready: Ready) -> None:
        if self._is_over(source, message, ready):
            return
        places = self.host.record.places
        for shard, since in message.shards.items():
            if shard not in self.host.copies or places[shard].since != since:
                self._refuse(source, message, HandOverReason.PLACE_CHANGED, ready)
                return
        for shard in message.shards:
            copy = self.host.copies[shard]
            if message.last is not None:
                self._seal(copy, message.stage, message.last, now_ns, ready)
            inbox = copy.inboxes[stage_edge(message.stage, shard)]
            if not inbox.prepare(message.batch, message.epoch, message.attempt, message.accepted, message.watermark):
                self._refuse(source, message, HandOverReason.ROWS_MISSING, ready)
                return
        ready.notes.append(notes.Prepared(message.stage, message.batch, self.host.seat, message.epoch, message.attempt))
        ready.send.append(
            (
                source,
                Prepared(
                    stage=message.stage,
                    epoch=message.epoch,
                    batch=message.batch,
                    attempt=message.attempt,
                    seat=self.host.seat,
                    shards=message.shards,
                ),
            )
        )

    def on_seal(self, source: Address, message: Seal, now_ns: int, ready: Ready) -> None:
        if self._is_over(source, message, ready):
            return
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
        if block is None:
            return
        ready.notes.append(notes.Sealed(copy.id, edge, self.host.seat, block))
        primary = self.host.primaries.get(copy.id)
        if primary is not None:
            primary.pump(now_ns, ready)
