"""A guard is one place where a shard's state is kept: images in memory, pages in a store, footprints in a log.

A shard acknowledges the minimum of what its guards call safe, and what it has consumed where none of them holds
anything back. A guard never acknowledges by itself, so a new one cannot weaken an old one.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.ready import Ready
from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.messages import Held, Message, Pasted
from holdfast.model.protection import Protection
from holdfast.model.record import Place


class Guard(Protocol):
    name: str
    #: Settings, as the record has them.
    protection: Protection

    def retarget(self, place: Place) -> None:
        """The record says where copies are kept from now on."""
        ...

    def start_over(self) -> None:
        """The shard starts empty: nothing that is kept continues it."""
        ...

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        """Is there something to take now? A frozen shard hands over: it takes whatever is left."""
        ...

    def is_pressing(self, now_ns: int, *, frozen: bool) -> bool:
        """Is it due, and can it not wait for a better moment?"""
        ...

    def hurry(self) -> None:
        """Somebody wants the state to be in the store now."""
        ...

    def take(self, now_ns: int, ready: Ready) -> None:
        """Capture, and send or write it."""
        ...

    def on_held(self, seat: Seat, message: Held, now_ns: int, ready: Ready) -> None: ...

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None: ...

    def on_tick(self, now_ns: int, ready: Ready) -> None: ...

    def safe(self) -> dict[Edge, int] | None:
        """Positions that survive the loss of this copy; None: nothing is kept here now, so nothing is held back."""
        ...

    def is_settled(self) -> bool:
        """Is nothing on its way, and does every copy that is kept stand at the last capture?"""
        ...

    def has_news(self) -> bool:
        """Could `reports` have anything to say, whatever the place says?"""
        ...

    def reports(self, shard: Asset) -> list[Message]:
        """What the coordinator must know, until it has acted on it."""
        ...
