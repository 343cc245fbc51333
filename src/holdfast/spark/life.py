"""One stage in a driver process, from the command that names its ticket until it has ended: a thread of its own.

Stages of one process share a JVM and nothing else. What one of them raises ends that one; one that does not stop is
told (`stuck`) and left behind. Whether it runs on Spark or in a test, it does the same things in the same order.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.node import WARM
from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Asset
from holdfast.runtime.node.starts import GIVE_WAY_S_MAX, HeldStart, Starts
from holdfast.spark.hand_over import Say, StageFenced, Stopped
from holdfast.spark.reasons import Reason, is_late_worker

LOOK_S = 0.1
#: A stage that was told to stop and is still there after so long is left behind.
STOP_S_MAX = 8.0
#: Standbys warm up one after another, since several at once are all late; but nobody waits longer for another.
TURN_S_MAX = 10.0
#: A start is over after so many batches; or this long after its query began to run, if its source has nothing to read.
FIRST_BATCHES, FIRST_S_MAX = 3, 10.0
#: So long after its JVM a process ends at the latest.
GONE_S_MAX = 5.0

#: A batch that is under way for this long is told, so that a process that dies in it leaves word of it.
BUSY_S = 0.2
#: One that takes this long, or a start that does, is told to people: a function may never return. Then after twice as
#: long, and so on.
SLOW_S = 30.0
NEVER = "A function that never returns must be stopped by hand."

#: How a stage ended, as its node is told. `AGAIN`: for no fault of its own, so it may be started again at once.
STOPPED, FINISHED, FENCED, DIED, AGAIN = "stopped", "finished", "fenced", "died", "again"


class ChildRole(Protocol):
    """What a stage does, by kind of stage."""

    @property
    def query(self) -> Any: ...

    @property
    def failure(self) -> BaseException | None: ...

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        """Run the very plan a few times, handing nothing over: a stage that did so starts within a second.

        Ends early when somebody is `told` to do something else.
        """
        ...

    def start(self, epoch: int) -> bool:
        """False: the stage was finished before."""
        ...

    def finish(self) -> bool:
        """Told to finish; true: it has."""
        ...

    def pause(self, until: float, mark: int) -> None:
        """Begin no batch before this moment (monotonic), once the watermark has come to `mark`, if it is a source;
        whatever else there is goes on."""
        ...

    def is_paused(self) -> bool:
        """A source, and nothing of it is under way, nor will be before the pause ends."""
        ...

    def is_over(self) -> bool: ...
    def on_idle(self) -> None: ...

    def busy_s(self) -> float:
        """For how long the user's functions have been at work on the present batch; 0: they are not."""
        ...

    def stop(self) -> None:
        """End the query, if there is one; an error if it does not end."""
        ...

    def close(self) -> None:
        """Its query has ended: let go of all that it held."""
        ...


