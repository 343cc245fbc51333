"""Deliver, prepare, seal: what a holder keeps of a stage's batches."""

from __future__ import annotations

import pytest

from holdfast.errors import InvariantError
from holdfast.logs.inbox import Inbox
from holdfast.model.messages import CommitRecord

ROW = (1, 2, 3)


def commit(batch: int, epoch: int = 1, attempt: int = 1) -> CommitRecord:
    return CommitRecord(
        query="q", batch=batch, epoch=epoch, attempt=attempt, accepted={0: 0}, watermark=7, offsets=(0, 1)
    )


def prepared(batch: int = 0, epoch: int = 1, attempt: int = 1, rows=(ROW,), based=True) -> Inbox:
    box = Inbox("s>u", based)
    box.deliver(batch, epoch, 0, 0, rows)
    assert box.prepare(batch, epoch, attempt, {0: 0}, 7)
    return box


def test_rows_of_attempts_that_nobody_names_vanish():
    box = Inbox("s>u", True)
    box.deliver(0, 1, 0, 0, (ROW, ROW))
    box.deliver(0, 1, 0, 1, (ROW,))
    box.deliver(0, 1, 1, 0, ((9, 9, 9),))
    assert box.prepare(0, 1, 1, {1: 0, 0: 1}, 7)
    block = box.seal(commit(0))
    assert block is not None
    assert block.rows == (ROW, (9, 9, 9))
    assert box.parts == {}


def test_rows_of_drivers_that_are_over_are_not_kept():
    box = Inbox("s>u", True)
    for epoch in range(1, 11):  # each is killed between delivering and sealing
        box.deliver(0, epoch, 0, 1, ((epoch,),))
    assert list(box.parts) == [(0, 10, 0, 1)]
    assert box.prepare(0, 10, 1, {0: 1}, 5)


def test_a_prepare_without_its_rows_is_refused_and_changes_nothing():
    box = Inbox("s>u", True)
    assert not box.prepare(0, 1, 1, {0: 0}, 7)
    assert box.prepared == {}


def test_a_batch_that_is_sealed_twice_counts_once():
    box = prepared()
    assert box.seal(commit(0)) is not None
    assert box.seal(commit(0)) is None
    assert (box.next, box.last, len(box.sealed)) == (3, 0, 1)
    assert box.prepare(0, 1, 1, {0: 0}, 7)
    box.deliver(0, 1, 0, 0, (ROW,))
    assert box.parts == {}


def test_an_older_try_never_replaces_a_newer_one():
    box = prepared(attempt=2)
    box.deliver(0, 1, 0, 1, ())
    assert not box.prepare(0, 1, 1, {0: 1}, 7)
    assert box.prepare(0, 1, 2, {0: 0}, 7)
    box.deliver(0, 2, 0, 0, ())
    assert box.prepare(0, 2, 1, {0: 0}, 7)
    assert box.prepared[0].epoch == 2


def test_only_the_try_that_was_committed_is_sealed():
    box = prepared(attempt=2)
    with pytest.raises(InvariantError, match="not prepared here"):
        box.seal(commit(0, attempt=1))
    with pytest.raises(InvariantError, match="a batch is missing"):
        box.seal(commit(1))


def test_retained_input_is_dropped_only_when_the_image_covers_it():
    box = prepared()
    box.seal(commit(0))
    box.drop(2)
    assert box.retained == 3
    box.drop(3)
    assert box.retained == 0


def test_a_copy_without_a_base_keeps_what_it_hears_and_puts_it_in_order_later():
    primary = prepared()
    primary.seal(commit(0))
    primary.deliver(1, 1, 0, 0, (ROW, ROW))
    primary.prepare(1, 1, 2, {0: 0}, 9)
    joining = Inbox("s>u", False)
    assert joining.seal(commit(1, attempt=2)) is None
    sealed = joining.rebase(primary.part())
    assert [block.batch for block in sealed] == [1]
    assert (joining.last, joining.next) == (1, 7)
    assert [block.batch for block in joining.sealed] == [0, 1]


def test_what_a_copy_prepared_itself_is_kept_if_it_is_newer():
    old, new = prepared(attempt=1), prepared(attempt=3, based=False)
    new.rebase(old.part())
    assert new.prepared[0].attempt == 3
