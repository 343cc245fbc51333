"""Moves that nothing calls for but balance: a part of `core/placement.py`.

One thing moves at a time, when nothing else is on its way and a look at the balance is due (`balance_ns`), and only if
that is worth it. First what is too near its primary goes to another failure domain. Else, of the busiest node, what
evens it out best: a backup (unless an assignor says where those are), a stage, its standby, and with `move_primaries`
a shard that changes places with its backup, by the hand-over that a drain uses. All of them go by load over about a
minute, and by a margin; what runs moves by twice the margin.

What the last epoch has come to (`core/assign.py`) is not held up by others: as many at once as may join.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.detours import may_hold, strain_at
from holdfast.model.domains import farthest
from holdfast.model.ids import Asset, Name, is_ledger, name_of
from holdfast.model.record import Place

if TYPE_CHECKING:
    from holdfast.core.placement import Draft

#: A tenth of what a node has to do is noise: smaller differences move nothing.
NOISE = 10


class Move(NamedTuple):
    """What may move for balance: the "backup of" a shard, the "standby of" a stage, a "stage" itself, or the
    "primary of" a shard."""

    what: str
    asset: Asset
    source: Name
    target: Name
    #: What both have to do, and what would go from one to the other.
    high: int
    low: int
    weight: int

    @property
    def highest(self) -> int:
        """What the busier of the two would then have."""
        return max(self.high - self.weight, self.low + self.weight)


def reassign(made: Draft) -> None:
    """Units that shall have another backup by the last epoch, as many as may join now. The rest waits for its turn."""
    for asset, move in made.reassign.items():
        place = made.places.get(asset)
        if place is None or place.backup is None or place.twin or place.joining or place.moving:
            continue
        as_it_was = name_of(place.backup) == move.source and name_of(place.primary or "") != move.target
        in_reach = not strain_at(made, asset, move.target, runs=False) and may_hold(made, asset, move.target)
        if as_it_was and in_reach and move.target in made.load and made.may_join(asset):
            made.put(asset, joining=made.seat(asset, move.target))
            made.reassigned.append(move)


def balance(made: Draft) -> None:
    """Move one backup or one stage to a member that has less to do, if that is worth it.

    Whoever takes it must stay well below what the other had before. So every move makes the sum of squares of all loads
    smaller, the moves come to an end, and to go back the loads would have to change by twice the margin. A stage that
    moves costs a pause, a standby a while without one: for those the margin is twice as wide.
    """
    if not made.may_move or any(p.joining or p.moving for p in made.places.values()):
        return
    if _spread(made):
        return
    found = [*_moves_of_backups(made), *_moves_of_stages(made), *_moves_of_primaries(made)]
    if found:  # of the busiest node, what evens it out best
        best = min(found, key=lambda move: (-move.high, move.highest, move.asset, move.target))
        made.move = best
        seat = made.seat(best.asset, best.target)
        if best.what == "backup of":
            made.put(best.asset, joining=seat)
        elif best.what == "standby of":
            made.put(best.asset, backup=seat)
        else:
            made.put(best.asset, moving=True)  # a stage: to its standby, when that is warm; a shard: to its backup


def _spread(made: Draft) -> bool:
    """Something shares more with its primary than it would have to."""
    for asset, place in made.places.items() if made.config.domains else ():
        if not (place.primary and place.backup) or name_of(place.backup) not in made.load:
            continue
        home, source = name_of(place.primary), name_of(place.backup)
        apart = [
            name
            for name in farthest(home, list(made.load), made.config.domains)
            if made.shared(asset, name) < made.shared(asset, source)
        ]
        free = [n for n in apart if may_hold(made, asset, n) and not strain_at(made, asset, n, runs=False)]
        if free:
            target = min(free, key=lambda name: (made.load[name], name))
            made.spread = (asset, source, target)
            seat = made.seat(asset, target)
            made.put(asset, **({"backup": seat} if place.is_stage else {"joining": seat}))
            return True
    return False


def _moves_of_backups(made: Draft) -> Iterator[Move]:
    if made.config.assignor != "load":
        return
    for asset, place in made.places.items():
        if not place.is_stage and place.primary and place.backup:
            yield from _to_lighter(made, asset, place, "backup of", made.config.imbalance_ns)


def _moves_of_stages(made: Draft) -> Iterator[Move]:
    margin = 2 * made.config.imbalance_ns
    for asset, place in made.places.items():
        if not (place.is_stage and made.may_run(place.primary) and made.may_run(place.backup)):
            continue
        yield from _to_lighter(made, asset, place, "standby of", margin)
        source, target = name_of(place.primary or ""), name_of(place.backup or "")
        # they change places, so each keeps a copy
        weight = made.scale.weigh(asset, place, runs=True) - made.scale.weigh(asset, place, runs=False)
        yield from _if_worth_it(
            made, Move("stage", asset, source, target, made.load[source], made.load[target], weight), margin
        )


def _moves_of_primaries(made: Draft) -> Iterator[Move]:
    """To the node of its backup, which gets the image instead. (A twin has as much to do as its primary.)"""
    margin = 2 * made.config.imbalance_ns
    for asset, place in made.places.items() if made.config.move_primaries else ():
        if place.is_stage or is_ledger(asset) or place.twin or not (place.primary and place.backup):
            continue
        source, target = name_of(place.primary), name_of(place.backup)
        if source in made.load and target in made.load:
            weight = made.scale.weigh(asset, place, runs=True) - made.scale.weigh(asset, place, runs=False)
            move = Move("primary of", asset, source, target, made.load[source], made.load[target], weight)
            yield from _if_worth_it(made, move, margin)


def _to_lighter(made: Draft, asset: Asset, place: Place, what: str, margin_ns: int) -> Iterator[Move]:
    """A second copy, to the member that has the least to do."""
    source = name_of(place.backup or "")
    if source not in made.load:
        return
    home = name_of(place.primary or "")
    order = sorted(farthest(home, list(made.load), made.config.domains), key=lambda name: (made.load[name], name))
    target = next((name for name in order if name != source), source)
    weight = made.scale.weigh(asset, place, runs=place.twin is not None)
    yield from _if_worth_it(
        made, Move(what, asset, source, target, made.load[source], made.load[target], weight), margin_ns
    )


def _if_worth_it(made: Draft, move: Move, margin_ns: int) -> Iterator[Move]:
    runs = move.what in ("stage", "primary of")
    if strain_at(made, move.asset, move.target, runs=runs) or not may_hold(made, move.asset, move.target):
        return  # behind a link that is cut
    if move.weight > 0 and move.high - move.low - move.weight >= max(margin_ns, move.high // NOISE):
        yield move
