"""Checkpoints as bytes: what was written comes back, and what was damaged on the way never passes for state."""

from __future__ import annotations

import io
import itertools

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from state_tools import INT, TEXT, contents, int_keys, keys_of, load_pool, put, remove, save, small_pool

from holdfast.errors import ConfigError, CorruptPageError, InvariantError
from holdfast.state.checkpoint import _FRAME, _HEAD, Checkpoint, restore
from holdfast.state.hashmap import HashMap
from holdfast.state.pagetable import HEADER_WORDS

KIND = 9
PAGE = 4096


def _pages(*numbers: int, says: int = 100):
    """A pool with one set of these pages; page i says `says` + i."""
    pool = small_pool()
    page_set = pool.create(1, KIND)
    for i in range(max(numbers) + 1):
        page_set.resolve(page_set.allocate(), write=True)[HEADER_WORDS] = says + i
    for i in set(range(max(numbers) + 1)) - set(numbers):
        page_set.release(i)
    return pool


def _says(pool) -> dict[int, int]:
    page_set = pool.sets[1]
    return {int(lp): int(page_set.resolve(int(lp))[HEADER_WORDS]) for lp in page_set.logical()}


def _parts(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Head and frames."""
    start = _HEAD.size + _HEAD.unpack(raw[: _HEAD.size])[2] + 8
    step = _FRAME.size + PAGE
    return raw[:start], [raw[at : at + step] for at in range(start, len(raw), step)]


def _chain() -> tuple[list[bytes], dict[int, int]]:
    """A full checkpoint and two incremental ones, and what the last one says."""
    pool = _pages(0, 1, 2, 3)
    page_set = pool.sets[1]
    first = pool.snapshot()
    page_set.resolve(1, write=True)[HEADER_WORDS] = 1
    second = pool.snapshot(base=first)
    page_set.resolve(2, write=True)[HEADER_WORDS] = 2
    page_set.release(3)
    third = pool.snapshot(base=second)
    return [save(s) for s in (first, second, third)], {0: 100, 1: 1, 2: 2}


# -- round trips --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_a_chain_gives_the_newest_version_of_every_page(lazy):
    raws, want = _chain()
    assert _says(load_pool(*raws, lazy=lazy)) == want
    assert _says(load_pool(*raws[:2], lazy=lazy)) == {0: 100, 1: 1, 2: 102, 3: 103}
    assert _says(load_pool(raws[0], lazy=lazy)) == {0: 100, 1: 101, 2: 102, 3: 103}


def test_holes_in_the_page_numbers_stay_holes_and_are_used_again():
    back = load_pool(save(_pages(1, 3, 6).snapshot()))
    assert _says(back) == {1: 101, 3: 103, 6: 106}
    assert {back.sets[1].allocate() for _ in range(4)} == {0, 2, 4, 5}
    assert back.sets[1].allocate() == 7


def test_the_meta_of_the_last_checkpoint_comes_back():
    pool = _pages(0)
    first = pool.snapshot()
    raws = [save(first, b"one"), save(pool.snapshot(base=first), b"two")]
    assert restore([Checkpoint.of_bytes(raw) for raw in raws], small_pool()) == b"two"


def test_a_file_on_disk_and_a_stream_that_cannot_seek_restore_alike(tmp_path):
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError("a pipe")

        def tell(self):
            raise OSError("a pipe")

    raw = save(_pages(0, 1, 2).snapshot())
    path = tmp_path / "one.ckpt"
    path.write_bytes(raw)
    from_pipe, from_disk = small_pool(), small_pool()
    restore([Checkpoint(Pipe(raw))], from_pipe)
    restore([Checkpoint.open(path)], from_disk, lazy=True)
    assert _says(from_pipe) == _says(from_disk) == {0: 100, 1: 101, 2: 102}
    with pytest.raises(InvariantError, match="can seek"):
        restore([Checkpoint(Pipe(raw))], small_pool(), lazy=True)


def test_pages_load_in_any_order():
    head, frames = _parts(save(_pages(0, 1, 3, 4).snapshot()))
    for order in itertools.permutations(frames):
        assert _says(load_pool(head + b"".join(order))) == {0: 100, 1: 101, 3: 103, 4: 104}


@given(st.randoms(use_true_random=False))
def test_a_map_is_the_same_whatever_the_order_of_its_pages(random):
    head, frames = _parts(_MAP)
    random.shuffle(frames)
    assert contents(HashMap(load_pool(head + b"".join(frames)), 1, TEXT)) == _MAP_CONTENTS


def _map():
    m = HashMap(small_pool(256), 1, TEXT)
    rows = [(f"{i}" * (1 + i % 40),) for i in range(600)] + [("long" * 3000,)]
    put(m, keys_of(rows, TEXT.kinds), list(range(601)))
    remove(m, keys_of(rows[::3], TEXT.kinds))
    return save(m.pool.snapshot()), contents(m)


_MAP, _MAP_CONTENTS = _map()


@pytest.mark.parametrize("page_bytes", [4096, 8192, 65536])
def test_lazy_loading_gives_what_eager_loading_gives(page_bytes):
    m = HashMap(small_pool(256, page_bytes), 1, INT)
    put(m, int_keys(range(5000)), list(range(5000)))
    remove(m, int_keys(range(0, 5000, 3)))
    raw = save(m.pool.snapshot())
    want = contents(m)
    lazy = HashMap(load_pool(raw, page_bytes=page_bytes, lazy=True), 1, INT)
    assert lazy.pool.lazy_pages() == len(m.slots.pages)
    assert (lazy.find(int_keys([0, 1, 2])) >= 0).tolist() == [False, True, True]
    assert lazy.pool.lazy_pages() > 0 or page_bytes == 65536, "everything was loaded for three look-ups"
    put(lazy, int_keys([1, 70_000]), [-1, -2])
    assert contents(lazy) == want | {(1,): -1, (70_000,): -2}
    assert lazy.pool.loader is None


# -- damage -------------------------------------------------------------------------------------------------------


def _is_refused(raws: list[bytes], want: dict[int, int]) -> bool:
    """Whether eager loading refuses the chain. Lazy loading may not look at the damage, but what it gives is right."""
    verdicts = []
    for lazy in (False, True):
        try:
            got = _says(load_pool(*raws, lazy=lazy))
        except (CorruptPageError, ConfigError):
            verdicts.append(True)
        else:
            assert got == want, "damage was taken for state"
            verdicts.append(False)
    return verdicts[0]


def test_a_file_cut_off_anywhere_is_refused():
    raw = save(_pages(0, 1).snapshot(), b"meta")
    head, frames = _parts(raw)
    edges = {0, 1, 4, 8, 15, 16, 17, len(head) - 9, len(head) - 8, len(head) - 1, len(head)}
    for i in range(len(frames)):
        at = len(head) + i * len(frames[0])
        edges |= {at + k for k in (0, 1, 4, 8, 16, 23, 24, 25, 24 + 8, 24 + PAGE // 2, 24 + PAGE - 1)}
    for cut in sorted(edges) + list(range(len(head))):
        with pytest.raises(CorruptPageError):
            load_pool(raw[:cut])
        with pytest.raises(CorruptPageError):  # at once, not when the page is first wanted
            load_pool(raw[:cut], lazy=True)


@pytest.mark.parametrize("lazy", [False, True])
def test_bytes_after_the_last_page_are_refused(lazy):
    raw = save(_pages(0, 1).snapshot())
    with pytest.raises(CorruptPageError, match="bytes after"):
        load_pool(raw + b"\0", lazy=lazy)


def test_every_single_flipped_bit_is_found_or_is_padding():
    raw = save(_pages(0).snapshot(), b"m")
    head, _ = _parts(raw)
    padding = range(len(head) + 16, len(head) + 24)
    for at in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            try:
                got = _says(load_pool(bytes(flipped)))
            except CorruptPageError:
                continue
            except ConfigError:
                continue  # a page size that is another valid one: refused as well
            assert at in padding, f"byte {at}, bit {bit} went unnoticed"
            assert got == {0: 100}


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_flipped_bit_in_a_chain_never_brings_back_an_older_page(which):
    # all of head and frame heads, and a sample of the pages: their bits are covered by one checksum each
    raws, want = _chain()
    head, frames = _parts(raws[which])
    step = _FRAME.size + PAGE
    places = list(range(len(head)))
    for i in range(len(frames)):
        places += [len(head) + i * step + k for k in (*range(_FRAME.size), *range(_FRAME.size, step, 611))]
    for at in places:
        for bit in range(8):
            damaged = bytearray(raws[which])
            damaged[at] ^= 1 << bit
            in_frame = (at - len(head)) % step
            refused = _is_refused([*raws[:which], bytes(damaged), *raws[which + 1 :]], want)
            assert refused or (at >= len(head) and in_frame >= 16), f"byte {at}, bit {bit} went unnoticed"


def test_a_missing_page_is_named():
    raw = save(_pages(0, 1, 2).snapshot())
    head, frames = _parts(raw)
    with pytest.raises(CorruptPageError, match="ends too early"):
        load_pool(head + frames[0] + frames[2])
    raws, _ = _chain()
    manifest = Checkpoint.of_bytes(raws[1]).manifest
    forged = msgspec.structs.replace(manifest, base_seq=-1)  # an incremental one that claims to be full
    body = msgspec.msgpack.encode(forged)
    frames = _parts(raws[1])[1]
    whole = (
        _HEAD.pack(b"HFCP", 1, len(body))
        + body
        + np.uint64(xxhash.xxh3_64_intdigest(body)).tobytes()
        + b"".join(frames)
    )
    for lazy in (False, True):
        with pytest.raises(CorruptPageError, match="lacks 3 pages") as error:
            load_pool(whole, lazy=lazy)
        assert "page 0 of set 1" in error.value.detail


@pytest.mark.parametrize("lazy", [False, True])
def test_a_doubled_page_in_place_of_another_is_refused(lazy):
    head, frames = _parts(save(_pages(0, 1, 2).snapshot()))
    with pytest.raises(CorruptPageError):
        _says(load_pool(head + frames[0] + frames[0] + frames[2], lazy=lazy))


def test_an_incremental_checkpoint_with_an_older_page_doubled_is_refused():
    # page 1 of the second one replaced by its page 1 again is fine; replaced by a page of the first one it is stale
    raws, _ = _chain()
    head, _frames = _parts(raws[1])
    stale = head + _parts(raws[0])[1][0]
    with pytest.raises(CorruptPageError):
        load_pool(raws[0], stale)


def test_pages_in_the_wrong_order_are_no_harm_to_eager_and_refused_by_lazy_loading():
    head, frames = _parts(save(_pages(0, 1, 2).snapshot()))
    swapped = head + frames[1] + frames[0] + frames[2]
    assert _says(load_pool(swapped)) == {0: 100, 1: 101, 2: 102}
    with pytest.raises(CorruptPageError, match="wrong place"):
        _says(load_pool(swapped, lazy=True))


def test_a_foreign_page_size_is_refused_with_advice():
    raw = save(_pages(0).snapshot())
    with pytest.raises(ConfigError, match="page size") as error:
        load_pool(raw, page_bytes=8192)
    assert "page_bytes=4096" in error.value.hint


@pytest.mark.parametrize("pick", [(0, 2), (1,), (1, 2), (0, 2, 1), (0, 1, 1), (0, 0)])
def test_a_broken_chain_is_refused(pick):
    raws, _ = _chain()
    with pytest.raises(CorruptPageError, match="does not continue") as error:
        load_pool(*(raws[i] for i in pick))
    assert "in order" in error.value.hint


def test_a_chain_of_two_incarnations_is_refused():
    # both count their snapshots from 1, so the numbers alone fit
    chains = []
    for origin in (1, 2):
        pool = _pages(0, 1, says=100 * origin)
        pool.origin = origin
        first = pool.snapshot()
        pool.sets[1].resolve(1, write=True)[HEADER_WORDS] = origin
        chains.append([save(first), save(pool.snapshot(base=first))])
    assert _says(load_pool(*chains[1])) == {0: 200, 1: 2}
    with pytest.raises(CorruptPageError, match="does not continue"):
        load_pool(chains[0][0], chains[1][1])


def test_no_checkpoint_and_a_pool_in_use_are_bugs():
    with pytest.raises(InvariantError, match="nothing to restore"):
        restore([], small_pool())
    with pytest.raises(InvariantError, match="in use"):
        restore([Checkpoint.of_bytes(save(_pages(0).snapshot()))], _pages(0))


@given(st.binary(max_size=300))
def test_garbage_is_refused(raw):
    with pytest.raises(CorruptPageError):
        Checkpoint.of_bytes(raw)


@given(st.binary(max_size=200))
def test_garbage_with_a_good_checksum_is_refused(body):
    raw = _HEAD.pack(b"HFCP", 1, len(body)) + body + np.uint64(xxhash.xxh3_64_intdigest(body)).tobytes()
    with pytest.raises(CorruptPageError):
        Checkpoint.of_bytes(raw)
