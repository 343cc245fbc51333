"""Notes about nodes that come later than the files of the others, or go for good (`core/membership.py`)."""

from __future__ import annotations

from holdfast.model.ids import Name
from holdfast.model.note import Note, Told


class Invited(Note, frozen=True):
    """A coordinator proposes a record with the address of a node that may become a member."""

    checked = False
    told = Told("invited", "{node} may become a member; it listens at {address}.")
    name: Name
    node: Name
    address: str
    version: int


class SentOff(Note, frozen=True):
    """The same, of a node that has left for good."""

    checked = False
    told = Told("sent-off", "{node} leaves for good.")
    name: Name
    node: Name
    version: int
