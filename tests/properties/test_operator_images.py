"""Images and checkpoints of operators under random rows, watermarks, captures, chunks, promotions and crashes.

An operator runs beside a log of everything it was given. Whatever happens to it in between, (1) an image gives exactly
what its primary would have given at the moment of the last capture, row for row and in the same order, and (2) what has
come out so far and what is still to come are together what a plain Python model makes of the log. An image is brought
up in chunks of any size while its primary goes on, and is worth something only with the last of them.
"""

from __future__ import annotations

import io
import os

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from support import models
from support.batches import TIME, batch, copy_into, rows
from support.images import records
from support.models import Row

from holdfast.errors import InputError, MemoryLimitError
from holdfast.operators import (
    END,
    FOREVER,
    LEFT,
    RIGHT,
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
from holdfast.state import checkpoint
from holdfast.state.checkpoint import Checkpoint

SCHEMA = pa.schema([("ts", TIME), ("k", pa.string()), ("f", pa.float64()), ("v", pa.int64()), ("s", pa.string())])
AGGS = {
    "rows": Agg("count"),
    "some": Agg("count", "v"),
    "total": Agg("sum", "v"),
    "mean": Agg("avg", "v"),
    "least": Agg("min", "s"),
    "most": Agg("max", "s"),
    "first": Agg("first", "s"),
    "last": Agg("last", "s"),
}
CONFIG = StateConfig(page_bytes=4096, limit_bytes=1024 * 4096)
LARGE = StateConfig(page_bytes=4096, limit_bytes=64 << 20)

# few different keys, and some of them often: what is wrong shows where rows of one key meet
KEYS = st.sampled_from(["a", "a", "a", None, "k" * 16, "k" * 16, "k" * 15, ""])
FLOATS = st.sampled_from([0.0, -0.0, 0.0, -0.0, float("nan"), None])
WORDS = st.sampled_from([None, "", "p", "q" * 15, "q" * 16, "r" * 100, "é" * 20, "z" * 5000])
#: Times are offsets from the watermark.
ROWS = st.lists(
    st.builds(Row, st.integers(0, 25), KEYS, FLOATS, st.integers(-5, 5) | st.none(), WORDS), min_size=1, max_size=12
)


#: Bytes of a chunk, from one record to everything.
SIZES = st.sampled_from([0, 1, 300, 999, 5000, 1 << 20])


def to_batch(given_rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """As a slice of a larger batch, so that no array starts at offset 0."""
    padded = [Row(0, "pad", 9.0, 9, "pad" * 9), *given_rows, Row(0, "pad", 9.0, 9, "pad")]
    return batch(schema, *zip(*padded, strict=True)).slice(1, len(given_rows))


class ImageMachine(RuleBasedStateMachine):
    """What is common to all operators. The log is a list of (input, row); results so far are in `emitted`."""

    inputs = 1

    def __init__(self) -> None:
        super().__init__()
        self.primary = self.make()
        self.image = self.make()
        self.log: list[tuple[int, Row]] = []
        self.emitted: list[tuple] = []
        #: Log and results (their lengths), and what was still to come, when the image's capture was taken.
        self.captured: tuple[int, int, list[tuple]] | None = None
        #: Checkpoint files, the last snapshot and lengths at that time.
        self.chain: list[bytes] = []
        self.base = None
        self.saved: tuple[int, int] = (0, 0)
        #: Where the walk that brings up the image stands; END: it has everything.
        self.cursor = END
        self.lost = False

    # -- what the operators provide

    def make(self, config: StateConfig = CONFIG) -> StatefulOperator:
        raise NotImplementedError

    def give(self, op: StatefulOperator, which: int, given_rows: list[Row]) -> list[tuple]:
        raise NotImplementedError

    def advance(self, op: StatefulOperator, which: int, watermark: int) -> list[tuple]:
        raise NotImplementedError

    def drain(self, op: StatefulOperator) -> list[tuple]:
        """Everything that a copy has to say, by whatever means."""
        raise NotImplementedError

    def model(self) -> list[tuple]:
        raise NotImplementedError

    def compare(self, emitted: list[tuple], rest: list[tuple]) -> None:
        assert emitted + rest == self.model()

    # -- rules

    def to_come(self, op: StatefulOperator, *, lazy: bool = False) -> list[tuple]:
        return self.drain(copy_into(op, self.make(), lazy=lazy))

    def fingerprint(self, op: StatefulOperator, *, lazy: bool = False) -> list[tuple]:
        """All that can be seen of an operator's state from outside, in order."""
        return self.to_come(op, lazy=lazy)

    def now(self, which: int = 0) -> int:
        del which
        return max(self.primary.watermark, -40)

    @rule(which=st.integers(0, 1), given_rows=ROWS)
    def rows_come(self, which: int, given_rows: list[Row]) -> None:
        which %= self.inputs
        placed = [r._replace(ts=self.now(which) + r.ts) for r in given_rows]
        self.emitted += self.give(self.primary, which, placed)
        self.log += [(which, r) for r in placed]

    @rule(which=st.integers(0, 1), given_rows=ROWS, by=st.sampled_from([4, 10, 15, 30]), anew=st.booleans(), size=SIZES)
    def work_goes_on(self, which: int, given_rows: list[Row], by: int, anew: bool, size: int) -> None:
        """What happens all the time: rows, a capture, a watermark that closes something, and a capture of that."""
        self.rows_come(which, given_rows)
        self.a_round(anew, False, size)
        for index in range(self.inputs):
            self.the_watermark_rises(index, by)
        self.rows_come(which + 1, given_rows[:3])
        self.a_round(False, True, size)

    @rule(which=st.integers(0, 1), by=st.sampled_from([0, 1, 3, 10, 11, 60]))
    def the_watermark_rises(self, which: int, by: int) -> None:
        which %= self.inputs
        self.emitted += self.advance(self.primary, which, self.now(which) + by)

    @rule(anew=st.booleans(), lazy=st.booleans(), size=SIZES)
    def a_round(self, anew: bool, lazy: bool, size: int) -> None:
        """A capture of what changed, and while the image is being brought up a chunk of the same moment."""
        if anew or self.lost:
            self.cursor, self.captured = START, None
        if self.cursor == START and size % 2:
            self.primary.skip()
        else:
            capture = StateCapture.from_bytes(self.primary.capture().to_bytes())
            if self.cursor != START:
                assert self.image.fits(capture)
                self.image.paste(capture)
        if self.cursor != END:
            chunk, self.cursor = self.primary.chunk(self.cursor, size)
            assert chunk.nbytes <= size or chunk.n_records == 1
            self.image.paste_chunk(Chunk.from_bytes(chunk.to_bytes()))
        self.lost = False
        assert self.image.scanned == self.cursor
        if self.cursor == END:
            assert records(self.image) == records(self.primary)
            rest = self.fingerprint(self.primary)
            self.captured = (len(self.log), len(self.emitted), rest)
            assert self.fingerprint(self.image, lazy=lazy) == rest

    @precondition(lambda self: self.cursor != END)
    @rule(size=SIZES)
    def the_walk_comes_to_its_end(self, size: int) -> None:
        while self.cursor != END:
            self.a_round(False, False, size)
            size = 2 * size + 100

    @precondition(lambda self: self.captured is not None or self.cursor != END)
    @rule()
    def a_capture_is_lost_and_the_next_one_refused(self) -> None:
        self.primary.capture()
        following = self.primary.capture()
        with pytest.raises(InputError, match="does not start where the image stands"):
            self.image.paste(following)
        self.lost = True

    @precondition(lambda self: self.cursor not in (START, END) and not self.lost)
    @rule(size=SIZES)
    def a_chunk_is_lost_and_the_next_one_refused(self, size: int) -> None:
        self.image.paste(self.primary.capture())
        _, cursor = self.primary.chunk(self.cursor, size)
        if cursor == END:
            return
        following, _ = self.primary.chunk(cursor, size)
        with pytest.raises(InputError, match="a chunk does not start where the image stands"):
            self.image.paste_chunk(following)
        self.primary.capture()
        late, _ = self.primary.chunk(self.cursor, size)
        with pytest.raises(InputError, match="a chunk does not start where the image stands"):
            self.image.paste_chunk(late)
        self.lost = True

    @rule(cut=st.floats(0, 1), flip=st.integers(0, 7), chunk=st.booleans())
    def garbled_bytes_are_refused(self, cut: float, flip: int, chunk: bool) -> None:
        taken = self.primary.capture()
        if chunk:
            taken, _ = self.primary.chunk(START, 1000)
        raw = bytearray(taken.to_bytes())
        self.lost = True
        at = int(cut * (len(raw) - 1))
        with pytest.raises(InputError, match="cannot be read"):
            type(taken).from_bytes(bytes(raw[:at]))
        raw[at] ^= 1 << flip
        with pytest.raises(InputError, match="cannot be read"):
            type(taken).from_bytes(bytes(raw))

    @precondition(lambda self: self.captured is not None)
    @rule(size=SIZES)
    def the_primary_dies_and_the_image_takes_over(self, size: int) -> None:
        assert self.captured is not None
        seen, said, rest = self.captured
        del self.log[seen:], self.emitted[said:]
        assert self.fingerprint(self.image) == rest
        self.primary, self.image = self.image, self.make()
        self.chain, self.base = [], None
        self.a_round(True, False, size)

    @precondition(lambda self: self.captured is not None and self.cursor == END)
    @rule(which=st.integers(0, 1), given_rows=ROWS, by=st.sampled_from([0, 4, 10, 60]), keep=st.booleans(), size=SIZES)
    def the_image_stands_in(self, which: int, given_rows: list[Row], by: int, keep: bool, size: int) -> None:
        """On a fork it does what a plain copy of it does; then it is the image again, or the primary."""
        assert self.captured is not None
        which %= self.inputs
        seen, said, _ = self.captured
        before, changes, shows = records(self.image), self.image.changes(), self.fingerprint(self.image)
        plain = copy_into(self.image, self.make())
        self.image.fork()
        placed = [r._replace(ts=self.now(which) + r.ts) for r in given_rows]
        mark = self.now(which) + by
        made, wanted = (self.give(op, which, placed) + self.advance(op, which, mark) for op in (self.image, plain))
        assert made == wanted
        assert self.to_come(self.image) == self.to_come(plain)
        self.image.settle(keep=keep)
        if not keep:
            assert (records(self.image), self.image.changes()) == (before, changes)
            assert self.fingerprint(self.image) == shows
            return
        self.log[seen:], self.emitted[said:] = [(which, r) for r in placed], made
        self.primary, self.image = self.image, self.make()
        self.chain, self.base = [], None
        self.a_round(True, False, size)

    @rule(full=st.booleans())
    def a_checkpoint_is_written(self, full: bool) -> None:
        full = full or self.base is None
        snapshot, meta = self.primary.snapshot(None if full else self.base)
        out = io.BytesIO()
        checkpoint.write(snapshot, out, meta)
        self.chain = [out.getvalue()] if full else [*self.chain, out.getvalue()]
        self.base = snapshot
        self.saved = (len(self.log), len(self.emitted))

    @precondition(lambda self: self.base is not None)
    @rule(lazy=st.booleans())
    def the_node_crashes_and_restores_the_checkpoints(self, lazy: bool) -> None:
        seen, said = self.saved
        del self.log[seen:], self.emitted[said:]
        self.primary = self.make()
        self.primary.restore([Checkpoint.of_bytes(raw) for raw in self.chain], lazy=lazy)
        # its image may be ahead of it now, and is no use
        self.image, self.captured, self.lost = self.make(), None, True
        self.chain, self.base = [], None

    @rule()
    def nothing_is_lost_or_doubled(self) -> None:
        self.compare(self.emitted, self.to_come(self.primary))

    def teardown(self) -> None:
        self.compare(self.emitted, self.to_come(self.primary))


class TimeWindows(ImageMachine):
    window = Window(10, 10)

    def make(self, config: StateConfig = CONFIG) -> WindowAggregate:
        return WindowAggregate(
            "w", SCHEMA, event_time="ts", window=self.window, by=["k", "f"], aggs=AGGS, config=config
        )

    def give(self, op, which, given_rows):
        op.process(to_batch(given_rows))
        return []

    def advance(self, op, which, watermark):
        before = op.watermark
        out = rows(op.on_watermark(watermark))
        assert all(before < r[1] <= watermark for r in out)
        return out

    def drain(self, op):
        return rows(op.on_watermark(FOREVER))

    def model(self):
        return models.windows([r for _, r in self.log], self.window.size_us, self.window.step_us)


class SlidingWindows(TimeWindows):
    window = Window(10, 3)


class CountWindows(ImageMachine):
    window = CountWindow(4, 2)

    def make(self, config: StateConfig = CONFIG) -> CountWindowAggregate:
        return CountWindowAggregate("c", SCHEMA, window=self.window, by=["k", "f"], aggs=AGGS, config=config)

    def give(self, op, which, given_rows):
        return rows(op.process(to_batch(given_rows)))

    def advance(self, op, which, watermark):
        return rows(op.on_watermark(watermark))

    def drain(self, op):
        """Four more rows for every key show what is there of it."""
        keys = {models.canonical(r): r for _, r in self.log}.values()
        return self.give(op, 0, [r._replace(ts=0, v=7, s=f"probe {i}") for r in keys for i in range(self.window.size)])

    def compare(self, emitted, rest):
        keys = {models.canonical(r): r for _, r in self.log}.values()
        probes = [r._replace(ts=0, v=7, s=f"probe {i}") for r in keys for i in range(self.window.size)]
        all_rows = [r for _, r in self.log] + probes
        assert emitted + rest == models.count_windows(all_rows, self.window.size, self.window.step)


class OverlappingCountWindows(CountWindows):
    window = CountWindow(5, 3)


class Joins(ImageMachine):
    inputs = 2
    window = Within(-4, 9)

    def make(self, config: StateConfig = CONFIG) -> Join:
        left, right = (pa.schema([(p + f.name, f.type) for f in SCHEMA]) for p in ("l_", "r_"))
        return Join(
            "j",
            left,
            right,
            times=("l_ts", "r_ts"),
            on=[("l_k", "r_k"), ("l_f", "r_f")],
            window=self.window,
            how="left_outer",
            predicate=lambda pairs: pc.less_equal(pairs.column("l_v"), pairs.column("r_v")),
            config=config,
        )

    def now(self, which: int = 0) -> int:
        return max(self.primary.watermarks.inputs[which], -40)

    def give(self, op, which, given_rows):
        return rows(op.process(which, to_batch(given_rows, op.sides[which].schema)))

    def advance(self, op, which, watermark):
        return rows(op.on_watermark(which, watermark))

    def drain(self, op):
        return rows(op.on_watermark(LEFT, FOREVER)) + rows(op.on_watermark(RIGHT, FOREVER))

    def fingerprint(self, op, *, lazy=False):
        """Also what both sides answer to a row of every key: right rows never show by themselves."""
        out = self.to_come(op)
        copy = copy_into(op, self.make(), lazy=lazy)
        keys = {models.canonical(r): r for _, r in self.log}.values()
        for offset in (0, 4):
            for which in (RIGHT, LEFT):
                probes = [r._replace(ts=max(copy.watermark, -40) + offset, v=0, s="probe") for r in keys]
                out += self.give(copy, which, probes)
        return out

    def compare(self, emitted, rest):
        left, right = ([r for w, r in self.log if w == which] for which in (LEFT, RIGHT))
        wanted = models.joined(left, right, self.window.after_us, self.window.before_us)
        assert sorted(emitted + rest, key=repr) == wanted


class EarlierJoins(Joins):
    window = Within(-15, -3)


# few examples of many steps: an example costs about as much as its copies
_FAST = settings(max_examples=15, stateful_step_count=25, deadline=None)
_THOROUGH = settings(max_examples=300, stateful_step_count=60, deadline=None)


def _case(machine: type[ImageMachine]) -> type:
    machine.TestCase.settings = _THOROUGH if os.environ.get("HOLDFAST_HYPOTHESIS") == "thorough" else _FAST
    return machine.TestCase


TestTumblingWindows = _case(TimeWindows)
TestSlidingWindows = _case(SlidingWindows)
TestCountWindows = _case(CountWindows)
TestOverlappingCountWindows = _case(OverlappingCountWindows)
TestJoins = _case(Joins)
TestEarlierJoins = _case(EarlierJoins)


# -- the memory limit -----------------------------------------------------------------------------------------------

BULKY = st.lists(
    st.lists(
        st.builds(
            Row,
            st.integers(0, 60),
            st.integers(0, 400).map(lambda i: f"key {i}" * (1 + i % 5)),
            FLOATS,
            st.integers(0, 5),
            st.integers(0, 3000).map(lambda n: "w" * n),
        ),
        min_size=1,
        max_size=40,
    ),
    min_size=10,
    max_size=40,
)


@pytest.mark.parametrize(
    "machine", [TimeWindows, SlidingWindows, CountWindows, OverlappingCountWindows, Joins], ids=lambda m: m.__name__
)
@settings(max_examples=8, deadline=None)
@given(batches=BULKY, pages=st.integers(16, 40), snapshots=st.booleans())
def test_a_batch_that_hits_the_memory_limit_is_rolled_back_whole_and_fits_a_larger_pool(
    machine, batches, pages, snapshots
):
    run = machine()
    op = run.make(StateConfig(page_bytes=4096, limit_bytes=pages * 4096))
    held = None
    for i, given_rows in enumerate(batches):
        which = i % run.inputs
        placed = [r._replace(ts=max(op.watermark, 0) + r.ts) for r in given_rows]
        if snapshots and i % 3 == 0 and held is None:
            held, _ = op.snapshot()  # a checkpoint that takes its time: pages are cloned, memory runs out sooner
        try:
            run.emitted += run.give(op, which, placed)
        except MemoryLimitError:
            if held is not None:
                held.close()
                held = None
            run.compare(run.emitted, run.drain(copy_into(op, run.make(LARGE))))
            op = copy_into(op, run.make(LARGE))
            run.emitted += run.give(op, which, placed)
        run.log += [(which, r) for r in placed]
    run.compare(run.emitted, run.drain(copy_into(op, run.make(LARGE))))
