"""Runs plans on a store: many operations at a time, a second try where that is safe, and a limit for every wait.

This is the IOService of sguard §4.4 and §5: the pages of a shard are split over several writers, each with a file of
its own, and read back by several readers.

* A wait is bounded by progress, not by size: an operation is given up when it has not moved for `stall_s` (a write
  moves when the store takes the next chunk). The error says what was waited for, and for how long.
* An operation that was given up may still hang in a kernel or a library. Its thread is left to it; nothing that it
  still does counts, since its chunks end with an error. So the number of threads is bounded, and if all of them hang
  the next operation says so at once instead of waiting behind them.
* Again means: only what changes nothing if it is done twice, only if the store did not answer, after a pause that
  doubles, until `again_s` have passed. What a store refuses (full, read-only, no permission) is not asked again here:
  whoever wanted it decides when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from holdfast.errors import CalledOffError, StoreError, StoreUnreachableError
from holdfast.store.plan import All, DeleteKeys, ListKeys, LookAt, Operation, PutNew, Single, Steps, SwapSmall, drive
from holdfast.store.port import Buffer, Store

T = TypeVar("T")

WORKERS = 4
STALL_S = 60.0
AGAIN_S = 30.0
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_LOOK_S = 0.05
#: From when on a wait is told.
TELL_S = 5.0


class _Try:
    """One try of one operation: how long nothing has moved."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.moved_at = time.monotonic()
        self.given_up: BaseException | None = None
        #: Whoever watches was told that it does not move.
        self.told = False

    def move(self) -> None:
        self.moved_at = time.monotonic()
        self.told = False

    def chunks(self, source: Iterable[Buffer]) -> Iterator[Buffer]:
        """The chunks of a write. They end when it was given up: a store never publishes what ended with an error."""
        for chunk in source:
            if self.given_up is not None:
                raise self.given_up
            self.move()
            yield chunk
        if self.given_up is not None:
            raise self.given_up
        self.move()


class WriteGate(Protocol):
    """Who says when writes may begin. It must let everything begin sooner or later: nothing else limits that wait."""

    def may_begin(self, key: str) -> bool: ...

    def ended(self, key: str, written: bool) -> None: ...


