"""What needs a link that is cut goes around it: a part of `core/placement.py`.

Two things are done, in this order.

* **Copies that cannot reach each other part.** A backup or a joining seat that its primary cannot reach is given up,
  and a seat that the primary reaches joins in its place (`placement._protect`). If the backup reaches more of what the
  shard talks to, it is promoted instead, and the primary is given up. Until the new seat has joined there is one copy.
* **Whoever talks over a cut link moves**: a stage to a member that reaches all holders of its shards, a shard to its
  backup (by the hand-over that a drain uses, so nothing is lost or paused for a promotion) or first to a new backup.

Every move makes the number of cut links that something needs smaller, so moves end, and none goes back while the cut is
known. If no move does that, things stay where they are: with two members, or with nobody in reach, there is no way
around. Nobody is ever removed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.model.ids import Asset, Name, is_ledger, name_of
from holdfast.model.record import Place

if TYPE_CHECKING:
    from holdfast.core.placement import Draft


class Detour(NamedTuple):
    """Something that goes around a cut, from one member to another ("": to nobody yet)."""

    what: str
    asset: Asset
    source: Name
    target: Name


def go_around(made: Draft) -> None:
    """Part copies that cannot reach each other; move what talks over a cut link, as long as that helps."""
    if not made.links.cuts:
        return
    for asset in sorted(made.places):
        if not made.places[asset].is_stage:
            _part(made, asset)
    for _ in range(len(made.places)):
        found = [move for asset in sorted(made.places) for move in _moves(made, asset)]
        if not found:
            return
        _, _, detour, place = min(found)
        made.detours.append(detour)
        made.put(detour.asset, **msgspec.structs.asdict(place))


def may_hold(made: Draft, asset: Asset, name: Name) -> bool:
    """May a second copy be put there, as far as links go? Its primary must reach it."""
    primary = made.places[asset].primary
    return made.places[asset].is_stage or primary is None or not made.links.is_cut(name_of(primary), name)


def strain_at(made: Draft, asset: Asset, name: Name, *, runs: bool) -> int:
    """How many links that it needs would be cut with a copy there: to run it, to stand by, or as an image."""
    if not made.links.cuts:
        return 0
    place = made.places[asset]
    seat = made.seat(asset, name)
    if runs or place.is_stage:
        place = msgspec.structs.replace(place, primary=seat, backup=None, joining=None)
    else:
        place = msgspec.structs.replace(place, joining=seat)
    return _strain(made, asset, place)


def _strain(made: Draft, asset: Asset, place: Place) -> int:
    """With this place for it, and everything else where it is going to be."""
    places = {other: _arrived(there) for other, there in made.places.items()}
    places[asset] = _arrived(place)
    return made.links.strain(asset, places)


def _arrived(place: Place) -> Place:
    """Where it is when the move that is under way has ended."""
    if place.moving and place.backup:
        return msgspec.structs.replace(place, primary=place.backup, backup=place.primary, moving=False)
    return place


def _part(made: Draft, asset: Asset) -> None:
    place = made.places[asset]
    if place.primary is None:
        return
    here = name_of(place.primary)
    if place.joining and made.links.is_cut(here, name_of(place.joining)):
        made.detours.append(Detour("joining copy of", asset, name_of(place.joining), Name("")))
        made.put(asset, joining=None)
    place = made.places[asset]
    if not place.backup or not made.links.is_cut(here, name_of(place.backup)):
        return
    there = name_of(place.backup)
    alone = msgspec.structs.replace(place, backup=None, moving=False)
    promoted = msgspec.structs.replace(
        place, primary=place.backup, backup=None, joining=None, epoch=place.epoch + 1, moving=False
    )
    ways = [
        (_strain(made, asset, new), gone, new)
        for new, gone, stays in ((alone, there, here), (promoted, here, there))
        if _has_another(made, stays, gone) and not (is_ledger(asset) and new is promoted)
    ]
    if ways:
        _, gone, new = min(ways, key=lambda way: way[0])
        made.detours.append(Detour("primary of" if gone == here else "backup of", asset, gone, Name("")))
        made.put(asset, **msgspec.structs.asdict(new))


def _has_another(made: Draft, stays: Name, gone: Name) -> bool:
    """Is there a member that could hold the second copy?"""
    return any(name not in (stays, gone) and not made.links.is_cut(stays, name) for name in made.load)


#: What is chosen among moves that gain the same: what costs least. To get a backup elsewhere is only a first step.
_ORDER = ("primary of", "stage", "backup of")

#: (how much is gained, negative; its order; what is done; the new place)
_Candidate = tuple[int, int, Detour, Place]


def _moves(made: Draft, asset: Asset) -> Iterator[_Candidate]:
    place = made.places[asset]
    if place.primary is None or place.joining:
        return  # one thing after the other
    strain = _strain(made, asset, place)
    if not strain:
        return
    for detour, new, then in _ways(made, asset, place):
        gain = strain - _strain(made, asset, then)
        if gain > 0:
            yield (-gain, _ORDER.index(detour.what), detour, new)


def _ways(made: Draft, asset: Asset, place: Place) -> Iterator[tuple[Detour, Place, Place]]:
    """What could be done: the place that the record would name now, and the one that it leads to."""
    here, change = name_of(place.primary or ""), msgspec.structs.replace
    if place.is_stage:
        for name in made.load:
            if name != here:
                backup = None if place.backup and name_of(place.backup) == name else place.backup
                seat = made.seat(asset, name)
                new = change(place, primary=seat, backup=backup, epoch=place.epoch + 1, moving=False)
                yield Detour("stage", asset, here, name), new, new
        return
    there = name_of(place.backup or "")
    if there in made.load and not place.moving and not made.links.is_cut(here, there):
        new = place.swapped() if place.twin else change(place, moving=True)
        yield Detour("primary of", asset, here, there), new, new
    for name in made.load:
        if place.backup and name not in (here, name_of(place.backup)) and not made.links.is_cut(here, name):
            seat = made.seat(asset, name)
            new = change(place, joining=seat, moving=False)
            then = change(place, primary=seat, backup=place.primary, moving=False)
            yield Detour("backup of", asset, name_of(place.backup), name), new, then
