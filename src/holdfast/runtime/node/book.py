"""Where the nodes listen, and the links to them: those that the node's file names, and those that came later.

The file says where a node is that it names, and the record's roster where the others are (`core/membership.py`). A link
is made as soon as a record is accepted that has an address, before any later one counts that node for a majority. What
a file says is newer than what was found on disk, since a run that goes on may listen elsewhere; and newer than the
first record that others tell in this life, which may be as old.

The link to a node that has left is closed. If it asks all the same, it is told by a new one, until the next record.
"""

from __future__ import annotations

import threading
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
        #: No record has come from others in this life.
        self._is_fresh = True
        #: Records are looked at on one thread, messages are sent on several.
        self._lock = threading.Lock()

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
        if record is before:
            return
        filed = self.filed if self._is_fresh else {}
        self._is_fresh = self._is_fresh and record.version <= 1  # the first one of all is made here
        for name, endpoint in record.roster.items():
            if not endpoint:
                self._part(name)
            elif before.roster.get(name) != endpoint and name not in filed:
                self._know(name, endpoint)

    def link_to(self, name: Name) -> Link | None:
        """None: nobody knows where that is."""
        if name not in self.links and self._seen.has_left(name) and name in self.endpoints:
            with self._lock:
                if name not in self.links:
                    self._link(name)
        return self.links.get(name)

    def _know(self, name: Name, endpoint: str) -> None:
        if name == self.name:
            return
        with self._lock:
            if self.endpoints.get(name) != endpoint or name not in self.links:
                self.endpoints[name] = endpoint
                self._link(name)

    def _part(self, name: Name) -> None:
        with self._lock:
            if (link := self.links.pop(name, None)) is not None:
                _close(link)

    def _link(self, name: Name) -> None:
        if name == self.name or self._make is None:
            return
        old = self.links.get(name)
        self.links[name] = self._make(name, self.endpoints[name])
        if old is not None:
            _close(old)


def _close(link: Link) -> None:
    """It may take a while, and the caller has heartbeats to send."""
    threading.Thread(target=link.close, name="close link", daemon=True).start()
