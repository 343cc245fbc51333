"""Kernels over the rows that one side of a join holds: store, link, find pairs, mark, walk.

A row is a record of a `SlotStore`; rows of one key and bucket are a list, linked by their numbers. A kernel never
outlives the call, and one that runs out of memory says at which row, so that `join.py` can undo the batch.
"""

from __future__ import annotations

from numba import njit

from holdfast.operators.capture import LINKS
from holdfast.operators.panes import next_rid
from holdfast.state.heap import is_long, own_value
from holdfast.state.intrinsics import load, store
from holdfast.state.records import HEAP, mark_touched, record_address, record_writable, slot_alloc, slot_free

#: Words of a stored row, after the list word: null bits (and whether it has matched), time, number; then the columns.
NULLS, TIME_WORD, NUMBER, COLUMNS = 1, 2, 3, 4


MATCHED_BIT = 62


MATCHED = 1 << MATCHED_BIT


#: Value words of a key's record. The newest row of its list (rid + 1): the list runs from new to old, as the primary
#: made it, since an image has every row in the same slot and takes over which row follows which. How many rows there
#: are (low half), and the head of a second list (high half): while an image is being brought up, the first list has
#: holes, and this one runs through the rows that are there, linked by the low half of a row's first word.
HEAD, ROWS = 0, 1


LOW = 0xFFFFFFFF


@njit(cache=True, nogil=True)
def store_rows(pool, s, to, matrix, var_columns, start):
    """Put rows at the head of their keys' lists. How many are in; fewer than all at the memory limit."""
    heap = load(s, HEAP)
    for i in range(start, len(matrix)):
        rid = slot_alloc(pool, s)
        if rid < 0:
            return i
        at = record_address(pool, s, rid)
        for w in range(matrix.shape[1]):
            store(at, 1 + w, matrix[i, w])
        for v in var_columns:
            place = own_value(pool, heap, matrix[i, v], matrix[i, v + 1])
            if is_long(matrix[i, v]) and place < 0:
                for u in var_columns:
                    if u >= v:
                        store(at, 1 + u, 0)  # the heap has nothing of these
                slot_free(pool, s, rid)
                return i
            store(at, 2 + v, place)
        store(at, 0, load(to[i], HEAD) << 32)
        store(to[i], HEAD, rid + 1)
        store(to[i], ROWS, load(to[i], ROWS) + 1)
    return len(matrix)


@njit(cache=True, nogil=True)
def unstore_rows(pool, s, to, count):
    """Undo `store_rows` for the first `count` rows, the last one first."""
    for i in range(count - 1, -1, -1):
        rid = load(to[i], HEAD) - 1
        store(to[i], HEAD, next_rid(load(record_address(pool, s, rid), 0)))
        store(to[i], ROWS, load(to[i], ROWS) - 1)
        slot_free(pool, s, rid)


@njit(cache=True, nogil=True)
def enter_rows(pool, s, to, rids, links):
    """Make rows that are in their slots already known to their keys: see `ROWS` for the two lists."""
    for i in range(len(rids)):
        at = record_address(pool, s, rids[i])  # its page was written just before
        rows = load(to[i], ROWS)
        store(at, 0, (links[i] & LINKS) | next_rid(rows))
        store(to[i], ROWS, ((rids[i] + 1) << 32) | ((rows & LOW) + 1))
        head = load(to[i], HEAD)
        if head == 0 or load(record_address(pool, s, head - 1), NUMBER) < load(at, NUMBER):
            store(to[i], HEAD, rids[i] + 1)


@njit(cache=True, nogil=True)
def find_pairs(pool, key_slots, s, found, value_at, times, low, high, check_time, rows, partners):
    """Pairs of (input row, stored row) in the given buckets; counts only if `rows` is empty."""
    k = 0
    fill = len(rows) > 0
    for i in range(found.shape[1]):
        for d in range(found.shape[0]):
            if found[d, i] < 0:
                continue
            at = load(record_address(pool, key_slots, found[d, i]), value_at + HEAD)
            while at > 0:
                record = record_address(pool, s, at - 1)
                distance = load(record, TIME_WORD) - times[i]
                if not check_time or (low <= distance <= high):
                    if fill:
                        rows[k] = i
                        partners[k] = at - 1
                    k += 1
                at = next_rid(load(record, 0))
    return k


@njit(cache=True, nogil=True)
def make_writable(pool, s, rids):
    """So that marking them cannot fail. 0, or -2 when a page cannot be cloned."""
    for i in range(len(rids)):
        if record_writable(pool, s, rids[i]) < 0:
            return -2
    return 0


@njit(cache=True, nogil=True)
def mark_matched(pool, s, rids):
    for i in range(len(rids)):
        at = record_address(pool, s, rids[i])
        if not load(at, NULLS) & MATCHED:
            store(at, NULLS, load(at, NULLS) | MATCHED)
            mark_touched(s, rids[i])


@njit(cache=True, nogil=True)
def walk_rows(pool, s, values, arrived, out):
    """Rows of keys, by the list that is whole; how many, never more than there is room for."""
    k = 0
    for i in range(len(values)):
        at = next_rid(values[i, ROWS]) if arrived else values[i, HEAD]
        while at > 0 and k < len(out):
            out[k] = at - 1
            k += 1
            link = load(record_address(pool, s, at - 1), 0)
            at = link & LOW if arrived else next_rid(link)
    return k
