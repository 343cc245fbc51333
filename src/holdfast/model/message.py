"""What every message is: the traits on its class, for the network and for the nodes that take it.

Whoever carries, queues, checks or decodes a message asks its class (`model/messages.py`), never a list of its own. What
is wrong with a message that decodes is asked in one place (`core/gate.py`), and known by the class: the ranges of its
fields by their types (`model/ranges.py`), the names in it, who may say it (`said_by`), and whatever must hold between
its fields (`objection`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Protocol

import msgspec

from holdfast.model.block import Rows, base_of
from holdfast.model.ids import Address, Asset, Edge, maker_of
from holdfast.model.ranges import shown
from holdfast.model.record import Record
from holdfast.model.topology import Topology

#: Terms, versions and lives may be so far ahead of what is known: a node may have been away for a year.
STEP = 1 << 32
#: Epochs of what the record places: each of them takes a record, and whoever speaks is at most a few of those ahead.
EPOCH_STEP = 1 << 10
#: Epochs of drivers that no record places: each draws 32 bits of its own above the last (`spark/port.py`).
FOREIGN_STEP = 1 << 40

#: What a pipeline must have for a message to be understood, by the attribute that names it.
_HAS: dict[str, Callable[[Topology, Any], bool]] = {
    "edge": lambda topology, edge: edge in topology.consumers,
    "input": lambda topology, edge: edge in topology.producer,
    "block": lambda topology, block: block is None or block[0] in topology.producer,
    "parts": lambda topology, parts: all(edge in topology.producer for edge in parts),
    "shard": lambda topology, shard: shard in topology.shard,
    "shards": lambda topology, shards: all(shard in topology.shard for shard in shards),
    "stage": lambda topology, stage: stage in topology.stage,
    "ledger": lambda topology, ledger: ledger in topology.ledgers,
    "asset": lambda topology, asset: asset in topology.shard or asset in topology.ledgers,
    "running": lambda topology, loads: all(asset in topology.shard or asset in topology.stage for asset in loads),
    "images": lambda topology, loads: all(shard in topology.shard for shard in loads),
    "captures": lambda topology, costs: all(shard in topology.shard for shard in costs),
    "recovery": lambda topology, times: all(shard in topology.shard for shard in times),
    "memory": lambda topology, taken: all(stage in topology.stage for stage in taken),
}


class View(Protocol):
    """What the machine knows that a message has come to: what the message is held against."""

    topology: Topology
    #: It is a node: it knows the whole pipeline, and keeps rows.
    is_node: bool

    @property
    def record(self) -> Record:
        """The newest record that it acts on."""
        ...

    @property
    def term(self) -> int:
        """The newest term that it has seen."""
        ...

    def fence_of(self, stage: Asset) -> int:
        """The newest epoch of a driver that the ledger of this stage knows, as far as it is here."""
        ...

    def impossible(self, record: Record) -> str:
        """Why this machine could not do what a record asks of it, if it could not."""
        ...


class SaidBy(Enum):
    """Who may say it. Whoever knows the secret may still lie about who it is; a mistake, or a stranger, may not."""

    ANYONE = "anyone"
    MEMBER = "a node that is or was a member"
    PRIMARY = "the primary of the place that it names"
    PRODUCER = "the primary of the shard that makes its edge"
    MAKER = "the primary of the shard that makes its edge, or whoever may run beside it"
    DRIVER = "the driver of its stage and epoch"
    SEAT = "the seat that it names"
    CONSUMER = "a copy or a driver of its consumer"
    HOLDER = "a holder of the place that it names"


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
    NOT_AHEAD = "its epoch, with that of the place of its stage: a newer one waits until the record is here"
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
    said_by: ClassVar[SaidBy] = SaidBy.ANYONE
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
        cls.placed = next((name for name in ("shard", "ledger", "stage", "asset") if name in cls.names), "")

    def belongs_to(self, topology: Topology) -> bool:
        """Does it speak only of what this pipeline has? It may come from a node of another one, or from a reader with
        an old plan; the core relies on every name in it."""
        return all(_HAS[name](topology, getattr(self, name)) for name in self.names)

    def objection(self, source: Address, view: View) -> str:
        """Why no right peer could have sent this to this machine; empty: nothing is wrong with it. Every field is in
        its range, and every name in it is known. Its cost must not grow with rows."""
        return ""

    def with_rows(self, take: Callable[[Rows], Rows]) -> Message:
        """The message as it came over the wire, each run of rows in it taken by `take`."""
        return self


def ahead(what: str, said: int, known: int, step: int) -> str:
    """Is a number further ahead of what is known than could ever happen?"""
    return f"{what} {shown(said)} is more than {step} ahead of {known}" if said > known + step else ""


def epoch_ahead(view: View, asset: Asset, epoch: int) -> str:
    """The same for the epoch of what the record places."""
    place = view.record.places.get(asset)
    return ahead(f"epoch of {asset}", epoch, place.epoch, EPOCH_STEP) if place is not None else ""


def position_ahead(view: View, edge: Edge, position: int) -> str:
    """Is a position of a shard's output beyond what any epoch that is near could number?"""
    place = view.record.places.get(maker_of(edge))
    limit = base_of((place.epoch if place else 0) + EPOCH_STEP)
    return f"position {shown(position)} of {edge} is beyond every epoch" if position > limit else ""
