"""Files of dead letters: many small ones become one, and every letter counts once wherever that is cut short."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core.ready import Done, FindLetters, SetAside
from holdfast.errors import StoreUnreachableError
from holdfast.model.block import shard_block
from holdfast.model.ids import shard_id
from holdfast.model.letters import letter_files
from holdfast.pipeline.letters import letters_of
from holdfast.runtime.disk import letters as module
from holdfast.runtime.disk.letters import FILES_MIN, LetterStore, merge
from holdfast.runtime.net.rows import ArrowRows

SHARD = shard_id("sums", 2)


class LetterWriter:
    """A node that sets letters aside."""

    def __init__(self, run: Path, node: str = "n0") -> None:
        self.folder = run / "dead" / "sums"
        self.said: list[Done] = []
        self.store = LetterStore(run / "dead", node, self.said.append)

    def put(self, start: int, count: int = 2) -> None:
        what = ["result"] * count
        batch = pa.record_batch({"what": what, "reason": ["too large"] * count, "row": ['{"a": 1}'] * count})
        self.store.want(SetAside(ticket=1, shard=SHARD, blocks=(shard_block(start, ArrowRows([batch]), 0),)))
        self.store.work(1.0)
        assert self.said[-1].ok, self.said[-1].why

    def found(self) -> int:
        self.store.want(FindLetters(ticket=2, shard=SHARD))
        self.store.work(1.0)
        assert self.said[-1].ok, self.said[-1].why
        return self.said[-1].to

    def names(self) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir())

    def positions(self) -> list[int]:
        counts, _ = letter_files(self.names())
        found = [line for one in counts for line in (self.folder / one.name).read_text().splitlines()]
        return sorted(json.loads(line)["position"] for line in found)


@pytest.fixture
def writing(tmp_path: Path) -> LetterWriter:
    return LetterWriter(tmp_path)


def test_small_files_become_one_and_stay_few(writing, tmp_path):
    for start in range(0, 2_000, 2):
        writing.put(start)
    assert len(writing.names()) < 2 * FILES_MIN
    assert writing.positions() == list(range(2_000))
    assert letters_of(tmp_path, "sums").results == 2_000


def test_a_block_that_is_asked_for_again_is_not_written_again(writing, tmp_path):
    for start in range(0, 2 * FILES_MIN, 2):
        writing.put(start)
    assert writing.names() == [f"{SHARD}@0-{2 * FILES_MIN - 1}.jsonl"]
    LetterWriter(tmp_path, "n1").put(10)
    assert len(writing.names()) == 1
    assert writing.positions() == list(range(2 * FILES_MIN))


def test_files_with_a_hole_between_them_are_not_merged_over_it(writing):
    for start in [*range(0, 100, 2), *range(104, 300, 2)]:
        writing.put(start)
    merge(writing.folder)
    assert all(one.last < 100 or one.first >= 104 for one in letter_files(writing.names())[0])
    writing.put(100, 4)  # it could not be written then
    assert writing.positions() == list(range(300))


class MergeKilled(BaseException):
    pass


def test_killed_before_any_step_of_a_merge_every_letter_counts_once(tmp_path, monkeypatch):
    died = 0
    for step in range(1, 200):
        writing = LetterWriter(tmp_path / str(step))
        monkeypatch.setattr(module, "FILES_MIN", 1 << 30)
        for start in range(0, 40, 2):
            writing.put(start)
        monkeypatch.setattr(module, "FILES_MIN", 16)
        left = [step]

        class Os:
            listdir, O_RDONLY, close = os.listdir, os.O_RDONLY, os.close

        for name in ("replace", "unlink", "fsync", "open"):
            setattr(Os, name, staticmethod(dies(getattr(os, name), left)))
        with monkeypatch.context() as patched:
            patched.setattr(module, "os", Os)
            try:
                merge(writing.folder)
                break
            except MergeKilled:
                died += 1
        assert writing.positions() == list(range(40)), step
        writing.put(40)
        merge(writing.folder)
        assert writing.positions() == list(range(42)), step
    assert died >= 20 + 4


def dies(call, left):
    def at(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            raise MergeKilled
        return call(*args, **options)

    return at


def test_where_the_store_is_no_folder_a_letter_counts_when_it_is_there_as_well(writing):
    sent: dict[str, bytes] = {}
    writing.store.also = sent.__setitem__
    writing.put(4)
    (path,) = sent
    assert path == "dead/sums/sums-2@4.jsonl"
    assert sent[path] == (writing.folder / "sums-2@4.jsonl").read_bytes()

    def refuse(path: str, raw: bytes) -> None:
        raise StoreUnreachableError("the store does not answer")

    writing.store.also = refuse
    with pytest.raises(AssertionError, match="does not answer"):
        writing.put(6)
    assert writing.names() == ["sums-2@4.jsonl"], "it is asked for again"


def test_how_far_the_files_of_a_shard_go_is_said_whoever_wrote_them(writing, tmp_path):
    asked = LetterWriter(tmp_path, "n1")
    assert asked.found() == 0
    writing.put(0, 3)
    writing.put(3, 4)
    assert asked.found() == 7
    for start in range(7, 2 * FILES_MIN + 7, 2):
        writing.put(start)
    assert asked.found() == 2 * FILES_MIN + 7
