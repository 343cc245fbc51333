"""The calls to the operating system that a store on a local disk makes, one method each, and nothing decided.

They are apart so that a test can put a disk in their place that forgets what was not synced, at any moment
(`tests/support/lossy.py`). What has to be synced, and in which order, is `local.py`'s to know.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


class FileCalls:
    """The real ones. Errors are OSErrors."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, handle: int, chunk: memoryview) -> None:
        done = 0
        while done < len(chunk):
            done += os.write(handle, chunk[done:])

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def link(self, source: str, target: str) -> None:
        """A second name for a file; FileExistsError if the name is taken. Atomic."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def remove_folder(self, path: str) -> None:
        """Only an empty one."""
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def walk(self, folder: str) -> Iterator[tuple[str, int, float]]:
        """(path below the folder, bytes, time of the last change in seconds) of all files; in no order."""
        for parent, _, names in os.walk(folder, onerror=_unless_gone):
            for name in names:
                path = os.path.join(parent, name)
                try:
                    found = os.stat(path, follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                yield os.path.relpath(path, folder), found.st_size, found.st_mtime

    def read(self, path: str, pieces: list[tuple[int, memoryview]]) -> list[int]:
        """Fill these pieces of a file; how many bytes each got."""
        handle = os.open(path, os.O_RDONLY)
        try:
            return [_fill(handle, offset, into) for offset, into in pieces]
        finally:
            os.close(handle)


def _unless_gone(error: OSError) -> None:
    """A folder that cannot be read must not look empty: whoever finds no head may think that there never was one."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _fill(handle: int, offset: int, into: memoryview) -> int:
    """In as many calls as the kernel wants: it gives less than 2 GiB at once."""
    done = 0
    while done < len(into) and (came := os.preadv(handle, [into[done:]], offset + done)):
        done += came
    return done
