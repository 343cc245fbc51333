"""A peer that knows the secret and means harm, in the simulator's world: it hears everything and sends what it likes.

It records what right processes send, and makes messages of three kinds: what it has heard, sent again; the same with
some fields changed; and new ones, built from the types of the fields, with ids that exist, numbers near the true ones
and numbers that cannot be. It counts, per kind of message, what became of them.
"""

from __future__ import annotations

import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from holdfast.core.node import Node
from holdfast.core.ready import Received
from holdfast.errors import ConfigError
from holdfast.model import messages as m
from holdfast.model.block import Block, Digest
from holdfast.model.ids import Asset, Consumer, Edge, Name, Seat, driver_of, seat_of
from holdfast.model.skips import Skip
from holdfast.sim.process import Process
from holdfast.sim.world import World

#: The names that it sends under when it does not pretend: no node has them, and none is let in.
OWN = ("n9#1", "evil", "evil@7")
KEPT = 60
NEAR = (-3, -2, -1, 0, 1, 1, 1, 2, 3)
FAR = (-1, 0, 1_000, 1 << 21, 1 << 32, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)


class Fate(Enum):
    """What became of a message."""

    REFUSED = "refused at the gate"
    EARLY = "before there was a record"
    FENCED = "behind, or ahead of the record"
    TAKEN = "reached its handler"
    WRONG = "reached its handler, which refused it"


