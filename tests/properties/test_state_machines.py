"""Every structure against a plain Python model, under random operations, snapshots, slow readers, crashes and restores.

One machine for all: a structure only says how to open itself, what it can do, and what it contains. Snapshots stay open
while the owner writes on; a reader takes a few buffers at a time; whatever comes out at its end must be exactly what
the structure was when the snapshot was taken. A crash throws the pool away; a restore takes any checkpoint whose chain
is complete, eagerly or lazily, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_tools import (
    INT,
    MIXED,
    TEXT,
    TWO,
    check_pool,
    colliding_words,
    columns_of,
    contents,
    int_keys,
    keys_of,
    put,
    small_pool,
)

from holdfast.errors import MemoryLimitError
from holdfast.state.checkpoint import Checkpoint, restore, stream
from holdfast.state.deque import Deque
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.ordered import OrderedMap
from holdfast.state.pages import PagePool, Snapshot

PAGES = 600
SNAPSHOTS_MAX = 4
FILLER = 90


@dataclass(eq=False)
class Taken:
    """A snapshot, what was in it, and how far its reader has come."""

    snapshot: Snapshot
    want: Any
    base: Taken | None
    reader: Iterator
    raw: bytearray = field(default_factory=bytearray)
    done: bool = False

    def read(self, buffers: int) -> None:
        for _ in range(buffers):
            part = next(self.reader, None)
            if part is None:
                self.done = True
                return
            self.raw += part

    def chain(self) -> list[Taken]:
        return [*(self.base.chain() if self.base is not None else []), self]


class StructureMachine(RuleBasedStateMachine):
    """What all structures have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []
        self.value = 0

    @initialize(page_bytes=st.sampled_from([4096, 4096, 8192, 65536]))
    def start(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.pool = small_pool(PAGES, page_bytes)
        self.it = self.open_in(self.pool)
        self.model = self.empty()

    # -- what a structure says ----------------------------------------------------------------------------------

    def open_in(self, pool: PagePool) -> Any:
        raise NotImplementedError

    def empty(self) -> Any:
        raise NotImplementedError

    def inside(self, it: Any) -> Any:
        raise NotImplementedError

    # -- snapshots ----------------------------------------------------------------------------------------------

    def _take(self, base: Taken | None) -> None:
        if sum(not t.done for t in self.taken) >= SNAPSHOTS_MAX:
            next(t for t in self.taken if not t.done).read(10**9)
        snapshot = self.pool.snapshot([s for s in sorted(self.pool.sets) if s != FILLER], base=base and base.snapshot)
        self.taken.append(Taken(snapshot, self.model.copy(), base, stream(snapshot, stage_bytes=1)))

    @rule()
    def snapshot(self) -> None:
        self._take(None)

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 3))
    def snapshot_since(self, which: int) -> None:
        self._take(self.taken[-1 - which % len(self.taken)])

    @precondition(lambda self: any(not t.done for t in self.taken))
    @rule(which=st.integers(0, 3), buffers=st.integers(1, 60))
    def read_on(self, which: int, buffers: int) -> None:
        reading = [t for t in self.taken if not t.done]
        reading[which % len(reading)].read(buffers)

    @precondition(lambda self: any(not t.done for t in self.taken))
    @rule(which=st.integers(0, 3))
    def give_up_a_reader(self, which: int) -> None:
        """Its snapshot is closed, and nothing can be built on it any more."""
        reading = [t for t in self.taken if not t.done]
        lost = reading[which % len(reading)]
        for t in self.taken:
            if lost in t.chain():
                t.snapshot.close()
        self.taken = [t for t in self.taken if lost not in t.chain()]

    @rule()
    def reclaim(self) -> None:
        self.pool.reclaim()

    def _restored(self, taken: Taken, lazy: bool) -> tuple[PagePool, Any]:
        for t in taken.chain():
            t.read(10**9)
        pool = small_pool(PAGES, self.page_bytes)
        restore([Checkpoint.of_bytes(bytes(t.raw)) for t in taken.chain()], pool, lazy=lazy)
        return pool, self.open_in(pool)

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 5), lazy=st.booleans())
    def look_into_a_snapshot(self, which: int, lazy: bool) -> None:
        taken = self.taken[-1 - which % len(self.taken)]
        pool, it = self._restored(taken, lazy)
        assert self.inside(it) == taken.want, "a snapshot changed"
        check_pool(pool)

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 5), lazy=st.booleans())
    def crash_and_restore(self, which: int, lazy: bool) -> None:
        taken = self.taken[-1 - which % len(self.taken)]
        self.pool, self.it = self._restored(taken, lazy)
        self.model = taken.want.copy()
        self.taken = []

    # -- the limit ----------------------------------------------------------------------------------------------

    def squeezed(self, headroom: int):
        """A page set that leaves so many pages of room."""
        filler = self.pool.create(FILLER, 7)
        self.pool.reclaim()
        while self.pool.headroom() > headroom:
            filler.allocate()
        return filler

    # -- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "pool"):
            check_pool(self.pool)

    @precondition(lambda self: self.pool.lazy_pages() == 0)
    @invariant()
    def content_is_right(self) -> None:
        assert self.inside(self.it) == self.model

    @rule()
    def look_at_everything(self) -> None:
        assert self.inside(self.it) == self.model

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for t in self.taken:
            assert self.inside(self._restored(t, lazy=False)[1]) == t.want, "a snapshot changed"
        self.pool.reclaim()
        assert self.pool.stats().pages == sum(len(s) for s in self.pool.sets.values()) - self.pool.lazy_pages()


