"""A real node with an instrument: what it hears can be asked for, and what becomes of hostile messages is counted.

`python tapped.py ARGUMENTS` is `python -m holdfast.runtime.node ARGUMENTS` with two actions more: `tap`, the last
frames that others have sent to it, and `fates`, by kind of message what became of those that a hostile peer has sent. A
hostile peer says in a header that it is one; nothing else about its stream differs from any other.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from typing import Any

import msgspec

from holdfast.core.node import WARM, Node
from holdfast.model import messages as m
from holdfast.model.notes import Objected
from holdfast.runtime.net import transport, wire
from holdfast.runtime.node.__main__ import main
from holdfast.runtime.node.actions import Actions
from holdfast.runtime.node.process import NodeProcess
from support.hostile import Fate, roles_of

HEADER = "x-hostile"
KEPT = 25
#: Larger messages are not worth their way to the peer and back.
FRAME_MAX = 200_000
#: Hostile messages that are on their way to the machine; what a later one has replaced never gets there.
WAITING_MAX = 10_000

_heard: dict[type, deque[tuple[str, str, m.Message]]] = defaultdict(lambda: deque(maxlen=KEPT))
_hostile: dict[int, m.Message] = {}
_fates: Counter[str] = Counter()
_roles: Counter[str] = Counter()
_here = threading.local()


class Marked(str):
    """The address of a hostile peer."""

    __slots__ = ()


_start_call = transport._Gate.start_call
_take = transport.Server._take
_on_message = NodeProcess._on_message
_on_node_message = Node._on_message
_table = Actions.table


def _mark(self: Any, info: Any, headers: dict[str, list[str]]) -> Any:
    who = _start_call(self, info, headers)
    if HEADER in headers:
        who.passport = msgspec.structs.replace(who.passport, address=Marked(who.passport.address))
    return who


def _take_marked(self: Any, peer: str, raw: Any) -> None:
    _here.hostile = isinstance(peer, Marked)
    if _here.hostile:
        _fates["came"] += 1
    _take(self, peer, raw)


def _hear(self: Any, source: Any, target: Any, message: m.Message) -> None:
    if getattr(_here, "hostile", False):
        _fates["decoded"] += 1
        if len(_hostile) < WAITING_MAX:
            _hostile[id(message)] = message
    else:
        _heard[type(message)].append((source, target, message))
    _on_message(self, source, target, message)


def _count(self: Node, source: Any, message: m.Message, now_ns: int, ready: Any) -> None:
    if _hostile.pop(id(message), None) is None:
        _on_node_message(self, source, message, now_ns, ready)
        return
    _roles.update(roles_of(self))
    _roles["follower"] += self.election.coordinator not in (None, self.name)
    _roles["stage"] += any(epoch != WARM for epoch in self.stages.values())
    fate = Fate.TAKEN
    if self.gate.objection(source, message):
        fate = Fate.REFUSED
    elif not self.record.version and not message.before_record:
        fate = Fate.EARLY
    elif self.host.fence.behind(source, message):
        fate = Fate.FENCED
    before = len(ready.notes)
    _on_node_message(self, source, message, now_ns, ready)
    if fate is Fate.TAKEN and any(isinstance(note, Objected) for note in ready.notes[before:]):
        fate = Fate.WRONG
    _fates[f"{type(message).__name__} {fate.name}"] += 1


def _tapped(body: dict) -> bytes:
    """The last frames of every kind that others have sent to this node."""
    frames = [bytes(wire.encode(*one)) for kind in list(_heard) for one in list(_heard[kind])]
    return msgspec.msgpack.encode([frame for frame in frames if len(frame) <= FRAME_MAX])


def _told_fates(body: dict) -> dict:
    """What became of hostile messages, and what this node was at that moment."""
    return {"fates": dict(_fates), "roles": dict(_roles)}


def _with_tap(self: Actions) -> dict[str, Any]:
    return {**_table(self), "tap": _tapped, "fates": _told_fates}


if __name__ == "__main__":
    transport._Gate.start_call = _mark
    transport.Server._take = _take_marked
    NodeProcess._on_message = _hear
    Node._on_message = _count
    Actions.table = _with_tap
    main()
