"""What a node keeps on its disk, and what it finds there when it starts: lives, votes, the record, ledgers.

An entry is a key and a value, later ones replace earlier ones: that is all a disk has to know. Which entries there are,
what each holds and how its key is written is said here only; `Found` is what all of them together mean.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import check
from holdfast.model.ids import Asset, Name, asset_id
from holdfast.model.parts import LedgerPage
from holdfast.model.ranges import Number
from holdfast.model.record import NO_RECORD, Record

Entry = tuple[str, object]


class Ballot(msgspec.Struct, frozen=True, array_like=True):
    """The term that a node is in, and whom it has voted for in it."""

    term: Number = 0
    voted_for: Name | None = None


class KeptPage(msgspec.Struct, frozen=True, array_like=True):
    """A ledger's page, and the version of the place under which it was put here."""

    since: Number
    page: LedgerPage


#: What the value of an entry is, by the first part of its key.
VALUES: dict[str, Any] = {"life": int, "vote": Ballot, "record": Record, "ledger": KeptPage}


def life_entry(life: int) -> Entry:
    return ("life", life)


def vote_entry(term: int, voted_for: Name | None) -> Entry:
    return ("vote", Ballot(term, voted_for))


def record_entry(record: Record) -> Entry:
    return ("record", record)


def ledger_entry(ledger: Asset, since: int, page: LedgerPage) -> Entry:
    return (f"ledger/{ledger}", KeptPage(since, page))


def kind_of(key: str) -> str:
    """Which of `VALUES` a key is of."""
    return key.partition("/")[0]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Life 0: there has been none, the disk is new."""

    life: int = 0
    vote: Ballot = Ballot()
    record: Record = NO_RECORD
    ledgers: dict[Asset, KeptPage] = {}


def read(content: dict[str, object]) -> Found:
    """What these entries mean. Their types are the disk's to check; what it never heard of is a bug of ours."""
    fields: dict[str, Any] = {}
    ledgers: dict[Asset, KeptPage] = {}
    for key, value in content.items():
        kind, _, asset = key.partition("/")
        check(isinstance(value, VALUES.get(kind, ())), "an entry of a node's disk is not what it should be", repr(key))
        if isinstance(value, KeptPage):
            ledgers[asset_id(asset)] = value
        else:
            fields[kind] = value
    return Found(**fields, ledgers=ledgers)
