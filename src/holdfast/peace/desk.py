"""What a coordinator answers writers that ask again and again: the machine behind one question (`machine.py`).

A writer's question says what it wants and which of its chunks are over, so a lost question costs nothing and a lost
answer is given again. The machine is of one term: a coordinator that was elected anew begins with an empty one, and
learns from the questions what is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from holdfast.peace.machine import GrantedChunk, Peace, PeaceSettings
from holdfast.peace.model import NetworkModel


class WriteQuestion(msgspec.Struct, frozen=True, kw_only=True):
    writer: str
    #: A writer counts its requests up, over all its lives.
    request: int
    chunks: int
    #: Chunks that have ended since it was last heard: (chunk, was it written).
    over: tuple[tuple[int, bool], ...] = ()
    #: It wants nothing of this any more.
    withdrawn: bool = False


class WriteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: Every chunk of this request that is under way, or may begin now.
    granted: tuple[GrantedChunk, ...] = ()
    #: Why it gets nothing; "": it does, or has to wait.
    denied: str = ""


class WriteDesk:
    """Of one node, for as long as it is the coordinator."""

    def __init__(self, model: NetworkModel, settings: PeaceSettings, random: Random) -> None:
        self.model = model
        self.settings = settings
        self.random = random
        self.peace = Peace(model, settings, random)
        self._term = -1
        self._members: frozenset[str] = frozenset()

    def answer(self, asked: WriteQuestion, term: int, members: Iterable[str], now_ns: int) -> WriteAnswer:
        if term != self._term:
            self._term, self.peace = term, Peace(self.model, self.settings, self.random)
        peace, present = self.peace, frozenset(members)
        for gone in sorted(self._members - present):
            peace.on_writer_gone(gone, now_ns)
        self._members = present
        peace.on_tick(now_ns)
        for chunk, written in asked.over:
            peace.on_write_over(asked.writer, asked.request, chunk, now_ns, written=written)
        if asked.withdrawn:
            peace.on_withdrawn(asked.writer, asked.request, now_ns)
            return WriteAnswer()
        told = peace.on_write_wanted(asked.writer, asked.request, asked.chunks, now_ns)
        mine = (asked.writer, asked.request)
        granted = (chunk for one in told.granted if (one.writer, one.request) == mine for chunk in one.chunks)
        denied = (one.reason.value for one in told.denied if (one.writer, one.request) == mine)
        return WriteAnswer(granted=tuple(granted), denied=next(denied, ""))
