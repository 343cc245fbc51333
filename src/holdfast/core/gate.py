"""The one place where what comes from outside is looked at, before a fence or any part of a machine sees it.

Whoever sends here knows the secret, but may be of another version, mistaken or hostile: a message that decodes may hold
any number and any name. A message that no right peer could have sent to this machine is refused and named (one note, of
which a node tells a few), and changes nothing; it never ends a node. In this order:

    its source      is an address
    its numbers     are in the ranges that the types of its fields say (`model/ranges.py`)
    its names       are of this pipeline, and some part of this machine takes it
    its fields      agree with each other, with the topology and with the record (`Message.objection`)
    its source      is one whom the record lets say this (`Message.said_by`)

What is only behind is not wrong: that is for the fence (`core/fence.py`) to see. What only the part that takes it can
know (a batch that is not held, a position inside a block) that part refuses with a `WrongMessageError`, before it has
changed anything; a machine's own inconsistency still stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.core.fence import Fence
from holdfast.core.ready import Ready
from holdfast.errors import WrongMessageError
from holdfast.model import notes
from holdfast.model.ids import Address, Asset, Name, Seat, driver_of, life_of, name_of, reads_as
from holdfast.model.message import Message, SaidBy
from holdfast.model.messages import Subscribe
from holdfast.model.protection import MODES
from holdfast.model.ranges import check_of, is_address, shown
from holdfast.model.record import Place, Record
from holdfast.model.topology import Topology

#: Messages of these are refused once their epoch, or their `since`, is what the record says: not theirs to say.
_OF_AN_EDGE = (SaidBy.PRODUCER, SaidBy.MAKER)
_OF_A_PLACE = (SaidBy.PRIMARY, SaidBy.HOLDER, *_OF_AN_EDGE)

#: Rows of a node that this machine does not know, and that may run a shard under a record that is on its way: they are
#: not taken, and come again.
NOT_YET = "who makes this is not known here yet"


class Gate:
    """What one machine holds messages against: a `View`."""

    __slots__ = (
        "_accepted", "_fence_of", "_impossible", "beside", "fence", "is_node", "record_of", "seen", "takes", "term_of",
        "topology", "who",
    )  # fmt: skip

    def __init__(
        self,
        who: Address,
        topology: Topology,
        fence: Fence,
        takes: Callable[[Message], bool],
        *,
        record: Callable[[], Record] | None = None,
        is_node: bool = False,
        term: Callable[[], int] = lambda: 0,
        fence_of: Callable[[Asset], int] = lambda stage: 0,
        impossible: Callable[[Record], str] = lambda record: "",
        accepted: Callable[[], Record] | None = None,
    ) -> None:
        self.who = who
        self.topology = topology
        self.fence = fence
        self.takes = takes
        self.record_of = record or (lambda: fence.record)
        self.is_node = is_node
        self.term_of = term
        self._fence_of = fence_of
        self._impossible = impossible
        #: A member of a record that is accepted here, and decided elsewhere, speaks before its decision is heard here.
        self._accepted = accepted or self.record_of
        #: Every node that a record has named so far, and the last two records that were looked at.
        self.seen: tuple[deque[tuple[int, int]], set[Name]] = (deque(maxlen=2), set())
        #: Who could make rows beside the primary of a shard, and at which epoch: they may come when it cannot any more.
        self.beside: set[tuple[Asset, Seat, int]] = set()

    @property
    def record(self) -> Record:
        return self.record_of()

    @property
    def term(self) -> int:
        return max(self.term_of(), self.record.term)

    def fence_of(self, stage: Asset) -> int:
        return self._fence_of(stage)

    def impossible(self, record: Record) -> str:
        return self._impossible(record)

    def objection(self, source: Address, message: Message) -> str:
        """Why this message is not taken; empty: nothing is wrong with it."""
        self._look_at(self._accepted())
        self._look_at(self.record)
        if not is_address(source):
            return f"{shown(source)} is not an address"
        check = check_of(type(message))
        why = check(message) if check is not None else ""
        if why:
            return why
        if not self.takes(message):
            return "nobody here takes it"
        if not message.belongs_to(self.topology):
            return "it does not belong to this pipeline"
        return message.objection(source, self) or self._impostor(source, message)

    def _impostor(self, source: Address, message: Any) -> str:
        """May this source say so? Whoever is ahead of the record must at least be a member; who is behind is fenced."""
        said_by, record = message.said_by, self.record
        if said_by is SaidBy.ANYONE or not record.version:
            return ""
        if said_by is SaidBy.DRIVER:
            right = source == driver_of(message.stage, message.epoch)
        elif said_by is SaidBy.SEAT:
            right = source == message.seat
        elif said_by is SaidBy.CONSUMER:
            right = self._consumes(source, message)
        elif said_by in _OF_A_PLACE:
            asset = self.topology.producer[message.edge] if said_by in _OF_AN_EDGE else self._placed(message)
            right = self._speaks_for(source, message, record.places.get(asset))
        else:
            right = self._is_known(source)
        if not right and said_by is SaidBy.MAKER and self._is_perhaps_twin(source, message, record):
            return NOT_YET
        return "" if right else f"only {said_by.value} says this"

    def _consumes(self, source: Address, message: Subscribe) -> bool:
        if message.consumer in self.topology.shard:
            return source == message.seat and self._is_known(source)
        if message.consumer in self.record.places:
            return not message.seat and reads_as(source, message.consumer, message.epoch)
        return not message.seat

    def _placed(self, message: Any) -> Asset:
        return getattr(message, message.placed)

    def _speaks_for(self, source: Address, message: Any, place: Place | None) -> bool:
        if place is None or place.primary is None:
            return True
        said, known = (
            (message.epoch, place.epoch) if "epoch" in message.__struct_fields__ else (message.since, place.since)
        )
        if said > known:
            return self._is_known(source)
        if said < known:
            return True
        if message.said_by is SaidBy.MAKER:
            shard = self.topology.producer[message.edge]
            if (shard, source, said) in self.beside or (self._may_have_twins(shard, place) and self._is_known(source)):
                return True
        right = place.holders if message.said_by is SaidBy.HOLDER else (place.primary,)
        return any(source == seat or (not life_of(seat) and name_of(source) == name_of(seat)) for seat in right)

    def _is_perhaps_twin(self, source: Address, message: Any, record: Record) -> bool:
        """A reader that is back may have an older record, and the address of its last life, to which a twin streams."""
        shard = self.topology.producer[message.edge]
        place = record.places.get(shard)
        if place is None or message.epoch != place.epoch:
            return False
        return self._may_have_twins(shard, place) or (not self.is_node and self._is_known(source))

    def _may_have_twins(self, shard: Asset, place: Place) -> bool:
        """Who runs beside the primary changes without a new epoch, and a reader may have an older record."""
        return any(MODES[mode].runs_beside for mode in (place.mode, self.record.protection_of(shard).mode))

    def _is_known(self, source: Address) -> bool:
        """Is it a member, or was it one? (What it said before it was removed may come late.)"""
        return name_of(source) in self.seen[1]

    def _look_at(self, record: Record) -> None:
        looked_at, names = self.seen
        if record.rank not in looked_at:
            looked_at.append(record.rank)
            names.update(record.members)
            names.update(name_of(seat) for place in record.places.values() for seat in place.holders)
            over = {a: p.epoch for a, p in self.record.places.items()}
            known = {(a, seat, epoch) for a, seat, epoch in self.beside if epoch >= over.get(a, 0)}
            self.beside = known | {(a, p.beside, p.epoch) for a, p in record.places.items() if p.beside}

    def refuse(self, source: Address, message: Message, why: str, ready: Ready) -> None:
        if why == NOT_YET:
            return
        ready.notes.append(notes.Objected(type(message).__name__, shown(source), why[:300], self.who))


def hand_to(machine: Any, gate: Gate, source: Address, message: Message, now_ns: int, ready: Ready) -> None:
    """Give a message to the method of a machine that takes it, if nothing is wrong with it and it is not behind."""
    why = gate.objection(source, message)
    if why:
        gate.refuse(source, message, why, ready)
        return
    behind = gate.fence.behind(source, message)
    handler = getattr(machine, message.refusal if behind else message.handler, None)
    try:
        if handler is not None and behind:
            handler(source, message, behind, ready)
        elif handler is not None:
            handler(source, message, now_ns, ready)
    except WrongMessageError as error:
        gate.refuse(source, message, f"{error.what}: {error.detail}", ready)
