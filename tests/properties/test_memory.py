"""How much memory state takes: at most 1.6 times its records at any size, and a checkpoint at most doubles what it
touches."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import int_keys, small_pool

from holdfast.state.checkpoint import stream
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.index import DEPTH
from holdfast.state.keys import PLAIN


def _map(page_bytes: int, value_words: int, limit: int = 256 << 20) -> HashMap:
    layout = MapLayout(kinds=(PLAIN,), value_words=value_words)
    return HashMap(small_pool(limit // page_bytes, page_bytes), 1, layout)


def _beside(m: HashMap) -> float:
    """Bytes of the tables beside the pages: three bits a record, a dozen words a page, and the directory."""
    return 3 / 8 * len(m) + 12 * 8 * m.pool.stats().pages + 8 * (1 << int(m.block[DEPTH]))


@pytest.mark.parametrize("page_bytes", [8192, 65536])
@pytest.mark.parametrize("value_words", [1, 2, 6], ids=lambda w: f"{16 + 8 * w} bytes a record")
def test_a_map_takes_at_most_1_6_times_its_records_at_every_size(page_bytes, value_words):
    m = _map(page_bytes, value_words)
    identity = np.zeros(value_words, np.int64)
    keys = np.random.default_rng(7).permutation(np.arange(2_000_000) * 977)
    worst = 0.0
    for start in range(0, len(keys), 10_000):
        m.upsert(int_keys(keys[start : start + 10_000]), identity)
        if len(m) >= 200_000:
            live = m.slots.record_bytes * len(m)
            worst = max(worst, (m.pool.stats().bytes_peak + _beside(m)) / live)
    assert len(m) == 2_000_000
    assert worst <= 1.6, f"{worst:.3f} times the live records"


@pytest.mark.parametrize("page_bytes", [8192, 65536])
def test_a_map_that_lost_nine_of_ten_records_at_one_end_gives_the_memory_back(page_bytes):
    m = _map(page_bytes, 1)
    m.upsert(int_keys(np.arange(500_000)), np.zeros(1, np.int64))
    most = m.pool.stats().pages
    m.remove(m.find(int_keys(np.arange(450_000))))  # windows expire in about the order in which they came
    assert m.pool.stats().pages < most / 5


@pytest.mark.parametrize("page_bytes", [8192, 65536])
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_a_checkpoint_under_a_uniform_write_load_at_most_doubles_the_pages_it_touches(page_bytes, progress):
    rng = np.random.default_rng(11)
    m = _map(page_bytes, 1)
    m.upsert(int_keys(np.arange(400_000)), np.zeros(1, np.int64))
    before = m.pool.stats().pages
    snapshot = m.pool.snapshot()
    reader = stream(snapshot, stage_bytes=1)
    for _ in range(int(progress * len(snapshot)) + 1):  # the head, then a page each
        next(reader)
    m.pool.reclaim()
    for _ in range(40):
        m.upsert(int_keys(rng.integers(0, 400_000, 10_000)), np.zeros(1, np.int64))
    stats = m.pool.stats()
    touched = len(m.slots.pages)  # a uniform load touches every page of records, and none of the index
    assert stats.pages_peak <= before + touched
    assert stats.pages_peak - before <= (1 - progress) * len(snapshot) + 1, "pages already read were cloned"
    assert stats.pages_cloned == stats.pages_peak - before
    assert progress == 1.0 or stats.pages_cloned > 0
    snapshot.close()
    m.pool.reclaim()
    assert m.pool.stats().pages == before
