"""Names of things, as plain strings with one meaning each.

    Name      "n2"        a node, by its durable identity: what votes, and what a disk belongs to
    Seat      "n2#3"      the third life of that node: what holds shards, since memory dies with a process
    Asset     "u1" "s0" "s0.ledger"     what the placement record places
    Edge      "s0>u1" "u1.0"            a numbered sequence of elements
    Consumer  "u4" "r0"   what acknowledges an edge

A seat that is gone never comes back: a restarted node has a new seat, so a message to the old one reaches nobody.
Nobody else puts an id together or takes one apart: what it is made of is known here only.
"""

from __future__ import annotations

from functools import lru_cache

Name = str
Seat = str
Asset = str
Edge = str
Consumer = str
Address = str
Position = int

_LEDGER = ".ledger"


def seat_of(name: Name, life: int) -> Seat:
    return f"{name}#{life}"


@lru_cache(maxsize=10_000)
def name_of(address: Address) -> Name:
    return address.partition("#")[0]


@lru_cache(maxsize=10_000)
def life_of(seat: Seat) -> int:
    """The life number of a seat; 0 for a bare name (a ledger's holder: its disk outlives the process)."""
    life = seat.partition("#")[2]
    return int(life) if life else 0


def stage_edge(stage: Asset, shard: Asset) -> Edge:
    return f"{stage}>{shard}"


def shard_edge(shard: Asset, port: int = 0) -> Edge:
    return f"{shard}.{port}"


def maker_of(edge: Edge) -> Asset:
    """The shard whose output an edge is."""
    return edge.rpartition(".")[0]


def port_of(edge: Edge) -> int:
    """Which output of that shard."""
    return int(edge.rpartition(".")[2])


def shard_id(operator: str, number: int) -> Asset:
    return f"{operator}-{number}"


def operator_of(shard: Asset) -> str:
    """The operator that a shard is part of; one without a number is an operator of its own."""
    return shard.rpartition("-")[0] or shard


def ledger_of(stage: Asset) -> Asset:
    return stage + _LEDGER


def is_ledger(asset: Asset) -> bool:
    return asset.endswith(_LEDGER)


def stage_of(ledger: Asset) -> Asset:
    """The stage whose ledger it is."""
    return ledger.removesuffix(_LEDGER)


def driver_of(stage: Asset, epoch: int) -> Address:
    """Where one life of a stage's driver answers: its epoch is its identity."""
    return f"{stage}@{epoch}"
