"""Images that are brought up in chunks while the primary works: states of many pages, chunks of any size.

Rows, expiry, removals, reuse of slots and growth race with the walk, at both sides of its cursor; walks are given up
and start over. Whenever a walk has come to its end, the image is the primary of that moment, record by record and
number by number, and when it takes over it says what the primary would have said, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.batches import TIME, rows
from support.images import records

from holdfast.errors import InputError, InvariantError, MemoryLimitError
from holdfast.model.topology import layered
from holdfast.operators import (
    END,
    FOREVER,
    START,
    Agg,
    Chunk,
    CountWindow,
    CountWindowAggregate,
    Join,
    StateCapture,
    StateConfig,
    StatefulOperator,
    Window,
    WindowAggregate,
    Within,
)
from holdfast.sim.costs import Costs
from holdfast.sim.operators import WINDOW_BYTES, Meter, WindowSum

CONFIG = StateConfig(page_bytes=4096, limit_bytes=4096 * 4096)
COLUMNS = (("ts", TIME), ("k", pa.string()), ("v", pa.int64()), ("m", pa.decimal128(20, 2)), ("s", pa.string()))
SCHEMA = pa.schema(COLUMNS)
KEYS = 400


def _batch(rng: np.random.Generator, n: int, now: int, prefix: str = "") -> pa.RecordBatch:
    """Rows from `now` on: nulls everywhere but in the time, short keys and long ones, values of up to two pages."""
    k = rng.integers(0, KEYS, n)
    length = np.where(rng.random(n) < 0.02, rng.integers(3000, 9000, n), rng.integers(0, 40, n))
    columns = [
        now + rng.integers(0, 30, n),
        [None if i == 0 else f"{i}" * (1 + i % 7) for i in k],
        [None if i % 5 == 0 else int(i) for i in rng.integers(-50, 50, n)],
        [None if i % 7 == 0 else Decimal(int(i)) for i in rng.integers(0, 10**6, n)],
        [None if i == 0 else chr(97 + i % 26) * i for i in length],
    ]
    schema = pa.schema([(prefix + name, type_) for name, type_ in COLUMNS])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


AGGS = {"n": Agg("count"), "total": Agg("sum", "v"), "money": Agg("sum", "m"), "last": Agg("last", "s")}


def _windows(size: int, step: int, config: StateConfig) -> WindowAggregate:
    return WindowAggregate(
        "w",
        SCHEMA,
        event_time="ts",
        window=Window(size, step),
        by=["k"],
        aggs=AGGS | {"x": Agg("max", "s")},
        config=config,
    )


def _join(config: StateConfig) -> Join:
    left, right = (pa.schema([(p + name, type_) for name, type_ in COLUMNS]) for p in ("l_", "r_"))
    times, on = ("l_ts", "r_ts"), [("l_k", "r_k")]
    return Join("j", left, right, times=times, on=on, window=Within(-4, 9), how="left_outer", config=config)


@dataclass
class Case:
    make: Callable[[StateConfig], StatefulOperator]

    def give(self, op, rng: np.random.Generator, n: int) -> list[tuple]:
        now = max(op.watermark, 0)
        if isinstance(op, Join):
            which = int(rng.integers(0, 2))
            return rows(op.process(which, _batch(rng, n, now, "lr"[which] + "_")))
        return rows(op.process(_batch(rng, n, now)) or pa.table({}))

    def advance(self, op, watermark: int) -> list[tuple]:
        if isinstance(op, Join):
            return rows(op.on_watermark(0, watermark)) + rows(op.on_watermark(1, watermark))
        return rows(op.on_watermark(watermark))


CASES = {
    "tumbling": Case(lambda config: _windows(10, 10, config)),
    "sliding": Case(lambda config: _windows(12, 3, config)),
    "count": Case(
        lambda config: CountWindowAggregate("c", SCHEMA, window=CountWindow(4, 2), by=["k"], aggs=AGGS, config=config)
    ),
    "join": Case(_join),
}

#: From one record over a page to everything.
SIZES = st.sampled_from([0, 500, 4096, 20_000, 100_000, 1 << 30])
#: What happens between two rounds: rows, or the watermark rises by so much.
WORK = st.lists(
    st.tuples(st.just("rows"), st.sampled_from([1, 30, 250])) | st.tuples(st.just("rise"), st.sampled_from([1, 7, 40])),
    max_size=3,
)
#: A round: what happens before it, the size of its chunk, whether the walk starts over.
ROUNDS = st.lists(st.tuples(WORK, SIZES, st.booleans() | st.just(False)), min_size=2, max_size=14)


def _walk(primary: StatefulOperator, image: StatefulOperator) -> None:
    cursor = START
    while cursor != END:
        chunk, cursor = primary.chunk(cursor, 20_000)
        image.paste_chunk(chunk)


def _wired(message):
    return type(message).from_bytes(message.to_bytes())


def _round(primary: StatefulOperator, image: StatefulOperator, cursor: int, size: int) -> int:
    """What the core does: the delta, then the chunk of the same moment; the first chunk alone."""
    delta = primary.capture()
    if cursor != START:
        assert image.fits(delta)
        image.paste(_wired(delta))
    if cursor == END:
        return END
    chunk, after = primary.chunk(cursor, size)
    assert after == END or after > cursor
    assert chunk.nbytes <= size or chunk.n_records == 1
    image.paste_chunk(_wired(chunk))
    assert image.scanned == after
    return after


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rounds=ROUNDS)
@example(seed=1, rounds=[([("rows", 250)], 4096, False), ([("rise", 40), ("rows", 250)], 4096, False)] * 6)
@example(seed=2, rounds=[([("rows", 250), ("rows", 250)], 500, False), ([("rise", 7)], 0, False)] * 6)
def test_an_image_brought_up_beside_running_work_is_its_primary(kind, seed, rounds):
    case = CASES[kind]
    rng = np.random.default_rng(seed)
    primary, image = case.make(CONFIG), case.make(CONFIG)
    for _ in range(4):
        case.give(primary, rng, 250)
    cursor = START
    for work, size, anew in rounds:
        for what, much in work:
            if what == "rows":
                case.give(primary, rng, much)
            else:
                case.advance(primary, max(primary.watermark, 0) + much)
        cursor = _round(primary, image, START if anew else cursor, size)
        if cursor == END:
            assert records(image) == records(primary)
    while cursor != END:
        case.give(primary, rng, 20)
        cursor = _round(primary, image, cursor, 50_000)
    assert records(image) == records(primary)
    _same_future(case, primary, image, seed)


def _same_future(case: Case, primary: StatefulOperator, image: StatefulOperator, seed: int) -> None:
    """Both go on with the same rows and say the same, and so does an image of the image."""
    for turn in range(3):
        told = [case.give(op, np.random.default_rng((seed, turn)), 200) for op in (primary, image)]
        told += [case.advance(op, max(op.watermark, 0) + 11) for op in (primary, image)]
        assert told[0] == told[1]
        assert told[2] == told[3]
    second, cursor = case.make(CONFIG), START
    while cursor != END:
        cursor = _round(image, second, cursor, 30_000)
    ends = [case.advance(op, FOREVER) for op in (primary, image, second)]
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("kind", CASES)
def test_a_walk_in_small_chunks_costs_no_more_than_its_bytes_and_takes_every_record_once(kind):
    case = CASES[kind]
    rng = np.random.default_rng(5)
    primary = case.make(CONFIG)
    for _ in range(8):
        case.give(primary, rng, 250)
    primary.skip()
    everything, end = primary.chunk(START, 1 << 40)
    assert end == END
    cursor, count, nbytes = START, 0, 0
    while cursor != END:
        chunk, cursor = primary.chunk(cursor, 10_000)
        count += chunk.n_records
        nbytes += chunk.nbytes
    assert (count, nbytes) == (everything.n_records, everything.nbytes)


@pytest.mark.parametrize("kind", CASES)
def test_an_image_without_the_memory_for_a_chunk_starts_over_empty_and_can_be_brought_up_again(kind):
    case = CASES[kind]
    rng = np.random.default_rng(7)
    primary = case.make(CONFIG)
    image = case.make(StateConfig(page_bytes=4096, limit_bytes=30 * 4096))
    for _ in range(20):
        case.give(primary, rng, 250)
    primary.skip()
    with pytest.raises(MemoryLimitError):
        _walk(primary, image)
    assert (image.captured, image.scanned, image.rows) == (-1, END, 0)
    small = case.make(CONFIG)
    case.give(small, rng, 50)
    small.skip()
    image.paste_chunk(small.chunk(START, 1 << 30)[0])
    assert records(image) == records(small)


@pytest.mark.parametrize("kind", CASES)
def test_starting_over_gives_the_memory_of_the_old_image_back(kind):
    case = CASES[kind]
    rng = np.random.default_rng(9)
    primary, image = case.make(CONFIG), case.make(CONFIG)
    for _ in range(8):
        case.give(primary, rng, 250)
    for _ in range(2):
        primary.skip()
        chunk, _ = primary.chunk(START, 1 << 30)
        old = image.pool
        image.paste_chunk(chunk)
        assert image.pool is not old
        assert not old.words[: 100 * 512].any(), "its pages are still backed by memory"
    assert records(image) == records(primary)


def test_a_chunk_of_another_moment_than_a_capture_is_never_taken():
    case = CASES["tumbling"]
    rng = np.random.default_rng(3)
    primary, image = case.make(CONFIG), case.make(CONFIG)
    case.give(primary, rng, 250)
    with pytest.raises(InvariantError, match="of another moment than its capture"):
        primary.chunk(START, 1000)
    primary.capture()
    chunk, _ = primary.chunk(START, 1000)
    primary.on_watermark(7)
    with pytest.raises(InvariantError, match="of another moment than its capture"):
        primary.chunk(START, 1000)
    image.paste_chunk(chunk)
    for misuse in (image.capture, image.skip):
        with pytest.raises(InvariantError, match="before it had everything"):
            misuse()


def test_two_copies_that_went_on_from_the_same_point_are_not_mistaken_for_each_other():
    """After a fail-over both have captured once on their own: a count would be the same."""
    case = CASES["count"]
    rng = np.random.default_rng(4)
    a, b, image = (case.make(CONFIG) for _ in range(3))
    case.give(a, rng, 250)
    first = a.capture()
    for copy in (b, image):
        copy.paste(first)
    for seed, copy in enumerate((a, b)):
        case.give(copy, np.random.default_rng(seed), 250)
    image.paste(a.capture())
    b.capture()
    case.give(b, rng, 10)
    assert not image.fits(b.capture())


@pytest.mark.parametrize("part", [0, 1])
def test_numbers_and_links_that_no_page_has_are_refused(part):
    """The bytes are well formed and carry a right checksum: a peer that is not ours made them."""
    op, image = CASES["join"].make(CONFIG), CASES["join"].make(CONFIG)
    for which, name in enumerate("lr"):
        op.process(which, _batch(np.random.default_rng(8), 100, 0, name + "_"))
    op.skip()
    chunk, _ = op.chunk(START, 1 << 30)
    for field, value in (("new", 1 << 31), ("new", 63), ("new_words", 1 << 62), ("new_words", 63 << 32)):
        with pytest.raises((InputError, MemoryLimitError)):
            image.paste_chunk(_wired(_tampered(chunk, part, field, value)))
    image.paste_chunk(_wired(chunk))
    assert records(image) == records(op)


def _tampered(chunk: Chunk, part: int, field: str, value: int) -> Chunk:
    words = np.frombuffer(getattr(chunk.parts[part], field), "<u4" if field == "new" else "<i8").copy()
    words[0] = value
    parts = list(chunk.parts)
    parts[part] = msgspec.structs.replace(parts[part], **{field: words.view(np.uint8).data})
    return msgspec.structs.replace(chunk, parts=parts)


def test_captures_and_chunks_are_told_apart_by_their_bytes():
    op = CASES["tumbling"].make(CONFIG)
    op.process(_batch(np.random.default_rng(8), 100, 0))
    capture = op.capture()
    with pytest.raises(InputError, match="a chunk of state cannot be read"):
        Chunk.from_bytes(capture.to_bytes())
    with pytest.raises(InputError, match="a capture cannot be read"):
        StateCapture.from_bytes(op.chunk(START, 1 << 20)[0].to_bytes())


# -- the modelled operator ------------------------------------------------------------------------------------------

STEP = st.tuples(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(1, 9)), max_size=6), st.integers(0, 9)
)


@settings(max_examples=200, deadline=None)
@given(
    script=st.lists(
        st.tuples(STEP, st.integers(0, 5), st.sampled_from(["go on", "go on", "anew", "promote"])), max_size=25
    )
)
def test_the_modelled_operator_means_the_same_by_captures_and_chunks(script):
    spec = layered(stages=1, shards=1).shards[0]
    primary, image = (WindowSum(spec, 10, Costs(), Meter()) for _ in range(2))
    cursor, now = END, 0
    for (given_rows, rise), count, what in script:
        primary.step("e", tuple((key, now + time, value) for key, time, value in given_rows), now + rise)
        now += rise
        if what == "anew":
            cursor = START
        pieces = primary.delta(count * WINDOW_BYTES)
        if cursor != START:
            for piece in pieces:
                assert len(piece) <= max(1, count)
                assert image.fits(piece)
                image.paste(piece)
        if cursor != END:
            chunk, cursor = primary.chunk(cursor, count * WINDOW_BYTES)
            assert len(chunk) <= max(1, count)
            image.paste(chunk)
        if cursor == END:
            assert (image.windows, image.slots) == (primary.windows, primary.slots)
            assert (image.watermark, image.captured) == (primary.watermark, primary.captured)
            if what == "promote":
                primary, image = image, primary
                primary.restore()
        else:
            with pytest.raises(InvariantError):
                image.step("e", (), now)
