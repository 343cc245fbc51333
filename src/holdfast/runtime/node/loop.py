"""One thread owns one machine of the core: events go in through a queue, what it wants done comes out in order.

The loop never waits for a disk or a socket. What a step wants persisted, sent and applied goes to an outbox thread,
which does it in the order of `core/ready.py`: write and sync, then send, then apply; first in, first out, so nothing
that a later step says can overtake what it stands on. While nothing waits in the outbox, the loop hands messages that
wait for no write to the links itself: that saves a change of threads on the way of every row. A machine without a disk
has no outbox at all.

Small messages of membership and placement overtake rows, since rows may cost long steps and the core does not mind
order. Time is the machine's monotonic clock and nothing else: a wall clock that jumps changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.core.ready import AGAIN, TICK, Effect, Idle, Machine, Ready, Received
from holdfast.errors import HoldfastError
from holdfast.model import messages as m
from holdfast.model.ids import Address
from holdfast.model.notes import Note
from holdfast.runtime.net.links import key_of

T = TypeVar("T")

#: So long the messages of a step have to leave before what nobody waits for is done: the threads of links need the
#: interpreter for that, and a kernel does not give it back before it is through.
LEAVE_NS = 500_000
#: For how long a thread that computes may keep the interpreter while another waits for it (Python's own: 5 ms). Threads
#: that only pass a message on must not wait long: in nodes, and in drivers while a stage cuts its next batch.
SWITCH_S = 0.001


class Disk(Protocol):
    def write(self, items: list[tuple[str, object]]) -> None:
        """Put these on disk; they are safe when it returns."""
        ...


class LoopStopped(HoldfastError):
    """The loop was stopped, or its machine broke an invariant."""


class MachineLoop:
    """Runs a machine. `send` takes (target, message) and must not block."""

    def __init__(
        self,
        machine: Machine,
        send: Callable[[Address, m.Message], None],
        *,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        on_effect: Callable[[Effect], None] | None = None,
        on_notes: Callable[[list[Note]], None] | None = None,
        on_step: Callable[[int], None] | None = None,
        on_crash: Callable[[BaseException], None] | None = None,
        idle_budget_ns: int = 5_000_000,
        name: str = "loop",
    ) -> None:
        self.machine = machine
        self._idle = Idle(idle_budget_ns)
        self.clock = clock
        self.name = name
        self._send = send
        self._disk = disk
        self._on_effect = on_effect
        self._on_notes = on_notes
        #: Called on the loop's thread after each step, with the time.
        self._on_step = on_step
        self._on_crash = on_crash
        self._urgent: deque[Any] = deque()
        #: Rows that wait. What is sent again while it still waits takes the place of the older one: a long step must
        #: not fill the memory with repetitions.
        self._queue: dict[object, Received] = {}
        self._wanted = threading.Condition(threading.Lock())
        self._outbox: deque[Ready] = deque()
        self._leaving = threading.Condition(threading.Lock())
        #: What the outbox thread has taken and not finished.
        self._in_hand = 0
        self._stopped = False
        self.failure: BaseException | None = None
        self._wake_ns = 0
        #: When to go on with what the last step left to do; 0: nothing.
        self._again_ns = 0
        #: The machine has work for an idle moment.
        self._wants_idle = False
        #: When the present step began, and when the outbox began what it is doing; 0: nothing.
        self.busy_since_ns = 0
        self.outbox_since_ns = 0
        self.steps = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-loop", daemon=True),
            threading.Thread(target=self._run_outbox, name=f"{name}-outbox", daemon=True),
        ]

    # --- from any thread

    def start(self, first: Ready | None = None) -> None:
        """Begin; `first` is what a machine's own start wants done. Otherwise the first event is a tick."""
        if first is not None:
            self._take(first)
        else:
            self._wake_ns = self.clock()
        for thread in self._threads:
            thread.start()

    @property
    def thread_id(self) -> int:
        """Of the thread that steps, as the system knows it; once it was started."""
        return self._threads[0].native_id or 0

    def received(self, source: Address, message: m.Message) -> None:
        with self._wanted:
            if message.heavy:
                self._queue[(source, key_of("", message))] = Received(source, message)
            else:
                self._urgent.append(Received(source, message))
            self._wanted.notify()

    def post(self, event: Any) -> None:
        """An event that is not a message: a batch from Spark, a child that died, a full disk."""
        with self._wanted:
            self._urgent.append(event)
            self._wanted.notify()

    def ask(self, question: Callable[[Any, int], T], timeout_s: float = 10.0) -> T:
        """Run `question(machine, now_ns)` on the loop's thread. If it returns a Ready, that is done too."""
        if threading.current_thread() is self._threads[0]:
            return question(self.machine, self.clock())
        asked = _Question(question)
        with self._wanted:
            self._urgent.append(asked)
            self._wanted.notify()
        if not asked.done.wait(timeout_s):
            raise LoopStopped(
                f"{self.name} did not answer within {timeout_s:g} s",
                detail="It is busy with a long step, or hangs." if not self._stopped else "It was stopped.",
            )
        if asked.error is not None:
            raise asked.error
        return asked.answer

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after what is queued in the outbox was done."""
        self._stopped = True
        for condition in (self._wanted, self._leaving):
            with condition:
                condition.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(timeout_s)

    def busy_ns(self) -> int:
        """How long the loop or its outbox has been at one thing."""
        since = [ns for ns in (self.busy_since_ns, self.outbox_since_ns) if ns]
        return self.clock() - min(since) if since else 0

    @property
    def backlog(self) -> int:
        """Events that wait."""
        return len(self._urgent) + len(self._queue)

    # --- the loop's thread

    def _next(self) -> Any:
        """The next event: small ones first, then a timer that is due, then rows; an idle moment if there is nothing."""
        with self._wanted:
            while not self._stopped:
                if self._urgent:
                    return self._urgent.popleft()
                wait_s = None
                if self._wake_ns:
                    wait_s = (self._wake_ns - self.clock()) / 1e9
                    if wait_s <= 0:
                        self._wake_ns = 0
                        return TICK
                if self._again_ns:
                    wait_s = (self._again_ns - self.clock()) / 1e9
                    if wait_s <= 0:
                        self._again_ns = 0
                        return AGAIN
                    self._wanted.wait(wait_s)
                    continue
                if self._queue:
                    return self._queue.pop(next(iter(self._queue)))
                if self._wants_idle:
                    self._wants_idle = False
                    return self._idle
                self._wanted.wait(wait_s)
        return None

    def _run(self) -> None:
        try:
            while (event := self._next()) is not None:
                now_ns = self.clock()
                self.busy_since_ns = now_ns
                if isinstance(event, _Question):
                    ready = event.put(self.machine, now_ns)
                else:
                    ready = self.machine.step(event, now_ns)
                if ready is not None:
                    self._take(ready)
                self.steps += 1
                self.busy_since_ns = 0
                if self._on_step is not None:
                    self._on_step(now_ns)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A broken invariant: this machine says nothing more. Others take over from it."""
        self.failure = error
        self._stopped = True
        self.busy_since_ns = 0
        with self._wanted:
            waiting = [e for e in self._urgent if isinstance(e, _Question)]
        for question in waiting:
            question.error = LoopStopped(f"{self.name} has stopped", detail=repr(error))
            question.done.set()
        if self._on_crash is not None:
            self._on_crash(error)

    def _take(self, ready: Ready) -> None:
        if ready.wake_ns:
            self._wake_ns = ready.wake_ns
        self._wants_idle = self._wants_idle or ready.idle
        if ready.notes and self._on_notes is not None:
            self._on_notes(ready.notes)
        if ready.again and not self._again_ns:
            self._again_ns = self.clock() + LEAVE_NS
        if not (ready.persist or ready.early or ready.send or ready.apply):
            return
        if self._disk is None:
            self._send_early(ready)
            self._finish(ready)
            return
        with self._leaving:
            free = not (self._outbox or self._in_hand)  # only this thread fills it: it stays free
        if free:
            self._send_early(ready)
        if free and not (ready.persist or ready.apply):
            self._finish(ready)
            return
        with self._leaving:
            self._outbox.append(ready)
            self._leaving.notify()

    def _send_early(self, ready: Ready) -> None:
        early, ready.early = ready.early, []
        for target, message in early:
            self._send(target, message)

    def _finish(self, ready: Ready) -> None:
        for target, message in ready.send:
            self._send(target, message)
        if self._on_effect is not None:
            for effect in ready.apply:
                self._on_effect(effect)

    # --- the outbox's thread

    def _run_outbox(self) -> None:
        try:
            while True:
                with self._leaving:
                    self._in_hand = 0
                    while not self._outbox and not self._stopped:
                        self._leaving.wait()
                    taken = list(self._outbox)
                    self._outbox.clear()
                    self._in_hand = len(taken)
                if not taken:
                    return
                self.outbox_since_ns = self.clock()
                self._do(taken)
                self.outbox_since_ns = 0
        except BaseException as error:
            self._fail(error)

    def _do(self, taken: list[Ready]) -> None:
        """Everything that waits, with one sync: what is sent may only come later than it could."""
        for ready in taken:  # early ones wait for what earlier steps have written, and no longer
            self._send_early(ready)
            if ready.persist:
                break
        items = [item for ready in taken for item in ready.persist]
        if items and self._disk is not None:
            self._disk.write(items)
        for ready in taken:
            self._send_early(ready)
            self._finish(ready)


class _Question:
    __slots__ = ("answer", "ask", "done", "error")

    def __init__(self, ask: Callable[[Any, int], Any]) -> None:
        self.ask = ask
        self.done = threading.Event()
        self.answer: Any = None
        self.error: BaseException | None = None

    def put(self, machine: Any, now_ns: int) -> Ready | None:
        """Errors are the asker's, not the machine's."""
        try:
            self.answer = self.ask(machine, now_ns)
        except Exception as error:
            self.error = error
        ready = self.answer if isinstance(self.answer, Ready) else None
        self.done.set()
        return ready
