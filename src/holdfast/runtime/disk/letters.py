"""Dead letters in files: `dead/OPERATOR/SHARD@POSITION.jsonl` in the directory of a run, one file a block.

What is at a position is the same whoever writes it, so a file is written whole, beside its name, and then gets its
name: a block that is asked for twice, by two nodes at once even, is one file with the same lines. `verify` and people
read them; nothing else does.

Small files of blocks that follow on each other become one, after the answer was given. Its name says from where to
where it goes (`model/letters.py`), and it gets that name before its parts are removed: a letter counts once wherever a
node is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.core.ready import Done, FindLetters, SetAside
from holdfast.errors import ConfigError
from holdfast.model.block import Block
from holdfast.model.ids import Asset, operator_of
from holdfast.model.letters import LetterFile, is_covered, letter_files
from holdfast.runtime.disk import lock
from holdfast.runtime.net.rows import ArrowRows

#: So many files that follow on each other become one, if none is larger than this.
FILES_MIN, FILE_BYTES = 64, 1 << 20
_MERGE = ".merge.tmp"


class LetterStore:
    """Writes dead letters for one node. `answer` takes the end of every write, and must not wait."""

    def __init__(self, directory: Path, node: str, answer: Callable[[Done], None]) -> None:
        self.directory = directory
        self._node = node
        self._answer = answer
        self._wanted: queue.SimpleQueue[SetAside | FindLetters] = queue.SimpleQueue()
        #: Called with the path in the run's directory and the bytes of each new file, before it counts as written.
        self.also: Callable[[str, bytes], None] = lambda path, raw: None
        #: Blocks written since the last merge.
        self._written: dict[Path, int] = {}

    def want(self, effect: SetAside | FindLetters) -> None:
        """Never waits for the disk: whoever calls `work` reads and writes."""
        self._wanted.put(effect)

    def work(self, timeout_s: float) -> None:
        """Do the next that is wanted, if one comes in time."""
        try:
            effect = self._wanted.get(timeout=timeout_s)
        except queue.Empty:
            return
        if isinstance(effect, FindLetters):
            self._answer(self._find(effect))
            return
        self._answer(self._keep(effect))
        folder = self.directory / operator_of(effect.shard)
        self._written[folder] = self._written.get(folder, 0) + len(effect.blocks)
        if self._written[folder] >= FILES_MIN:
            self._written[folder] = 0
            with contextlib.suppress(OSError, ConfigError):  # another node does it now; or it is tried again
                merge(folder)

    def _keep(self, effect: SetAside) -> Done:
        """Whatever goes wrong is an answer: the core waits for one."""
        folder = self.directory / operator_of(effect.shard)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for block in effect.blocks:
                self._write(folder, effect.shard, block)
            return Done(ticket=effect.ticket, ok=True)
        except OSError as error:
            return Done(ticket=effect.ticket, ok=False, why=f"{folder}: {error.strerror or error}.")
        except Exception as error:
            return Done(ticket=effect.ticket, ok=False, why=f"{folder}: {error!r}.")

    def _find(self, effect: FindLetters) -> Done:
        folder = self.directory / operator_of(effect.shard)
        try:
            return Done(ticket=effect.ticket, ok=True, to=_end_of(folder, effect.shard))
        except OSError as error:
            return Done(ticket=effect.ticket, ok=False, why=f"{folder}: {error.strerror or error}.")

    def _write(self, folder: Path, shard: Asset, block: Block) -> None:
        path = folder / f"{shard}@{block.start}.jsonl"
        if path.exists() or is_covered(shard, block.start, letter_files(os.listdir(folder))[0]):
            return
        beside, text = folder / f".{path.name}.{self._node}.tmp", "".join(lines(shard, block))
        self.also(f"{self.directory.name}/{folder.name}/{path.name}", text.encode())
        with beside.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
        _sync(folder)


def _end_of(folder: Path, shard: Asset) -> int:
    """The position behind the last letter of a shard that is in a file; 0: there is none."""
    names = os.listdir(folder) if folder.is_dir() else []
    mine = [one for one in letter_files(names)[0] if one.shard == shard]
    return max((one.first + _letters(folder / one.name) for one in mine[-1:]), default=0)


def _letters(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def merge(folder: Path) -> None:
    """Make many small files one, if they are that many. One node at a time."""
    held = lock.take(folder / ".lock", "merge", f"{folder} is being merged", "It is tried again.")
    try:
        names = os.listdir(folder)
        counts, parts = letter_files(names)
        for name in [*(part.name for part in parts), *(name for name in names if name.endswith(_MERGE))]:
            os.unlink(folder / name)
        for run in _runs(folder, counts):
            if len(run) >= FILES_MIN:
                _merge(folder, run)
    finally:
        held.release()


def _runs(folder: Path, files: list[LetterFile]) -> Iterator[list[LetterFile]]:
    """Small files of a shard that follow on each other without a hole, each with its last position."""
    run: list[LetterFile] = []
    for one in files:
        size = (folder / one.name).stat().st_size
        if run and (one.shard != run[-1].shard or one.first != run[-1].last + 1 or size > FILE_BYTES):
            yield run
            run = []
        if size <= FILE_BYTES:
            run.append(one._replace(last=one.first + _letters(folder / one.name) - 1))
    yield run


def _merge(folder: Path, run: list[LetterFile]) -> None:
    name = f"{run[0].shard}@{run[0].first}-{run[-1].last}.jsonl"
    beside = folder / f".{name}{_MERGE}"
    with beside.open("wb") as out:
        for one in run:
            out.write((folder / one.name).read_bytes())
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, folder / name)
    _sync(folder)
    for one in run:
        os.unlink(folder / one.name)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(shard: Asset, block: Block) -> list[str]:
    """One line of JSON a letter."""
    found: list[str] = []
    batches = block.rows.batches if isinstance(block.rows, ArrowRows) else ()
    for letter in (letter for batch in batches for letter in batch.to_pylist()):
        at = {"shard": shard, "position": block.start + len(found)}
        told = {**at, "what": letter["what"], "reason": letter["reason"], "row": json.loads(letter["row"])}
        found.append(json.dumps(told) + "\n")
    return found