class Engine(Protocol):
    """What the stages of a process stand on: one Spark session."""

    def role(self, stage: Asset, stopping: threading.Event, say: Say) -> ChildRole: ...
    def thread(self, target: Callable[[], None], name: str) -> threading.Thread: ...

    def practise(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        """A stage that stands by has nothing to do: make this process faster at what a take-over needs. Ends early
        when somebody is `told` to do something else, and stands still while it `gives_way`."""
        ...

    def ask(self) -> None:
        """Returns if it answers; an error if it is gone."""
        ...

    def wait(self) -> int:
        """Until it is gone, and how it ended."""
        ...


class Slow:
    """Tells of a batch that takes long."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._busy = False
        self._next_s = SLOW_S

    def look(self, busy_s: float) -> None:
        if busy_s < BUSY_S:
            self._busy, self._next_s = False, SLOW_S
        elif not self._busy:
            self._busy = True
            self._say("busy")
        elif busy_s > self._next_s:
            self._next_s = 2 * busy_s
            self._say("waiting", what="the end of its batch", detail=f"It has been at work for {busy_s:.0f} s. {NEVER}")


class StageLife:
    """`epoch` is WARM while it stands by."""

    def __init__(self, ticket: int, stage: Asset, epoch: int, say: Say, starts: Starts) -> None:
        self.ticket = ticket
        self.stage = stage
        self.epoch = epoch
        self.finish = threading.Event()
        #: Until when it begins no batch (monotonic), and from which watermark on.
        self.paused: tuple[float, int] = (0.0, WATERMARK_MIN)
        self.told_to_stop = False
        #: Whoever waits in a hand-over gives up.
        self.stopping = threading.Event()
        #: Its end is told.
        self.over = threading.Event()
        self._say = say
        self._told = threading.Event()
        self._began = time.monotonic()
        self._begun = self._told_stuck = False
        #: Since when it has been starting (0: it is not), and when that is told next.
        self._starting, self._slow_s = 0.0, SLOW_S
        self._starts = starts
        #: While others may wait for its first batches; and how many of those are missing.
        self._start: HeldStart | None = starts.hold() if epoch != WARM else None
        self._missing = FIRST_BATCHES
        self._gives_way_until = 0.0
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        if event == "batch" and self._start is not None:
            self._missing -= 1
            if self._missing <= 0:
                self._start.over()
        self._say(event, **{"stage": self.stage, "ticket": self.ticket, "epoch": self.epoch, **fields})

    # --- what it is told

    def go(self, epoch: int) -> bool:
        """Stand by no longer. False: it does not stand by any more, so another one has to."""
        with self._lock:
            if self.over.is_set() or self.epoch != WARM or self.told_to_stop:
                return False
            self.epoch = epoch
            self._starting = time.monotonic() if self._begun else 0.0
            self._start = self._starts.hold()
        self._told.set()
        return True

    def stop(self) -> None:
        with self._lock:
            if self.told_to_stop:
                return
            self.told_to_stop, begun = True, self._begun
        self.stopping.set()
        self._told.set()
        if begun:
            self._limit()
        else:
            self._end(STOPPED)

    def look(self) -> None:
        """Called every so often, on another thread: on its own are functions of the user's, which make its frame."""
        since = self._starting
        passed_s = time.monotonic() - since if since else 0.0
        if passed_s > self._slow_s and not self.told_to_stop and not self.over.is_set():
            self._slow_s = 2 * passed_s
            self.say("waiting", what="the end of its start", detail=f"That has taken {passed_s:.0f} s. {NEVER}")

    def is_told(self) -> bool:
        """To go, or to stop."""
        return self._told.is_set()

    def gives_way(self) -> bool:
        """Does somebody wait for another stage of this machine that starts? For a while that goes first."""
        return time.monotonic() < self._gives_way_until and self._starts.are_under_way()

    def _limit(self) -> None:
        timer = threading.Timer(STOP_S_MAX, self._look_whether_it_ended)
        timer.daemon = True
        timer.start()

    def _look_whether_it_ended(self) -> None:
        with self._lock:
            told, self._told_stuck = self._told_stuck, True
        if not told and not self.over.is_set():
            if self._start is not None:
                self._start.over()
            self.say("stuck", seconds=STOP_S_MAX)

    # --- on its thread

    def run(self, engine: Engine, turn: threading.Lock) -> None:
        with self._lock:
            if self.told_to_stop:
                return
            self._begun = True
            self._starting = time.monotonic() if self.epoch != WARM else 0.0
        try:
            how = self._live(engine, turn)
        except BaseException as error:
            how = self._how(error)
            if how in (DIED, AGAIN):
                self._tell_log(engine)
            if how in (DIED, FENCED):
                self.say("failed", **Reason(self.stage, error).fields())
        self._end(how)

    def _how(self, error: BaseException) -> str:
        if isinstance(error, StageFenced):
            return FENCED
        return STOPPED if self.told_to_stop else AGAIN if is_late_worker(error) else DIED

    def _tell_log(self, engine: Engine) -> None:
        """Called where an error is handled."""
        print(f"--- {self.stage}, epoch {self.epoch}:", file=sys.stderr)
        traceback.print_exc()
        try:
            engine.ask()
        except Exception:  # not this stage's failure: the process is about to end, and says so for all of them
            self.over.wait(GONE_S_MAX)

    def _end(self, how: str) -> None:
        with self._lock:
            if self.over.is_set():
                return
            self.over.set()
        if self._start is not None:
            self._start.over()
        self.say("ended", how=how)

    def _live(self, engine: Engine, turn: threading.Lock) -> str:
        if self.epoch == WARM:
            self._gives_way_until = time.monotonic() + GIVE_WAY_S_MAX
            self._give_way()
            if self.told_to_stop:
                return STOPPED
        role = engine.role(self.stage, self.stopping, self.say)
        try:
            if self.epoch == WARM:
                self.say("session", seconds=self._passed_s())
                self._warm_up(role, turn)
                practise = lambda: engine.practise(self.is_told, self._starts.are_under_way)  # noqa: E731
                engine.thread(practise, f"practise-{self.stage}").start()
                self._told.wait()
            if self.told_to_stop:
                return STOPPED
            began = time.monotonic()
            runs = role.start(self.epoch)
            self._starting = 0.0
            if not runs:
                self.say("finished", before=True)
                return FINISHED
            self.say("running", seconds=round(time.monotonic() - began, 2))
            return self._watch(role)
        finally:
            self._end_query(role)
            role.close()

    def _passed_s(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def _give_way(self) -> None:
        while self.gives_way() and not self.is_told():
            time.sleep(LOOK_S)

    def _warm_up(self, role: ChildRole, turn: threading.Lock) -> None:
        self._give_way()
        until = time.monotonic() + TURN_S_MAX
        while not (mine := turn.acquire(timeout=LOOK_S)) and not self.is_told() and time.monotonic() < until:
            pass
        try:
            with tempfile.TemporaryDirectory(prefix="holdfast-warm-", ignore_cleanup_errors=True) as scratch:
                if not self.is_told():
                    role.warm_up(Path(scratch), self.is_told)
        finally:
            if mine:
                turn.release()
        self.say("ready", seconds=self._passed_s())

    def _watch(self, role: ChildRole) -> str:
        """Until the query ends, or somebody says so. Each look asks the JVM something."""
        finishing, paused, slow, began = False, False, Slow(self.say), time.monotonic()
        while True:
            if self._start is not None and time.monotonic() - began > FIRST_S_MAX:
                self._start.over()
            role.pause(*self.paused)
            if paused != role.is_paused():
                paused = not paused
                self.say("paused", on=paused)
            active = role.query.isActive  # fails at once if the JVM is dead
            if self.told_to_stop:
                return STOPPED
            if not active:
                return self._ended(role)
            if role.is_over():
                self._end_query(role)
                self.say("finished")
                return FINISHED
            if self.finish.is_set() and not finishing:
                finishing = True
                if role.finish():
                    self.say("finished")
                    return FINISHED
            role.on_idle()
            slow.look(role.busy_s())
            time.sleep(LOOK_S)

    def _ended(self, role: ChildRole) -> str:
        error = role.failure or role.query.exception()
        if isinstance(error, Stopped):
            return STOPPED
        if error is None:
            error = HoldfastError(f"stage {self.stage}: its query ended by itself")
        raise error

    def _end_query(self, role: ChildRole) -> None:
        """It has not ended before its query has: the next one of this stage reads the same checkpoint."""
        if role.query is None:
            return
        self._limit()
        with contextlib.suppress(Exception):
            role.stop()
        # Spark calls it inactive as soon as it is told to stop, while a function of the user's may still be at work.
        # With a limit this would return at once, too.
        with contextlib.suppress(Exception):  # it ended with an error; or with the JVM, like all queries
            role.query.awaitTermination()
