"""Fencing: one comparison, first, for every message that carries an epoch, a `since` or a life.

A message class says what it is fenced by (`model/message.py`), and every machine asks its fence once, before any part
of it sees the message. What a fence knows never goes back: the record, the newest epochs that messages have shown, and
the epoch of the machine itself if it is a driver or a reader. What is behind is not taken; whoever owns the message may
say so (a method `refuse_...` beside the one that takes it), and everything else is dropped without a word.

A part looks again only where time passes between arrival and use: at a capture that waited for its record, at a fetch
that waited for its rows. Numbers that only one part has, on its disk (`OWN`: terms and records of an election, the page
of a ledger), are compared there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.model.ids import Address, Asset, Edge, asset_id, life_of, name_of
from holdfast.model.message import FencedBy, Message
from holdfast.model.record import NO_RECORD, Place, Record

_NOTHING = asset_id("")
_NOWHERE = Place(primary=None, epoch=0, since=0)
#: Whoever shows a newer epoch than the record has is believed, if it is a member: the record is on its way.
_HEARD = (FencedBy.PRODUCER, FencedBy.EPOCH)


class Behind(msgspec.Struct, frozen=True, array_like=True):
    """Why a message is not taken: by what it is fenced, its number, and the one that is known."""

    by: FencedBy
    said: int
    known: int


class Fence:
    __slots__ = ("heard", "own", "producer", "record")

    def __init__(self, producer: Mapping[Edge, Asset], own: int | None = None, record: Record = NO_RECORD) -> None:
        #: Which shard makes an edge.
        self.producer = producer
        #: The epoch of the machine itself, if it is a driver or a reader.
        self.own = own
        self.record = record
        #: Newest epochs that messages have shown. They never go back.
        self.heard: dict[tuple[FencedBy, Asset], int] = {}

    def newest(self, by: FencedBy, asset: Asset) -> int:
        """The newest epoch of this asset that is known; 0: none is."""
        return max(self.record.places.get(asset, _NOWHERE).epoch, self.heard.get((by, asset), 0))

    def hear(self, by: FencedBy, asset: Asset, epoch: int) -> None:
        self.heard[by, asset] = max(epoch, self.heard.get((by, asset), 0))

    def behind(self, source: Address, message: Message) -> Behind | None:
        """The one comparison. None: it may be taken."""
        for by in message.fenced_by:
            for said, known in self._numbers(by, source, message):
                older, newer = said < known, said > known
                if newer if by is FencedBy.NOT_AHEAD else older or (newer and by.exact):
                    return Behind(by, said, known)
            if by in _HEARD and self._is_believed(by, asset := self._asset(by, message)):
                self.hear(by, asset, message.epoch)  # type: ignore[attr-defined]
        return None

    def _is_believed(self, by: FencedBy, asset: Asset) -> bool:
        """A shard that the record places; and the stage of a port, which no record does: its drivers say which
        of them is the latest. (Whether it may commit is for its ledger to say.)"""
        return (asset in self.record.places) is (by is FencedBy.PRODUCER)

    def _asset(self, by: FencedBy, message: Any) -> Asset:
        if by is FencedBy.PRODUCER:
            return self.producer.get(message.edge, _NOTHING)
        return message.consumer if by is FencedBy.CONSUMER else getattr(message, message.placed)

    def _numbers(self, by: FencedBy, source: Address, message: Any) -> Iterator[tuple[int, int]]:
        """What the message says, and what is known."""
        places, members = self.record.places, self.record.members
        match by:
            case FencedBy.EPOCH | FencedBy.PRODUCER | FencedBy.CONSUMER:
                yield message.epoch, self.newest(by, self._asset(by, message))
            case FencedBy.NOT_AHEAD:
                place = places.get(message.stage)
                if place is not None:  # of a driver that no record places, only its ledger knows which one may go on
                    yield message.epoch, place.epoch
            case FencedBy.ASKED if self.own is not None:
                yield message.epoch, self.own
            case FencedBy.ASKED:
                yield message.epoch, self.newest(by, self._asset(by, message))
            case FencedBy.PLACE | FencedBy.THIS_PLACE:
                yield message.since, places.get(self._asset(by, message), _NOWHERE).since
            case FencedBy.THESE_PLACES:
                for shard, since in message.shards.items():
                    yield since, places.get(shard, _NOWHERE).since
            case FencedBy.LIFE:
                yield message.life, members.get(message.name, 0)
            case FencedBy.MEMBER:
                yield life_of(source), members.get(name_of(source), 0)
            case FencedBy.OWN:
                pass
