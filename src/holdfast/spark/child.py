"""A driver process: `python -m holdfast.spark.child`, started by a node. One JVM, and any number of stages in it; none,
if all its stages are sinks without Spark (`light.py`).

    in    first what all its stages share: {"node", "endpoints", "secret_file", "tls", "deployment", "dir", "plan",
          "master", "conf", "core", "watermark_jump_us", "light"}; then commands, one a line:
          {"do": "warm", "stage", "ticket"}          let this stage stand by
          {"do": "run", "stage", "ticket", "epoch"}  run it at this epoch (the standby of this ticket, if there is one)
          {"do": "finish", "ticket"}                 read what is there, seal a last batch, end
          {"do": "pause", "ticket", "seconds",       begin no batch for this time, if it is a source; 0: go on
           "mark"}                                   but not before its watermark is there; null: at once
          {"do": "stop", "ticket"}                   end; without a ticket: all of them, and this process
          the end of stdin ends this process at once
    out   {"event": "alive"}, {"event": "up"} (there is a session), and of each stage
          {"event", "stage", "ticket", "epoch" (0: it stands by), …}:
          session, planned, ready (how warm a standby is), running, busy (a batch takes more than a moment), batch,
          paused ("on": nothing is under way, and nothing will be; or it goes on),
          late, bad, ahead, waiting, failed, finished, stuck (it should end, and does not), and at last ended:
          {"how": "stopped" | "finished" | "fenced" | "died" | "again" (for no fault of its own)}
    exit  0 told to stop; 1 its JVM is gone or never came; 5 the same, for want of memory; anything else: it died. All
          its stages end with it

A ticket is one start of a stage in this process. A stage that was stopped or has failed is started again under another
ticket, and always at a higher epoch. Only JSON goes to stdout: what Spark and its JVM print is sent to stderr, which
the node keeps in a log. "alive" is said from the beginning, and once there is a JVM only while it answers, so that the
node finds one that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from holdfast.core.node import WARM
from holdfast.errors import check
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Asset
from holdfast.runtime.node.alone import OUT_OF_MEMORY, kills_for_memory
from holdfast.runtime.node.loop import SWITCH_S
from holdfast.runtime.node.starts import Starts
from holdfast.spark.life import STOP_S_MAX, Engine, StageLife
from holdfast.spark.reasons import Reason

ALIVE_S = 1.0
#: A JVM that has not come up after so long hangs.
SESSION_S_MAX = 180.0
EXIT_STOPPED, EXIT_DIED, EXIT_ORPHANED = 0, 1, 4
#: How a JVM ends that is out of memory: by its own option, or by Spark.
JVM_OUT_OF_MEMORY = (3, 52)


#: What a person reads about an event, in the node's event log.
_TEXTS = {
    "session": "A standby of {stage} has a Spark session, {seconds} s after it was wanted.",
    "planned": "A standby of {stage} has planned its query.",
    "ready": "A standby of {stage} is warm after {seconds} s.",
    "running": "{stage} runs at epoch {epoch}; starting its query took {seconds} s.",
    "late": "{rows} rows of batch {batch} of {stage} came too late.",
    "bad": "{rows} rows of batch {batch} of {stage} were set aside as bad ({operator}): {reason}.",
    "ahead": "{what}. {detail}",
    "backlog": "{stage} reads {rows:,} rows in micro-batches that are in its source, and goes on in real time then.",
    "micro-batches": "{stage} runs in micro-batches, not in real time: {why}.",
    "waiting": "{stage} waits for {what}. {detail}",
    "failed": "{what}. {detail}",
    "finished": "{stage} has read and handed over everything.",
    "stuck": "{stage} should have ended {seconds:g} s ago, and has not. It is left behind; the other stages go on.",
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


class DriverProcess:
    """`make` makes what the stages stand on, from the first line of stdin; it may take long."""

    def __init__(self, mouth: Mouth, make: Callable[[dict[str, Any]], Engine], starts: Starts) -> None:
        self.mouth = mouth
        self._make = make
        self._starts = starts
        self._lives: dict[int, StageLife] = {}
        #: Stages on their way from the thread that listens to the one that starts them.
        self._new: queue.SimpleQueue[StageLife | None] = queue.SimpleQueue()
        self._epochs: dict[Asset, int] = {}
        self._turn = threading.Lock()
        self._began = time.monotonic()
        self._kills_before = kills_for_memory()
        self._engine: Engine | None = None
        self._ending = threading.Event()

    # --- commands, on the thread that listens

    def listen(self, lines: TextIO) -> None:
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            try:
                self.obey(told)
            except BaseException:  # whoever listens no more must not look as if it did
                traceback.print_exc()
                os._exit(EXIT_DIED)
        os._exit(EXIT_ORPHANED)  # the node is gone

    def obey(self, told: dict[str, Any]) -> None:
        life = self._lives.get(told.get("ticket", 0))
        match told.get("do"):
            case "run":
                self._run(life, told)
            case "warm":
                self._begin(StageLife(told["ticket"], told["stage"], WARM, self.mouth.say, self._starts))
            case "finish" if life is not None:
                life.finish.set()
            case "pause" if life is not None:
                mark = told.get("mark")
                life.paused = (time.monotonic() + float(told["seconds"]), WATERMARK_MIN if mark is None else int(mark))
            case "stop" if "ticket" not in told:
                self._ending.set()
                threading.Timer(STOP_S_MAX, os._exit, (EXIT_STOPPED,)).start()  # a JVM that hangs must not keep it
                for one in list(self._lives.values()):
                    one.stop()
                self._new.put(None)
            case "stop" if life is not None:
                life.stop()

    def _run(self, life: StageLife | None, told: dict[str, Any]) -> None:
        stage, epoch = told["stage"], int(told["epoch"])
        check(
            epoch > self._epochs.get(stage, WARM), "a stage was started twice at one epoch", f"{stage}, epoch {epoch}"
        )
        self._epochs[stage] = epoch
        if life is None or not life.go(epoch):
            self._begin(StageLife(told["ticket"], stage, epoch, self.mouth.say, self._starts))

    def _begin(self, life: StageLife) -> None:
        self._lives = {t: one for t, one in self._lives.items() if not one.over.is_set()}
        self._lives[life.ticket] = life
        self._new.put(life)

    # --- the process, on its first thread

    def run(self, order: dict[str, Any]) -> int:
        """Until it is told to stop."""
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        try:
            engine = self._engine = self._make(order)
        except BaseException as error:
            traceback.print_exc()
            self._lose(error)
            return EXIT_STOPPED if self._ending.is_set() else EXIT_DIED
        self.mouth.say("up")
        threading.Thread(target=self._follow, args=(engine,), name="follow", daemon=True).start()
        while (life := self._new.get()) is not None:
            engine.thread(lambda life=life: life.run(engine, self._turn), f"stage-{life.stage}").start()
        for one in list(self._lives.values()):
            one.over.wait()
        return EXIT_STOPPED

    def _lose(self, error: BaseException) -> None:
        """No stage of this process can go on."""
        for life in list(self._lives.values()):
            if not life.over.is_set():
                life.say("failed", **Reason(life.stage, error).fields())

    def _follow(self, engine: Engine) -> None:
        """Stages end with their JVM, at once: who waited for an answer of it might wait long."""
        code = engine.wait()
        if not self._ending.is_set():
            self._lose(ConnectionError(f"Answer from Java side is empty: it has ended with code {code}"))
            sys.stderr.flush()
            killed = code < 0 and kills_for_memory() > self._kills_before
            os._exit(OUT_OF_MEMORY if killed or code in JVM_OUT_OF_MEMORY else EXIT_DIED)

    def _pulse(self) -> None:
        """On a thread of its own: starting, finishing and stopping may take long, and is not to be killed for it."""
        with contextlib.suppress(Exception):
            while self._engine is not None or time.monotonic() - self._began < SESSION_S_MAX:
                if self._engine is not None:
                    self._engine.ask()  # hangs as long as the JVM does
                self.mouth.say("alive")
                for life in list(self._lives.values()):
                    life.look()
                time.sleep(ALIVE_S)


def serve(make: Callable[[dict[str, Any]], Engine]) -> None:
    """Be a driver process. Never returns."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints, prints into the log
    first = sys.stdin.readline()
    if not first:
        os._exit(EXIT_ORPHANED)
    order = json.loads(first)
    sys.setswitchinterval(SWITCH_S)
    process = DriverProcess(Mouth(out), make, Starts(Path(order["dir"]) if order.get("dir") else None))
    threading.Thread(target=process.listen, args=(sys.stdin,), name="stdin", daemon=True).start()
    code = process.run(order)
    sys.stderr.flush()
    os._exit(code)  # the JVM ends with our stdin to it; its shutdown hooks are not waited for


def _engine(order: dict[str, Any]) -> Engine:
    if order.get("light"):
        from holdfast.spark.light import LightEngine

        return LightEngine(order)
    from holdfast.spark.engine import SparkEngine

    return SparkEngine(order)


if __name__ == "__main__":
    serve(_engine)
