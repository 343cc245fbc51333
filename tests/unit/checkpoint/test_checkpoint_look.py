"""Reading a checkpoint beside its primary: nothing changes in the store, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_checkpoints import CONFIG, DEPLOYMENT, MAKERS, SHARD, Chain, aggregate, feed, join, results, run

from holdfast.checkpoint import claim, collect
from holdfast.checkpoint.inspect import head_of
from holdfast.checkpoint.keys import file_key, manifest_key
from holdfast.checkpoint.look import heads_of, look_at
from holdfast.errors import ConfigError, CorruptPageError, ObjectMissingError, StateError
from holdfast.model.ids import asset_id
from holdfast.operators import LEFT, RIGHT
from holdfast.operators.contents import contents
from holdfast.store import All, LocalStore
from holdfast.store.plan import drive

_START_US = 1_767_225_600_000_000  # 2026-01-01, where the rows of small_checkpoints.py begin


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def chain(store):
    """An aggregate with two checkpoints, the second one incremental."""
    found = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0#1")), aggregate())
    for seed in range(2):
        feed(found.op, seed, rows=400 if seed == 0 else 20)
        found.checkpoint(position=seed)
    return found


def _files(store):
    return {path: path.read_bytes() for path in _root(store).rglob("*") if path.is_file()}


def _root(store):
    return Path(store.url.removeprefix("file://"))


def _fed(*seeds):
    op = aggregate()
    for seed in seeds:
        feed(op, seed, rows=400 if seed == 0 else 20)
    return results(op)


def test_a_reader_sees_any_checkpoint_and_changes_nothing(store, chain):
    before = _files(store)
    newest = run(store, look_at(SHARD, None, aggregate, DEPLOYMENT))
    first = run(store, look_at(SHARD, 1, aggregate, DEPLOYMENT))
    assert [newest.manifest.sequence, first.manifest.sequence] == [2, 1]
    assert results(newest.op) == _fed(0, 1)
    assert results(first.op) == _fed(0)
    assert _files(store) == before
    chain.checkpoint(position=2)  # its primary has not noticed
    assert run(store, heads_of([SHARD, asset_id("talkers-1")])).keys() == {SHARD}


def _collected_on_the_way(store, chain, sequence, *, firm):
    """Newer checkpoints come, and old ones go, just before the reader's first page."""
    pending = [True]

    def do(step):
        if isinstance(step, All) and pending:
            pending.clear()
            chain.kept = None  # a full one, that needs no file of those that go
            feed(chain.op, 2, rows=20)
            chain.checkpoint(position=2)
            run(store, collect(chain.tenure, 1))
        return [one.do(store) for one in step.operations] if isinstance(step, All) else step.do(store)

    return drive(look_at(SHARD, sequence, aggregate, DEPLOYMENT, firm=firm), do)


@pytest.mark.parametrize("sequence", [None, 2])
def test_a_reader_of_the_newest_takes_the_next_one_if_it_was_collected(store, chain, sequence):
    seen = _collected_on_the_way(store, chain, sequence, firm=False)
    assert seen.manifest.sequence == 3
    assert results(seen.op) == _fed(0, 1, 2)


def test_a_reader_of_a_certain_one_is_told_that_it_was_collected(store, chain):
    with pytest.raises(StateError, match="checkpoint 2 of talkers-0 was collected while it was read"):
        _collected_on_the_way(store, chain, 2, firm=True)
    with pytest.raises(ConfigError, match="talkers-0 has no checkpoint 2"):
        run(store, look_at(SHARD, 2, aggregate, DEPLOYMENT))


def test_damage_is_an_error_and_stays_for_the_primary_to_find(store, chain):
    path = _root(store) / file_key(SHARD, "1/pages-0")
    whole = path.read_bytes()
    for damage, kind in ((whole[:-1], ObjectMissingError), (whole[:-1] + bytes([whole[-1] ^ 1]), CorruptPageError)):
        path.chmod(0o600)
        path.write_bytes(damage)
        before = _files(store)
        with pytest.raises(kind, match="pages-0"):
            run(store, look_at(SHARD, 1, aggregate, DEPLOYMENT))
        assert _files(store) == before
    assert [entry.aside for entry in run(store, head_of(SHARD)).entries] == ["", ""]
    manifest = _root(store) / manifest_key(SHARD, 2)
    manifest.chmod(0o600)
    manifest.write_bytes(b"")
    with pytest.raises(CorruptPageError, match="the manifest of checkpoint 2 of talkers-0 is damaged"):
        run(store, look_at(SHARD, 2, aggregate, DEPLOYMENT))


def test_a_state_of_another_operator_or_pipeline_is_refused(store, chain):
    with pytest.raises(ConfigError, match="of another operator") as error:
        run(store, look_at(SHARD, None, join, DEPLOYMENT))
    assert "another schema, window, key or list of aggregates" in error.value.detail
    with pytest.raises(ConfigError, match="of another operator") as error:
        run(store, look_at(SHARD, None, aggregate, "deployment-2"))
    assert "deployment 'deployment-1' instead of 'deployment-2'" in error.value.detail


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_with_holes_comes_back_into_a_pool_that_is_little_larger_than_it(store, kind):
    """Once windows have closed, the highest page number may be far beyond the number of pages."""
    make = MAKERS[kind]
    chain = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0#1")), make())
    feed(chain.op, 0, rows=4000)
    half = _START_US + 45 * 1_000_000
    if kind == "join":
        chain.op.on_watermark(LEFT, half)
        chain.op.on_watermark(RIGHT, half)
    else:
        chain.op.on_watermark(half)
    chain.checkpoint()
    seen = run(store, look_at(SHARD, None, make, DEPLOYMENT))
    assert seen.op.config.limit_bytes < CONFIG.limit_bytes / 4
    before = [found.to_pylist() for found in contents(chain.op)]
    assert [found.to_pylist() for found in contents(seen.op)] == before
