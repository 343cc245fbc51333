"""A cluster of real node processes, on loopback or on a network of their own, with children that need no Spark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.model.plan import Plan
from holdfast.runtime.net.security import Security, make_secret
from holdfast.runtime.net.transport import Caller
from support.child import read_sink
from support.plans import TOP_WINDOW_US
from support.source import KEYS, rows

if TYPE_CHECKING:
    from support.network import NamespaceNetwork

TESTS = Path(__file__).parent.parent
PATHS = f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Nodes:
    """Start, hurt and ask real nodes."""

    #: What a node is, for Python.
    program: tuple[str, ...] = ("-m", "holdfast.runtime.node")

    def __init__(
        self,
        dir: Path,
        plan: Plan,
        nodes: int = 4,
        *,
        rate: int = 2_000,
        keys: int = KEYS,
        trigger_ms: int = 30,
        settings: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        scheme: str = "grpc",
        submit: bool = False,
        network: NamespaceNetwork | None = None,
    ) -> None:
        self.dir = dir
        self.plan = plan
        self.rate = rate
        self.keys = keys
        self.settings = settings or {}
        self.names = [f"n{i}" for i in range(nodes)]
        ports = dict(zip(self.names, free_ports(nodes), strict=True))
        home = dict.fromkeys(self.names, "127.0.0.1")
        self.network = network
        self.endpoints = {n: f"{scheme}://{h}:{ports[n]}" for n, h in (network.hosts if network else home).items()}
        asked = {n: f"{scheme}://{h}:{ports[n]}" for n, h in (network.asked if network else home).items()}
        self.processes: dict[str, subprocess.Popen] = {}
        #: More of the environment of the nodes that are started from now on.
        self.env: dict[str, str] = {}
        dir.mkdir(parents=True, exist_ok=True)
        make_secret(dir / "secret")
        if not submit:
            (dir / "plan.json").write_bytes(msgspec.json.encode(plan))
        given = {"rate": rate, "keys": keys, "trigger_ms": trigger_ms, **(source or {})}
        (dir / "test.json").write_text(json.dumps(given))
        self.caller = Caller("test", asked, Security.load(dir / "secret", self.settings.get("tls"), plan.query))

    # --- processes

    def start(self, *names: str) -> None:
        for name in names or self.names:
            self.processes[name] = self.spawn(name)

    def spawn(self, name: str, **changed: Any) -> subprocess.Popen:
        settings = {
            "child_command": [sys.executable, str(TESTS / "support" / "child.py")],
            **self.settings,
            **changed,
        }
        command = [sys.executable, *self.program, "--dir", str(self.dir), "--name", name]
        for peer, endpoint in self.endpoints.items():
            command += ["--peer", f"{peer}={endpoint}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        if self.network is not None:
            command = [*self.network.enter(name), *command]
        log = open(self.dir / f"{name}.log", "ab")  # noqa: SIM115 (closed by the process's end)
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": PATHS, **self.env})

    def begin(self) -> None:
        """Let rows appear from now on."""
        (self.dir / "began").write_text(str(time.time()))

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def signal(self, name: str, sign: signal.Signals) -> None:
        self.processes[name].send_signal(sign)

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait(10)
        self.caller.close()

    # --- asking

    def alive(self) -> list[str]:
        return [n for n, p in self.processes.items() if p.poll() is None]

    def status(self, name: str | None = None, timeout: float = 2.0) -> dict[str, Any]:
        """Of one node, or of whoever answers with the newest record."""
        if name is not None:
            return self.caller.call(name, "status", timeout=timeout)
        found: list[dict[str, Any]] = []
        for one in self.alive():
            with contextlib.suppress(HoldfastError):
                found.append(self.caller.call(one, "status", timeout=timeout))
        return max(found, key=lambda s: s.get("version", 0), default={})

    def until(self, what: str, test: Callable[[], Any], seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(HoldfastError):
                if found := test():
                    return found
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds} s for {what}\n{self.tail()}")

    def wait_up(self, *names: str) -> None:
        def is_up(name: str) -> bool:
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} has ended\n{self.tail()}")
            return self.caller.call(name, "ping", timeout=1)["ready"]

        for name in names or self.names:  # the first time on a machine, kernels are compiled
            self.until(f"{name} to answer", lambda name=name: is_up(name), 240)

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.dir / "nodes" / name / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tail(self) -> str:
        parts = []
        for name in self.names:
            log = self.dir / f"{name}.log"
            parts.append(f"--- {name}: {log.read_text()[-1500:] if log.exists() else ''}")
            parts += [f"{e['time'][11:23]} {e['event']}: {e['text']}" for e in self.events(name)[-15:]]
        return "\n".join(parts)

    # --- the end

    def finish(self, seconds: float = 60.0) -> None:
        """Close the source, and wait until the sink has everything."""
        # more than there is now: a driver may look at the clock between ours and the file, and take what is there then
        (self.dir / "closed.new").write_text(str(self.available() + self.rate))
        os.replace(self.dir / "closed.new", self.dir / "closed")
        told = self.until(
            "someone to be told to finish", lambda: self.caller.call(self.alive()[0], "finish", timeout=20)
        )
        assert told
        self.until("the sink to end", lambda: (self.dir / "sink" / "ended").exists(), seconds)

    def available(self) -> int:
        return int((time.time() - float((self.dir / "began").read_text())) * self.rate)

    def difference(self, without: Iterable[dict[str, Any]] = ()) -> str:
        """What is wrong with what the sink holds, compared with a recomputation; empty if nothing. `without`: rows that
        were set aside, as dead letters tell them."""
        total = int((self.dir / "closed").read_text())
        given = pa.Table.from_batches([rows(0, total, self.rate, self.keys)])
        given = _less(given, without)
        held = read_sink(self.dir / "sink")
        shards = [u.id for u in self.plan.topology.shards]
        size_us = self.plan.operators[0].settings["size_us"]
        first = _windows(given, "ts", size_us, {"n": None, "total": "value"})
        parts = {u: pa.Table.from_batches(held.get(f"{u}.0", []) or [_none()]) for u in shards}
        wrong = _compare(pa.concat_tables([parts[u] for u in shards if u.startswith("u")]), first, "u*")
        for top in (u for u in self.plan.topology.shards if u.id.startswith("v")):
            below = pa.concat_tables([parts[e.rpartition(".")[0]] for e in top.inputs])
            timed = below.append_column("ts", pc.subtract(below["window_end"].cast(pa.int64()), 1))
            wrong += _compare(parts[top.id], _windows(timed, "ts", TOP_WINDOW_US, {"n": "n", "total": "total"}), top.id)
        return wrong

    def forget(self) -> None:
        shutil.rmtree(self.dir, ignore_errors=True)


def _less(given: pa.Table, others: Iterable[dict[str, Any]]) -> pa.Table:
    """The rows without these others, each of which must be there."""
    gone = [(datetime.fromisoformat(row["ts"]), int(row["key"]), int(row["value"])) for row in others]
    there = {(row["ts"], row["key"], row["value"]): i for i, row in enumerate(given.to_pylist())} if gone else {}
    lost = {there[row] for row in gone}
    assert len(lost) == len(gone)
    return given.filter(pa.array([i not in lost for i in range(given.num_rows)])) if lost else given


def _none() -> pa.RecordBatch:
    time_type = pa.timestamp("us", tz="UTC")
    names = [("window_start", time_type), ("window_end", time_type), ("key", pa.int64()), ("n", pa.int64())]
    return pa.RecordBatch.from_pylist([], schema=pa.schema([*names, ("total", pa.int64())]))


def _windows(table: pa.Table, time_column: str, size_us: int, sums: dict[str, str | None]) -> pa.Table:
    """The same windows by Arrow's own group-by."""
    times = table[time_column].cast(pa.int64())
    start = pc.multiply(pc.divide(times, size_us), size_us)
    table = table.append_column("start", start)
    aggs = [([], "count_all") if column is None else (column, "sum") for column in sums.values()]
    grouped = table.group_by(["start", "key"]).aggregate(aggs)
    named = [f"{c}_sum" if c else "count_all" for c in sums.values()]
    return pa.table(
        {"start": grouped["start"], "key": grouped["key"], "n": grouped[named[0]], "total": grouped[named[1]]}
    )


def _compare(held: pa.Table, wanted: pa.Table, what: str) -> str:
    def counted(table: pa.Table, start: str) -> list[tuple]:
        starts = table[start].cast(pa.int64()).to_pylist()
        return sorted(zip(starts, *(table[c].to_pylist() for c in ("key", "n", "total")), strict=True))

    mine, right = counted(held, "window_start"), counted(wanted, "start")
    if mine == right:
        return ""
    missing, extra = sorted(set(right) - set(mine)), sorted(set(mine) - set(right))
    doubled = len(mine) - len(set(mine))
    return f"{what}: {len(missing)} missing {missing[:3]}, {len(extra)} extra {extra[:3]}, {doubled} doubled; "
