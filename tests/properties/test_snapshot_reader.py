"""A reader in a thread of its own streams a snapshot while the owner writes as fast as it can."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from state_tools import INT, check_pool, int_keys, set_words, small_pool

from holdfast.state.checkpoint import Checkpoint, restore, write
from holdfast.state.hashmap import HashMap
from holdfast.state.pages import Snapshot

RECORDS = 150_000


def _state(m: HashMap) -> np.ndarray:
    """Keys and values, sorted by key."""
    rows = m.slots.gather(m.slots.rids(), 1, 2)
    return rows[np.argsort(rows[:, 0])]


def _write_while_read(m: HashMap, snapshot: Snapshot, rng: np.random.Generator) -> tuple[bytes, int]:
    """Upsert, remove and reclaim until the reader is done; what it wrote, and the number of batches meanwhile."""
    out = io.BytesIO()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            write(snapshot, out)
        except BaseException as error:  # the owner's thread reports it
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    batches = 0
    while reader.is_alive() or batches < 20:
        keys = rng.integers(0, 2 * RECORDS, 8192)
        addresses, _ = m.upsert(int_keys(keys), np.zeros(1, np.int64))
        set_words(addresses, 2, rng.integers(0, 1 << 60, (8192, 1)))
        rids = np.unique(m.find(int_keys(rng.integers(0, 2 * RECORDS, 512))))
        m.remove(rids[rids >= 0])
        m.pool.reclaim()
        batches += 1
    reader.join()
    assert failed == []
    return out.getvalue(), batches


@pytest.mark.parametrize("page_bytes", [8192, 65536])
def test_what_a_reader_streams_is_the_state_at_the_snapshot_whatever_the_owner_does(page_bytes):
    rng = np.random.default_rng(page_bytes)
    limit = 64 << 20
    m = HashMap(small_pool(limit // page_bytes, page_bytes), 1, INT)
    addresses, _ = m.upsert(int_keys(np.arange(RECORDS)), np.zeros(1, np.int64))
    set_words(addresses, 2, np.arange(RECORDS).reshape(-1, 1))
    base, raws = None, []
    for _ in range(4):
        snapshot = m.pool.snapshot(base=base)
        want = _state(m)
        cloned = m.pool.stats().pages_cloned
        raw, _ = _write_while_read(m, snapshot, rng)
        assert m.pool.stats().pages_cloned > cloned, "the owner never met the reader: the test does not test"
        raws.append(raw)
        base = snapshot
        pool = small_pool(limit // page_bytes, page_bytes)
        restore([Checkpoint.of_bytes(r) for r in raws], pool)
        back = HashMap(pool, 1, INT)
        assert np.array_equal(_state(back), want)
        assert (back.find(int_keys(want[:, 0])) >= 0).all()
        check_pool(m.pool)
    m.pool.reclaim()
    assert m.pool.stats().snapshots_open == 0
