"""A node's past: which plan its disk is of, and how often it has lived as the others remember it.

The journal beside it holds votes, lives and ledgers. A journal that was lost with all that is on the disk (a new disk,
a backup that was put back) looks like a first start, so a node asks the others before it says anything: every node
keeps the highest life that it has heard of each name, or found in its own record. A node that would begin a life which
they know of already must not go on under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, DamagedJournalError
from holdfast.model.found import Found
from holdfast.model.ids import Name
from holdfast.model.plan import Plan, digest
from holdfast.runtime.disk.journal import write_whole

#: The record that everybody starts with; a later one was decided by members that lived.
_FIRST_VERSION = 1


class Past:
    def __init__(self, name: Name, home: Path) -> None:
        self.name = name
        self._path = home / "query"
        #: The highest life of each name that this node's disk knows of.
        self.lives: dict[Name, int] = {}

    # --- the plan

    def belongs_to(self, plan: Plan) -> None:
        """What is on this node's disk must be of this very plan: votes and ledgers of another are not ours."""
        query, known = self._read()
        if (query, known) == (plan.query, digest(plan)):
            return
        if query == plan.query and known:
            raise ConfigError(
                f"the plan of {self.name} is not the one that it has run before",
                detail=f"{self._path} has another digest of {query!r}: {known}, the plan's is {digest(plan)}.",
                hint="A plan that runs cannot be changed: put the old plan.json back, or start anew in another --dir.",
            )
        if not known and query in ("", plan.query) and self._path.with_name("lives").exists():
            raise ConfigError(
                f"{self.name} does not know any more which plan it has run",
                detail=f"{self._path} is gone, empty or cut, and this node has lived before.",
                hint="The others go on without it. Put the file back, or start a node with a new name in its place.",
            )
        if query and query != plan.query:  # an empty file is what a crash or a full disk left of the first writing
            raise ConfigError(
                f"the directory of {self.name} belongs to another deployment",
                detail=f"{self._path} says {query!r}, the plan says {plan.query!r}.",
                hint="Use another --dir, or delete this one if its pipeline is over.",
            )
        write_whole(self._path, f"{plan.query} {digest(plan)}".encode())

    def _read(self) -> tuple[str, str]:
        try:
            query, _, known = self._path.read_text().strip().partition(" ")
        except FileNotFoundError:
            return "", ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.name} cannot read which plan it has run",
                detail=f"{self._path}: {error}",
                hint="Check the disk. Start a node with a new name and an empty directory in its place.",
            ) from None
        return query, known

    # --- lives

    def known(self, heard: Mapping[Name, int]) -> dict[Name, int]:
        """The highest life of each name, by the disk or as the machine has heard it: from messages that it took. (One
        that it refuses must not keep a node out by a life that never was.)"""
        return {name: max(self.lives.get(name, 0), heard.get(name, 0)) for name in {*self.lives, *heard}}

    def found(self, on_disk: Found) -> None:
        """What this node's own disk says of the others: nobody is in a later record who has never lived."""
        if on_disk.record.version > _FIRST_VERSION:
            for name, life in on_disk.record.members.items():
                if name != self.name:
                    self.lives[name] = max(life, self.lives.get(name, 0))

    def check(self, life: int, peer: Name, answer: dict[str, Any]) -> None:
        """Before this life begins: `peer` must not know of it, or of a later one."""
        known = answer.get("lives", {}).get(self.name, 0)
        if known >= life:
            raise DamagedJournalError(
                f"{self.name} has lost its journal, and must not go on under its name",
                detail=f"{peer} knows {self.name} in life {known}; what is on this disk would make this life {life}. "
                "Votes and commits are lost with it, and whoever acts without them could undo what was decided.",
                hint="Check the disk, and start a node with a new name and an empty directory in its place.",
            )
