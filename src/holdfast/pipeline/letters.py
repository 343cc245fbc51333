"""Dead letters of a run: results and rows that shards have set aside, which `verify` must not expect in a sink.

Nodes write them, one file a block, and merge the files (`runtime/disk/letters.py`). A letter is a line of JSON.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.letters import letter_files
from holdfast.model.parts import DEAD


class LetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has set aside."""

    #: Results that do not fit their types, and input rows that it could not take.
    results: int = 0
    rows: int = 0


class _Letter(msgspec.Struct):
    what: str


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.jsonl")]


def letters_of(run_dir: Path, operator: str) -> LetterCount:
    folder = run_dir / DEAD / operator
    files = [folder / one.name for one in letter_files(_names(folder))[0]]
    found = [msgspec.json.decode(line, type=_Letter).what for f in files for line in f.read_bytes().splitlines()]
    results = found.count("result")
    return LetterCount(results=results, rows=len(found) - results)
