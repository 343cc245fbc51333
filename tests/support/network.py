"""A network between real nodes whose cables can be pulled: one network namespace per node, joined by bridges.

A node that is moved to another bridge lives on and hears nobody: its packets vanish, and no reset says so. That is what
killing a node or stopping it cannot show: the kernel of a dead process answers, and a stopped one loses nothing.

A second network, which is never cut, is the test's own: it can ask a node that no other node can reach.

Everything is in namespaces of one process (users, network, mounts, processes), which needs no rights: `apart` runs a
test in such a process, and when that ends, nothing of it is left.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.node import leash

APART = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
#: Set where a test runs apart.
INSIDE = "HOLDFAST_TEST_APART"
#: Of a hardware address that nobody has.
NOBODY = "02:00:00:00:00:01"


def apart(test: Callable[[Path], None], limit_s: float = 240) -> Callable[[Path], None]:
    """Run a test in a process that may make networks of its own, and fail as it does."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        if INSIDE in os.environ:
            test(tmp_path)
            return
        if reason := _unavailable():
            pytest.skip(reason)
        where = f"{sys.modules[test.__module__].__file__}::{test.__name__}"
        command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())]  # not even a kill -9 of ours leaves it
        command += [*APART, sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
        command += ["--basetemp", str(tmp_path / "apart"), where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env={**os.environ, INSIDE: "1"})
        print(done.stdout, done.stderr)
        assert done.returncode == 0, "it failed, apart: see its output"

    return run


@functools.cache
def _unavailable() -> str:
    """Why this machine cannot make networks; empty if it can."""
    try:
        made = [*APART, "ip", "link", "add", "one", "type", "veth", "peer", "name", "other"]
        done = subprocess.run(made, capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        return f"needs unshare (util-linux): {error}"
    return f"this user cannot make a network of its own: {done.stderr.strip()}" if done.returncode else ""


class NamespaceNetwork:
    """Cables between nodes, all plugged into one bridge."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        #: Where nodes find each other, and where the test finds them.
        self.hosts = {name: f"10.77.0.{i}" for i, name in enumerate(names, 1)}
        self.asked = {name: f"10.78.0.{i}" for i, name in enumerate(names, 1)}
        self._severed: list[tuple[str, str]] = []
        subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True
        )  # where `ip netns` keeps names; ours alone
        _ip("link set lo up")
        for bridge in ("test", "whole", "apart"):
            _ip(f"link add {bridge} type bridge")
            _ip(f"link set {bridge} up")
        _ip("addr add 10.78.0.254/24 dev test")
        for name in names:
            _ip(f"netns add {name}")
            _ip(f"-n {name} link set lo up")
            self._plug(name, "eth0", self.hosts[name], "whole")
            self._plug(name, "eth1", self.asked[name], "test")

    def _plug(self, name: str, device: str, host: str, bridge: str) -> None:
        _ip(f"link add {name}-{device} type veth peer name {device} netns {name}")
        _ip(f"link set {name}-{device} master {bridge} up")
        _ip(f"-n {name} addr add {host}/24 dev {device}")
        _ip(f"-n {name} link set {device} up")

    def enter(self, name: str) -> list[str]:
        """What stands before a command that shall run on a node's machine."""
        return ["nsenter", f"--net=/run/netns/{name}"]

    def cut(self, *names: str) -> None:
        """Take these off the network, together: they hear each other and nobody else."""
        for name in names:
            _ip(f"link set {name}-eth0 master apart")

    def sever(self, source: str, target: str) -> None:
        """Lose what `source` sends to `target`, and nothing else."""
        _ip(f"-n {source} neigh replace {self.hosts[target]} lladdr {NOBODY} dev eth0 nud permanent")
        self._severed.append((source, target))

    def heal(self) -> None:
        for name in self.names:
            _ip(f"link set {name}-eth0 master whole")
        while self._severed:
            source, target = self._severed.pop()
            _ip(f"-n {source} neigh del {self.hosts[target]} dev eth0")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
