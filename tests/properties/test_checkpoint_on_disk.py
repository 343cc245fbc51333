"""The power goes at every single call of a store on a local disk, and what was not synced is lost or torn."""

from __future__ import annotations

from random import Random

import pytest
from support.lossy import LossyFiles, PowerCut
from support.small_state import DEPLOYMENT, FIT, SHARD, SmallState, new_pool

from holdfast.checkpoint import claim, collect, publish, restore, sweep
from holdfast.errors import SwapConflictError
from holdfast.store import LocalStore, run_alone


class Life:
    """Takes over, writes three checkpoints, collects in between; remembers what it was promised."""

    def __init__(self) -> None:
        self.said: dict[int, dict[int, int]] = {}
        self.promised = 0

    def live(self, calls: LossyFiles, epoch: int) -> None:
        store = LocalStore("/disk/store", calls)
        tenure = run_alone(store, claim(SHARD, DEPLOYMENT, epoch=epoch, holder=f"n{epoch}"))
        found = run_alone(store, restore(tenure, new_pool, wanted=FIT))
        state = SmallState(found.pool if found else None)
        if found is not None:
            assert found.passed_over == []
            assert found.entry.sequence >= self.promised
            assert state.says() == self.said[found.entry.sequence]
        else:
            assert not self.promised
        kept = found.kept if found else None
        for turn in range(3):
            for i in range(3):
                state.write(i + turn, 100 * epoch + 10 * turn + i)
            job = state.job(epoch, kept, cargo=b"rows")
            self.said[tenure.head.reserved] = state.says()
            entry = run_alone(store, publish(tenure, job))
            self.promised = entry.sequence
            kept = job.kept(entry.sequence)
            run_alone(store, collect(tenure, keep=1))
        run_alone(store, sweep(tenure))


def _calls_of_one_life() -> int:
    calls = LossyFiles(Random(0))
    Life().live(calls, 1)
    return calls.calls


CALLS = _calls_of_one_life()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_a_checkpoint_that_was_promised_outlives_a_power_cut_at_any_call(seed):
    assert CALLS > 80
    for cut_at in range(1, CALLS + 1):
        life = Life()
        disk = LossyFiles(Random(seed * 1000 + cut_at), cut_at)
        with pytest.raises(PowerCut):
            life.live(disk, 1)
        disk = disk.after_cut()
        disk.cut_at = 30 + 5 * seed  # the next life is cut off, too, if it makes that many calls
        try:
            life.live(disk, 2)
            disk.cut_at = -1
        except PowerCut:
            disk = disk.after_cut()
        life.live(disk, 3)


def test_the_disk_does_lose_what_was_not_synced():
    """Without this the test above could not fail."""

    class NeverSyncs(LossyFiles):
        def sync(self, handle: int) -> None:
            del handle

    lost = 0
    for seed in range(20):
        disk = NeverSyncs(Random(seed))
        life = Life()
        life.live(disk, 1)
        left = disk.after_cut()
        left.__class__ = LossyFiles
        try:
            life.live(left, 2)
        except Exception:
            lost += 1
    assert lost > 10


def test_a_swap_that_was_answered_outlives_a_power_cut():
    for seed in range(200):
        disk = LossyFiles(Random(seed), cut_at=12 + seed % 60)
        promised: list[bytes] = []
        try:
            store = LocalStore("/disk/store", disk)
            version = None
            for i in range(20):
                version = store.swap("head/x", b"%d" % i, version)
                promised.append(b"%d" % i)
        except PowerCut:
            disk = disk.after_cut()
        store = LocalStore("/disk/store", disk)
        found = store.look("head/x")
        assert found is not None or not promised
        if found is not None and promised:
            assert int(found[0]) in (int(promised[-1]), int(promised[-1]) + 1)
            with pytest.raises(SwapConflictError):
                store.swap("head/x", b"late", None)
