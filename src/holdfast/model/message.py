"""What every message is: the traits on its class, for the network and for the nodes that take it.

Whoever carries, queues, checks or decodes a message asks its class (`model/messages.py`), never a list of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    "record": lambda topology, record: all(shard in record.places for shard in topology.shard),
}


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
    #: The method that takes it, and its attributes that name things of a pipeline. Both are made from names.
    handler: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls.handler = "on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.names = tuple(name for name in _HAS if hasattr(cls, name))

    def belongs_to(self, topology: Topology) -> bool:
        """Does it speak only of what this pipeline has? It may come from a node of another one, or from a reader with
        an old plan; the core relies on every name in it."""
        return all(_HAS[name](topology, getattr(self, name)) for name in self.names)

    def with_rows(self, take: Callable[[Rows], Rows]) -> Message:
        """The message as it came over the wire, each run of rows in it taken by `take`."""
        return self