class DequeMachine(StructureMachine):
    def open_in(self, pool):
        return Deque(pool, 1, 2)

    def empty(self):
        return []

    def inside(self, it):
        rows = it.slice()
        assert (rows[:, 1] == rows[:, 0] * 7).all()
        assert len(it) == len(rows)
        return rows[:, 0].tolist()

    def _rows(self, n: int) -> np.ndarray:
        self.value += n
        first = np.arange(self.value - n, self.value)
        return np.stack([first, first * 7], axis=1)

    def _after(self, rows: np.ndarray, front: bool) -> list[int]:
        return rows[:, 0].tolist() + self.model if front else self.model + rows[:, 0].tolist()

    @rule(n=st.integers(0, 900), front=st.booleans())
    def append(self, n: int, front: bool) -> None:
        rows = self._rows(n)
        (self.it.append_front if front else self.it.append)(rows)
        self.model = self._after(rows, front)

    @rule(n=st.integers(1, 3000), front=st.booleans(), headroom=st.integers(0, 6))
    def append_at_the_limit(self, n: int, front: bool, headroom: int) -> None:
        filler = self.squeezed(headroom)
        rows = self._rows(n)
        try:
            (self.it.append_front if front else self.it.append)(rows)
            self.model = self._after(rows, front)
        except MemoryLimitError:
            pass
        filler.clear()

    @rule(n=st.integers(0, 1200))
    def pop(self, n: int) -> None:
        assert self.it.pop(n)[:, 0].tolist() == self.model[:n]
        self.model = self.model[n:]

    @rule(n=st.integers(0, 1200))
    def pop_back(self, n: int) -> None:
        n = min(n, len(self.model))
        keep = len(self.model) - n
        assert self.it.pop_back(n)[:, 0].tolist() == self.model[keep:]
        self.model = self.model[:keep]

    @rule(at=st.integers(0, 3000), n=st.integers(0, 700))
    def write_over(self, at: int, n: int) -> None:
        at = min(at, len(self.model))
        rows = self._rows(min(n, len(self.model) - at))
        self.it.set(at, rows)
        self.model[at : at + len(rows)] = rows[:, 0].tolist()

    @rule(a=st.integers(-3000, 3000), b=st.integers(-3000, 3000))
    def slices_and_views(self, a: int, b: int) -> None:
        assert self.it.slice(a, b)[:, 0].tolist() == self.model[a:b]
        assert [x for v in self.it.views() for x in v[:, 0].tolist()] == self.model
        if self.model:
            assert self.it.get(a % len(self.model))[0] == self.model[a % len(self.model)]


#: A batch of ids: dense or spread, and sometimes with doubles.
ids = st.builds(
    lambda start, step, n, doubles: [start + i * step for i in range(n)] + [start] * doubles,
    st.integers(0, 500),
    st.integers(1, 3),
    st.integers(0, 400),
    st.integers(0, 2),
)


def _mixed_key(i: int):
    text = None if i % 7 == 0 else ("" if i % 7 == 1 else f"{i // 3}" * (1 + i % 9))
    return (None if i % 5 == 0 else i % 40, text if text is None else text.encode(), None if i % 11 == 0 else i)


def _text_key(i: int):
    return ((f"{i:06}" * (1400 if i % 97 == 0 else 1 + i % 12)).encode(),)


