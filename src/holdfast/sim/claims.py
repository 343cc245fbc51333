"""Messages that say that something is safe, and what the disk of their sender must have for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.ledger import EMPTY
from holdfast.model import messages as m
from holdfast.model.found import Found
from holdfast.model.ids import ledger_of
from holdfast.model.messages import Message


def _has_page(disk: Found, message: m.LedgerCopied) -> bool:
    kept = disk.ledgers.get(message.ledger)
    return (kept.page if kept else EMPTY).rank >= tuple(message.rank)


def _has_commit(disk: Found, message: m.LedgerState | m.LedgerWritten) -> bool:
    kept = disk.ledgers.get(ledger_of(message.stage))
    return message.commit is None or (kept is not None and kept.page.rank[1] >= message.commit.batch)


#: Is it on the disk of its sender?
CLAIMS: dict[type[Message], Callable[[Found, Any], bool]] = {
    m.LedgerCopied: _has_page,
    m.LedgerState: _has_commit,
    m.LedgerWritten: _has_commit,
    m.Appended: lambda disk, message: disk.record.version >= message.version,
    m.Vote: lambda disk, message: (
        not message.granted or (disk.vote.term >= message.term and disk.vote.voted_for is not None)
    ),
}
