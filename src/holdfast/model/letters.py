"""Names of the files that dead letters are in, one file a block or many blocks in one. Which of them count.

    SHARD@14.jsonl       the block that begins at position 14
    SHARD@14-90.jsonl    every letter of that shard from position 14 to 90

What is at a position is the same wherever it is written. A file whose first position lies in another one is a part of
that, which a merge had no time to remove or which was written once more: it does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"(.+)@([0-9]+)(?:-([0-9]+))?\.jsonl")


class LetterFile(NamedTuple):
    shard: str
    first: int
    #: Of a file of one block it is not in the name: the same as `first` here.
    last: int
    name: str


def letter_files(names: Iterable[str]) -> tuple[list[LetterFile], list[LetterFile]]:
    """Of these files, by shard and position: those that count, and those that are in another one."""
    matches = [m for m in map(_NAME.fullmatch, names) if m]
    every = [LetterFile(m[1], int(m[2]), int(m[3] or m[2]), m[0]) for m in matches]
    counts: list[LetterFile] = []
    parts: list[LetterFile] = []
    for one in sorted(every, key=lambda file: (file.shard, file.first, -file.last)):
        before = counts[-1] if counts else None
        is_part = before is not None and before.shard == one.shard and one.first <= before.last
        (parts if is_part else counts).append(one)
    return counts, parts


def is_covered(shard: str, position: int, counts: list[LetterFile]) -> bool:
    """Is what begins at this position in one of these files?"""
    return any(one.shard == shard and one.first <= position <= one.last for one in counts)
