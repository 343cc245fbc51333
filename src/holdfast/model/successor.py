"""Could a record be the next one? What a record from outside must be, before it is kept or acted on.

It places what the pipeline has and nothing else, on seats that can have it, and it follows from the record that is
known: nothing goes back, and only what has changed since then says so. A record that keeps all this may still be one
that nobody has decided; who may decide it is for the election to say.
"""

from __future__ import annotations

from holdfast.model.ids import Asset, Seat, is_ledger, life_of, name_of
from holdfast.model.message import STEP, View, ahead
from holdfast.model.protection import MODES
from holdfast.model.ranges import is_word, shown
from holdfast.model.record import ROSTER_MAX, Place, Record
from holdfast.model.skips import objection as skips_objection
from holdfast.model.topology import Topology


def record_objection(record: Record, view: View) -> str:
    """Why it cannot be a record that this machine is told of; empty: it can. Records that are behind are never acted
    on, and only looked at for what they are."""
    before = view.record
    return (
        ahead("version", record.version, before.version, STEP)
        or ahead("term", record.term, view.term, STEP)
        or _shape(record, before, view.topology, whole=view.is_node)
        or _follows(record, before)
        or (view.impossible(record) if record.version > before.version else "")
    )


def _shape(record: Record, before: Record, topology: Topology, *, whole: bool) -> str:
    wanted = topology.placed
    missing = wanted.difference(record.places)
    if missing or not record.version:
        return f"it has no place for {shown(sorted(missing)[:3])}"
    foreign = set(record.places).difference(wanted) if whole else ()
    if foreign:
        return f"it places {shown(sorted(foreign)[:3])}, which this pipeline does not have"
    if not record.members or any(name not in record.members for name in record.draining):
        return "it has no members, or drains somebody else"
    if whole and not topology.operators.issuperset(record.protection):
        return "it protects other operators than there are"
    if whole and any(MODES[p.mode].keeps_input and o in topology.timeless for o, p in record.protection.items()):
        return "it protects by input what cannot be made again from a stretch of it"
    if whole and not topology.has_store and any(p.is_stored for p in record.protection.values()):
        return "its checkpoints need a store, and this pipeline has none"
    if len(record.roster) > ROSTER_MAX:
        return f"its roster has {len(record.roster)} names, more than {ROSTER_MAX}"
    if not all(is_word(address) for address in record.roster.values()):
        return "it says that a node listens where none can"
    units = record.units
    if whole and not all(shard in topology.shard and units.get(unit) == unit for shard, unit in units.items()):
        return "it groups other shards than there are"
    known = before.places if record.members == before.members else {}  # what has not changed was looked at before
    for asset in wanted:
        place = record.places[asset]
        why = "" if place == known.get(asset) else _place(asset, place, record, is_stage=asset in topology.stage)
        if place.skips and not why:
            shard = topology.shard.get(asset)
            why = skips_objection(place.skips, (shard.inputs if shard else ()) if whole else None)
        if why:
            return f"{asset}: {why}"
    return ""


def _place(asset: Asset, place: Place, record: Record, *, is_stage: bool) -> str:
    holders = place.holders
    if place.is_stage is not is_stage or place.mode not in MODES:
        return f"it cannot be placed as {shown(place)}"
    if (
        place.since > record.version
        or max(place.empty, place.restored) > place.epoch
        or (place.moving and not place.backup)
    ):
        return f"its numbers do not agree: {shown(place)}"
    if len({name_of(seat) for seat in holders}) < len(holders) or (not place.primary and holders):
        return f"its holders cannot be: {shown(place)}"
    for seat in holders:
        if (life_of(seat) == 0) is not is_ledger(asset):
            return f"{shown(seat)} cannot have it"
        if seat != place.primary and not _is_member(seat, record):
            return f"{shown(seat)} is not a member"
    return ""


def _is_member(seat: Seat, record: Record) -> bool:
    life = record.members.get(name_of(seat))
    return life is not None and life_of(seat) in (0, life)


def _follows(record: Record, before: Record) -> str:
    if record.version <= before.version:
        newer = record.rank > before.rank
        return f"version {record.version} of a later term does not follow {before.version}" if newer else ""
    if record.term < before.term:
        return f"its term {record.term} is over"
    for name, life in before.members.items():
        if record.members.get(name, life) < life:
            return f"it has an old life of {name}"
    for asset, known in before.places.items():
        place = record.places.get(asset)
        if place is None or place == known:
            continue
        moved = place.primary is not None and place.primary != known.primary
        if place.since <= before.version or not 0 <= place.epoch - known.epoch <= record.version - before.version:
            return f"{asset} cannot have become {shown(place)}"
        if moved and place.epoch == known.epoch:
            return f"{asset} has another primary at the same epoch"
        if place.epoch == known.epoch and not set(place.skips) <= set(known.skips):
            return f"{asset} skips something at the same epoch"
    return ""
