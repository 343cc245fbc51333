"""What a command is at, on stderr, while it takes its time: nobody should have to guess whether it hangs.

On a terminal one line renews itself, with the seconds since the step began. Into a pipe or a file every step is a line,
and so is every ten seconds of a step that lasts. The result of a command goes to stdout, never from here, so `--json`
stays what it is; a machine that reads it from a pipe gets no progress at all (`quiet`).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console

#: A terminal's line is renewed this often; into a pipe a step that lasts is told again this often.
RENEW_S, AGAIN_S = 0.5, 10.0
#: Seconds are shown from here on: most steps are over before.
SHOWN_FROM_S = 2.0


class StepLine:
    """While this is entered: `at` says the next step, `now` how far the same one is."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False, keeps: bool = False) -> None:
        self._console = console or Console(stderr=True)
        self._renews = self._console.is_terminal and not self._console.is_dumb_terminal
        self._quiet = self._console.quiet or (quiet and not self._renews)
        #: On a terminal, steps that are over stay to be read.
        self._keeps = keeps
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._what = ""
        self._began = self._told = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StepLine:
        if not self._quiet:
            self._thread = threading.Thread(target=self._renew, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._finish()

    def at(self, what: str) -> None:
        with self._lock:
            if self._quiet or what == self._what:
                return
            self._finish()
            self._what, self._began = what, time.monotonic()
            self._show()

    def now(self, what: str) -> None:
        """The step goes on: told when its time comes, so this may be called as often as it changes. Into a pipe a short
        one says nothing."""
        with self._lock:
            begins, self._what = not self._what, what
            if begins:
                self._began = self._told = time.monotonic()
                if self._renews and not self._quiet:
                    self._show()

    def _finish(self) -> None:
        """The step is over: its line stays as it is, or goes."""
        if self._what and self._renews:
            with suppress(OSError, ValueError):
                self._console.file.write(f"\r{self._line()}\x1b[K\n" if self._keeps else "\r\x1b[K")
                self._console.file.flush()
        self._what = ""

    def _show(self) -> None:
        self._told = time.monotonic()
        if not self._renews:
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)
            return
        self._console.file.write(f"\r{self._line()[: self._console.width - 1]}\x1b[K")
        self._console.file.flush()

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self._what} ({seconds:.0f} s)" if seconds >= SHOWN_FROM_S else self._what

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S if self._renews else min(RENEW_S, AGAIN_S)):
            with self._lock, suppress(OSError, ValueError):
                if self._what and (self._renews or time.monotonic() - self._told >= AGAIN_S):
                    self._show()
