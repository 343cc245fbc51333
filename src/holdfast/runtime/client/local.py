"""Nodes of one run on this machine: start them, watch over them, start again what died, stop them.

`holdfast run`, the demo, benches and tests use it; on several machines a service manager does this job. Nodes die with
the process that watches over them, however that ends. A node that dies comes back under its name in a new life, after
`restart_s`, and joins the ring again, unless it says that it must not (its journal is damaged); one that ends before it
has answered once ends the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.errors import DAMAGED, LEFT, ConfigError, HoldfastError
from holdfast.model.ids import Name
from holdfast.runtime.net.endpoints import make_sockets, remove_socket
from holdfast.runtime.net.security import Security, make_secret
from holdfast.runtime.net.transport import Caller
from holdfast.runtime.node import leash

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
#: Settings that differ from node to node, or that `run.json` tells others: nobody else may set them.
OWN_SETTINGS = ("name", "dir", "endpoints", "join", "secret_file", "metrics_port", "tls")
#: The kernel takes the ports of outgoing connections from the range that this file tells.
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below are the ports of well-known services.
PORT_MIN = 10_000


def free_ports(count: int) -> list[int]:
    """Free ports of this machine, all different, and none that an outgoing connection gets while its node is down."""
    found: set[int] = set()
    below = _below_outgoing()
    chance = random.SystemRandom()  # two runs that were seeded alike must not want the same ports
    for port in chance.sample(below, min(len(below), 100 * count)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError):
            found.add(_bound(port))
    while len(found) < count:  # no room there: what the kernel gives is better than none
        found.add(_bound(0))
    return list(found)


def _below_outgoing() -> range:
    try:
        return range(PORT_MIN, int(PORT_RANGE.read_text().split()[0]))
    except (OSError, ValueError, IndexError):  # not Linux, or not readable
        return range(0)


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return probe.getsockname()[1]


class LocalNodes:
    """The node processes of a run, each with a directory of its own under `directory/nodes`."""

    def __init__(
        self,
        directory: Path,
        names: list[str],
        *,
        deployment: str = "",
        settings: dict[str, Any] | None = None,
        restart_s: float | None = 3.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.names = [Name(name) for name in names]
        #: `Plan.query` of the plan in the directory; empty: there is none yet, the nodes wait for one.
        self.deployment = deployment
        #: Further settings of every node.
        self.settings = settings or {}
        #: A node that died is started again after so long; None: it stays dead.
        self.restart_s = restart_s
        self.environment = {**os.environ, **(environment or {})}
        self.secret_file = self.directory / "secret"
        make_secret(self.secret_file)
        #: Sockets, not ports: nobody else on this machine can reach them.
        self.endpoints = make_sockets(self.names)
        self.metrics = dict(zip(names, free_ports(len(names)), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: When each node was found dead.
        self.died: dict[str, float] = {}
        #: Nodes that are to stay dead.
        self.retired: set[str] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch-nodes", daemon=True)

    def caller(self) -> Caller:
        return Caller("local", self.endpoints, Security.load(self.secret_file, deployment=self.deployment))

    # --- starting

    def start(self, told: threading.Event | None = None) -> None:
        """All nodes; returns when every one answers, or when `told` to give up."""
        for name in self.names:
            self.start_node(name)
        try:
            self.wait_until_up(told)
        except BaseException:
            self.stop()
            raise
        self._watcher.start()  # not before: a node that cannot start would be started again and again

    def start_node(self, name: str) -> None:
        home = self.directory / "nodes" / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # Spark's settings in node.toml may hold keys
        (home / "logs").mkdir(exist_ok=True)
        config = home / "node.toml"
        config.write_text(self._config(name))
        node = [sys.executable, "-m", "holdfast.runtime.node", "--config", str(config)]
        command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *node]
        with (home / "logs" / "node.log").open("ab") as log, self._lock:
            if self._closing.is_set():
                return
            self.died.pop(name, None)
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def _config(self, name: str) -> str:
        settings = {
            "name": name,
            "dir": str(self.directory),
            "secret_file": str(self.secret_file),
            "metrics_port": self.metrics[name],
            "endpoints": self.endpoints,
            **self.settings,
        }
        return "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())

    def wait_until_up(self, told: threading.Event | None = None, limit_s: float = START_LIMIT_S) -> None:
        """Until every node answers."""
        deadline = time.monotonic() + limit_s
        waiting = list(self.names)
        caller = self.caller()
        while waiting and not (told and told.is_set()):
            for name in list(waiting):
                process = self.processes[name]
                if process.poll() is not None:
                    kind = ConfigError if process.returncode == 2 else HoldfastError
                    raise self._failed(name, f"It ended with exit code {process.returncode}", kind)
                try:
                    caller.call(name, "ping", timeout=2.0)
                    waiting.remove(name)
                except HoldfastError:
                    continue
            if waiting and time.monotonic() > deadline:
                raise self._failed(waiting[0], f"It does not answer after {limit_s:.0f} s", HoldfastError)
            if waiting:
                time.sleep(0.05)
        caller.close()

    def _failed(self, name: str, why: str, kind: type[HoldfastError]) -> HoldfastError:
        log = self.directory / "nodes" / name / "logs" / "node.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        return kind(f"node {name} did not start", detail=": ".join([why, *last]), hint=f"See {log}.")

    # --- watching

    def _watch(self) -> None:
        while not self._closing.wait(0.1):
            for name, process in list(self.processes.items()):
                if process.poll() is None or name in self.retired:
                    continue
                if process.returncode in (DAMAGED, LEFT):
                    self.retired.add(name)
                    continue
                died = self.died.setdefault(name, time.monotonic())
                if self.restart_s is not None and time.monotonic() - died >= self.restart_s:
                    with contextlib.suppress(OSError):  # no space or no memory now: tried again at the next look
                        self.start_node(name)
        self._ended.wait()  # the kernel kills what a thread has started when that thread ends (leash.py)

    def kill(self, name: str, *, sign: int = signal.SIGKILL) -> int:
        """Send a signal to a node's process (kill -9 by default); its pid."""
        pid = self.processes[name].pid
        os.kill(pid, sign)
        return pid

    def alive(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is None]

    # --- stopping

    def stop(self) -> None:
        """Ask every node to end; kill those that do not."""
        with self._lock:
            self._closing.set()
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + STOP_LIMIT_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for endpoint in self.endpoints.values():
            remove_socket(endpoint)
        self._ended.set()


def _toml(value: Any) -> str:
    """A value as TOML: JSON, but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
