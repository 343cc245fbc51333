"""Go back to a snapshot: page sets become again what they were when it was taken.

A stand-in (hybrid-ha §IV-B) runs on from its image and must be able to go back to it. The snapshot holds every page of
that moment, and only pages that were written since have been cloned; so going back swaps page ids and copies no page.
What structures keep beside their pages does not follow: whoever goes back opens them again, as after a restore.

Never here: what is in a page, or when to go back (`operators/operator.py`).
"""

from __future__ import annotations

import numpy as np

from holdfast.errors import check
from holdfast.state.pages import PagePool, PageSet, Snapshot
from holdfast.state.pagetable import HOLE, LFREE, N, unref_many


def revert(snapshot: Snapshot) -> None:
    """Make the sets of a whole snapshot what they were, and end it. Nobody else may be reading it."""
    pool = snapshot.pool
    check(snapshot.base_seq < 0 and not snapshot.read and not snapshot.closed, "went back to a part of a snapshot")
    for set_id, lps, phys in zip(snapshot.set_ids, snapshot.lps, snapshot.phys, strict=True):
        _put_back(pool, pool.sets[set_id], lps, phys, snapshot.seq)
    snapshot.released = len(snapshot)  # the sets have taken over what it held
    snapshot.close()
    pool.reclaim()


def _put_back(pool: PagePool, pages: PageSet, lps: np.ndarray, phys: np.ndarray, seq: int) -> None:
    """What the snapshot held, the set holds now; what it held itself, it lets go of."""
    now = pages.table[: pages.block[N]]
    held = now[now > 0]
    unref_many(pool.at, held, 0, len(held))
    now[:] = HOLE
    pages.table[lps] = phys
    pages.stamps[lps] = seq  # older than the pool's number: the next write looks whether another snapshot holds it
    pages.block[N] = int(lps.max()) + 1 if len(lps) else 0
    pages.block[LFREE] = 0
    pages.count_pages()
