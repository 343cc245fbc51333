"""What a store that is not a folder keeps of a run's files: before it counts, and so that it can be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import StateError
from holdfast.model.ids import asset_id
from holdfast.model.parts import SinkPlan
from holdfast.runtime.stable import kept
from holdfast.runtime.stable.door import StoreDoor
from holdfast.runtime.stable.mirror import FolderMirror
from holdfast.store.memory import MemoryStore
from holdfast.store.plan import run_alone

RUN, SINK = "netmon-0123", asset_id("out_0")
LIST, LATE = "checkpoints/s0/sources", "late/s0"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def mirror(store: MemoryStore, root: Path) -> FolderMirror:
    return FolderMirror(StoreDoor(lambda: store), RUN, root, (LIST, LATE, "bad/s0.max"))


def there(store: MemoryStore) -> dict[str, bytes]:
    found = run_alone(store, kept.list_files(RUN))
    return {path: run_alone(store, kept.get_file(RUN, path, nbytes)) for path, nbytes in found.items()}


def test_every_file_that_counts_is_in_the_store_and_nothing_else(store, tmp_path):
    made = mirror(store, tmp_path)
    made.sync()
    assert there(store) == {}
    write(tmp_path, f"{LIST}/0/0", "v1")
    write(tmp_path, f"{LIST}/0/.0.crc", "of Spark's own")
    write(tmp_path, f"{LATE}/.batch=3.epoch=2.tmp", "waits for its commit")
    write(tmp_path, f"{LATE}/.merged.tmp", "nobody's")
    write(tmp_path, f"{LATE}/.lock", "")
    write(tmp_path, "bad/s0.max", "7")
    write(tmp_path, "late/another/batch=1.parquet", "another stage's")
    made.sync()
    assert there(store) == {
        f"{LIST}/0/0": b"v1",
        f"{LATE}/.batch=3.epoch=2.tmp": b"waits for its commit",
        "bad/s0.max": b"7",
    }


def test_a_file_that_is_there_is_not_put_again_and_one_that_has_changed_is(store, tmp_path):
    write(tmp_path, f"{LIST}/0/0", "v1")
    write(tmp_path, "bad/s0.max", "7")
    mirror(store, tmp_path).sync()
    made, puts = mirror(store, tmp_path), []
    put = store.put
    store.put = lambda key, chunks: puts.append(key) or put(key, chunks)
    made.sync()
    assert [key for key in puts if "sources" in key] == [], "another process had put it there"
    write(tmp_path, "bad/s0.max", "12")
    made.sync()
    assert there(store)["bad/s0.max"] == b"12"


def test_what_was_merged_goes_after_what_it_has_become_is_there_and_was_looked_for_twice(store, tmp_path):
    made = mirror(store, tmp_path)
    write(tmp_path, f"{LATE}/batch=1.parquet", "one")
    write(tmp_path, f"{LATE}/batch=2.parquet", "two")
    made.sync()
    write(tmp_path, f"{LATE}/batch=1-2.parquet", "one two")
    for batch in (1, 2):
        (tmp_path / LATE / f"batch={batch}.parquet").unlink()
    made.sync()
    assert len(there(store)) == 3, "a look at a folder that changes may miss a file"
    made.sync()
    assert there(store) == {f"{LATE}/batch=1-2.parquet": b"one two"}


def plan(batch: int, committed: int, text: str = "") -> SinkPlan:
    plans = {k: text or f"plan of {k}" for k in (batch - 1, batch) if k >= 0}
    return SinkPlan(batch=batch, committed=committed, metadata="whose", plans=plans)


def test_a_sink_goes_on_from_its_last_plan_and_knows_whether_that_was_committed(store):
    assert run_alone(store, kept.last_plan(RUN, SINK)) is None
    for batch in range(12):
        run_alone(store, kept.put_plan(RUN, SINK, plan(batch, batch - 1)))
    assert run_alone(store, kept.last_plan(RUN, SINK)) == plan(11, 10)
    run_alone(store, kept.put_plan(RUN, SINK, plan(11, 11)))
    assert run_alone(store, kept.last_plan(RUN, SINK)) == plan(11, 11)
    assert run_alone(store, kept.last_plan(RUN, asset_id("out_1"))) is None
    assert len(store.list(kept.PLANS)) <= kept.TIDY_EVERY + kept.PLANS_KEPT + 1


def test_a_batch_that_may_be_written_is_not_planned_differently(store):
    run_alone(store, kept.put_plan(RUN, SINK, plan(4, 3)))
    run_alone(store, kept.put_plan(RUN, SINK, plan(4, 3)))  # by another process of the same sink, or again
    with pytest.raises(StateError, match="out_0: batch 4 was planned differently before"):
        run_alone(store, kept.put_plan(RUN, SINK, plan(4, 3, "another")))
