"""Real operators through a store and back: chains of incremental checkpoints, damage, and who may have them."""

from __future__ import annotations

import threading

import pytest
from support.small_checkpoints import DEPLOYMENT, MAKERS, SHARD, Chain, aggregate, feed, job_of, results, run

from holdfast.checkpoint import claim, collect, fit_of, publish, restore_operator, sweep
from holdfast.checkpoint.inspect import delete, head_of, pin, survey, unpin, verify
from holdfast.checkpoint.keys import file_key, head_key, manifest_key
from holdfast.checkpoint.restore import load
from holdfast.errors import ConfigError, CorruptPageError, FencedError, StateError, StoreUnreachableError
from holdfast.store import IoService, LocalStore, MemoryStore


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    service = IoService(MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store"), again_s=0.5)
    yield service
    service.close()


def _claim(store, epoch=1, holder="n0#1"):
    return run(store, claim(SHARD, DEPLOYMENT, epoch=epoch, holder=f"{holder}.{epoch}"))


def _restored(store, make, epoch, bad=None):
    """(operator, what was restored, tenure) of a new primary."""
    tenure = _claim(store, epoch)
    op = make()
    heard = [] if bad is None else bad
    found = run(store, restore_operator(tenure, op, fit_of(op, DEPLOYMENT), lambda e, why: heard.append(e.sequence)))
    return op, found, tenure


@pytest.mark.parametrize("kind", MAKERS)
def test_every_checkpoint_of_a_chain_comes_back_key_by_key(store, kind):
    make = MAKERS[kind]
    chain = Chain(store, _claim(store), make())
    entries = []
    for i in range(4):
        feed(chain.op, i, rows=1200 if i == 0 else 40)
        entries.append(chain.checkpoint(position=i, stage_bytes=8192))
    assert [e.base for e in entries] == [-1, 1, 2, 3]
    for i, entry in enumerate(entries):
        assert i == 0 or entry.own_bytes < entries[0].own_bytes, "an incremental one is smaller"
        found = run(store, load(SHARD, entry, lambda _: make().new_pool()))
        back, again = make(), make()
        back.become(found.pool, found.manifest.meta)
        for seed in range(i + 1):
            feed(again, seed, rows=1200 if seed == 0 else 40)
        assert results(back) == results(again)
        assert run(store, survey(SHARD)).orphans(SHARD) == [], "writers that got no page leave no file"
        assert list(found.manifest.stand.positions.values()) == [i]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_restored_operator_goes_on_and_its_next_checkpoint_is_incremental(store, kind):
    make = MAKERS[kind]
    first = Chain(store, _claim(store), make())
    feed(first.op, 0, rows=1200)
    whole = first.checkpoint()
    op, found, tenure = _restored(store, make, 2)
    second = Chain(store, tenure, op, found.kept)
    feed(op, 1, rows=40)
    after = second.checkpoint()
    assert after.base == whole.sequence
    assert after.own_bytes < whole.own_bytes
    back, _, _ = _restored(store, make, 3)
    again = make()
    feed(again, 0, rows=1200)
    feed(again, 1, rows=40)
    assert results(back) == results(again)


def test_rows_beside_the_pages_come_back(store):
    chain = Chain(store, _claim(store), aggregate())
    feed(chain.op, 0)
    chain.checkpoint(parts={"cargo": [b"some ", memoryview(b"rows")], "handed": [b""]})
    _, found, _ = _restored(store, aggregate, 2)
    assert found.parts == {"cargo": b"some rows", "handed": b""}


def test_the_owner_goes_on_while_its_pages_are_written(store):
    """What is written is the moment at which it was taken, whatever happens to the operator meanwhile."""
    tenure, op = _claim(store), aggregate()
    feed(op, 0, rows=1200)
    job = job_of(op, 1)
    stop, fed = threading.Event(), []
    writing = threading.Thread(target=lambda: (run(store, publish(tenure, job)), stop.set()))
    writing.start()
    while not stop.is_set() and len(fed) < 50:
        feed(op, 1 + len(fed))
        fed.append(1)
    writing.join(60)
    back, _, _ = _restored(store, aggregate, 2)
    again = aggregate()
    feed(again, 0, rows=1200)
    assert results(back) == results(again)


# --- damage


def _three(store):
    """Three checkpoints, each of which needs files of those before it."""
    chain = Chain(store, _claim(store), aggregate())
    entries = []
    for i in range(3):
        feed(chain.op, i, rows=1200 if i == 0 else 40)
        entries.append(chain.checkpoint(parts={"cargo": [b"rows of %d" % i]}))
    return chain, entries


def _damage(store, key, how):
    inner = store.store
    raw = inner.get(key, 1 << 30)
    inner.delete([key])
    if how == "flipped":
        at = 2 * len(raw) // 3
        inner.put(key, [raw[:at], bytes([raw[at] ^ 4]), raw[at + 1 :]])
    elif how == "cut":
        inner.put(key, [raw[: len(raw) // 2]])
    elif how == "another":
        turn = 4096 if len(raw) > 8192 else 3
        inner.put(key, [raw[turn:] + raw[:turn]])


@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "another"])
@pytest.mark.parametrize("what", ["pages", "manifest", "part"])
def test_a_damaged_checkpoint_is_set_aside_loudly_and_an_older_one_is_used(store, what, how):
    _, entries = _three(store)
    last = entries[-1]
    names = {"pages": f"{last.sequence}/pages-0", "part": f"{last.sequence}/part-cargo"}
    key = manifest_key(SHARD, last.sequence) if what == "manifest" else file_key(SHARD, names[what])
    _damage(store, key, how)
    bad: list[int] = []
    back, found, tenure = _restored(store, aggregate, 2, bad)
    assert bad == [last.sequence]
    assert found.entry.sequence == entries[1].sequence
    assert found.passed_over[0][0] == last.sequence
    again = aggregate()
    feed(again, 0, rows=1200)
    feed(again, 1, rows=40)
    assert results(back) == results(again)
    aside = tenure.head.entry(last.sequence)
    assert aside is not None
    assert aside.aside, "it says why, and stays for whoever looks"
    _, found, _ = _restored(store, aggregate, 3, bad)
    assert bad == [last.sequence], "it is not tried again"


def test_damage_in_a_file_that_all_need_leaves_nothing_and_that_is_an_error_not_an_empty_start(store):
    _, entries = _three(store)
    shared = set(entries[0].files) & set(entries[1].files) & set(entries[2].files)
    _damage(store, file_key(SHARD, min(name for name in shared if "pages" in name)), "missing")
    bad: list[int] = []
    with pytest.raises(StateError, match="no checkpoint of talkers-0 can be restored"):
        _restored(store, aggregate, 2, bad)
    assert bad == [3, 2, 1]
    with pytest.raises(StateError, match="no checkpoint"):
        _restored(store, aggregate, 3, bad)


def test_a_store_that_does_not_answer_marks_nothing(tmp_path):
    inner = MemoryStore()
    store = IoService(inner, again_s=0.2)
    _, entries = _three(store)

    def away(op, key):
        if op == "read":
            raise StoreUnreachableError("away")
        return old(op, key)

    old, inner.trouble = inner.trouble, away
    with pytest.raises(StoreUnreachableError):
        _restored(store, aggregate, 2)
    inner.trouble = old
    _, found, _ = _restored(store, aggregate, 3)
    assert found.entry.sequence == entries[-1].sequence
    store.close()


# --- who may


def test_a_checkpoint_of_another_operator_pipeline_or_format_is_one_clear_line(store):
    _, entries = _three(store)
    with pytest.raises(ConfigError, match="of another pipeline"):
        run(store, claim(SHARD, "another", epoch=9, holder="x"))
    tenure = _claim(store, 2)
    other = MAKERS["join"]()
    with pytest.raises(ConfigError, match="of another operator") as caught:
        run(store, restore_operator(tenure, other, fit_of(other, DEPLOYMENT)))
    assert "another schema" in caught.value.detail
    assert tenure.head.entry(entries[-1].sequence).aside == "", "it is not bad, only not ours"  # type: ignore[union-attr]
    raw, version = store.store.look(head_key(SHARD))
    store.store.swap(head_key(SHARD), raw[:4] + (99).to_bytes(4, "little") + raw[8:], version)
    with pytest.raises(ConfigError, match="newer Holdfast"):
        _claim(store, 3)


def test_an_old_primary_can_neither_publish_nor_collect(store):
    old, entries = _three(store)
    _, found, new = _restored(store, aggregate, 2)
    for plan in (lambda: publish(old.tenure, job_of(old.op, 1)), lambda: collect(old.tenure, keep=1)):
        with pytest.raises(FencedError):
            run(store, plan())
    with pytest.raises(FencedError, match="newer primary"):
        run(store, claim(SHARD, DEPLOYMENT, epoch=1, holder="late"))
    assert found.entry.sequence == entries[-1].sequence
    assert run(store, sweep(new)), "what it has written before it was told"
    assert run(store, survey(SHARD)).orphans(SHARD) == []


def test_a_head_that_is_gone_is_not_an_empty_beginning(store):
    _three(store)
    inner = store.store
    if isinstance(inner, MemoryStore):
        inner.small.clear()
    else:
        inner.delete([one.key for one in inner.list("head/")])
    with pytest.raises(StateError, match="has checkpoints but no head"):
        _claim(store, 2)
    assert len(inner.list("checkpoint/")) > 6


def test_a_damaged_head_is_said_and_nothing_is_changed(store):
    _three(store)
    raw, version = store.store.look(head_key(SHARD))
    store.store.swap(head_key(SHARD), raw[:-3] + b"xyz", version)
    with pytest.raises(CorruptPageError, match="the head of talkers-0 is damaged"):
        _claim(store, 2)


# --- keeping and deleting


def test_retention_keeps_what_the_kept_ones_need(store):
    chain, _ = _three(store)
    assert run(store, collect(chain.tenure, keep=1)) == (1, 2)
    assert [e.sequence for e in chain.tenure.head.entries] == [3]
    assert run(store, survey(SHARD)).orphans(SHARD) == []
    back, found, _ = _restored(store, aggregate, 2)
    assert found.entry.sequence == 3
    assert results(back) == results(chain.op)


def test_what_is_pinned_stays_until_it_is_unpinned(store):
    chain, _ = _three(store)
    run(store, pin(SHARD, "before-upgrade", 1))
    assert run(store, collect(chain.tenure, keep=1)) == (2,)
    with pytest.raises(ConfigError, match="is kept as 'before-upgrade'"):
        run(store, delete(SHARD, (1,)))
    assert run(store, verify(run(store, head_of(SHARD)), run(store, head_of(SHARD)).entry(1))).why == ""
    assert run(store, unpin(SHARD, "before-upgrade"))
    assert run(store, delete(SHARD, (1,))) == (1,)


def test_deleting_what_a_running_primary_builds_on_makes_its_next_one_full(store):
    chain, _ = _three(store)
    run(store, delete(SHARD, (1, 2, 3), force=True))
    feed(chain.op, 9, rows=40)
    with pytest.raises(StateError, match="builds on is gone"):
        chain.checkpoint()
    chain.kept = None
    full = chain.checkpoint()
    assert full.base == -1
    back, _, _ = _restored(store, aggregate, 2)
    assert results(back) == results(chain.op)


def test_the_newest_good_one_is_not_deleted_by_mistake(store):
    _three(store)
    for sequences in ((1, 2, 3), (3,)):
        with pytest.raises(ConfigError, match="3 is the newest good checkpoint of talkers-0"):
            run(store, delete(SHARD, sequences))
    with pytest.raises(ConfigError, match="has no checkpoint 77"):
        run(store, delete(SHARD, (77,)))


def test_after_many_changes_a_full_one_lets_the_old_files_go(store):
    chain = Chain(store, _claim(store), aggregate())
    bases = []
    for i in range(12):
        feed(chain.op, i % 3, rows=300)
        bases.append(chain.checkpoint().base)
        run(store, collect(chain.tenure, keep=1))
    assert bases.count(-1) > 1
    sizes = run(store, survey(SHARD)).sizes
    assert sum(sizes.values()) < 4 * chain.tenure.head.good[0].state_bytes
