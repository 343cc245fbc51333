"""Where a checkpoint is in its store. Nobody else puts a key together or takes one apart.

    head/<shard>                              which checkpoints of a shard count, and who may add to them (`head.py`)
    checkpoint/<shard>-<sequence>/pages-<n>   pages as they are in memory, one file for each writer
    checkpoint/<shard>-<sequence>/part-<name> what goes with them and is not on pages: rows of output queues
    checkpoint/<shard>-<sequence>/manifest    written last

A sequence is used once: no key is ever written twice, whoever believes to be the primary (`ShardHead.reserved`).
Letters of a shard that a path cannot have are written as %XX, as in a URL.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from holdfast.model.ids import Asset, asset_id

HEADS = "head/"
_MANIFEST = "manifest"
_KEY = re.compile(r"checkpoint/([^/]+)-([0-9]{1,18})/(manifest|pages-[0-9]{1,4}|part-[a-z]{1,20})")
_FILE = re.compile(r"([0-9]{1,18})/(pages-[0-9]{1,4}|part-[a-z]{1,20})")


class KeyOf(NamedTuple):
    """What a key is of."""

    shard: Asset
    sequence: int
    name: str

    @property
    def is_manifest(self) -> bool:
        return self.name == _MANIFEST

    @property
    def file(self) -> str:
        return f"{self.sequence}/{self.name}"


def _quoted(shard: str) -> str:
    quoted = quote(shard, safe="").replace("~", "%7E")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def head_key(shard: str) -> str:
    return HEADS + _quoted(shard)


def shard_of_head(key: str) -> Asset:
    """The shard whose head it is; where heads are numbered objects, their numbers follow."""
    return asset_id(unquote(key.removeprefix(HEADS).partition("/")[0]))


def folder_prefix(shard: str) -> str:
    """Keys of all its checkpoints start with this, and some of shards with a longer name do, too."""
    return f"checkpoint/{_quoted(shard)}-"


def manifest_key(shard: str, sequence: int) -> str:
    return f"{folder_prefix(shard)}{sequence}/{_MANIFEST}"


def file_name(sequence: int, writer: int) -> str:
    """A file of pages, as manifests and heads name it: without the shard."""
    return f"{sequence}/pages-{writer}"


def part_name(sequence: int, name: str) -> str:
    return f"{sequence}/part-{name}"


def is_file_name(name: str) -> bool:
    return _FILE.fullmatch(name) is not None


def file_key(shard: str, name: str) -> str:
    return folder_prefix(shard) + name


def made_by(name: str) -> int:
    """The sequence of the checkpoint that wrote a file."""
    return int(name.partition("/")[0])


def parse(key: str) -> KeyOf | None:
    """None: it is not ours, and nobody of us touches it."""
    found = _KEY.fullmatch(key)
    return KeyOf(asset_id(unquote(found[1])), int(found[2]), found[3]) if found else None
