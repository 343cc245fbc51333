"""What the next placement record should be: a function of the last one, of what was reported and of measured loads.

The coordinator calls `plan` whenever it may propose. Each plan changes the membership by one at the most and does
everything that follows from it at once: a failed node's shards go to all the nodes that hold their images, in one
record (cooperative-ha §3.5). What is left unprotected gets a joining seat in the same record; a seat becomes the
backup only when the primary has reported that it holds everything, so the record never names a backup that could
not take over. A shard whose only holder is suspected stays where it is: nobody else could run it, and the suspicion
may be false; it is lost only when that node shows itself in a new life.

A shard whose state is in the stable store goes to another node when all its copies are gone, and starts from there
(`Place.restored`).

A shard in a mode that lets it (`none`) goes to another node at once, where it starts empty (`Place.empty`). One in a
mode that promises its state never does: it is lost, and the record says so.

A mode without a backup (`none`) begins with the record that drops the backup, never before: until a primary has that
record it acknowledges only what the backup holds. A mode with one is in force (`Place.mode`) from the record on that
names the backup. To leave a draining node a shard gets a second copy in any mode, until it has moved.

A stage has no state here, so it can start anywhere; a standby makes that short. It is never on the stage's own node,
and not where another stage of that node stands by if there is room elsewhere, so that a node's stages do not all end up
on one. A stage that is well moves (`Place.moving`) only to a standby that is warm (`core/standbys.py`). One that lost
its node passes over a standby whose JVM is still starting, for a node where one is up, and keeps it as its standby.
"""

from __future__ import annotations

import msgspec

from holdfast.core.assign import Reassign
from holdfast.core.balance import Move, balance, reassign
from holdfast.core.detours import Detour, go_around, may_hold, strain_at
from holdfast.core.links import NO_CUTS, LinkView
from holdfast.core.load import LoadView, Scale
from holdfast.model.config import Config
from holdfast.model.domains import draw, shared
from holdfast.model.ids import Asset, Name, Seat, disk_seat, is_ledger, life_of, name_of, operator_of, seat_of
from holdfast.model.messages import GivenUp, SkipsPassed
from holdfast.model.protection import MODES, OnFailure, Protection
from holdfast.model.record import ROSTER_MAX, Place, Record
from holdfast.model.skips import SKIPS_MAX


class Reports:
    """What the coordinator has heard since it last changed the record. Entries that no longer apply do no harm."""

    __slots__ = (
        "downs", "drains", "fell_back", "given_up", "hellos", "joined", "let_in", "passed", "protection", "sent_away",
        "suspects", "unfit", "warmed", "yielded",
    )  # fmt: skip

    def __init__(self) -> None:
        self.suspects: dict[Name, int] = {}
        self.hellos: dict[Name, int] = {}
        self.joined: dict[Asset, tuple[int, Seat]] = {}
        self.unfit: dict[Asset, tuple[int, Seat]] = {}
        self.fell_back: dict[Asset, tuple[int, Seat]] = {}
        self.yielded: dict[Asset, int] = {}
        self.warmed: dict[Asset, tuple[int, Seat]] = {}
        self.protection: dict[str, Protection] = {}
        self.drains: dict[Name, None] = {}
        self.downs: dict[Asset, int] = {}
        self.given_up: dict[Asset, GivenUp] = {}
        self.passed: dict[Asset, SkipsPassed] = {}
        self.let_in: dict[Name, str] = {}
        self.sent_away: dict[Name, None] = {}

    def is_empty(self) -> bool:
        return not any(getattr(self, name) for name in self.__slots__)


