"""Hold, seal: what a holder keeps of a stage's batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import WrongMessageError
from holdfast.logs.inbox import Inbox
from holdfast.model.block import Digest, digest_of
from holdfast.model.parts import CommitRecord

ROW = (1, 2, 3)


def commit(batch: int, epoch: int = 1, attempt: int = 1, rows=(ROW,)) -> CommitRecord:
    return CommitRecord(
        query="q", batch=batch, epoch=epoch, attempt=attempt, watermark=7, offsets=(0, 1),
        digests={"s>u": digest_of(rows)}, ends={"s>u": 3 * batch + len(rows) + 2},
    )  # fmt: skip


def holding(batch: int = 0, epoch: int = 1, attempt: int = 1, rows=(ROW,), based=True) -> Inbox:
    box = Inbox("s>u", based)
    assert box.hold(batch, epoch, attempt, rows) == digest_of(rows)
    return box


def test_a_digest_says_how_many_rows_and_which_in_which_order():
    one, two = (1, 2, 3), (4, 5, 6)
    assert digest_of(()) == Digest(0, 0)
    assert digest_of((one, two)) == digest_of(((1, 2, 3), (4, 5, 6)))
    assert len({digest_of(rows) for rows in ((one,), (two,), (one, two), (two, one))}) == 4


def test_a_newer_try_takes_the_place_of_an_older_one_and_only_it_is_kept():
    box = Inbox("s>u", True)
    for epoch in range(1, 11):  # each driver is killed between delivering and sealing
        assert box.hold(0, epoch, 1, ((epoch,),)) == digest_of(((epoch,),))
    assert [(held.epoch, held.rows) for held in box.held.values()] == [(10, ((10,),))]
    assert box.hold(0, 10, 2, ()) == Digest(0, 0)
    assert box.held[0].attempt == 2


def test_an_older_try_that_comes_late_is_nothing():
    box = holding(epoch=2, attempt=2)
    assert box.hold(0, 2, 1, ()) is None
    assert box.hold(0, 1, 9, ()) is None
    assert box.held[0].rows == (ROW,)


def test_a_try_that_comes_twice_is_held_as_it_came_first():
    box = holding()
    assert box.hold(0, 1, 1, (ROW, ROW)) == digest_of((ROW,))
    assert box.held[0].rows == (ROW,)


def test_a_batch_that_is_sealed_twice_counts_once():
    box = holding()
    assert box.seal(commit(0)) is not None
    assert box.seal(commit(0)) is None
    assert (box.next, box.last, len(box.sealed)) == (3, 0, 1)
    assert box.hold(0, 1, 1, (ROW,)) is None
    assert box.held == {}


@pytest.mark.parametrize(
    "wrong", [commit(0, attempt=1), commit(0, epoch=2, attempt=2), commit(0, attempt=2, rows=((1, 2, 4),))]
)
def test_only_the_try_and_the_rows_that_were_committed_are_sealed(wrong):
    box = holding(attempt=2)
    with pytest.raises(WrongMessageError, match="not held here"):
        box.seal(wrong)
    with pytest.raises(WrongMessageError, match="a batch is missing"):
        box.seal(commit(1))


def test_a_batch_that_would_end_elsewhere_than_its_commit_says_is_not_sealed():
    box = holding()
    with pytest.raises(WrongMessageError, match="ends elsewhere"):
        box.seal(replace(commit(0), ends={"s>u": 4}))


def test_retained_input_is_dropped_only_when_the_image_covers_it():
    box = holding()
    box.seal(commit(0))
    box.drop(2)
    assert box.retained == 3
    box.drop(3)
    assert box.retained == 0


def test_a_copy_without_a_base_keeps_what_it_hears_and_puts_it_in_order_later():
    primary = holding()
    primary.seal(commit(0))
    primary.hold(1, 1, 2, (ROW, ROW))
    joining = Inbox("s>u", False)
    assert joining.seal(commit(1, attempt=2, rows=(ROW, ROW))) is None
    sealed = joining.rebase(primary.part())
    assert [block.batch for block in sealed] == [1]
    assert (joining.last, joining.next) == (1, 7)
    assert [block.batch for block in joining.sealed] == [0, 1]


def test_what_a_copy_holds_itself_is_kept_if_it_is_newer():
    old, new = holding(attempt=1), holding(attempt=3, based=False)
    new.rebase(old.part())
    assert new.held[0].attempt == 3
