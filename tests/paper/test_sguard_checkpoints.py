"""sguard §4.4 and §5: what a checkpoint does to the pages of a running operator, and how it comes back."""

from __future__ import annotations

from random import Random

from support.small_checkpoints import DEPLOYMENT, SHARD, Chain, aggregate, feed, job_of, results, run

from holdfast.checkpoint import claim
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.pages import PageReads
from holdfast.checkpoint.restore import read_manifest
from holdfast.store import MemoryStore


def test_4_4_preparing_a_checkpoint_copies_no_page():
    op = aggregate()
    feed(op, 0, rows=1200)
    before = op.pool.stats()
    job = job_of(op, 1)
    assert op.pool.stats().pages == before.pages
    assert op.pool.stats().pages_cloned == before.pages_cloned
    job.close()


def test_4_4_a_page_is_copied_when_it_is_changed_before_it_is_written_and_not_afterwards():
    op = aggregate()
    feed(op, 0, rows=1200)
    job = job_of(op, 1, writers=1, stage_bytes=4096)
    feed(op, 0, rows=1200)
    cloned = op.pool.stats().pages_cloned
    assert cloned > 0, "it went on while its pages were held"
    job.close()
    again = job_of(op, 1, writers=1, stage_bytes=4096)
    ((_, stream),) = again.files(2)
    for _ in stream:  # type: ignore[attr-defined]
        pass
    op.pool.reclaim()
    feed(op, 0, rows=1200)
    assert op.pool.stats().pages_cloned == cloned, "all pages were written: they are its own again"
    again.close()


def test_4_4_the_page_table_is_rebuilt_in_whatever_order_the_pages_come():
    store = MemoryStore()
    chain = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0")), aggregate())
    for seed in range(3):
        feed(chain.op, seed, rows=600)
        entry = chain.checkpoint(stage_bytes=8192)
    manifest: CheckpointManifest = run(store, read_manifest(SHARD, entry))
    wanted = None
    for order in range(4):
        back = aggregate()
        pool = back.new_pool()
        reads = PageReads(manifest, read_bytes=8192)
        operations = reads.into(pool)
        assert len(operations) > 5
        Random(order).shuffle(operations)
        for operation in operations:
            operation.do(store)
        reads.finish(pool)
        back.become(pool, manifest.meta)
        found = results(back)
        wanted = wanted or found
        assert found == wanted
    assert wanted == results(chain.op)


def test_5_a_checkpoint_has_a_folder_named_after_shard_and_sequence_and_a_file_for_each_writer():
    store = MemoryStore()
    chain = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0")), aggregate())
    feed(chain.op, 0, rows=600)
    chain.checkpoint(writers=1)
    assert sorted(store.objects) == ["checkpoint/talkers-0-1/manifest", "checkpoint/talkers-0-1/pages-0"]
    assert len(store.objects["checkpoint/talkers-0-1/pages-0"]) % 4096 == 0, "pages as they are in memory, nothing else"
