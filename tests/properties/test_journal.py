"""A journal in which any byte may be damaged: it lacks at most what was written last, or it says so. Never silent."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateError
from holdfast.model.found import vote_entry
from holdfast.model.record import Place, Record
from holdfast.runtime.disk import journal as disk
from holdfast.runtime.disk.journal import Journal

LIVES = st.tuples(st.just("life"), st.integers(0, 1 << 40))
VOTES = st.builds(vote_entry, st.integers(0, 1 << 40), st.sampled_from([None, "n0", "n1"]))


def record(version: int, shards: int) -> tuple[str, Record]:
    places = {f"u{i}": Place(primary="n0#1") for i in range(shards)}
    return "record", Record(version=version, term=1, members={"n0": 1}, places=places)


RECORDS = st.builds(record, st.integers(1, 1 << 20), st.integers(0, 20))
WRITES = st.lists(st.lists(st.one_of(LIVES, VOTES, RECORDS), min_size=1, max_size=4), min_size=1, max_size=6)


def written(path: Path, writes: list[list[tuple[str, object]]], compact_bytes: int) -> list[dict[str, object]]:
    """Write a journal; what it held after each write, and before the first."""
    held: list[dict[str, object]] = [{}]
    with patch.object(disk, "COMPACT_BYTES", compact_bytes):
        journal = Journal(path)
        for items in writes:
            journal.write(items)
            held.append(dict(journal.content))
        journal.close()
    return held


def opened(path: Path) -> tuple[Journal | None, str]:
    try:
        return Journal(path), ""
    except StateError as error:
        return None, error.detail


@given(WRITES, st.sampled_from([1, 300, 1 << 20]), st.data())
def test_a_damaged_byte_costs_the_last_write_at_most_or_is_said(writes, compact_bytes, data):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "journal"
        held = written(path, writes, compact_bytes)
        raw = bytearray(path.read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1), "at")] ^= data.draw(st.integers(1, 255), "flip")
        path.write_bytes(raw)
        found, said = opened(path)
        if found is None:
            assert str(path) in said
            assert path.read_bytes() == raw
            return
        assert found.content in held[-2:]
        found.write([("life", 7)])  # and it can be gone on with
        found.close()
        assert Journal(path).content == {**found.content, "life": 7}


@given(WRITES, st.data())
def test_a_torn_tail_costs_only_what_was_torn(writes, data):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "journal"
        held = written(path, writes[:-1], 1 << 20)
        safe = path.stat().st_size
        journal = Journal(path)
        journal.write(writes[-1])
        journal.close()
        whole = path.read_bytes()
        size = data.draw(st.integers(safe, len(whole) - 1), "size")
        zeros = data.draw(st.integers(0, len(whole) - size), "zeros")  # the file was made longer, its bytes not written
        path.write_bytes(whole[:size] + bytes(zeros))
        path.with_name("lives").unlink(missing_ok=True)  # it is written after what was torn here
        found = Journal(path).content
        assert found == held[-1] or (whole[:size] + bytes(zeros) == whole and found == dict(journal.content))