class IoService:
    """One for each store and node. `on_wait` hears of waits that last, with a sentence; it may come from any thread.
    `gate` lets writes of new objects wait for their turn."""

    def __init__(
        self,
        store: Store,
        *,
        workers: int = WORKERS,
        stall_s: float = STALL_S,
        again_s: float = AGAIN_S,
        tell_s: float = TELL_S,
        on_wait: Callable[[str], None] = lambda text: None,
        gate: WriteGate | None = None,
    ) -> None:
        self.store = store
        self.gate = gate
        self.workers = workers
        self.stall_s = stall_s
        self.again_s = again_s
        self.tell_s = tell_s
        self._on_wait = on_wait
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="store")
        #: Operations that were given up and still occupy a thread.
        self._stuck = 0
        self._lock = threading.Lock()

    def run(self, plan: Steps[T], cancel: threading.Event | None = None) -> T:
        """Run a plan to its end on this thread; what it asks for is done by the workers. `cancel` ends it from
        outside, between two chunks of a write or two operations: the plan sees a CalledOffError."""
        return drive(plan, lambda step: self._do(step, cancel))

    def close(self) -> None:
        """Waits for nobody: what still hangs ends with the process, or when its store answers."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    def _do(self, step: Operation, cancel: threading.Event | None) -> Any:
        if not isinstance(step, All):
            return self._wait([step], cancel)[0]
        return self._wait(list(step.operations), cancel)

    def _wait(self, operations: list[Single], cancel: threading.Event | None) -> list[Any]:
        """All of them, at most `workers` at a time; the first error after all have ended."""
        results: list[Any] = [None] * len(operations)
        errors: list[BaseException] = []
        running: dict[Future[Any], tuple[int, _Try]] = {}
        waiting = list(enumerate(operations))[::-1]
        while waiting or running:
            while waiting and len(running) < self.workers and not errors:
                at = self._next(waiting)
                if at is None:
                    break
                index, operation = waiting.pop(at)
                if self._stuck >= self.workers:
                    errors.append(self._all_stuck())
                    break
                mine = _Try(f"{_verb(operation)} {operation.key}")
                running[self._pool.submit(self._tries, operation, mine, cancel)] = (index, mine)
            if errors:
                waiting.clear()
                for _, mine in running.values():  # what they write would be thrown away
                    mine.given_up = mine.given_up or errors[0]
            if waiting and not running and not errors:
                self._rest(cancel, errors)
            self._look(running, results, errors, cancel, operations)
        if errors:
            raise errors[0]
        return results

    def _next(self, waiting: list[tuple[int, Single]]) -> int | None:
        """The first that may begin, counted from the end; None: each has to wait for its turn."""
        for at in range(len(waiting) - 1, -1, -1):
            operation = waiting[at][1]
            if self.gate is None or not isinstance(operation, PutNew) or self.gate.may_begin(operation.key):
                return at
        return None

    def _rest(self, cancel: threading.Event | None, errors: list[BaseException]) -> None:
        """Nothing may begin yet."""
        time.sleep(_LOOK_S)
        if cancel is not None and cancel.is_set():
            errors.append(
                CalledOffError("called off: a write that waited for its turn", detail=f"In {self.store.url}.")
            )

    def _look(
        self,
        running: dict[Future[Any], tuple[int, _Try]],
        results: list[Any],
        errors: list[BaseException],
        cancel: threading.Event | None,
        operations: list[Single],
    ) -> None:
        """Wait for a moment, take what has ended, and give up what does not move."""
        if running:
            wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        for future in list(running):
            index, mine = running[future]
            if future.done():
                del running[future]
                error = future.exception()
                self._tell_gate(operations[index], error is None)
                if error is None:
                    results[index] = future.result()
                else:
                    errors.append(error)
                continue
            if not future.running() and self._stuck < self.workers:
                mine.move()  # it has not begun: other plans keep the workers busy
            given_up = self._given_up(mine, cancel)
            if given_up is not None:
                del running[future]
                errors.append(given_up)
                mine.given_up = given_up
                self._tell_gate(operations[index], False)
                if not future.cancel():
                    self._leave(future)

    def _tell_gate(self, operation: Single, written: bool) -> None:
        if self.gate is not None and isinstance(operation, PutNew):
            self.gate.ended(operation.key, written)

    def _given_up(self, mine: _Try, cancel: threading.Event | None) -> BaseException | None:
        waited = time.monotonic() - mine.moved_at
        if waited > self.tell_s and not mine.told:
            mine.told = True
            self._on_wait(f"has waited {waited:.0f} s for {self.store.url} to {mine.what}")
        if cancel is not None and cancel.is_set():
            return CalledOffError(f"called off: {mine.what}", detail=f"In {self.store.url}.")
        if waited > self.stall_s:
            return StoreUnreachableError(
                f"{self.store.url} does not answer",
                detail=f"Waited {waited:.0f} s for it to {mine.what}.",
                hint="It may or may not have been done. Look at the store and at the network between.",
            )
        return None

    def _leave(self, future: Future[Any]) -> None:
        with self._lock:
            self._stuck += 1
        future.add_done_callback(self._unstuck)

    def _unstuck(self, future: Future[Any]) -> None:
        del future
        with self._lock:
            self._stuck -= 1

    def _all_stuck(self) -> StoreError:
        return StoreUnreachableError(
            f"{self.store.url} does not answer",
            detail=f"{self._stuck} operations that were given up still wait for it.",
            hint="Look at the store and at the network between; nothing new is begun before one of them ends.",
        )

    def _tries(self, operation: Single, mine: _Try, cancel: threading.Event | None) -> Any:
        """On a worker's thread."""
        until = time.monotonic() + self.again_s
        pause, told = _PAUSE_S, False
        mine.move()
        if isinstance(operation, PutNew):
            source = operation.chunks
            again = operation.again
            operation = replace(operation, chunks=mine.chunks(source))
        else:
            source, again = None, operation.again
        while True:
            try:
                return operation.do(self.store)
            except StoreUnreachableError as error:
                stop = cancel is not None and cancel.is_set()
                if not again or stop or mine.given_up is not None or time.monotonic() + pause > until:
                    raise
                if not told:
                    self._on_wait(f"waits for {self.store.url} to {mine.what}: {error.what}")
                    told = True
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
            mine.move()
            if source is not None:
                operation = replace(operation, chunks=mine.chunks(source))  # type: ignore[type-var]


#: What is asked for, in a sentence.
_VERBS = {PutNew: "write", SwapSmall: "replace", LookAt: "look at", ListKeys: "list", DeleteKeys: "delete"}


def _verb(operation: Single) -> str:
    return _VERBS.get(type(operation), "read")