class Draft:
    """The next record under construction."""

    __slots__ = (
        "before", "config", "detours", "draining", "drivers", "links", "load", "may_move", "members", "move", "places",
        "protection", "reassign", "reassigned", "roster", "scale", "spread", "units", "version",
    )  # fmt: skip

    def __init__(self, record: Record, loads: LoadView, links: LinkView, config: Config) -> None:
        self.before = record
        self.version = record.version + 1
        self.config = config
        self.protection = dict(record.protection)
        self.members = dict(record.members)
        self.places = dict(record.places)
        self.draining = record.draining
        self.roster = dict(record.roster)
        self.units = record.units if loads.units is None else loads.units
        #: What each member that may get something has to do, in nanoseconds per second; and what a copy adds to it.
        self.load: dict[Name, int] = {}
        self.scale = Scale(loads, record.places)
        self.may_move = loads.may_move
        self.drivers = loads.drivers
        #: Which links are cut, and what goes around them.
        self.links = links
        self.detours: list[Detour] = []
        #: What is moved for balance.
        self.move: Move | None = None
        #: Units that shall have another backup by the last epoch; those that get one now; what goes to another domain.
        self.reassign = loads.reassign
        self.reassigned: list[Reassign] = []
        self.spread: tuple[Asset, Name, Name] | None = None

    @property
    def changed(self) -> bool:
        before = self.before
        return (self.members, self.draining, self.places, self.protection, self.units, self.roster) != (
            before.members,
            before.draining,
            before.places,
            before.protection,
            before.units,
            before.roster,
        )

    @property
    def leaving(self) -> tuple[Name, ...]:
        """Members that shall hold nothing. If nobody else is left, a drain cannot be honoured: better to run."""
        return self.draining if any(name not in self.draining for name in self.members) else ()

    def mode_of(self, asset: Asset) -> str:
        """The mode that is wanted. A ledger has a backup whatever the operators want."""
        wanted = None if is_ledger(asset) else self.protection.get(operator_of(asset))
        return wanted.mode if wanted else Protection().mode

    def is_stored(self, asset: Asset) -> bool:
        """Is its state in the stable store, so that any node can go on with it?"""
        wanted = None if is_ledger(asset) else self.protection.get(operator_of(asset))
        return wanted is not None and wanted.is_stored and not self.places[asset].is_stage

    def seat(self, asset: Asset, name: Name) -> Seat:
        """A member's seat for it, in its present life; a ledger sits on the name, as its disk does."""
        return disk_seat(name) if is_ledger(asset) else seat_of(name, self.members[name])

    def stands(self, seat: Seat) -> bool:
        """Is this seat a member, in this life?"""
        name = name_of(seat)
        return name in self.members and life_of(seat) in (0, self.members[name])

    def may_run(self, seat: Seat | None) -> bool:
        return seat is not None and self.stands(seat) and name_of(seat) not in self.leaving

    def may_join(self, asset: Asset) -> bool:
        """May its primary's node bring up one more image now? (A ledger is one small page.)"""
        if is_ledger(asset):
            return True
        home = name_of(self.places[asset].primary or "")
        busy = [a for a, p in self.places.items() if p.joining and p.primary and name_of(p.primary) == home]
        return sum(not is_ledger(a) for a in busy) < self.config.joins_max

    def shared(self, asset: Asset, name: Name) -> int:
        """How much a copy there would share with the one that runs: what takes both at once."""
        primary = self.places[asset].primary
        return shared(name_of(primary), name, self.config.domains) if primary else 0

    def put(self, asset: Asset, **fields: object) -> None:
        place = msgspec.structs.replace(self.places[asset], **fields)
        if place != self.places[asset]:
            self.places[asset] = msgspec.structs.replace(place, since=self.version)


def plan(record: Record, reports: Reports, loads: LoadView, config: Config, links: LinkView = NO_CUTS) -> Draft | None:
    """The next record, or None if nothing is to be done."""
    made = Draft(record, loads, links, config)
    for operator, protection in sorted(reports.protection.items()):
        if operator in made.protection:
            made.protection[operator] = protection
    if not _change_members(made, reports):
        _note_drains(made, reports)
        _write_roster(made, reports)
    for asset in sorted(made.places):
        _settle(made, asset, reports)
        _skip(made, asset, reports)
    _count_load(made)
    go_around(made)
    for asset in sorted(made.places):
        _protect(made, asset, reports)
    reassign(made)
    balance(made)
    return made if made.changed else None


# --- membership -----------------------------------------------------------------------------------------------------


