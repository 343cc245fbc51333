"""A disk that forgets, at a power cut, what was not synced: the calls of `store/files.py` on a model of a disk.

What a cut leaves is what POSIX allows, not what one file system happens to do. Of a file that was not synced any part
may be there: nothing, a prefix, or the right length with zeros in it. Of names that were made or removed in a folder
since that was last synced each may be there or not, on its own. A folder that is not there takes everything below with
it. Counts its calls, and cuts the power at the one that it is told.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from random import Random

from holdfast.store.files import FileCalls


class PowerCut(BaseException):
    """Not an Exception: nobody handles it."""


class _Inode:
    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = b""


class LossyFiles(FileCalls):
    """`cut_at`: the number of the call at which the power goes, before it is done; -1: never."""

    def __init__(self, random: Random, cut_at: int = -1) -> None:
        self._random = random
        self.calls = 0
        self.cut_at = cut_at
        self._handles: dict[int, _Inode] = {}
        self._number = 0
        #: Folder -> name -> file, or None for a folder: as the kernel has it, and as the disk has it.
        self._now: dict[str, dict[str, _Inode | None]] = {"/": {}}
        self._disk: dict[str, dict[str, _Inode | None]] = {"/": {}}

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.cut_at:
            raise PowerCut

    def after_cut(self) -> LossyFiles:
        """The disk of the same machine when it is up again."""
        left = LossyFiles(self._random)
        left._now = {"/": {}}
        self._survive("/", left)
        left._disk = {folder: dict(names) for folder, names in left._now.items()}
        return left

    def _survive(self, folder: str, left: LossyFiles) -> None:
        now, disk = self._now.get(folder, {}), self._disk.get(folder, {})
        for name in sorted(now.keys() | disk.keys()):
            if now.get(name, self) is disk.get(name, self):
                entry = now[name]
            elif self._random.random() < 0.5:  # a name that was made, removed or replaced since the last sync
                if name not in now:
                    continue
                entry = now[name]
            else:
                if name not in disk:
                    continue
                entry = disk[name]
            path = os.path.join(folder, name)
            if entry is None:
                left._now[folder][name] = None
                left._now[path] = {}
                self._survive(path, left)
            else:
                left._now[folder][name] = self._torn(entry)

    def _torn(self, inode: _Inode) -> _Inode:
        made = _Inode()
        content = bytes(inode.content)
        if content != inode.synced:
            cut = self._random.randrange(len(content) + 1)
            kind = self._random.randrange(3)
            content = (content[:cut], content[:cut] + bytes(len(content) - cut), inode.synced)[kind]
        made.content, made.synced = bytearray(content), content
        return made

    # --- the calls

    def _folder(self, path: str) -> tuple[dict[str, _Inode | None], str]:
        folder, name = os.path.split(path)
        if folder not in self._now:
            raise FileNotFoundError(errno.ENOENT, "no folder", folder)
        return self._now[folder], name

    def _file(self, path: str) -> _Inode:
        names, name = self._folder(path)
        found = names.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no file", path)
        return found

    def create(self, path: str) -> int:
        self._call()
        names, name = self._folder(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, "there", path)
        self._number += 1
        names[name] = self._handles[self._number] = _Inode()
        return self._number

    def write(self, handle: int, chunk: memoryview) -> None:
        self._call()
        self._handles[handle].content += chunk

    def sync(self, handle: int) -> None:
        self._call()
        self._handles[handle].synced = bytes(self._handles[handle].content)

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def link(self, source: str, target: str) -> None:
        self._call()
        inode = self._file(source)
        names, name = self._folder(target)
        if name in names:
            raise FileExistsError(errno.EEXIST, "there", target)
        names[name] = inode

    def unlink(self, path: str) -> None:
        self._call()
        self._file(path)
        names, name = self._folder(path)
        del names[name]

    def make_folder(self, path: str) -> None:
        self._call()
        names, name = self._folder(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, "there", path)
        names[name] = None
        self._now[path] = {}
        self._disk.setdefault(path, {})

    def remove_folder(self, path: str) -> None:
        self._call()
        if self._now[path]:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        names, name = self._folder(path)
        del names[name], self._now[path]

    def sync_folder(self, path: str) -> None:
        self._call()
        self._folder(os.path.join(path, "x"))
        self._disk[path] = dict(self._now[path])

    def is_folder(self, path: str) -> bool:
        return path in self._now

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def walk(self, folder: str) -> Iterator[tuple[str, int, float]]:
        for name, inode in sorted(self._now.get(folder, {}).items()):
            path = os.path.join(folder, name)
            if inode is None:
                for below, size, at in self.walk(path):
                    yield os.path.join(name, below), size, at
            else:
                yield name, len(inode.content), 1e18  # nothing is old enough to be swept

    def read(self, path: str, pieces: list[tuple[int, memoryview]]) -> list[int]:
        content = bytes(self._file(path).content)
        came = []
        for offset, into in pieces:
            part = content[offset : offset + len(into)]
            into[: len(part)] = part
            came.append(len(part))
        return came
