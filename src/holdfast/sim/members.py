"""Nodes that come later than the files of the others, and nodes that leave for good: who reaches whom, and the rules.

addresses      a process reaches a node that no file names only if a record that it has accepted says where that is, and
               such a node is let in by the same. So it counts nothing for those who have not heard of it
one at a time  two records that are decided one after the other differ by one member, or by one life of a member
majorities     a record counts as decided only when it is on the disks of a majority of its own members
the roster     a node that no file names was in the roster of the record before the one that has it as a member
for good       nobody who has left is a member in another life
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.ready import Received
from holdfast.model.config import MS
from holdfast.model.found import read
from holdfast.model.ids import Address, Name, name_of
from holdfast.model.messages import Drain, LetIn, Message, SendAway
from holdfast.model.record import NO_RECORD, Record, majority
from holdfast.sim.process import Process
from holdfast.sim.world import World

#: How often somebody asks again for what the record does not have yet.
ASK_NS = 100 * MS
#: Who wants to go does not go while fewer members than these would be left.
LEFT_MIN = 2


def newest(world: World) -> Record:
    """The newest record that any living node acts on."""
    nodes = [node for node in map(world.node, world.names) if node is not None]
    return max((node.record for node in nodes), key=lambda record: record.version, default=NO_RECORD)


def tell_all(world: World, message: Message) -> None:
    """What a user asks for reaches every node that is awake; the coordinator acts on it."""
    for name in world.names:
        process = world.processes.get(name)
        if process is not None and process.alive and process.stalled_ns <= world.now_ns:
            world.feed_if_awake(process, Received("operator", message))


class Hand:
    """Of an administrator, or of the command that a node was started with: it asks until the record says so."""

    def __init__(self, world: World) -> None:
        self.world = world

    def let_in(self, name: Name) -> None:
        record = newest(self.world)
        if name in record.roster and not record.has_left(name):
            if name not in self.world.processes:
                self.world.start_node(name)
            return
        tell_all(self.world, LetIn(name=name, address=f"sim://{name}"))
        self.world.call(ASK_NS, lambda: self.let_in(name))

    def send_away(self, name: Name, *, returns: bool) -> None:
        """`returns`: somebody starts it again all the same."""
        world, record = self.world, newest(self.world)
        if record.has_left(name):
            world.crash(name)
            if returns:
                world.call(2 * ASK_NS, lambda: world.start_node(name))
            return
        if name in record.members and len(record.members) > LEFT_MIN:
            tell_all(world, Drain(name=name))
            tell_all(world, SendAway(name=name))
        world.call(ASK_NS, lambda: self.send_away(name, returns=returns))


class MemberRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.fail = fail

    def on_record(self, before: Record, record: Record, source: Address) -> None:
        """It is decided, as `source` knows first."""
        self._on_disks(record, source)
        changed = {n for n in (*before.members, *record.members) if before.members.get(n) != record.members.get(n)}
        if len(changed) > 1:
            self.fail("two members changed at once", f"{sorted(changed)} in record {record.version}")
        for name in changed & set(record.members):
            if name in self.world.late and not before.roster.get(name):
                self.fail("a member whose address nobody has", f"{name} in record {record.version}")
            if before.has_left(name):
                self.fail("a node that had left is a member", f"{name} in record {record.version}")

    def _on_disks(self, record: Record, source: Address) -> None:
        node = self.world.node(name_of(source))
        if record.version == 1 or node is None or node.election.witness is not None:
            return
        disks = self.world.disks
        have = [n for n in record.members if n == node.name or read(disks[n].content).record.rank >= record.rank]
        if len(have) < majority(len(record.members)):
            self.fail("decided without a majority of its members", f"record {record.version}: only {have} have it")


def reaches(late: tuple[Name, ...], source: Process, target: Process) -> bool:
    """Does the one know where the other is, and is it let in there? (Drivers and readers hear of records, too.)"""
    if source.disk is None or target.disk is None or source is target:
        return True
    knows = target.host not in late or target.host in _roster(source)
    return knows and (source.host not in late or source.host in _roster(target))


def _roster(process: Process) -> dict[Name, str]:
    return process.machine.election.accepted.roster  # type: ignore[attr-defined]
