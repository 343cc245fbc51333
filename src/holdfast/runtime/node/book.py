"""Where the nodes listen, and the links to them: those that the node's file names, and those that came later.

The file says where a node is that it names, and the record's roster where the others are (`core/membership.py`). A link
is made as soon as a record is accepted that has an address, before any later one counts that node for a majority. What
a file says is newer than what was found on disk, since a run that goes on may listen elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.ids import Name
from holdfast.model.record import NO_RECORD, Record
from holdfast.runtime.net.links import Link


class AddressBook:
    def __init__(self, name: Name, filed: dict[Name, str]) -> None:
        self.name = name
        self.filed = filed
        #: Others hold this very dictionary: it grows.
        self.endpoints = dict(filed)
        self.links: dict[Name, Link] = {}
        self._make: Callable[[Name, str], Link] | None = None
        #: The last record that was looked at.
        self._seen: Record = NO_RECORD

    def connect(self, make: Callable[[Name, str], Link], found: Record) -> None:
        """From now on there is a link to every node. `found`: the record on this node's disk."""
        self._make = make
        for name in self.filed:
            self._link(name)
        self._seen = found
        for name, endpoint in found.roster.items():
            if endpoint and name not in self.filed:
                self._know(name, endpoint)

    def learn(self, record: Record) -> None:
        """Called with the record that is accepted, decided or not, after every step."""
        before, self._seen = self._seen, record
        if record is before or record.roster == before.roster:
            return
        for name, endpoint in record.roster.items():
            if endpoint and before.roster.get(name) != endpoint:
                self._know(name, endpoint)

    def _know(self, name: Name, endpoint: str) -> None:
        if name != self.name and self.endpoints.get(name) != endpoint:
            self.endpoints[name] = endpoint
            self._link(name)

    def _link(self, name: Name) -> None:
        if name == self.name or self._make is None:
            return
        old = self.links.get(name)
        self.links[name] = self._make(name, self.endpoints[name])
        if old is not None:
            old.close()