class Hostile:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Random(f"hostile {seed}")
        self.heard: dict[type, deque[tuple[str, str, m.Message]]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.fates: dict[type, Counter[Fate]] = defaultdict(Counter)
        self.roles: Counter[str] = Counter()
        self.sent = 0
        self._hints: dict[type, dict[str, Any]] = {}
        self._handled = False
        self._wrapped: dict[int, Node] = {}
        world.hostile = True
        world.wiretap = self._on_message

    def _on_message(self, at_ns: int, source: str, target: str, message: m.Message) -> None:
        self.heard[type(message)].append((source, target, message))

    # --- making

    def recorded(self, kind: type[m.Message] | None = None) -> tuple[str, str, m.Message] | None:
        """One that was heard; of every kind as often as of any other."""
        found = self.heard.get(kind or self.rng.choice(list(self.heard))) if self.heard else None
        return self.rng.choice(found) if found else None

    def mutated(self, message: m.Message, count: int) -> m.Message:
        for _ in range(count):
            message = self._change(message)
        return message

    def built(self, kind: type[m.Message]) -> m.Message:
        return kind(**{name: self._make(hint, name) for name, hint in self._of(kind).items()})

    def _of(self, kind: type) -> dict[str, Any]:
        if kind not in self._hints:
            hints = get_type_hints(kind, include_extras=True)
            self._hints[kind] = {name: hints[name] for name in kind.__struct_fields__}
        return self._hints[kind]

    def _change(self, value: Any) -> Any:
        """The struct with one field changed, perhaps deep inside."""
        name, hint = self.rng.choice(list(self._of(type(value)).items()))
        try:
            return replace(value, **{name: self._changed(getattr(value, name), hint, name)})
        except ConfigError:
            return value  # settings that no operator can have: what decodes it would refuse it

    def _changed(self, value: Any, hint: Any, name: str) -> Any:
        rng, origin = self.rng, get_origin(hint)
        if isinstance(value, msgspec.Struct) and rng.random() < 0.9:
            return self._change(value)
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = rng.choice(list(value))
            if rng.random() < 0.3:
                return {k: v for k, v in value.items() if k != key}
            if rng.random() < 0.3:
                return {**value, self._make(get_args(hint)[0], name): value[key]}
            return {**value, key: self._changed(value[key], get_args(hint)[1], name)}
        if isinstance(value, tuple) and value and origin is tuple:
            at = rng.randrange(len(value))
            inner = get_args(hint)[0] if get_args(hint)[-1] is Ellipsis else get_args(hint)[at]
            if rng.random() < 0.3 and get_args(hint)[-1] is Ellipsis:
                return rng.choice((value[:at], value[at:], (*value, value[at]), value[::-1]))
            return (*value[:at], self._changed(value[at], inner, name), *value[at + 1 :])
        if isinstance(value, int) and not isinstance(value, bool):
            return value + rng.choice(NEAR) if rng.random() < 0.8 else rng.choice(FAR)
        return self._make(hint, name)

    def _make(self, hint: Any, name: str) -> Any:
        """A value of this type: mostly one that could be."""
        rng, origin, inner = self.rng, get_origin(hint), get_args(hint)
        topology, record = self.world.topology, self.world.first
        if hint is bool:
            return rng.random() < 0.5
        if origin is Annotated or hint is int:
            return rng.choice((0, 1, 1, 2, 3)) if rng.random() < 0.8 else rng.choice(FAR)
        if hint is Name:
            return rng.choice((*self.world.names, "n9", "n1#1", ""))
        if hint is Seat:
            return rng.choice((*(seat_of(n, life) for n in self.world.names for life in (1, 2)), "n1#x", "n1", ""))
        if hint is Asset:
            return rng.choice((*record.places, "u9", ""))
        if hint is Consumer:
            return rng.choice((*topology.shard, "r0", "evil", ""))
        if hint is Edge:
            return rng.choice((*topology.producer, "u9.0", ""))
        if hint is str:
            return rng.choice((topology.query, "", "x", "u0", "y" * 400))
        if origin in (Union, types.UnionType):
            return self._make(rng.choice(inner), name)
        if hint is type(None):
            return None
        if origin is dict:
            return {self._make(inner[0], name): self._make(inner[1], name) for _ in range(rng.randrange(4))}
        if origin is tuple:
            kinds = (inner[0],) * rng.randrange(4) if inner[-1] is Ellipsis else inner
            return tuple(self._make(each, name) for each in kinds)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return rng.choice(list(hint))
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._struct(hint)
        return ()  # rows, state

    def _struct(self, kind: type[msgspec.Struct]) -> Any:
        rng = self.rng
        if kind is Block and rng.random() < 0.8:
            start, rows = rng.randrange(20), tuple((k, 5, 1) for k in range(rng.randrange(3)))
            return Block(start, start + len(rows) + 1, rows, rng.randrange(1 << 30))
        if kind is Skip and rng.random() < 0.8:
            edge, start = rng.choice(list(self.world.topology.producer)), rng.randrange(20)
            return Skip(edge, start, start + 1 + rng.randrange(20), rng.randrange(4) if ">" in edge else -1, "why")
        if kind is Digest:
            return Digest(rng.randrange(4), rng.randrange(1 << 62))
        known = [place for place in self.world.first.places.values() if type(place) is kind]
        if kind.__name__ == "Record" or known:
            return rng.choice(known) if known else self._change(self.world.first)
        if kind.__name__ == "Protection":
            return kind(period_ns=rng.choice((1_000_000, 250_000_000)))  # its class refuses all others
        return kind(**{name: self._make(hint, name) for name, hint in self._of(kind).items()})

    # --- sending

    def names(self) -> list[str]:
        """Everybody whom it could pretend to be."""
        places = next((n.record.places for n in self._nodes()), {})
        drivers = [driver_of(a, p.epoch + d) for a, p in places.items() if p.is_stage for d in (0, 1)]
        seats = [str(seat) for place in places.values() for seat in place.holders]
        return [*OWN, *seats, *drivers, "r0", *(seat_of(n, 1) for n in self.world.names)]

    def _nodes(self) -> list[Node]:
        return [node for name in self.world.names if (node := self.world.node(name)) is not None]

    def send(self, process: Process, source: str, message: m.Message) -> None:
        """At once, whatever the process is doing: between two of its events."""
        node = process.machine
        if not isinstance(node, Node) or not process.alive:
            return
        self._watch(node)
        self.sent += 1
        self.roles.update(roles_of(node))
        refused = bool(node.gate.objection(source, message))
        early = not node.record.version and not message.before_record
        self._handled = False
        wrong: list[str] = []
        listen = _listener(wrong)
        self.world.notices.append(listen)
        try:
            self.world.feed(process, Received(source, message))
        finally:
            self.world.notices.remove(listen)
        fate = Fate.WRONG if wrong and not refused else Fate.TAKEN if self._handled else Fate.FENCED
        self.fates[type(message)][Fate.REFUSED if refused else Fate.EARLY if early else fate] += 1

    def _watch(self, node: Node) -> None:
        """Count what reaches a handler."""
        if id(node) in self._wrapped:
            return
        self._wrapped[id(node)] = node
        for kind, handler in list(node.handlers.items()):
            node.handlers[kind] = self._counted(handler)

    def _counted(self, handler: Callable[..., object]) -> Callable[..., object]:
        def counted(source: str, message: m.Message, now_ns: int, ready: Any) -> object:
            self._handled = True
            return handler(source, message, now_ns, ready)

        return counted

    # --- what came of it

    @property
    def reached(self) -> int:
        return sum(fates[Fate.TAKEN] + fates[Fate.WRONG] for fates in self.fates.values())

    def table(self) -> str:
        lines = [f"{'message':15}" + "".join(f"{fate.name.lower():>10}" for fate in Fate)]
        for kind in sorted(self.fates, key=lambda k: k.__name__):
            lines.append(f"{kind.__name__:15}" + "".join(f"{self.fates[kind][fate]:>10}" for fate in Fate))
        share = 100 * self.reached / max(1, self.sent)
        return "\n".join([*lines, f"{self.sent} sent, {share:.0f}% reached a handler; roles {dict(self.roles)}"])


def _listener(wrong: list[str]) -> Callable[[int, str, list], None]:
    def listen(at_ns: int, source: str, noted: list) -> None:
        wrong.extend(note.why for note in noted if note.word == "objected")

    return listen


def roles_of(node: Node) -> list[str]:
    """What a node is at this moment."""
    found = [state.value for state in node.host.states.values() if state.value != "absent"]
    if node.election.coordinator == node.name:
        found.append("coordinator")
    found += ["ledger" for ledger in node.ledgers.values() if ledger.place and node.name in ledger.place.holders]
    return sorted(set(found)) or ["nothing"]
