"""The directory of a local run: one run at a time, made and cleared by nobody but the one that holds its lock.

`RunHome` takes the lock before it looks at anything, and keeps it until the run has ended. So whatever a start finds or
makes there is its own: a start that fails removes what it made, and can hit nobody else's.

A new run is planned and checked in a draft beside it. What `--fresh` removes goes last (`begin`): a start that is
refused before that leaves the earlier run as it was, with its events and all that `verify` needs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.disk.lock import LOOK_S, Lock, held_by, take
from holdfast.runtime.net.endpoints import remove_socket

from .runs import made_in, read_run, remove

LOCK = "lock"
#: Nodes die with the `holdfast run` that started them; so long they may take to be gone.
NODES_LIMIT_S = 3.0


class RunHome:
    """The directory of a run that is about to start, locked, and after `begin` empty but for logs and the user's own
    files; or of one that goes on."""

    def __init__(
        self, directory: Path, file: Path | None = None, *, fresh: bool = False, goes_on: bool = False
    ) -> None:
        self._keep = [file] if file is not None else []
        #: What is there is needed: the run that was here goes on.
        self._goes_on = goes_on
        #: What an earlier run has made is still there, and is to be removed.
        self._to_clear = fresh
        self._draft: Path | None = None
        #: Directories that were not there before, the innermost first.
        self._new = [path for path in (directory.absolute(), *directory.absolute().parents) if not path.exists()]
        lock: Lock | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # --conf may hold keys, and rows are spilled there
            lock = take(
                directory / LOCK,
                "`holdfast run`",
                f"a run is under way in {directory}",
                f"`holdfast stop {directory}` ends it; or give another --dir.",
            )
            if goes_on:
                _check_ended(directory)
                _check_no_nodes(directory)
            else:
                self._check(directory, fresh)
        except OSError as error:
            _release(lock)
            raise ConfigError(f"{directory} cannot be used", detail=str(error), hint="Give another --dir.") from None
        except BaseException:
            _release(lock)
            raise
        self._lock = lock
        self.path = directory.resolve()

    def _check(self, directory: Path, fresh: bool) -> None:
        """May a run start here, and may what is here be removed?"""
        if (directory / "run.json").exists():
            if not fresh:
                raise ConfigError(
                    f"{directory} holds an earlier run",
                    hint=f"`holdfast run {directory}` goes on with it, if it had a store; --fresh removes it (that "
                    "directory, not what its sinks wrote or its store holds); or give another --dir.",
                )
            self._keep += _check_ended(directory)
        elif not fresh and (found := made_in(directory, self._keep, but_logs=True)):
            raise ConfigError(  # not of a run, as far as we know: they may be the user's
                f"{directory} has files that a run would write over",
                detail=f"There are {', '.join(str(path.relative_to(directory)) for path in found[:6])}.",
                hint="Give another --dir; --fresh removes them."
                if self._keep
                else "Give another directory, or move them away.",
            )
        _check_no_nodes(directory)

    @property
    def draft(self) -> Path:
        """Where the files of a new run are until it is certain that it can start."""
        if self._draft is None:
            self._draft = Path(tempfile.mkdtemp(prefix="holdfast-draft-"))
        return self._draft

    def begin(self) -> None:
        """Everything is checked: what an earlier run made goes, if that was wanted, and the draft takes its place."""
        if self._to_clear:
            remove(made_in(self.path, self._keep))
            self._to_clear = False
        kept = {path.resolve() for path in self._keep}
        for path in sorted(self.draft.iterdir()):
            target = self.path / path.name
            if path.is_symlink():
                os.symlink(os.readlink(path), target)
            elif target.resolve() not in kept:
                shutil.copyfile(path, target)
        self._drop_draft()

    def _drop_draft(self) -> None:
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft = None

    def undo(self) -> None:
        """A start that failed: what it made goes, but for its logs, which say why it failed. What was there before it
        has begun stays."""
        if not (self._goes_on or self._to_clear):
            remove(made_in(self.path, self._keep, but_logs=True))
        self.release()
        with suppress(OSError):  # what is not empty stays
            for path in self._new:
                path.rmdir()

    def release(self) -> None:
        """The run has ended, and its nodes with it."""
        self._drop_draft()
        self._lock.release()


def _release(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()


def _check_ended(directory: Path) -> list[Path]:
    """An earlier run that may be removed; the file it was made from, which may not."""
    try:
        run = read_run(directory)
    except ConfigError:
        return []  # damaged: nobody can stop it by this file either
    answers: dict[str, Any] = {}
    with suppress(ConfigError):  # without its secret nobody can ask
        answers = run.ask_all("ping", timeout_s=2.0)
    if answers:
        raise ConfigError(f"{run.pipeline} is running in {directory}", hint=f"`holdfast stop {directory}` first.")
    for endpoint in run.endpoints.values():
        remove_socket(endpoint)  # what a `run` that was killed has left
    return [Path(run.source)]


def _check_no_nodes(directory: Path) -> None:
    """Nodes of a `holdfast run` that was killed end in a moment; those of `holdfast node` stay, and are in use."""
    until = time.monotonic() + NODES_LIMIT_S
    for path in sorted(directory.glob(f"nodes/*/{LOCK}")):
        while holder := held_by(path):
            if time.monotonic() > until:
                raise ConfigError(
                    f"node {path.parent.name} is running in {directory}",
                    detail=f"{holder}.",
                    hint=f"`holdfast stop {directory}` or end that process first; or give another --dir.",
                )
            time.sleep(LOOK_S)
