"""The placement record: who is primary, who is backup, at which epoch. One small value, changed only as a whole.

A shard sits on seats (`n2#3`), because its state dies with the process; a ledger sits on names (`n2`), because its
disk does not. `since` is the version at which a place last changed: a stage names it in every delivery, so that no
batch can be committed with holders that the record has replaced meanwhile.
"""

from __future__ import annotations

import msgspec

from holdfast.model.domains import draw, farthest
from holdfast.model.ids import Asset, Consumer, Name, Seat, asset_id, disk_seat, is_ledger, operator_of, seat_of
from holdfast.model.protection import MODES, Protection
from holdfast.model.ranges import Life, Number, PlaceEpoch
from holdfast.model.skips import Skip
from holdfast.model.topology import Topology


class Place(msgspec.Struct, frozen=True, kw_only=True):
    #: None: the asset is lost (a shard) or waits for a node (a stage).
    primary: Seat | None
    #: Holds everything the primary has acknowledged. None: unprotected. Of a stage: where a warm driver stands by.
    backup: Seat | None = None
    #: Is being brought up to date; becomes the backup when the primary has reported it.
    joining: Seat | None = None
    #: Raised whenever the primary changes, or what it makes of its input (`skips`); never otherwise.
    epoch: PlaceEpoch = 1
    #: Record version at which this place last changed.
    since: Number = 1
    #: The primary shall stop, capture and hand over to the backup (drain).
    moving: bool = False
    #: The mode in force: that of its operator, but still the weaker one until the stronger one holds.
    mode: str = "passive"
    #: The epoch at which a primary started empty, after a failure in a mode that lets it; 0: none did.
    empty: PlaceEpoch = 0
    #: The epoch at which a primary started from the store, after all copies were gone; 0: none did.
    restored: PlaceEpoch = 0
    #: Blocks that its copies pass over. Each came with a new epoch, before any copy had stepped it.
    skips: tuple[Skip, ...] = ()
    #: A Spark query: it has no state here, so it moves by starting elsewhere.
    is_stage: bool = False

    @property
    def twin(self) -> Seat | None:
        """Who runs beside the primary all the time, in the mode in force."""
        return self.backup if MODES[self.mode].runs_beside else None

    @property
    def running(self) -> tuple[Seat, ...]:
        """Seats whose copies run. The primary acknowledges for all of them."""
        return tuple(s for s in (self.primary, self.twin) if s)

    @property
    def beside(self) -> Seat | None:
        """Who else makes its output, or may: readers ask both."""
        return self.stand_in or self.twin

    @property
    def stand_in(self) -> Seat | None:
        """Who may make its output beside the primary, in the mode in force."""
        return self.backup if MODES[self.mode].stands_in else None

    @property
    def keeper(self) -> Seat | None:
        """Who keeps input instead of state, in the mode in force."""
        return self.backup if MODES[self.mode].keeps_input else None

    @property
    def starts_empty(self) -> bool:
        """The present primary is one that had to start empty."""
        return self.empty == self.epoch

    @property
    def starts_restored(self) -> bool:
        """The present primary is one that had to start from the store."""
        return self.restored == self.epoch

    @property
    def holders(self) -> tuple[Seat, ...]:
        return tuple(s for s in (self.primary, self.backup, self.joining) if s)

    @property
    def targets(self) -> tuple[Seat, ...]:
        """Seats that captures go to: a twin makes its state itself, and a keeper has none."""
        return tuple(s for s in (None if self.twin or self.keeper else self.backup, self.joining) if s)

    def swapped(self) -> Place:
        """Primary and twin change their roles: both go on."""
        change = msgspec.structs.replace
        return change(self, primary=self.twin, backup=self.primary, epoch=self.epoch + 1, moving=False)


#: Names in a roster; each costs every node a link, and every record the address. Who has left keeps the name.
ROSTER_MAX = 256


class Record(msgspec.Struct, frozen=True, kw_only=True):
    version: Number
    #: Term of the coordinator that proposed it.
    term: Number
    #: Voting members and the life each is in.
    members: dict[Name, Life]
    places: dict[Asset, Place]
    draining: tuple[Name, ...] = ()
    #: How each operator is protected.
    protection: dict[str, Protection] = {}
    #: Shards that are captured together with others, and their unit: the first of those. The rest are on their own.
    units: dict[Asset, Asset] = {}
    #: Nodes that the files of the others do not name, and where they listen. Empty: that node has left for good.
    roster: dict[Name, str] = {}

    def has_left(self, name: Name) -> bool:
        return self.roster.get(name) == ""

    def place_of(self, consumer: Consumer) -> Place | None:
        """Where a consumer runs, if it is an asset: a guest is not."""
        return self.places.get(asset_id(consumer))

    def protection_of(self, shard: Asset) -> Protection:
        return self.protection.get(operator_of(shard), Protection())

    def wants_backup(self, asset: Asset) -> bool:
        """Shall a second node hold a copy? Of a ledger always, of a shard if its operator's mode says so."""
        return not self.places[asset].is_stage and (
            is_ledger(asset) or MODES[self.protection_of(asset).mode].has_backup
        )

    def unprotected(self) -> list[Asset]:
        """What shall have a second copy and has none."""
        open_places = (a for a, p in self.places.items() if p.primary is not None and p.backup is None)
        return [asset for asset in open_places if self.wants_backup(asset)]

    @property
    def rank(self) -> tuple[int, int]:
        return (self.term, self.version)


def majority(voters: int) -> int:
    return voters // 2 + 1


NO_RECORD = Record(version=0, term=0, members={}, places={})


def first_record(
    topology: Topology,
    names: tuple[Name, ...],
    protection: Protection | None = None,
    own: dict[str, Protection] | None = None,
    domains: dict[Name, str] | None = None,
    *,
    draws: bool = False,
) -> Record:
    """The record a pipeline starts with: shards and their backups dealt out round the ring, all empty and in step.
    Operators are protected as `protection` says, but for those that have settings of their own. A backup is as far from
    its primary as `domains` allow; with `draws` it is where the lot puts it."""
    ring = sorted(names)
    count = len(ring)
    places: dict[Asset, Place] = {}
    operators = sorted({operator_of(shard) for shard in topology.shard})
    protection, own = protection or Protection(), own or {}
    chosen = {name: own.get(name, protection) for name in operators}
    for i, shard in enumerate(topology.shards):
        mode = chosen[operator_of(shard.id)].mode
        home, backup = ring[i % count], None
        if count > 1 and MODES[mode].has_backup:
            found = farthest(home, _after(ring, i), domains or {})
            turn = i // count + (i % count if domains else 0)
            backup = draw(shard.id, found) if draws else found[turn % len(found)]
        seat = seat_of(backup, 1) if backup else None
        places[shard.id] = Place(primary=seat_of(home, 1), backup=seat, mode=mode)
    for i, stage in enumerate(s for s in topology.stages if not s.foreign):
        places[stage.id] = Place(primary=seat_of(ring[i % count], 1), is_stage=True)
    for i, ledger in enumerate(topology.ledgers):
        home = ring[(i + 1) % count]
        backup = disk_seat(farthest(home, _after(ring, i + 1), domains or {})[0]) if count > 1 else None
        places[ledger] = Place(primary=disk_seat(home), backup=backup)
    members = dict.fromkeys(ring, 1)
    return Record(version=1, term=0, members=members, places=places, protection=chosen)


def _after(ring: list[Name], i: int) -> list[Name]:
    """Round the ring, from the one after the i-th on."""
    at = (i + 1) % len(ring)
    return ring[at:] + ring[:at]
