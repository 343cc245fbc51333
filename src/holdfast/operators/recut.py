"""The state of an operator cut anew by key: from the shards that it had into the shards that it shall have.

Only at a clean point, where all shards of the operator have consumed the same input: then a key's state is whole in one
shard, and nothing of it is on its way anywhere. Records are copied as they are, word by word: nothing is merged or
computed again, so sums of doubles keep their last bit, and `first` and `last` what they saw. Which shard a key belongs
to is decided by the same hash that cuts the rows (`columns.shards_of`).

Numbers of rows go on from the highest of the old shards: they order rows of one key, and a key was in one shard.

Aggregates may come or go on the way (`Widening`): the words of those that stay are copied, those of a new one are what
one row with its default would have made of it, in every record that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, StateError, check
from holdfast.operators.aggregate import WindowAggregate
from holdfast.operators.capture import write_values
from holdfast.operators.columns import pack_keys, shards_of
from holdfast.operators.count_window import CountWindowAggregate
from holdfast.operators.join import Join
from holdfast.operators.join_rows import NUMBER, TIME_WORD
from holdfast.operators.panes import PaneMap
from holdfast.operators.program import PER_FLAG_WORD, Program
from holdfast.state.hashmap import HashMap
from holdfast.state.heap import extract_long, point_to
from holdfast.state.keys import make_keys
from holdfast.state.slots import SlotStore

#: Records that are moved at a time.
ROWS_MAX = 1 << 16
_LOW4 = 0xFFFFFFFF
#: The default of an aggregate that begins as if there had been no row.
NULL = "null"

Operator = WindowAggregate | CountWindowAggregate | Join


class Widening:
    """Value words of an operator with some aggregates, made into those of one with others. `defaults`: by name."""

    def __init__(self, old: Program, new: Program, schema: pa.Schema, defaults: Mapping[str, str]) -> None:
        self._old, self._new = old, new
        self._stays = [(old.names.index(name), new.names.index(name)) for name in new.names if name in old.names]
        self._row = new.identity.copy().reshape(1, -1)
        for number, name in enumerate(new.names):
            if name not in old.names and defaults[name] != NULL:
                self._lift(number, defaults[name], schema)

    def _lift(self, number: int, text: str, schema: pa.Schema) -> None:
        agg, function = self._new.aggs[number], self._new.functions[number]
        name = self._new.names[number]
        type_ = pa.int64() if agg.function == "count" else schema.field(agg.column).type
        if function.var_at is not None:
            raise ConfigError(f"aggregate {name}: a default of {type_} can only be null", detail=f"It is {text!r}.")
        try:
            value = pa.array([text]).cast(type_)
        except pa.ArrowInvalid as error:
            raise ConfigError(f"aggregate {name}: its default {text!r} is not {type_}", detail=str(error)) from None
        part = self._row[:, self._new.columns[number] : self._new.columns[number] + function.words]
        if agg.function == "count":
            part[0, 0] = value[0].as_py()
        else:
            self._put_flags(self._row, number, function.lift(value, 1, np.zeros(1, np.int64), part))

    def _put_flags(self, words: NDArray[np.int64], number: int, flags: NDArray[np.int64]) -> None:
        if self._new.flag_words:
            word, bit = divmod(number, PER_FLAG_WORD)
            words[:, word] |= flags << (2 * bit)

    def __call__(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.tile(self._row, (len(values), 1))
        for i, j in self._stays:
            at, to, words = self._old.columns[i], self._new.columns[j], self._old.functions[i].words
            out[:, to : to + words] = values[:, at : at + words]
            if self._old.flag_words:
                word, bit = divmod(i, PER_FLAG_WORD)
                self._put_flags(out, j, (values[:, word] >> (2 * bit)) & 3)
        return out


def recut(old: Iterable[Operator], new: Sequence[Operator], widening: Widening | None = None) -> None:
    """Put everything that the old shards hold into the new ones, which are empty. One old shard after the other: no
    more than one of them has to be in memory."""
    watermark: int | None = None
    for one in old:
        if watermark is not None and one.watermark != watermark:
            raise StateError(
                f"the shards of {one.name} are not at one point",
                detail=f"Their watermarks are {watermark} and {one.watermark}.",
                hint="Nothing was changed. A state is cut at a savepoint only; this is a bug if it came from one.",
            )
        watermark = one.watermark
        _move(one, new, widening)
        for to in new:
            known, more = to._extra(), one._extra()
            to.rows, to.watermark = max(to.rows, one.rows), watermark
            to._set_extra({name: max(known[name], more[name]) for name in known})


def _move(one: Operator, new: Sequence[Operator], widening: Widening | None) -> None:
    check(all(type(to) is type(one) for to in new), "a state was to be cut for another operator", one.name)
    match one:
        case WindowAggregate():
            _move_records(one.state.map, [_panes(op) for op in new], widening, key_at=2)
        case CountWindowAggregate():
            _move_records(one.counts, [_counted(op).counts for op in new], None, key_at=1)
            _move_records(one.panes, [_counted(op).panes for op in new], widening, key_at=2)
        case Join():
            _move_rows(one, new)
        case _:
            assert_never(one)


def _panes(op: Operator) -> PaneMap:
    assert isinstance(op, WindowAggregate)
    return op.state


def _counted(op: Operator) -> CountWindowAggregate:
    assert isinstance(op, CountWindowAggregate)
    return op


# --- records of maps


def _move_records(
    source: HashMap, targets: Sequence[PaneMap | HashMap], widening: Widening | None, *, key_at: int
) -> None:
    """`key_at`: where in a record the words of the key begin by which rows are cut; a pane comes before them."""
    slots, kinds = source.slots, source.layout.kinds
    first = 1 + source.layout.key_words
    for words, blob in _some(slots, slots.rids()):
        number = _shard_numbers(words[:, key_at:first], words[:, 0] & _LOW4, kinds[key_at - 1 :], len(targets), blob)
        if widening is not None:
            words = np.hstack([words[:, :first], widening(words[:, first:])])
        for shard, target in enumerate(targets):
            mine = np.ascontiguousarray(words[number == shard])
            if not len(mine):
                continue
            into = target.map if isinstance(target, PaneMap) else target
            keys = make_keys(mine[:, 1:first], mine[:, 0] & _LOW4, kinds, blob)
            target.upsert(keys, np.zeros(into.layout.value_words, np.int64))
            var_at = into.slots.var_at
            write_values(into.slots, into.find(keys), mine, var_at[var_at >= first] - first)


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
            del blob  # until here words of long values point into it
