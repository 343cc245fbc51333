"""The two peers of test_hostile_messages.py over Flight, with a right secret, against real processes in every role.

The **stranger** sends what others have really said, again, late and out of order, under their names; messages of any
kind and content under names of its own; and under the names of others what is wrong whatever the record is. Meanwhile a
node joins, one is killed and comes back. When it has gone, the sink must hold exactly what a recomputation gives.

The **impostor** sends anything under any name but the order to leave. No process may end; results may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.distant import Distant
from support.hostile import OWN
from support.nodes import TESTS, Nodes
from support.plans import layered_plan

from holdfast.model import messages as m

pytestmark = pytest.mark.slow

KINDS = m.all_messages()
#: What makes a stranger a member, and what any guest may do.
GUESTS = (
    m.Hello,
    m.LetIn,
    m.SendAway,
    m.Drain,
    m.SetProtection,
    m.RequestVote,
    m.Vote,
    m.Append,
    m.Beat,
    m.Push,
    m.Appended,
)
DECIDING = (m.RequestVote, m.Vote, m.Append, m.Appended, m.Beat, m.Push)
#: `holdfast leave` of a node that holds nothing ends it, whoever has the secret says it (SECURITY.md): not a death.
OBEYED = tuple(kind for kind in KINDS if kind is not m.SendAway)
#: Messages between two looks at what the nodes say; then a pause, so that nodes on a busy machine keep up.
BURST, PAUSE_S = 100, 0.05


class TappedNodes(Nodes):
    program = (str(TESTS / "support" / "tapped.py"),)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TappedNodes]:
    made = TappedNodes(tmp_path / "cluster", layered_plan(3, 1), 4, rate=1_000, settings={"start_wait": "5 s"})
    yield made
    made.close()


def stranger(peer: Distant) -> None:
    rng = peer.rng
    what = rng.random()
    if what < 0.5:
        if heard := peer.recorded():
            peer.tell(*heard)
        return
    kind = rng.choice(KINDS)
    heard = peer.recorded(kind)
    message = peer.mutated(heard[2], rng.randrange(4)) if heard and what < 0.9 else peer.built(kind)
    source = rng.choice(OWN)
    if kind in GUESTS or what > 0.8:
        source = rng.choice(peer.names())
        if not peer.is_impossible(message):  # it might be true
            return
    peer.tell(source, rng.choice(peer.nodes.names), message)


def impostor(peer: Distant) -> None:
    rng = peer.rng
    kind = rng.choice(OBEYED)
    if kind in DECIDING and rng.random() < 0.8:
        kind = rng.choice(OBEYED)  # after a few of those there is no coordinator any more
    heard = peer.recorded(kind) or (peer.recorded() if rng.random() < 0.7 else None)
    if heard and rng.random() < 0.9:
        message = peer.mutated(heard[2], rng.choice((0, 0, 0, 1, 1, 2)))
    else:
        message = peer.built(kind)
    target = heard[1] if heard and rng.random() < 0.8 else rng.choice(peer.nodes.names)
    peer.tell(heard[0] if heard and rng.random() < 0.8 else rng.choice(peer.names()), target, message)


def attack(peer: Distant, strike: Callable[[Distant], None], count: int) -> None:
    """So many messages; 0 processes may end meanwhile."""
    end, until = peer.sent + count, time.monotonic() + 60 + count / 50
    while peer.sent < end:
        assert time.monotonic() < until, f"{peer.sent} of {end} messages sent"
        peer.listen()
        for _ in range(BURST):
            strike(peer)
        time.sleep(PAUSE_S)
        ended = {name: p.returncode for name, p in peer.nodes.processes.items() if p.poll() is not None}
        assert not ended, f"{ended}\n{peer.nodes.tail()}"


def begin(nodes: TappedNodes, *names: str) -> None:
    nodes.start(*names)
    nodes.wait_up(*names)
    nodes.begin()
    nodes.until("rows to flow", lambda: any(s.get("rows_out") for s in nodes.status()["shards"].values()))


def report(peer: Distant) -> None:
    counted = peer.learn_fates()
    print(f"\n{peer.table()}\n{counted['came']} came, {counted['decoded']} decoded, {peer.unsent} could not be sent")
    assert counted["decoded"] >= counted["came"] / 2
    assert peer.reached >= counted["came"] / 4
    assert all(peer.roles[role] for role in ("coordinator", "follower", "primary", "backup", "ledger", "stage"))


def strange(nodes: TappedNodes, count: int) -> None:
    begin(nodes, "n0", "n1", "n2")
    peer = Distant(nodes, 1)
    try:
        attack(peer, stranger, count // 3)
        nodes.start("n3")
        attack(peer, stranger, count // 3)
        nodes.wait_up("n3")
        report(peer)
        nodes.kill("n1")
        nodes.start("n1")
        attack(peer, stranger, count - 2 * (count // 3))
    finally:
        peer.close()
    nodes.finish(120)
    assert nodes.difference() == ""
    assert sorted(nodes.alive()) == nodes.names


def impose(nodes: TappedNodes, count: int) -> None:
    begin(nodes)
    peer = Distant(nodes, 2)
    try:
        attack(peer, impostor, count)
        report(peer)
    finally:
        peer.close()
    assert {name: nodes.caller.call(name, "ping", timeout=10)["name"] for name in nodes.names}
    assert sorted(nodes.alive()) == nodes.names, nodes.tail()


def test_a_stranger_over_flight_changes_no_result(nodes: TappedNodes):
    strange(nodes, 1_500)


def test_an_impostor_over_flight_ends_no_process(nodes: TappedNodes):
    impose(nodes, 1_000)


@pytest.mark.long
def test_a_stranger_over_flight_changes_no_result_in_thousands_of_messages(nodes: TappedNodes):
    strange(nodes, 12_000)


@pytest.mark.long
def test_an_impostor_over_flight_ends_no_process_in_thousands_of_messages(nodes: TappedNodes):
    impose(nodes, 12_000)
