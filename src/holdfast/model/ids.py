"""Names of things: strings at run time, and a type each for pyright, so that no two kinds can be mixed up.

    Name      "n2"        a node, by its durable identity: what votes, and what a disk belongs to
    Seat      "n2#3"      the third life of that node: what holds shards, since memory dies with a process
    Asset     "u1" "s0" "s0.ledger"     what the placement record places
    Edge      "s0>u1" "u1.0" "u1.dead"  a numbered sequence of elements
    Consumer  "u4" "r0"   what acknowledges an edge

An asset may be a consumer (shards and sinks are), but not every consumer is an asset: a guest is not. An address is
whatever messages can be sent to: a name, a seat, a driver (`s0@3`), a task, an operator's hand. Since it is all of
these, it stays a plain string. A ledger sits on a name, a shard on a seat; a place has either, as a seat (`disk_seat`).

A seat that is gone never comes back: a restarted node has a new seat, so a message to the old one reaches nobody.
Nobody else puts an id together or takes one apart: what it is made of is known here only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

Name = NewType("Name", str)
Seat = NewType("Seat", str)
Consumer = NewType("Consumer", str)
Asset = NewType("Asset", Consumer)
Edge = NewType("Edge", str)
Address = str
#: Of a reader: it is not a copy on a seat.
NO_SEAT = Seat("")

_LEDGER = ".ledger"


def seat_of(name: Name, life: int) -> Seat:
    return Seat(f"{name}#{life}")


def disk_seat(name: Name) -> Seat:
    """Where a ledger sits: on the node's disk, whichever life it is in."""
    return Seat(name)


@lru_cache(maxsize=10_000)
def name_of(address: Address) -> Name:
    return Name(address.partition("#")[0])


@lru_cache(maxsize=10_000)
def life_of(seat: Seat) -> int:
    """The life number of a seat; 0 for a bare name (a ledger's holder: its disk outlives the process)."""
    life = seat.partition("#")[2]
    return int(life) if life else 0


def stage_edge(stage: Asset, shard: Asset) -> Edge:
    return Edge(f"{stage}>{shard}")


def shard_edge(shard: Asset, port: int = 0) -> Edge:
    return Edge(f"{shard}.{port}")


def dead_edge(shard: Asset) -> Edge:
    """What a shard has set aside. No consumer reads it: it goes into files."""
    return Edge(f"{shard}.dead")


def producer_stage(edge: Edge) -> str:
    """The stage whose output an edge is; empty: it comes from a shard."""
    stage, arrow, _ = edge.partition(">")
    return stage if arrow else ""


def maker_of(edge: Edge) -> Asset:
    """The shard whose output an edge is."""
    return asset_id(edge.rpartition(".")[0])


def port_of(edge: Edge) -> int:
    """Which output of that shard."""
    return int(edge.rpartition(".")[2])


def asset_id(text: str) -> Asset:
    """What a user, a plan or a file calls an asset."""
    return Asset(Consumer(text))


def shard_id(operator: str, number: int) -> Asset:
    return asset_id(f"{operator}-{number}")


def operator_of(shard: Asset) -> str:
    """The operator that a shard is part of; one without a number is an operator of its own."""
    return shard.rpartition("-")[0] or shard


def ledger_of(stage: Asset) -> Asset:
    return asset_id(stage + _LEDGER)


def is_ledger(asset: Asset) -> bool:
    return asset.endswith(_LEDGER)


def stage_of(ledger: Asset) -> Asset:
    """The stage whose ledger it is."""
    return asset_id(ledger.removesuffix(_LEDGER))


def reads_as(address: Address, consumer: Consumer, epoch: int) -> bool:
    """Is this where a reader of this name and epoch answers? (It may have several streams, each with an address.)"""
    return address.startswith(consumer) and address.endswith(f"@{epoch}")


def driver_of(stage: Asset, epoch: int) -> Address:
    """Where one life of a stage's driver answers: its epoch is its identity."""
    return f"{stage}@{epoch}"