def _change_members(made: Draft, reports: Reports) -> bool:
    """Add, replace or remove one member."""
    for name in sorted(reports.hellos):
        life = reports.hellos[name]
        known = made.members.get(name)
        if known is None or life > known:
            if known is not None:
                _leave(made, name, gone_for_good=False)
            made.members[name] = life
            made.draining = tuple(n for n in made.draining if n != name)
            _bury(made, name, life)
            return True
    for name in sorted(reports.suspects):
        if made.members.get(name) == reports.suspects[name] and len(made.members) > 1:
            _remove(made, name)
            return True
    for name in sorted(reports.sent_away):  # not before everything that it held is elsewhere
        held = any(name_of(seat) == name for place in made.places.values() for seat in place.holders)
        if name in made.members and name in made.leaving and not held and _has_line(made, name):
            _remove(made, name)
            made.roster[name] = ""
            return True
    return False


def _remove(made: Draft, name: Name) -> None:
    del made.members[name]
    made.draining = tuple(n for n in made.draining if n != name)
    _leave(made, name, gone_for_good=True)


def _leave(made: Draft, name: Name, *, gone_for_good: bool) -> None:
    """A member is gone. A ledger outlives a restart (its disk is there), but not a removal."""
    for asset in sorted(made.places):
        durable = is_ledger(asset)
        if durable and not gone_for_good:
            continue
        place = made.places[asset]
        backup = None if place.backup and name_of(place.backup) == name else place.backup
        joining = None if place.joining and name_of(place.joining) == name else place.joining
        primary, epoch, moving = place.primary, place.epoch, place.moving and backup is not None
        is_cold = place.is_stage and backup is not None and made.drivers.get(backup) is False
        if primary and name_of(primary) == name and backup and not is_cold:
            primary, backup, epoch, moving = backup, None, epoch + 1, False
        elif primary and name_of(primary) == name and (is_cold or _may_start_empty(place) or made.is_stored(asset)):
            primary, joining, moving = None, None, False  # `_protect` finds a node for it
        made.put(asset, primary=primary, backup=backup, joining=joining, epoch=epoch, moving=moving)


def _bury(made: Draft, name: Name, life: int) -> None:
    """A node shows itself in a new life: what only its old life held is lost, and the record says so."""
    for asset in sorted(made.places):
        primary = made.places[asset].primary
        if primary and name_of(primary) == name and 0 < life_of(primary) < life:
            made.put(asset, primary=None, backup=None, joining=None, moving=False)


def _note_drains(made: Draft, reports: Reports) -> None:
    fresh = [name for name in sorted(reports.drains) if name in made.members and name not in made.draining]
    left = len(made.members) - len(made.draining) - len(fresh)
    if fresh and left >= 1:
        made.draining = (*made.draining, *fresh)


def _has_line(made: Draft, name: Name) -> bool:
    """Is there room for it in the roster? A record with more names is refused by everybody."""
    return name in made.roster or len(made.roster) < ROSTER_MAX


def _write_roster(made: Draft, reports: Reports) -> None:
    """Who may become a member, and where it listens: in the record before it is one."""
    for name in sorted(reports.let_in):
        if name not in made.members and _has_line(made, name):
            made.roster[name] = reports.let_in[name]


# --- places -----------------------------------------------------------------------------------------------------------


def _settle(made: Draft, asset: Asset, reports: Reports) -> None:
    """Take up what primaries reported: a seat that joined or does not continue, a primary that yielded."""
    place = made.places[asset]
    since, seat = reports.joined.get(asset, (-1, ""))
    behind_since, behind = reports.fell_back.get(asset, (-1, ""))
    if behind_since == place.since and behind in place.running:
        _join_anew(made, asset, Seat(behind))
    elif place.joining and reports.unfit.get(asset) == (place.since, place.joining):
        made.put(asset, joining=None)  # whoever joins next, perhaps the same, begins anew
    elif place.joining and place.since == since and place.joining == seat:
        made.put(asset, backup=seat, joining=None, mode=made.mode_of(asset))
    elif place.backup and reports.unfit.get(asset) == (place.since, place.backup):
        made.put(asset, backup=None, joining=place.backup, moving=False)
    elif place.moving and place.backup and reports.yielded.get(asset) == place.since:
        made.put(asset, primary=place.backup, backup=place.primary, epoch=place.epoch + 1, moving=False)


