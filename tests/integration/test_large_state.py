"""One shard with gigabytes of state is protected, taken over and drained, over a network that is cut meanwhile.

HOLDFAST_STATE_MB says how much state (3072 if it does not). Three real nodes on a network of their own; the drivers are
threads of the test and ask over a network that is never cut. Chunks have their default size.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.network import NamespaceNetwork, apart
from support.nodes import Nodes
from support.silent import KEY_BYTES, Silent, drain, silent_plan

from holdfast.runtime.net.security import Security

pytestmark = pytest.mark.long

STATE_MB = int(os.environ.get("HOLDFAST_STATE_MB", "3072"))
#: What a node may need for a transfer beside the state itself.
SPARE_BYTES = 64 << 20
#: How long one step may take: far more than it needs.
LIMIT_S = 300 + STATE_MB * 0.5
#: So that a transfer takes some seconds, whatever the size: there is a middle of it in which to cut.
TRANSFER_LIMIT = f"{max(10, STATE_MB // 6)} MB"
SHARD = "silent-0"
CUT_S = 1.0


class Memory:
    """The resident memory of a process: when this was made, and its peak since."""

    def __init__(self, pid: int) -> None:
        self._home = Path(f"/proc/{pid}")
        self.before = self._read("VmRSS")
        (self._home / "clear_refs").write_text("5")  # the peak starts anew

    def _read(self, name: str) -> int:
        lines = (self._home / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    @property
    def peak(self) -> int:
        return self._read("VmHWM")


def place(nodes: Nodes) -> dict[str, Any]:
    return nodes.status()["places"][SHARD]


def home(nodes: Nodes, seat: str) -> str:
    return (place(nodes)[seat] or "").partition("#")[0]


def told(nodes: Nodes, name: str) -> dict[str, Any]:
    return nodes.status(name, timeout=10)["shards"].get(SHARD, {})


def held(nodes: Nodes, name: str) -> int:
    return told(nodes, name).get("state_bytes", 0)


@contextlib.contextmanager
def bounded(nodes: Nodes, *names: str) -> Iterator[None]:
    """Meanwhile each of these nodes needs little more memory than the state that it did not have before."""
    had = {name: held(nodes, name) for name in names}
    memory = {name: Memory(nodes.processes[name].pid) for name in names}
    yield
    state = max(held(nodes, name) for name in names)
    gained = {name: max(0, held(nodes, name) - had[name]) for name in names}
    needed = {name: memory[name].peak - memory[name].before - gained[name] for name in names}
    told_mib = ", ".join(f"{name} got {gained[name] >> 20} and needed {needed[name] >> 20} more" for name in names)
    print(f"\n{state >> 20} MiB of state: {told_mib}", flush=True)
    assert state >= STATE_MB << 20
    assert max(needed.values()) <= SPARE_BYTES


def replace(nodes: Nodes, network: NamespaceNetwork, victim: str, sender: str, receiver: str) -> None:
    """Kill one copy, and wait until the receiver has all that the other has. The cable between these two is pulled in
    the middle of that, and their memory stays in bounds."""
    whole = held(nodes, sender)
    with bounded(nodes, sender, receiver):
        nodes.kill(victim)
        nodes.until("the survivor to run it", lambda: home(nodes, "primary") == sender, LIMIT_S)
        nodes.until("half of it", lambda: held(nodes, receiver) > whole // 2, LIMIT_S)
        assert home(nodes, "backup") == ""  # not over yet: the cut is in the middle of it
        network.sever(sender, receiver)
        network.sever(receiver, sender)
        threading.Event().wait(CUT_S)
        assert home(nodes, "backup") == ""
        network.heal()
        nodes.until("the second copy", lambda: home(nodes, "backup") == receiver, LIMIT_S)


def come_back(nodes: Nodes, name: str) -> None:
    nodes.start(name)
    nodes.wait_up(name)
    nodes.until("all to be in", lambda: len(nodes.status()["members"]) == len(nodes.names), LIMIT_S)


def move_away(nodes: Nodes, leaving: str) -> None:
    """Drain a node. The two others have it then."""
    others = {*nodes.names} - {leaving}
    with bounded(nodes, *sorted(nodes.names)):
        nodes.caller.call(min(others), "drain", {"name": leaving}, timeout=30)
        nodes.until("two copies elsewhere", lambda: {home(nodes, "primary"), home(nodes, "backup")} == others, LIMIT_S)
    nodes.until("no copy where it was", lambda: SHARD not in nodes.status(leaving, timeout=10)["shards"], LIMIT_S)


@functools.partial(apart, limit_s=3 * LIMIT_S)
def test_a_large_state_is_protected_taken_over_and_drained_within_its_memory_while_links_are_cut(tmp_path: Path):
    names = ["n0", "n1", "n2"]
    network = NamespaceNetwork(names)
    plan = silent_plan(shards=1, speaking=0)
    settings = {
        "insecure": True,
        "listen": "0.0.0.0",
        "state_limit": f"{3 * STATE_MB} MB",
        "transfer_limit": TRANSFER_LIMIT,
        "misses": 50,  # a cut of one second is not a death: the transfer has to go on after it
        "queue_spill": 1 << 30,
    }
    nodes = Nodes(tmp_path / "run", plan, 3, settings=settings, network=network)
    feed: Silent | None = None
    try:
        nodes.start()
        nodes.wait_up()
        security = Security.load(nodes.dir / "secret", deployment=nodes.plan.query)
        asked = {name: nodes.endpoints[name].replace(network.hosts[name], network.asked[name]) for name in names}
        feed = Silent(plan, (STATE_MB << 20) // KEY_BYTES + 50_000, asked, security)
        feed.fill()
        nodes.until("a second copy", lambda: home(nodes, "backup"), LIMIT_S)
        sender, old = home(nodes, "primary"), home(nodes, "backup")
        (receiver,) = {*names} - {sender, old}
        feed.start()  # rewrites keys while the state travels
        replace(nodes, network, old, sender, receiver)

        # What takes over is what has travelled; and it is protected again by the one that comes back.
        come_back(nodes, old)
        replace(nodes, network, sender, receiver, old)
        come_back(nodes, sender)
        move_away(nodes, home(nodes, "primary"))

        feed.stop()
        feed.finish()
        missing, wrong, rows = drain(plan, feed, asked, nodes.dir / "secret", limit_s=LIMIT_S)
        assert (missing, wrong, rows) == (0, 0, feed.keys)
    finally:
        if feed is not None:
            feed.close()
        nodes.close()
