"""Dead letters in files: `dead/OPERATOR/SHARD@POSITION.jsonl` in the directory of a run, one file a block.

What is at a position is the same whoever writes it, so a file is written whole, beside its name, and then gets its
name: a block that is asked for twice, by two nodes at once even, is one file with the same lines. `verify` and people
read them; nothing else does.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable
from pathlib import Path

from holdfast.core.ready import Done, SetAside
from holdfast.model.block import Block
from holdfast.model.ids import Asset, operator_of
from holdfast.runtime.net.rows import ArrowRows


class LetterStore:
    """Writes dead letters for one node. `answer` takes the end of every write, and must not wait."""

    def __init__(self, directory: Path, node: str, answer: Callable[[Done], None]) -> None:
        self.directory = directory
        self._node = node
        self._answer = answer
        self._wanted: queue.SimpleQueue[SetAside] = queue.SimpleQueue()

    def want(self, effect: SetAside) -> None:
        """Never waits for the disk: whoever calls `work` writes."""
        self._wanted.put(effect)

    def work(self, timeout_s: float) -> None:
        """Write the next that is wanted, if one comes in time."""
        try:
            effect = self._wanted.get(timeout=timeout_s)
        except queue.Empty:
            return
        self._answer(self._keep(effect))

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

    def _write(self, folder: Path, shard: Asset, block: Block) -> None:
        path = folder / f"{shard}@{block.start}.jsonl"
        if path.exists():
            return
        beside = folder / f".{path.name}.{self._node}.tmp"
        with beside.open("w") as out:
            out.writelines(lines(shard, block))
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
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