def _join_anew(made: Draft, asset: Asset, behind: Seat) -> None:
    """One of two copies that run cannot keep up, or cannot go on: the other one goes on alone. One that is alone goes
    on at a new epoch."""
    place = made.places[asset]
    joining = place.joining or (behind if made.may_run(behind) else None)
    if not place.twin:
        made.put(asset, epoch=place.epoch + 1)
    elif behind == place.primary:
        made.put(asset, primary=place.twin, backup=None, joining=joining, epoch=place.epoch + 1)
    else:
        made.put(asset, backup=None, joining=joining)


def _skip(made: Draft, asset: Asset, reports: Reports) -> None:
    """Skip what a primary has given up, at a new epoch; forget what every copy has passed. A primary whose state is
    torn hands over to its backup, which has all that came before; one that moves gives up again where it goes."""
    place, given_up, passed = made.places[asset], reports.given_up.get(asset), reports.passed.get(asset)
    if passed is not None and passed.since == place.since:
        made.put(asset, skips=tuple(skip for skip in place.skips if skip not in passed.skips))
    if given_up is None or given_up.since != place.since or len(made.places[asset].skips) >= SKIPS_MAX:
        return
    skips = (*made.places[asset].skips, given_up.skip)
    if not given_up.torn and not place.moving:
        made.put(asset, epoch=place.epoch + 1, skips=skips)
    elif given_up.torn and place.backup:
        made.put(asset, primary=place.backup, backup=None, epoch=place.epoch + 1, moving=False, skips=skips)


def _count_load(made: Draft) -> None:
    load = {name: 0 for name in sorted(made.members) if name not in made.leaving}
    for asset, place in made.places.items():
        for seat in place.holders:
            name = name_of(seat)
            if name in load:
                load[name] += made.scale.weigh(asset, place, runs=seat in place.running)
    made.load = load


def _lightest(
    made: Draft, asset: Asset, *, without: tuple[Seat | None, ...], runs: bool = False, last_resort: bool = False
) -> Name | None:
    """The member in reach that has the least to do; a leaving one only if there is no other (a backup there beats
    none)."""
    taken = {name_of(seat) for seat in without if seat}
    more = {} if runs else _would_follow(made, asset)
    up = _have_driver(made, asset) if runs and made.config.standby and made.places[asset].is_stage else set[Name]()
    apart = (lambda name: 0) if runs else (lambda name: made.shared(asset, name))
    free = [
        (strain_at(made, asset, name, runs=runs), apart(name), name not in up, load + more.get(name, 0), name)
        for name, load in made.load.items()
        if name not in taken and (runs or may_hold(made, asset, name))
    ]
    if not free and last_resort:
        return next((name for name in made.leaving if name not in taken and may_hold(made, asset, name)), None)
    if not free:
        return None
    name = min(free)[-1]
    is_shard = not made.places[asset].is_stage and not is_ledger(asset)
    if made.config.assignor == "random_static" and is_shard and not runs:
        name = draw(asset, [found[-1] for found in free if found[:2] == min(free)[:2]])
    made.load[name] += made.scale.weigh(asset, made.places[asset], runs=runs)
    return name


def _have_driver(made: Draft, asset: Asset) -> set[Name]:
    """Where a driver process is up, other than the one that this stage was in."""
    was, seats = made.before.places[asset].primary, {name: seat_of(name, made.members[name]) for name in made.load}
    return {name for name, seat in seats.items() if made.drivers.get(seat) and seat != was}


def _would_follow(made: Draft, asset: Asset) -> dict[Name, int]:
    """For the standby of a stage: what each member would have to run, beside it, if the stage's node died."""
    place, found = made.places[asset], dict[Name, int]()
    if place.is_stage and place.primary:
        home = name_of(place.primary)
        for other, there in made.places.items():
            if other != asset and there.is_stage and there.primary and there.backup and name_of(there.primary) == home:
                name = name_of(there.backup)
                found[name] = found.get(name, 0) + made.scale.weigh(other, there, runs=True)
    return found


