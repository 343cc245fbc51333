"""A Spark standalone cluster on loopback, from the PySpark wheel: a master and workers as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark

from support.run import free_ports

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Standalone:
    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.work = directory / "work"
        self.logs = directory / "spark.out"
        directory.mkdir(parents=True, exist_ok=True)
        port, ui = free_ports(2)
        self.url = f"spark://127.0.0.1:{port}"
        address = ["--host", "127.0.0.1"]
        master = ["org.apache.spark.deploy.master.Master", *address, "--port", str(port), "--webui-port", str(ui)]
        self.processes = [self._spawn(master)]
        _wait_for(port)
        for _ in range(workers):
            worker = ["org.apache.spark.deploy.worker.Worker", *address, "--cores", "2", "--memory", "1500m"]
            self.processes.append(self._spawn([*worker, "--webui-port", "0", "--work-dir", str(self.work), self.url]))

    def _spawn(self, command: list[str]) -> subprocess.Popen:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "300m"}
        with open(self.logs, "ab") as out:
            return subprocess.Popen([str(_CLASS), *command], stdout=out, stderr=out, env=environment)

    def executors(self) -> list[str]:
        """app/executor, for every executor that was ever started."""
        return sorted(f"{e.parent.name}/{e.name}" for e in self.work.glob("app-*/*") if e.is_dir())

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nobody listens on port {port} after {limit_s:g} s")
