"""Folders of a run's directory, kept in its store as well: `sync` returns when all that is in them now is there.

Files here are written whole and renamed, and do not change under one name but for a few small ones, which are put
again. What is gone from the folder goes from the store after the new files are there: many small files become one, and
in between both count, as on the disk (`spark/tidy.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.runtime.stable import kept
from holdfast.runtime.stable.door import StoreDoor

#: An attempt of a batch, which is waiting for its commit: hidden, and needed. Other hidden files are nobody's.
_ATTEMPT = re.compile(r"\.batch=[0-9]+\.epoch=[0-9]+\.tmp")

#: So often a folder is looked at that changes meanwhile. Who changes it is one thread that merges files.
LOOKS_MAX = 10


def is_kept(name: str) -> bool:
    return not name.startswith(".") or _ATTEMPT.fullmatch(name) is not None


class FolderMirror:
    """Of some folders and files of a run's directory. Used by one thread at a time."""

    def __init__(self, door: StoreDoor, deployment: str, root: Path, paths: tuple[str, ...]) -> None:
        self._door = door
        self._deployment = deployment
        self._root = root
        self._paths = paths
        #: What is in the store: length and time of change, as far as this process has put it there itself.
        self._there: dict[str, tuple[int, int]] | None = None
        #: What the last look did not find: a look at a folder that changes may miss what a second one finds.
        self._missed: set[str] = set()

    def sync(self) -> None:
        service = self._door.service()
        if self._there is None:
            listed = [service.run(kept.list_files(self._deployment, path)) for path in self._paths]
            self._there = {path: (nbytes, 0) for found in listed for path, nbytes in found.items()}
        for _ in range(LOOKS_MAX):
            here = self._here()
            if self._put(here, self._there):
                break
        missed = set(self._there) - set(here)
        gone = tuple(sorted(missed & self._missed))
        self._missed = missed
        if gone:
            service.run(kept.drop_files(self._deployment, gone))
            for path in gone:
                del self._there[path]

    def _put(self, here: dict[str, tuple[int, int]], there: dict[str, tuple[int, int]]) -> bool:
        """False: a file went meanwhile. What it has become has to be looked for."""
        whole = True
        for path, (nbytes, changed_ns) in here.items():
            known = there.get(path)
            if known is not None and known[0] == nbytes and known[1] in (0, changed_ns):
                continue
            try:
                raw = (self._root / path).read_bytes()
            except FileNotFoundError:
                whole = False
                continue
            self._door.service().run(kept.put_file(self._deployment, path, raw))
            there[path] = (len(raw), changed_ns)
        return whole

    def _here(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._paths:
            top = self._root / path
            for file in [top] if top.is_file() else sorted(top.rglob("*")):
                if not is_kept(file.name):
                    continue
                try:
                    stat = file.stat()
                except FileNotFoundError:
                    continue
                if file.is_file():
                    found[file.relative_to(self._root).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        return found
