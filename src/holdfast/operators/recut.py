"""The state of an operator cut anew by key: from the shards that it had into the shards that it shall have.

Only at a clean point, where all shards of the operator have consumed the same input: then a key's state is whole in one
shard, and nothing of it is on its way anywhere. Records are copied as they are, word by word: nothing is merged or
computed again, so sums of doubles keep their last bit, and `first` and `last` what they saw. Which shard a key belongs
to is decided by the same hash that cuts the rows (`columns.shards_of`).

Numbers of rows go on from the highest of the old shards: they order rows of one key, and a key was in one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import StateError, check
from holdfast.operators.aggregate import WindowAggregate
from holdfast.operators.capture import write_values
from holdfast.operators.columns import pack_keys, shards_of
from holdfast.operators.count_window import CountWindowAggregate
from holdfast.operators.join import Join
from holdfast.operators.join_rows import NUMBER, TIME_WORD
from holdfast.operators.panes import PaneMap
from holdfast.state.hashmap import HashMap
from holdfast.state.heap import extract_long, point_to
from holdfast.state.keys import make_keys
from holdfast.state.slots import SlotStore

#: Records that are moved at a time.
ROWS_MAX = 1 << 16
_LOW4 = 0xFFFFFFFF

Operator = WindowAggregate | CountWindowAggregate | Join


def recut(old: Sequence[Operator], new: Sequence[Operator]) -> None:
    """Put everything that the old shards hold into the new ones, which are empty. The old ones stay as they are."""
    check(bool(old) and bool(new), "there is nothing to cut")
    first = old[0]
    for one in (*old, *new):
        check(one.fingerprint == first.fingerprint, "a state was to be cut for another operator", one.name)
    if len({one.watermark for one in old}) > 1:
        raise StateError(
            f"the shards of {first.name} are not at one point",
            detail=f"Their watermarks are {sorted({one.watermark for one in old})}.",
            hint="Nothing was changed. A state is cut at a savepoint only; this is a bug if it came from one.",
        )
    for one in old:
        match one:
            case WindowAggregate():
                _move_records(one.state.map, [_panes(op) for op in new], key_at=2)
            case CountWindowAggregate():
                _move_records(one.counts, [_counted(op).counts for op in new], key_at=1)
                _move_records(one.panes, [_counted(op).panes for op in new], key_at=2)
            case Join():
                _move_rows(one, new)
            case _:
                assert_never(one)
    extra = {name: max(one._extra()[name] for one in old) for name in first._extra()}
    for one in new:
        one.rows, one.watermark = max(each.rows for each in old), first.watermark
        one._set_extra(extra)


def _panes(op: Operator) -> PaneMap:
    assert isinstance(op, WindowAggregate)
    return op.state


def _counted(op: Operator) -> CountWindowAggregate:
    assert isinstance(op, CountWindowAggregate)
    return op


# --- records of maps


def _move_records(source: HashMap, targets: Sequence[PaneMap | HashMap], *, key_at: int) -> None:
    """`key_at`: where in a record the words of the key begin by which rows are cut; a pane comes before them."""
    slots = source.slots
    first = 1 + source.layout.key_words
    value_vars = slots.var_at[slots.var_at >= first] - first
    identity = np.zeros(source.layout.value_words, np.int64)
    kinds = source.layout.kinds
    for words, blob in _some(slots, slots.rids()):
        nulls = words[:, 0] & _LOW4
        number = _shard_numbers(words[:, key_at:first], nulls, kinds[key_at - 1 :], len(targets), blob)
        for shard, target in enumerate(targets):
            mine = np.ascontiguousarray(words[number == shard])
            if not len(mine):
                continue
            keys = make_keys(mine[:, 1:first], mine[:, 0] & _LOW4, kinds, blob)
            target.upsert(keys, identity)
            into = target.map if isinstance(target, PaneMap) else target
            write_values(into.slots, into.find(keys), mine, value_vars)


def _shard_numbers(
    words: NDArray[np.int64], nulls: NDArray[np.int64], kinds: tuple[int, ...], shards: int, owner: object
) -> NDArray[np.int64]:
    if not kinds:  # no key: one group, which lives in the first shard
        return np.zeros(len(words), np.int64)
    return shards_of(make_keys(words, nulls, kinds, owner), shards)


def _some(slots: SlotStore, rids: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """All words of these records, some at a time; long values are copied beside them, and pointed to."""
    for at in range(0, len(rids), ROWS_MAX):
        words = slots.gather(rids[at : at + ROWS_MAX], 0, slots.record_words)
        blob = extract_long(slots.pool.at, slots.heap.at, words, slots.var_at)
        point_to(words, slots.var_at, blob)
        yield words, blob


# --- rows of joins


def _move_rows(source: Join, targets: Sequence[Operator]) -> None:
    """Rows of a key are a list, the newest first: they are put in again in the order in which they came."""
    for which, side in enumerate(source.sides):
        slots = side.rows
        rids = slots.rids()
        slots.load_pages_of(rids)
        order = np.argsort(slots.gather(rids, NUMBER, 1)[:, 0], kind="stable")
        for words, blob in _some(slots, rids[order]):
            arrays = side.decode(words, 0, 0, only=side.keys)
            batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in side.columns if c in side.keys])
            number = shards_of(pack_keys(batch, side.keys, None, side.key_kinds)[0], len(targets))
            buckets = np.floor_divide(words[:, TIME_WORD], source.window.bucket_us)
            for shard, target in enumerate(targets):
                assert isinstance(target, Join)
                mine = np.flatnonzero(number == shard)
                if len(mine):
                    into = target.sides[which]
                    keys, _ = pack_keys(batch.take(pa.array(mine)), into.keys, buckets[mine], into.map.kinds)
                    target._insert(into, keys, np.ascontiguousarray(words[mine, 1:]))
            del blob  # until here the words of long values point into it