def _protect(made: Draft, asset: Asset, reports: Reports) -> None:
    """Give a stage a node, every ledger a backup, and every shard what its mode wants; empty a draining node."""
    place = made.places[asset]
    if place.is_stage:
        _run_stage(made, asset, reports)
        return
    if place.primary is None:
        if made.is_stored(asset):
            _start_anew(made, asset, "restored")
        elif _may_start_empty(place):
            _start_anew(made, asset, "empty")
        return
    leaves, mode = name_of(place.primary) in made.leaving, made.mode_of(asset)
    if leaves and place.twin and name_of(place.twin) not in made.leaving:
        made.put(asset, **msgspec.structs.asdict(place.swapped()))  # both run: nothing has to be handed over
        place, leaves = made.places[asset], False
    if not MODES[mode].has_backup:
        if place.twin or not leaves:
            made.put(asset, mode=mode, backup=None, joining=None, moving=False)
            return
        made.put(asset, mode=mode)
    elif (place.twin and not MODES[mode].runs_beside) or (place.keeper and not MODES[mode].keeps_input):
        _bring_up_another(made, asset)
        return
    elif place.backup:
        made.put(asset, mode=mode, moving=place.moving and not MODES[mode].runs_beside)
        place = made.places[asset]
    if place.joining:
        return
    backup_stays = place.backup and name_of(place.backup) not in made.leaving
    if not backup_stays:
        if not made.may_join(asset):
            return  # its turn comes when others have joined
        name = _lightest(made, asset, without=(place.primary, place.backup), last_resort=place.backup is None)
        if name:
            made.put(asset, joining=made.seat(asset, name), moving=False)
    elif leaves and not place.twin:
        made.put(asset, moving=True)


def _bring_up_another(made: Draft, asset: Asset) -> None:
    """To a mode with an image: a twin is further than any image, or not as far, and a keeper has none. It stays until
    somebody else has one; if nobody else can have one, it joins anew itself."""
    place = made.places[asset]
    if place.joining or not made.may_join(asset):
        return
    name = _lightest(made, asset, without=(place.primary, place.backup))
    if name:
        made.put(asset, joining=made.seat(asset, name))
    else:
        made.put(asset, backup=None, joining=place.backup, moving=False)


def _may_start_empty(place: Place) -> bool:
    """Does the mode in force let it go on without what it knew? That of a ledger or a protected shard never does."""
    return not place.is_stage and MODES[place.mode].on_failure is OnFailure.EMPTY


def _start_anew(made: Draft, asset: Asset, how: str) -> None:
    """On some node, at a new epoch: from the store (`restored`), or knowing nothing (`empty`)."""
    name = _lightest(made, asset, without=(), runs=True)
    if name:
        epoch = made.places[asset].epoch + 1
        made.put(asset, primary=made.seat(asset, name), epoch=epoch, **{how: epoch})


def _run_stage(made: Draft, asset: Asset, reports: Reports) -> None:
    """A stage whose node or driver is gone goes to its standby if it has one that is up, else to the lightest member.
    One that shall leave its node goes when its standby is warm; without standbys, at once."""
    place = made.places[asset]
    standby = place.backup if made.may_run(place.backup) else None
    is_well = place.primary is not None and made.stands(place.primary) and reports.downs.get(asset) != place.epoch
    leaves = is_well and not made.may_run(place.primary)
    if is_well and place.moving and standby and reports.warmed.get(asset) == (place.since, standby):
        before = None if leaves else place.primary
        made.put(asset, primary=standby, backup=before, epoch=place.epoch + 1, moving=False)
        standby = before
    elif not is_well or (leaves and not made.config.standby):
        waits = standby and made.drivers.get(standby) is False and _have_driver(made, asset)
        name = name_of(standby) if standby and not waits else _lightest(made, asset, without=(standby,), runs=True)
        if name is not None:
            standby = None if standby and name_of(standby) == name else standby
            made.put(asset, primary=made.seat(asset, name), backup=standby, epoch=place.epoch + 1, moving=False)
    if made.config.standby and not standby:
        name = _lightest(made, asset, without=(made.places[asset].primary,))
        standby = made.seat(asset, name) if name else None
    now = made.places[asset]
    stays = standby == now.backup
    moving = standby is not None and ((leaves and now.primary == place.primary) or (now.moving and stays))
    made.put(asset, backup=standby, moving=moving)
