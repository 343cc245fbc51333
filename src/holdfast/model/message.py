"""What every message is: the traits on its class, for the network and for the nodes that take it.

Whoever carries, queues, checks or decodes a message asks its class (`model/messages.py`), never a list of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import msgspec

from holdfast.model.block import Rows
from holdfast.model.topology import Topology

#: What a pipeline must have for a message to be understood, by the attribute that names it.
_HAS: dict[str, Callable[[Topology, Any], bool]] = {
    "edge": lambda topology, edge: edge in topology.consumers,
    "parts": lambda topology, parts: all(edge in topology.producer for edge in parts),
    "shard": lambda topology, shard: shard in topology.shard,
    "shards": lambda topology, shards: all(shard in topology.shard for shard in shards),
    "stage": lambda topology, stage: stage in topology.stage,
    "ledger": lambda topology, ledger: ledger in topology.ledgers,
    "asset": lambda topology, asset: asset in topology.shard or asset in topology.ledgers,
    "running": lambda topology, loads: all(asset in topology.shard or asset in topology.stage for asset in loads),
    "images": lambda topology, loads: all(shard in topology.shard for shard in loads),
    "record": lambda topology, record: all(shard in record.places for shard in topology.shard),
}


class FencedBy(Enum):
    """What a message is fenced by: which number of it `core/fence.py` compares, and with what, before it is taken.

    An older number than the one that is known is refused; where `exact`, so is a newer one.
    """

    EPOCH = "its epoch, with that of the place that it names"
    PRODUCER = "its epoch, with that of the shard that makes its edge"
    CONSUMER = "its epoch, with that of its consumer"
    ASKED = "its epoch, with the one under which its taker asked"
    PLACE = "its since, with that of the place that it names"
    THIS_PLACE = "its since, with that of the place that it names, which must be the same"
    THESE_PLACES = "the since of each of its shards, with those of their places, which must be the same"
    LIFE = "its life, with that of the member that it names"
    MEMBER = "the life of its sender, with that of the member"
    OWN = "a number on the disk of the part that takes it: a term, a record, the fence of a ledger"

    @property
    def exact(self) -> bool:
        return self not in (FencedBy.EPOCH, FencedBy.PRODUCER, FencedBy.CONSUMER, FencedBy.PLACE)


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The traits of a message are on its class."""

    #: It travels beside the others, which must not wait behind it: it carries rows or state.
    bulk: ClassVar[bool] = False
    #: It may take a long step, or carry much: everything else goes first.
    heavy: ClassVar[bool] = False
    #: A node takes it before it knows any record.
    before_record: ClassVar[bool] = False
    #: Two messages to one target that agree in these fields say the same, the later one better. None: no two do.
    key: ClassVar[tuple[str, ...] | None] = None
    #: What it is fenced by. Every class says so itself; (): it says nothing that time could make wrong.
    fenced_by: ClassVar[tuple[FencedBy, ...]]
    #: The method that takes it, the one that says that it is behind, its attributes that name things of a pipeline, and
    #: the one that names what is placed. All are made from names.
    handler: ClassVar[str]
    refusal: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    placed: ClassVar[str]

    def __init_subclass__(cls) -> None:
        word = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.handler, cls.refusal = f"on_{word}", f"refuse_{word}"
        cls.names = tuple(name for name in _HAS if hasattr(cls, name))
        cls.placed = next((name for name in ("shard", "stage", "ledger", "asset") if name in cls.names), "")

    def belongs_to(self, topology: Topology) -> bool:
        """Does it speak only of what this pipeline has? It may come from a node of another one, or from a reader with
        an old plan; the core relies on every name in it."""
        return all(_HAS[name](topology, getattr(self, name)) for name in self.names)

    def with_rows(self, take: Callable[[Rows], Rows]) -> Message:
        """The message as it came over the wire, each run of rows in it taken by `take`."""
        return self
