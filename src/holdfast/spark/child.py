"""The process of one stage: `python -m holdfast.spark.child`, started by a node, one JSON object on stdin.

    in    {"stage", "node", "endpoints", "secret_file", "tls", "dir", "epoch" (null: stand by), "master", "conf"}
          then {"go": epoch}, {"finish": true}, {"stop": true}; the end of stdin ends this process at once
    out   {"event": "ready" | "running" | "alive" | "batch" | "late" | "bad" | "ahead" | "waiting" | "failed" |
          "finished", …}
    exit  0 told to stop, or finished; 3 fenced; anything else: it died

Only JSON goes to stdout: what Spark and its JVM print is sent to stderr, which the node keeps in a log. "alive" is said
from the beginning, and once there is a JVM only while it answers, so that the node finds one that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import Asset
from holdfast.model.plan import Plan, StagePlan, digest
from holdfast.runtime.config import read_plan
from holdfast.spark.hand_over import StageFenced, Stopped
from holdfast.spark.reasons import Reason

LOOK_S = 0.1
ALIVE_S = 1.0
#: A JVM that has not come up after so long hangs.
SESSION_S_MAX = 180.0
STOPPED, DIED, FENCED, ORPHANED = 0, 1, 3, 4


#: What a person reads about an event, in the node's event log.
_TEXTS = {
    "ready": "A standby of {stage} is warm after {seconds} s.",
    "running": "{stage} runs at epoch {epoch}, {seconds} s after it was told to.",
    "late": "{rows} rows of batch {batch} of {stage} came too late.",
    "bad": "{rows} rows of batch {batch} of {stage} were set aside as bad ({operator}): {reason}.",
    "ahead": "{what}. {detail}",
    "waiting": "{stage} waits for {what}. {detail}",
    "failed": "{what}. {detail}",
    "finished": "{stage} has read and handed over everything.",
}


class Mouth:
    """Says events on the real stdout, one line each."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        if event in _TEXTS:
            fields["text"] = _TEXTS[event].format(**fields).strip()
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._out.write(json.dumps({"event": event, **fields}, default=str) + "\n")
            self._out.flush()


class Ears:
    """What the node says after the first line."""

    def __init__(self) -> None:
        self.go: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.finish = threading.Event()
        self.stop = threading.Event()

    def is_told(self) -> bool:
        """To go, or to stop."""
        return self.stop.is_set() or not self.go.empty()

    def listen(self) -> None:
        for line in sys.stdin:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if told.get("go"):
                self.go.put(int(told["go"]))
            if told.get("finish"):
                self.finish.set()
            if told.get("stop"):
                self.stop.set()
                threading.Timer(8.0, os._exit, (STOPPED,)).start()  # a JVM that hangs must not keep it
        os._exit(ORPHANED)  # the node is gone


def _plan(path: Path, known: str) -> Plan:
    """The plan on disk, which must be the one that the node runs."""
    plan = read_plan(path)
    if known and digest(plan) != known:
        raise ConfigError(
            "the plan was changed while it runs",
            detail=f"{path} has the digest {digest(plan)}, the node runs {known}.",
            hint="Put the old plan.json back, or start anew in another --dir.",
        )
    return plan


class StageProcess:
    def __init__(self, order: dict[str, Any], mouth: Mouth, ears: Ears) -> None:
        self.order = order
        self.stage_id: Asset = order["stage"]
        self.directory = Path(order["dir"]).resolve()
        self.mouth = mouth
        self.ears = ears
        self.plan = _plan(self.directory / "plan.json", order.get("plan", ""))
        self.stage: StagePlan = self.plan.stage(self.stage_id)
        self.began = time.monotonic()
        #: Asks the JVM something, when there is one.
        self.ask_jvm: Callable[[], Any] | None = None
        self.jvm_gone = threading.Event()

    def say(self, event: str, **fields: Any) -> None:
        self.mouth.say(event, stage=self.stage_id, **fields)

    def run(self) -> int:
        from holdfast.spark.roles import role_of

        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        self._take_over_run()
        role = role_of(self.plan, self.stage, self.directory, self.order, self.say)
        self.ask_jvm = role.ask_jvm
        epoch = self.order.get("epoch")
        if epoch is None:
            with tempfile.TemporaryDirectory(prefix="holdfast-warm-") as scratch:
                role.warm_up(Path(scratch), self.ears.is_told)
            self.say("ready", seconds=round(time.monotonic() - self.began, 1))
            epoch = self._wait_for_go()
            if epoch is None:
                return STOPPED
        began = time.monotonic()
        if not role.start(epoch):
            self.say("finished", epoch=epoch, before=True)
            return STOPPED
        self.say("running", epoch=epoch, seconds=round(time.monotonic() - began, 2))
        return self._watch(role, epoch)

    def _take_over_run(self) -> None:
        """Go to where `run` was called, where relative paths of sources and sinks start; and know the user's file."""
        with contextlib.suppress(OSError, ValueError):
            run = json.loads((self.directory / "run.json").read_text())
            self.order.setdefault("source", run.get("source"))
            if run.get("cwd"):
                os.chdir(run["cwd"])

    def _wait_for_go(self) -> int | None:
        while not self.ears.stop.is_set():
            with contextlib.suppress(queue.Empty):
                return self.ears.go.get(timeout=0.1)
            if self.jvm_gone.is_set():
                raise HoldfastError(f"the standby of {self.stage_id} has lost its JVM")
        return None

    def _watch(self, role: Any, epoch: int) -> int:
        """Until the query ends, or somebody says so. Each look asks the JVM something."""
        finishing = False
        while True:
            active = role.query.isActive  # fails at once if the JVM is dead
            if self.ears.stop.is_set():
                role.stop()
                return STOPPED
            if not active:
                return self._ended(role, epoch)
            if role.is_over():
                role.stop()
                self.say("finished", epoch=epoch)
                return STOPPED
            if self.ears.finish.is_set() and not finishing:
                finishing = True
                if role.finish():
                    self.say("finished", epoch=epoch)
                    return STOPPED
            role.on_idle()
            time.sleep(LOOK_S)

    def _pulse(self) -> None:
        """On a thread of its own: starting, finishing and stopping may take long, and is not to be killed for it."""
        try:
            while self.ask_jvm is not None or time.monotonic() - self.began < SESSION_S_MAX:
                if self.ask_jvm is not None:
                    self.ask_jvm()  # hangs as long as the JVM does
                self.say("alive")
                time.sleep(ALIVE_S)
        except Exception:
            self.jvm_gone.set()

    def _ended(self, role: Any, epoch: int) -> int:
        error = role.failure or role.query.exception()
        if isinstance(error, Stopped):
            return STOPPED
        if error is None:
            error = HoldfastError(f"stage {self.stage_id}: its query ended by itself")
        raise error


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints, prints into the log
    mouth, ears = Mouth(out), Ears()
    first = sys.stdin.readline()
    if not first:
        os._exit(ORPHANED)
    order = json.loads(first)
    threading.Thread(target=ears.listen, name="stdin", daemon=True).start()
    try:
        code = StageProcess(order, mouth, ears).run()
    except StageFenced as error:
        mouth.say("failed", **Reason(order["stage"], error).fields())
        code = FENCED
    except BaseException as error:
        traceback.print_exc()
        mouth.say("failed", **Reason(order["stage"], error).fields())
        code = STOPPED if ears.stop.is_set() else DIED
    sys.stderr.flush()
    os._exit(code)  # the JVM ends with our stdin to it; its shutdown hooks are not waited for


if __name__ == "__main__":
    main()