class HashMapMachine(StructureMachine):
    layout: MapLayout = INT

    def key(self, i: int):
        """Different ids may be the same key: the model has keys."""
        return (i * 2_654_435_761 - 2**40,)

    def keys(self, batch: list[int]):
        return keys_of([self.key(i) for i in batch], self.layout.kinds)

    def open_in(self, pool):
        return HashMap(pool, 3, self.layout)

    def empty(self):
        return {}

    def inside(self, it):
        return contents(it)

    def _put(self, batch: list[int]) -> None:
        self.value += 1000
        values = [self.value + k for k in range(len(batch))]
        put(self.it, self.keys(batch), values)
        self.model |= {self.key(i): v for i, v in zip(batch, values, strict=True)}

    @rule(batch=ids)
    def upsert(self, batch: list[int]) -> None:
        self._put(batch)

    @rule(batch=ids, headroom=st.integers(0, 6))
    def upsert_at_the_limit(self, batch: list[int], headroom: int) -> None:
        filler = self.squeezed(headroom)
        try:
            self._put(batch)
        except MemoryLimitError:
            filler.clear()
            assert self.inside(self.it) == self.model, "a batch was not rolled back"
        filler.clear()

    @rule(batch=ids)
    def find(self, batch: list[int]) -> None:
        rids = self.it.find(self.keys(batch))
        assert (rids >= 0).tolist() == [self.key(i) in self.model for i in batch]

    @rule(batch=ids)
    def remove(self, batch: list[int]) -> None:
        rids = np.unique(self.it.find(self.keys(batch)))
        self.it.remove(rids[rids >= 0])
        for i in batch:
            self.model.pop(self.key(i), None)

    @rule()
    def remove_most(self) -> None:
        rids = self.it.slots.rids()
        self.it.remove(rids[len(rids) // 20 :])
        self.model = self.inside(self.it)  # which ones is not ours to say; how many is
        assert len(self.model) == len(rids) // 20

    @rule()
    def clear(self) -> None:
        self.it.clear()
        self.model = {}

    @rule()
    def changed_records_are_told_once(self) -> None:
        new, old = self.it.slots.changed()
        assert len(np.unique(np.concatenate([new, old]))) == len(new) + len(old)
        assert self.it.slots.is_live(new).all()
        assert self.it.slots.is_live(old).all()
        assert self.it.slots.count_changed() == (0, 0)


class MixedMapMachine(HashMapMachine):
    layout = MIXED

    def key(self, i):
        return _mixed_key(i)


class TextMapMachine(HashMapMachine):
    layout = TEXT

    def key(self, i):
        return _text_key(i)


class CollidingMapMachine(HashMapMachine):
    """Two thirds of the keys have one and the same hash: overflow chains come and go."""

    layout = TWO

    def key(self, i):
        return tuple(colliding_words(1, i, 99)[0].tolist()) if i % 3 else (i, i)


class OrderedMapMachine(StructureMachine):
    layout: MapLayout = INT

    def key(self, i: int):
        return (i * 7919 % 4001 - 2000,)

    def keys(self, batch: list[int]):
        return keys_of([self.key(i) for i in batch], self.layout.kinds)

    def open_in(self, pool):
        return OrderedMap(pool, 3, self.layout)

    def empty(self):
        return {}

    def inside(self, it):
        kw = self.layout.key_words
        rows = it.entries()
        keys = [columns_of(it.pool, it.heap.at, r[:kw], 0, self.layout.kinds) for r in rows]
        assert keys == sorted(keys), "entries are not in order"
        found = dict(zip(keys, rows[:, kw].tolist(), strict=True))
        assert len(found) == len(it) == len(rows)
        return found

    @rule(batch=ids)
    def put(self, batch: list[int]) -> None:
        self.value += 1000
        values = [self.value + k for k in range(len(batch))]
        self.it.put(self.keys(batch), np.array(values, np.int64).reshape(-1, 1))
        self.model |= {self.key(i): v for i, v in zip(batch, values, strict=True)}

    @rule(batch=ids)
    def get(self, batch: list[int]) -> None:
        values, found = self.it.get(self.keys(batch))
        got = [int(v) if f else None for v, f in zip(values[:, 0], found, strict=True)]
        assert got == [self.model.get(self.key(i)) for i in batch]

    @rule(batch=ids)
    def remove(self, batch: list[int]) -> None:
        batch = list(dict.fromkeys(batch))
        removed = self.it.remove(self.keys(batch))
        assert removed.tolist() == [self.model.pop(self.key(i), None) is not None for i in batch]

    @rule(n=st.integers(0, 700))
    def drop_first(self, n: int) -> None:
        self.it.drop_first(n)
        self.model = dict(sorted(self.model.items())[n:])

    @rule(i=st.integers(0, 900), skip=st.integers(0, 900), count=st.integers(0, 300))
    def ranges(self, i: int, skip: int, count: int) -> None:
        assert self.it.rank(self.keys([i])) == sum(k < self.key(i) for k in self.model)
        values = self.it.entries(skip, count)[:, self.layout.key_words].tolist()
        assert values == [v for _, v in sorted(self.model.items())][skip : skip + count]


class OrderedTextMachine(OrderedMapMachine):
    layout = TEXT

    def key(self, i):
        return _text_key(i * 7919 % 4001)


MACHINES = [
    DequeMachine,
    HashMapMachine,
    MixedMapMachine,
    TextMapMachine,
    CollidingMapMachine,
    OrderedMapMachine,
    OrderedTextMachine,
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.__name__)
def test_a_structure_equals_its_model_through_snapshots_crashes_and_restores(machine):
    thorough = settings.default.max_examples > 100
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=400 if thorough else 40, stateful_step_count=80 if thorough else 40),
    )


def test_int_keys_helper_and_packed_keys_agree():
    assert (int_keys([1, -5]).hashes == keys_of([(1,), (-5,)], INT.kinds).hashes).all()
