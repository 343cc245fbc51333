"""What every store must do, whatever is behind it: the bodies of the tests, run on each adapter by its own file.

`test_store_conformance.py` has the quick ones (memory, local disk, an S3-like server), `test_store_on_hdfs.py` the real
HDFS. A subclass gives the fixture `store`: an empty place in a store that is up.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import (
    InvariantError,
    ObjectExistsError,
    ObjectMissingError,
    StoreError,
    SwapConflictError,
)
from holdfast.store import Store

#: Larger than a request of an object store, and than a block of the HDFS that tests start.
LARGE = 20 << 20


def _pattern(nbytes: int) -> bytes:
    """Bytes that differ from place to place: a piece in the wrong place is found."""
    return b"".join(i.to_bytes(8, "little") for i in range(nbytes // 8))


class StorePromises:
    def test_what_was_put_comes_back_and_is_listed_with_its_size(self, store: Store):
        assert store.put("a/b/one", [b"he", memoryview(b"llo"), bytearray(b" there")]) == 11
        assert store.put("a/two", []) == 0
        assert store.get("a/b/one", 100) == b"hello there"
        assert store.get("a/two", 100) == b""
        assert store.size("a/b/one") == 11
        assert [(o.key, o.nbytes) for o in store.list("")] == [("a/b/one", 11), ("a/two", 0)]
        assert [o.key for o in store.list("a/b/")] == ["a/b/one"]

    def test_a_prefix_is_letters_not_a_folder(self, store: Store):
        for key in ("checkpoint/u1-1/w0", "checkpoint/u1-12/w0", "checkpoint/u2-1/w0"):
            store.put(key, [b"x"])
        assert [o.key for o in store.list("checkpoint/u1-1")] == ["checkpoint/u1-1/w0", "checkpoint/u1-12/w0"]
        assert [o.key for o in store.list("checkpoint/u1-1/")] == ["checkpoint/u1-1/w0"]
        assert store.list("checkpoint/u3") == []
        assert store.list("elsewhere/") == []

    def test_a_key_is_put_once_and_stays_what_it_was(self, store: Store):
        store.put("k", [b"first"])
        with pytest.raises(ObjectExistsError):
            store.put("k", [b"second"])
        assert store.get("k", 100) == b"first"

    def test_of_many_who_put_one_key_at_once_one_wins_and_all_of_it_is_there(self, store: Store):
        def put(i: int) -> bool:
            try:
                store.put("contested", [bytes([i]) * 1000, bytes([i]) * 1000])
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            won = [i for i, ok in enumerate(pool.map(put, range(6))) if ok]
        assert len(won) == 1
        assert store.get("contested", 10_000) == bytes([won[0]]) * 2000

    def test_a_writer_that_fails_half_way_leaves_nothing(self, store: Store):
        def chunks() -> Iterator[bytes]:
            yield b"x" * (9 << 20)  # more than one part of an object store
            yield b"y" * 1000
            raise KeyError("the snapshot was closed")

        with pytest.raises(KeyError):
            store.put("half", chunks())
        assert store.list("") == []
        with pytest.raises(ObjectMissingError):
            store.size("half")
        store.put("half", [b"whole"])
        assert store.get("half", 10) == b"whole"

    def test_a_chunk_is_not_kept_when_the_next_one_is_asked_for(self, store: Store):
        buffer = bytearray(1 << 20)

        def chunks() -> Iterator[memoryview]:
            for i in range(LARGE >> 20):
                buffer[:] = bytes([i]) * len(buffer)
                yield memoryview(buffer)

        store.put("reused", chunks())
        raw = bytearray(LARGE)
        store.read("reused", [(0, memoryview(raw))])
        assert all(raw[i << 20] == i and raw[(i << 20) + 777] == i for i in range(LARGE >> 20))

    def test_ranges_of_a_large_object_are_read_by_several_threads(self, store: Store):
        content = _pattern(LARGE)
        assert store.put("large", (content[at : at + 1_000_000] for at in range(0, LARGE, 1_000_000))) == LARGE
        into = bytearray(LARGE)
        step = LARGE // 8

        def read(i: int) -> None:
            third = step // 3
            cuts = [0, third, 2 * third, step]
            view = memoryview(into)
            at = i * step
            ranges = [(at + a, view[at + a : at + b]) for a, b in itertools.pairwise(cuts)]
            store.read("large", ranges[::-1])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(8)))
        assert into == content

    def test_what_is_not_there_is_missing_and_what_is_too_short_says_so(self, store: Store):
        with pytest.raises(ObjectMissingError, match="nothing"):
            store.get("nothing", 10)
        with pytest.raises(ObjectMissingError, match="nothing"):
            store.size("nothing")
        with pytest.raises(ObjectMissingError, match="nothing"):
            store.read("nothing", [(0, memoryview(bytearray(4)))])
        store.put("short", [b"0123456789"])
        for offset in (8, 10, 500):
            with pytest.raises(ObjectMissingError, match="short"):
                store.read("short", [(0, memoryview(bytearray(4))), (offset, memoryview(bytearray(4)))])
        with pytest.raises(ObjectMissingError, match="too long"):
            store.get("short", 9)

    def test_what_is_deleted_is_gone_and_may_be_deleted_again(self, store: Store):
        store.put("a/one", [b"1"])
        store.put("a/two", [b"2"])
        store.delete(["a/one", "a/never"])
        store.delete(["a/one"])
        assert [o.key for o in store.list("")] == ["a/two"]
        store.put("a/one", [b"again"])
        assert store.get("a/one", 10) == b"again"

    def test_a_swap_goes_from_version_to_version(self, store: Store):
        assert store.look("head/u1") is None
        first = store.swap("head/u1", b"one", None)
        assert store.look("head/u1") == (b"one", first)
        second = store.swap("head/u1", b"two", first)
        assert store.look("head/u1") == (b"two", second)
        for stale in (first, None):
            with pytest.raises(SwapConflictError):
                store.swap("head/u1", b"three", stale)
        assert store.look("head/u1") == (b"two", second)
        third = store.swap("head/u1", b"two", second)  # the same content is another version
        assert third != second or store.look("head/u1") == (b"two", third)
        for _ in range(4):
            found = store.look("head/u1")
            assert found is not None
            store.swap("head/u1", found[0] + b"!", found[1])
        assert store.look("head/u1")[0] == b"two!!!!"  # type: ignore[index]
        for stale in (first, second, third, None):
            with pytest.raises(SwapConflictError):
                store.swap("head/u1", b"late", stale)

    def test_of_many_who_swap_at_once_one_wins_each_time(self, store: Store):
        version = store.swap("head/u1", b"0", None)
        won: list[list[int]] = []
        for turn in range(2):
            barrier = threading.Barrier(4)

            def swap(i: int, turn: int = turn, barrier: threading.Barrier = barrier, version: str = version) -> bool:
                barrier.wait(60)
                try:
                    store.swap("head/u1", f"{turn} {i}".encode(), version)
                except SwapConflictError:
                    return False
                return True

            with ThreadPoolExecutor(4) as pool:
                won.append([i for i, ok in enumerate(pool.map(swap, range(4))) if ok])
            found = store.look("head/u1")
            assert found is not None
            data, version = found
            # a conflict may also be said to whoever was overtaken after it had won: then nobody says it won
            assert len(won[turn]) <= 1
            assert not won[turn] or data == f"{turn} {won[turn][0]}".encode()
        assert any(won)

    def test_a_key_that_leads_elsewhere_is_refused(self, store: Store):
        for key in ("../x", "/etc/passwd", "a//b", "a/../b", "", "a/.hidden", "a b", "a\nb"):
            with pytest.raises(InvariantError):
                store.put(key, [b"x"])
        assert store.list("") == []

    def test_every_error_is_one_of_the_stores(self, store: Store):
        for call in (lambda: store.get("no", 1), lambda: store.size("no")):
            with pytest.raises(StoreError):
                call()
