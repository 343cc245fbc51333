"""Nodes of the virtual world ask Peace before they write a checkpoint, as real ones do (`runtime/stable/peace.py`).

One chunk a checkpoint. A node asks the coordinator that it knows, again and again; it writes when that grants the
chunk, or alone when nobody has answered for a while. Nothing may depend on Peace but when a checkpoint is written: so
whatever happens to coordinators and writers, the rules of the checker hold, and checkpoints go on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from holdfast.core.node import Node
from holdfast.model.config import MS
from holdfast.model.ids import Name
from holdfast.peace import PeaceSettings, WriteDesk, WriteQuestion, read_model
from holdfast.sim.process import Process

POLL_NS, ALONE_NS = 5 * MS, 60 * MS
_SETTINGS = PeaceSettings(timestep_limit_ns=100 * MS, write_limit_ns=250 * MS)


def small_network(names: tuple[Name, ...]) -> str:
    """Two racks; every server sends and takes one chunk at a time."""
    racks = "".join(f'[racks.r{i}]\nswitch = "one"\nsend = 1\nreceive = 1\n' for i in range(2))
    servers = "".join(f'{name} = {{ rack = "r{i % 2}" }}\n' for i, name in enumerate(names))
    return f'replicas = ["anywhere"]\n[switches.one]\n{racks}[servers]\n{servers}'


class SimPeace:
    """`call`: (in how many ns, what); `now_ns` and `node`: of the world."""

    def __init__(
        self,
        names: tuple[Name, ...],
        seed: int,
        call: Callable[[int, Callable[[], None]], None],
        now_ns: Callable[[], int],
        node: Callable[[Name], Node | None],
    ) -> None:
        self.model = read_model(small_network(names))
        self.random = Random(f"peace {seed}")
        self.call, self.now_ns, self.node = call, now_ns, node
        #: Of every life that was coordinator.
        self.desks: dict[str, WriteDesk] = {}
        self.requests = 0
        #: What was granted and what went alone, for tests.
        self.granted = self.alone = 0

    def ask(self, process: Process, start: Callable[[int], None]) -> None:
        """Calls `start` with the number of the request when its turn has come."""
        self.requests += 1
        self._poll(process, self.requests, start, self.now_ns())

    def over(self, process: Process, request: int) -> None:
        """It has been written, or refused: the network is free of it."""
        self._answer(process, request, ((0, True),), withdrawn=True)

    def _poll(self, process: Process, request: int, start: Callable[[int], None], began_ns: int) -> None:
        if not process.alive:
            return
        found = self._answer(process, request, (), withdrawn=False)
        if found:
            self.granted += 1
            start(request)
        elif found is None and self.now_ns() - began_ns > ALONE_NS:
            self.alone += 1
            start(request)
        else:
            self.call(POLL_NS, lambda: self._poll(process, request, start, began_ns))

    def _answer(
        self, process: Process, request: int, over: tuple[tuple[int, bool], ...], *, withdrawn: bool
    ) -> bool | None:
        """May it begin? None: nobody says, or nobody can."""
        asker = process.machine
        name = asker.election.coordinator if isinstance(asker, Node) else None
        boss = self.node(name) if name is not None else None
        if boss is None or boss.election.coordinator != boss.name:
            return None
        desk = self.desks.setdefault(boss.seat, WriteDesk(self.model, _SETTINGS, self.random))
        asked = WriteQuestion(writer=process.host, request=request, chunks=1, over=over, withdrawn=withdrawn)
        found = desk.answer(asked, boss.election.term, boss.record.members, self.now_ns())
        return None if found.denied else bool(found.granted)
