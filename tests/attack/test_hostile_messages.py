"""A peer with the right secret sends messages of every kind to nodes in every role: no node dies, no result changes.

Whoever has the secret is a member, and can say what no check can tell from the truth: that a batch is held which is
not, that a record was decided which was not. So there are two claims, each for a peer of its own.

The **stranger** must change nothing: no result, no position, and after it has gone everything recovers. It sends
  - under names of its own (a node that nobody let in, a guest, a driver of no stage) messages of every kind with any
    content, but for `Hello` (whoever is let in is believed) and what any guest may do (it may read, ask for a record,
    and hold a lease);
  - under the names of others what they have really sent, again, late and out of order, to whom it was for;
  - under the names of others, with changed fields or built anew, whatever the gate refuses: it must leave no trace.

The **impostor** must end no process, whatever becomes of the results: it sends messages of every kind under any name,
as they were heard, with changed fields, or built anew. Rules that a node checks on itself (`core/invariants.py`), which
end a real one, count as deaths. Nor must one that speaks for the primaries of shards in mode `replay`, while nodes die.

A tenth of this runs with every `make test`; `make attack` sends at least 200,000 messages.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.hostile import OWN, Fate, Hostile

from holdfast.core import fence
from holdfast.core.election import Election
from holdfast.core.fetch import Fetches
from holdfast.core.hand_over import HandOver
from holdfast.core.host import Host
from holdfast.core.invariants import Invariants
from holdfast.core.ledger import Ledger
from holdfast.core.load import LoadWatch
from holdfast.core.node import Node
from holdfast.model import messages as m
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.ids import name_of
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.operators import WINDOW_BYTES
from holdfast.sim.simulation import Setup, Simulation

KINDS = m.all_messages()
#: What a guest may do, and what makes a stranger a member.
GUESTS = (m.Hello, m.Drain, m.SetProtection, m.RequestVote, m.Vote, m.Append, m.Beat, m.Push, m.Appended)


DECIDING = (m.RequestVote, m.Vote, m.Append, m.Appended, m.Beat, m.Push)


def setup(seed: int) -> Setup:
    """Four nodes and one that comes later; something joins, fails over and starts empty while the peer is at work."""
    shape = layered(stages=2, shards=3, tops=1, placed=True)
    return Setup(
        seed=seed,
        nodes=4,
        spares=1,
        topology=shape,
        config=Config(balance_ns=11 * SECOND, chunk_bytes=2 * WINDOW_BYTES),
        modes={"u0": "hybrid", "u1": "hybrid", "u2": ("active", "none", "replay")[seed % 3], "v0": "hybrid"},
        faults=(
            Fault(kind="restart", at_ms=200, node="n4"),
            Fault(kind="crash", at_ms=600 + 40 * (seed % 7), node=f"n{seed % 4}"),
            Fault(kind="restart", at_ms=1_200, node=f"n{seed % 4}"),
        ),
        safety_ms=1_600,
        rows_per_second=120,
    )


class Attack:
    """One run with a hostile peer that sends `rate` messages in every virtual millisecond."""

    def __init__(self, seed: int, rate: int) -> None:
        self.simulation = Simulation(self.setup(seed))
        self.world = self.simulation.world
        self.peer = Hostile(self.world, seed)
        self.rate = rate
        self.until_ns = self.simulation.setup.safety_ms * MS

    def setup(self, seed: int) -> Setup:
        return setup(seed)

    def begin(self) -> None:
        self.world.call(0, self._go_on)

    def _go_on(self) -> None:
        for _ in range(self.rate):
            self.strike()
        if self.world.now_ns < self.until_ns:
            self.world.call(1 * MS, self._go_on)

    def strike(self) -> None:
        raise NotImplementedError

    def target(self, address: str | None = None):
        process = (
            self.world.route(address) if address else self.world.processes.get(self.peer.rng.choice(self.world.names))
        )
        return process if process is not None and isinstance(process.machine, Node) else None


class Stranger(Attack):
    def strike(self) -> None:
        peer, rng = self.peer, self.peer.rng
        what = rng.random()
        if what < 0.7:
            heard = peer.recorded()
            process = self.target(heard[1]) if heard else None
            if heard and process and name_of(heard[0]) != name_of(process.address):
                peer.send(process, heard[0], heard[2])
            return
        kind = rng.choice(KINDS)
        heard = peer.recorded(kind)
        message = peer.mutated(heard[2], rng.randrange(4)) if heard and what < 0.9 else peer.built(kind)
        process = self.target()
        if process is None:
            return
        source = rng.choice(OWN)
        if kind in GUESTS or what > 0.85:
            source = rng.choice(peer.names())
            if not process.machine.gate.objection(source, message):  # it might be true
                return
        if name_of(source) != name_of(process.address):
            peer.send(process, source, message)


class Impostor(Attack):
    def __init__(self, seed: int, rate: int) -> None:
        super().__init__(seed, rate)
        self.world.notices.remove(self.simulation.checker.on_notes)
        self.world.watches.clear()
        self.world.notices.append(self._on_notes)
        self.own: dict[str, Invariants] = {}
        self.deaths: list[str] = []
        self.kinds = node_kinds()
        #: It does not last long: soon nothing would be left that could be attacked.
        self.from_ns = self.peer.rng.randrange(100, 1_200) * MS
        self.until_ns = self.from_ns + 250 * MS

    def _on_notes(self, at_ns: int, source: str, noted: list) -> None:
        self.own.setdefault(source, Invariants()).on_notes(noted)

    def strike(self) -> None:
        peer, rng = self.peer, self.peer.rng
        kind = rng.choice(KINDS if rng.random() < 0.05 else self.kinds)
        if kind in DECIDING and rng.random() < 0.8:
            kind = rng.choice(self.kinds)  # after a few of those there is no coordinator any more
        if not peer.heard.get(kind) and rng.random() < 0.7:
            kind = rng.choice([known for known in self.kinds if peer.heard.get(known)] or self.kinds)
        heard = peer.recorded(kind)
        what = rng.random()
        if heard and what < 0.9:
            message = peer.mutated(heard[2], rng.choice((0, 0, 0, 1, 1, 2)))
        else:
            message = peer.built(kind)
        process = self.target(heard[1] if heard and rng.random() < 0.8 else None)
        source = heard[0] if heard and rng.random() < 0.8 else rng.choice(peer.names())
        if process is not None and name_of(source) != name_of(process.address):
            peer.send(process, source, message)

    def run(self) -> None:
        world = self.world
        for name in world.names[:4]:
            world.start_node(name)
        self.simulation.injector.plan(self.simulation.setup.faults)
        world.call(self.from_ns, self._go_on)
        end_ns = self.until_ns + 100 * MS
        while world.now_ns < end_ns:
            try:
                world.run(end_ns)
            except Exception as error:
                self.deaths.append(told(error))
                if len(self.deaths) > 5:
                    return
                self.begin()


class Misleader(Impostor):
    """It changes what primaries name to their keepers, until after a node has died and its keepers have begun."""

    def __init__(self, seed: int, rate: int) -> None:
        super().__init__(seed, rate)
        self.from_ns, self.until_ns = 200 * MS, 1_300 * MS

    def setup(self, seed: int) -> Setup:
        made = setup(seed)
        return replace(made, modes=dict.fromkeys(made.modes, "replay"))

    def strike(self) -> None:
        heard = self.peer.recorded(m.Horizon)
        process = self.target(heard[1]) if heard else None
        if heard and process is not None:
            self.peer.send(process, heard[0], self.peer.mutated(heard[2], self.peer.rng.choice((1, 1, 2))))


def told(error: Exception) -> str:
    where = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
    return f"{type(error).__name__}: {str(error)[:300]} ({' > '.join(where)})"


def attacked(kind: type[Attack], seeds: range, rate: int) -> tuple[list[Hostile], list[str]]:
    peers, wrong = [], []
    for seed in seeds:
        attack = kind(seed, rate)
        if isinstance(attack, Impostor):
            attack.run()
            wrong += [f"seed {seed}: {death}" for death in attack.deaths]
        else:
            attack.begin()
            outcome = attack.simulation.run()
            if outcome.violation:
                wrong.append(f"seed {seed}: {outcome.violation}")
        peers.append(attack.peer)
    return peers, wrong


def report(peers: list[Hostile]) -> Hostile:
    """All of them as one."""
    total = peers[0]
    for peer in peers[1:]:
        total.sent += peer.sent
        total.roles += peer.roles
        for kind, fates in peer.fates.items():
            total.fates[kind] += fates
    print("\n" + total.table())
    return total


def check_reach(total: Hostile, node_kinds: list[type]) -> None:
    assert total.reached >= total.sent / 2
    reached = {kind for kind in node_kinds if total.fates[kind][Fate.TAKEN] or total.fates[kind][Fate.WRONG]}
    assert reached == set(node_kinds), "a handler was never reached"
    assert {"coordinator", "primary", "backup", "joining", "ledger", "nothing"} <= set(total.roles)
    refused = Counter({kind: fates[Fate.REFUSED] for kind, fates in total.fates.items()})
    assert all(refused[kind] for kind in node_kinds if kind not in (m.Pull, m.Drain)), "a kind was never refused"


def node_kinds() -> list[type]:
    simulation = Simulation(setup(0))
    simulation.world.start_node("n0")
    node = simulation.world.node("n0")
    assert node is not None
    return list(node.handlers)


def test_a_stranger_changes_no_result():
    peers, wrong = attacked(Stranger, range(4), 2)
    assert wrong == []
    assert report(peers).sent > 5_000


def test_an_impostor_ends_no_node():
    peers, wrong = attacked(Impostor, range(16), 12)
    assert wrong == []
    check_reach(report(peers), node_kinds())


def test_who_misleads_keepers_ends_no_node():
    attacks = [Misleader(seed, 1) for seed in range(8)]
    for attack in attacks:
        attack.run()
    assert [death for attack in attacks for death in attack.deaths] == []
    fates = report([attack.peer for attack in attacks]).fates[m.Horizon]
    assert fates[Fate.TAKEN]
    assert fates[Fate.WRONG]


def handlers() -> dict[str, Callable[..., object]]:
    """What takes each kind of message on a node, and what says that one is behind."""
    parts = (Node, Election, Host, HandOver, Fetches, LoadWatch, Ledger)
    found: dict[str, Callable[..., object]] = {}
    for kind in node_kinds():
        for name in (kind.handler, kind.refusal):
            owner = next((part for part in parts if hasattr(part, name)), None)
            if owner is not None:
                found[f"{owner.__name__}.{name}"] = getattr(owner, name)
    return found


@pytest.mark.long
def test_hostile_messages_take_nearly_every_way_through_the_handlers():
    """Branches of every handler, as coverage.py counts them."""
    coverage = pytest.importorskip("coverage")
    counted = coverage.Coverage(branch=True, data_file=None, include=[str(Path(fence.__file__).parent / "*")])
    with counted.collect():
        attacked(Stranger, range(200, 206), 2)
        attacked(Impostor, range(200, 216), 10)
    there, taken = 0, 0
    for name, handler in handlers().items():
        lines, first = inspect.getsourcelines(handler)
        stats = counted._analyze(inspect.getsourcefile(handler)).branch_stats()
        found = [stats[line] for line in range(first, first + len(lines)) if line in stats]
        print(f"{name:34}{sum(t for _, t in found):4} of {sum(n for n, _ in found):3} branches")
        there, taken = there + sum(n for n, _ in found), taken + sum(t for _, t in found)
    print(f"{taken} of {there} branches of {len(handlers())} handlers")
    assert taken >= 0.85 * there


@pytest.mark.long
def test_two_hundred_thousand_messages_change_nothing_and_end_nobody():
    seed = int(os.environ.get("HOLDFAST_SEED", "100"))
    strangers, changed = attacked(Stranger, range(seed, seed + 40), 3)
    impostors, ended = attacked(Impostor, range(seed, seed + 50), 12)
    assert (changed, ended) == ([], [])
    total = report([*strangers, *impostors])
    assert total.sent >= 200_000
    check_reach(total, node_kinds())
