"""Pages over several writers, and the table that says where each one is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.small_state import FIT, PAGE, SHARD, SmallState, new_pool

from holdfast.checkpoint.manifest import CheckpointManifest, SetPages, Stand, decode, encode, from32, int32
from holdfast.checkpoint.pages import PageReads, PageStreams
from holdfast.errors import ConfigError, CorruptPageError, StateError
from holdfast.store import MemoryStore, run_alone
from holdfast.store.plan import All


def _state(pages: int = 12) -> SmallState:
    state = SmallState()
    for i in range(pages):
        state.write(0, 100 + i)
    return state


def _written(state: SmallState, base=None, sequence: int = 1, writers: int = 3):
    """(table, files) with writers that take turns."""
    snapshot = state.pool.snapshot(base=base[0] if base else None)
    streams = PageStreams(snapshot, writers, stage_bytes=PAGE)
    walks = {i: streams.stream(i) for i in range(streams.writers)}
    files = {i: bytearray() for i in walks}
    while walks:
        for i in list(walks):
            chunk = next(walks[i], None)
            if chunk is None:
                del walks[i]
            else:
                files[i] += chunk
    table = streams.table(sequence, base[1] if base else None)
    return snapshot, table, {f"checkpoint/{SHARD}-{sequence}/pages-{i}": bytes(raw) for i, raw in files.items()}


def _manifest(table, sequence: int = 1) -> CheckpointManifest:
    return CheckpointManifest(
        shard=SHARD, sequence=sequence, epoch=1, base=-1, taken_ms=0, fit=FIT, stand=Stand(), files=table.files,
        sets=table.for_manifest(), meta=b"",
    )  # fmt: skip


def _read(store, reads: PageReads):
    pool = new_pool()

    def plan():
        yield All(reads.into(pool))

    run_alone(store, plan())
    reads.finish(pool)
    return SmallState(pool)


def test_writers_that_take_turns_have_a_part_of_the_pages_each():
    state = _state()
    snapshot, table, files = _written(state)
    assert [len(raw) // PAGE for raw in files.values()] == [4, 4, 4]
    assert snapshot.read == len(snapshot), "every page was let go as it was copied"
    store = MemoryStore()
    store.objects.update(files)
    assert _read(store, PageReads(_manifest(table), read_bytes=2 * PAGE)).says() == state.says()


def test_a_table_takes_each_page_from_the_newest_file_that_has_it_and_drops_files_without_use():
    state = _state(6)
    first = _written(state)
    for lp in state.pages.logical():
        state.pages.resolve(int(lp), write=True)[8] = 1000 + int(lp)
    store = MemoryStore()
    store.objects.update(first[2])
    _, table, files = _written(state, first, sequence=2)
    assert {f.name.partition("/")[0] for f in table.files} == {"2"}
    assert (table.live_pages, table.kept_pages) == (6, 6)
    store.objects.update(files)
    assert _read(store, PageReads(_manifest(table, 2))).says() == state.says()


def test_writers_on_threads_lose_no_page():
    for _ in range(20):
        state = _state(40)
        snapshot = state.pool.snapshot()
        streams = PageStreams(snapshot, 4, stage_bytes=PAGE)
        files = [bytearray() for _ in range(4)]

        def walk(i: int, streams: PageStreams = streams, files: list[bytearray] = files) -> None:
            for chunk in streams.stream(i):
                files[i] += chunk

        threads = [threading.Thread(target=walk, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table = streams.table(1, None)
        store = MemoryStore()
        store.objects.update({f"checkpoint/{SHARD}-1/pages-{i}": bytes(raw) for i, raw in enumerate(files)})
        assert _read(store, PageReads(_manifest(table))).says() == state.says()


def test_a_snapshot_that_is_closed_ends_its_writers():
    streams = PageStreams(_state().pool.snapshot(), 2, stage_bytes=PAGE)
    walk = streams.stream(0)
    next(walk)
    streams.snapshot.close()
    with pytest.raises(StateError, match="closed while it was being read"):
        next(walk)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: SetPages(s.id, s.kind, s.numbers[:-4], s.files, s.places, s.digests),
        lambda s: SetPages(s.id, s.kind, s.numbers[::-1], s.files, s.places, s.digests),
        lambda s: SetPages(s.id, s.kind, s.numbers, int32(from32(s.files) + 9), s.places, s.digests),
        lambda s: SetPages(s.id, s.kind, s.numbers, s.files, int32(from32(s.places) + 9), s.digests),
        lambda s: SetPages(s.id, s.kind, s.numbers, s.files, int32(np.full(12, -1)), s.digests),
        lambda s: SetPages(-1, s.kind, s.numbers, s.files, s.places, s.digests),
    ],
)
def test_a_manifest_whose_numbers_cannot_be_is_refused(change):
    import msgspec

    _, table, _ = _written(_state())
    good = _manifest(table)
    assert decode(encode(good), "it") == good
    bad = msgspec.structs.replace(good, sets=(change(good.sets[0]),))
    with pytest.raises(CorruptPageError, match="it is damaged"):
        decode(encode(bad), "it")


def test_a_manifest_of_a_newer_format_or_with_foreign_files_is_refused():
    import msgspec

    _, table, _ = _written(_state())
    good = _manifest(table)
    raw = encode(good)
    with pytest.raises(ConfigError, match="newer Holdfast"):
        decode(raw[:4] + (2).to_bytes(4, "little") + raw[8:], "it")
    for name in ("../../etc/passwd", "9/pages-0", "1/other"):
        files = (msgspec.structs.replace(table.files[0], name=name), *table.files[1:])
        with pytest.raises(CorruptPageError, match="names a file that cannot be one"):
            decode(encode(msgspec.structs.replace(good, files=files)), "it")
    for at in range(0, len(raw), 37):
        with pytest.raises((CorruptPageError, ConfigError)):
            decode(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :], "it")
