"""A running pipeline for tests: real nodes as processes of their own, which start real Spark children."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.plan import Plan
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Caller

SOURCES = Path(__file__).resolve().parents[2] / "src"


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in taken]
    for one in taken:
        one.close()
    return ports


class PipelineRun:
    """Nodes n0, n1, … of one pipeline under `directory`."""

    def __init__(self, directory: Path, plan: Plan, source: Path, nodes: int = 3, **settings: Any) -> None:
        self.directory = directory
        self.plan = plan
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
        (directory / "pipeline.py").write_bytes(source.read_bytes())
        secret = directory / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self.names = [f"n{i}" for i in range(nodes)]
        security = Security.load(secret, settings.get("tls"), plan.query)
        ports = free_ports(nodes)
        self.endpoints = {n: f"{security.scheme}://127.0.0.1:{p}" for n, p in zip(self.names, ports, strict=True)}
        run = {
            "endpoints": self.endpoints,
            "secret_file": "secret",
            "tls": settings.get("tls"),
            "deployment": plan.query,
        }
        run |= {"cwd": os.getcwd(), "source": str(source.resolve())}
        (directory / "run.json").write_text(json.dumps(run))
        self.settings = {"metrics_port": -1, "conf": {"spark.driver.memory": "600m"}, "master": "local[2]", **settings}
        self.caller = Caller("test", self.endpoints, security)
        self.processes: dict[str, subprocess.Popen] = {}
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "holdfast.runtime.node", "--dir", str(self.directory), "--name", name]
        for peer, url in self.endpoints.items():
            command += ["--peer", f"{peer}={url}"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        log = self.directory / "nodes" / f"{name}.out"
        log.parent.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
        with open(log, "ab") as out:
            self.processes[name] = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": path}
            )

    # --- looking

    def call(self, action: str, body: dict | None = None) -> dict:
        """Of any node that answers."""
        trouble: HoldfastError | None = None
        for name in self.names:
            if self.processes[name].poll() is not None:
                continue
            try:
                return self.caller.call(name, action, body, timeout=10)
            except HoldfastError as error:
                trouble = error
        raise trouble or AssertionError("no node is up")

    def statuses(self) -> dict[str, dict]:
        found = {}
        for name in self.names:
            try:
                found[name] = self.caller.call(name, "status", timeout=5)
            except HoldfastError:
                continue
        return found

    def driver(self, stage: str) -> dict | None:
        """{"epoch", "pid", "last", "node"} of the process that runs a stage now."""
        best: dict | None = None
        for name, status in self.statuses().items():
            found = status.get("drivers", {}).get(stage)
            if found and found["epoch"] and (best is None or found["epoch"] > best["epoch"]):
                best = {**found, "node": name}
        return best

    def events(self, name: str) -> list[dict]:
        path = self.directory / "nodes" / name / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def all_events(self, event: str, stage: str = "") -> list[dict]:
        found = [e for name in self.names for e in self.events(name) if e["event"] == event]
        return [e for e in found if not stage or e.get("stage") == stage]

    def wait(self, what: str, condition: Any, limit_s: float = 180.0) -> Any:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            if all(p.poll() is not None for p in self.processes.values()):
                raise AssertionError(f"no node is up any more\n{self.logs()}")
            time.sleep(0.1)
        raise AssertionError(f"waited {limit_s:g} s for {what}\n{self.logs()}")

    def wait_running(self, stage: str, after: int = 0, limit_s: float = 180.0) -> None:
        self.wait(f"{stage} to run", lambda: len(self.all_events("stage-running", stage)) > after, limit_s)

    def logs(self) -> str:
        parts = []
        for name in self.names:
            lines = [
                f"{e['time'][11:23]} {e['event']} {e['text'][:150]} {e.get('what', '')} {e.get('detail', '')}"
                for e in self.events(name)
                if e["event"] not in ("stage-batch", "capture")
            ]
            parts += [f"--- {name}", *lines[-25:]]
        for log in sorted(self.directory.glob("nodes/**/*.log")) + sorted(self.directory.glob("nodes/*.out")):
            parts += [f"--- {log}", *log.read_text().splitlines()[-15:]]
        return "\n".join(parts)

    # --- doing

    def kill(self, pid: int, sign: int = signal.SIGKILL) -> None:
        os.kill(pid, sign)

    def jvm_of(self, pid: int) -> int:
        """The Java process below a stage's process."""
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if "java" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode():
                return int(child)
        raise AssertionError(f"no JVM below {pid}")

    def finish(self, sinks: list[str], limit_s: float = 120.0) -> None:
        self.call("finish")
        for sink in sinks:
            self.wait(f"{sink} to finish", lambda sink=sink: self.all_events("stage-finished", sink), limit_s)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        self.caller.close()
