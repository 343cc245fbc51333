"""`holdfast` as a process of its own whose planner needs no JVM: `run` and `submit` get a plan that is ready.

`python planned.py run x.py …`. Everything else is the real command: its locks, signals, nodes and exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.nodes import PATHS

#: A stage's process that does nothing, and ends when it is told to: by a word or by the end of its node.
IDLE_CHILD = [sys.executable, "-c", "import sys\nfor line in sys.stdin:\n  if 'stop' in line: break"]
LIMIT_S = 90.0


class Command:
    """A `holdfast` command under way, in a session of its own as a terminal's would be."""

    def __init__(self, *arguments: str, cwd: Path, planned: bool = True, **environment: str) -> None:
        self.log = cwd / f"command-{os.urandom(4).hex()}.log"
        program = [str(Path(__file__))] if planned else ["-c", "from holdfast.cli.main import entry; entry()"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": PATHS, **environment},
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> None:
        self.wait_until(lambda: text in self.said, text, limit_s)

    def wait_until(self, condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < until, f"waited for {what}: {self.said}"
            time.sleep(0.02)

    def wait_until_ended_or(self, text: str, limit_s: float = LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while self.process.poll() is None and text not in self.said:
            assert time.monotonic() < until, f"waited for {text}: {self.said}"
            time.sleep(0.02)

    def end(self, sign: int | None = None, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Its exit code and all it said, after this signal or by itself."""
        if sign is not None:
            os.kill(self.process.pid, sign)
        code = self.process.wait(limit_s)
        return code, self.said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


def run_arguments(home: Path, *more: str, nodes: int = 1) -> list[str]:
    """`run` of any file with a child that does nothing."""
    file = home.parent / "x.py"
    if not file.exists():
        file.write_text("# planned already\n")
    idle = f"child_command = {json.dumps(IDLE_CHILD)}"
    return ["run", str(file), "--dir", str(home), "--nodes", str(nodes), "--set", idle, "--no-standby", *more]


def main() -> None:
    import msgspec

    from holdfast.cli import cluster, run, start
    from holdfast.cli.main import entry
    from support.plans import layered_plan

    def planned(file: Path, directory: Path, *, query: str, **_: Any) -> Any:
        plan = msgspec.structs.replace(layered_plan(shards=1, tops=0), query=query)
        (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
        (directory / "explain.txt").write_text("planned already\n")
        return plan, []

    cluster.plan_file = start.plan_file = planned
    run.make_in_background = lambda: False  # pyright: ignore[reportAttributeAccessIssue]
    entry()


if __name__ == "__main__":
    main()
