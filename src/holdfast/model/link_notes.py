"""Notes about links that are cut between members, and what goes around them (`core/links.py`, `core/detours.py`)."""

from __future__ import annotations

from holdfast.model.ids import Asset, Name
from holdfast.model.note import Note, Told


class LinkCut(Note, frozen=True):
    """A coordinator that hears both knows that they cannot hear each other."""

    checked = True
    told = Told("cut", "{one} and {other} cannot hear each other, and {name} hears both: what needs that link moves.")
    name: Name
    one: Name
    other: Name


class LinkMended(Note, frozen=True):
    checked = True
    told = Told("mended", "{one} and {other} hear each other again.")
    name: Name
    one: Name
    other: Name


class Detoured(Note, frozen=True):
    """Something is moved because a link is cut; from one member to another, or (to nobody) given up there."""

    checked = True
    told = Told("detour", "The {what} {asset} leaves {source}, to go around a link that is cut.")
    name: Name
    asset: Asset
    what: str
    source: Name
    target: Name
    version: int
