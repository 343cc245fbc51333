"""Operators of the state engine as the core wants them: rows of an edge in, rows for every output edge out.

Port 0 of it carries everything that it emits; the further ports carry the same
rows, cut by key for the shards of the operators that consume it directly.

A step is all or nothing as far as an operator can promise it: a batch that cannot be taken leaves the state as it
was. Rows that an operator refuses (`InputError`: a function of the rows and its state) are set aside one by one, with
the reason, and so are results that do not fit their type: every copy sets the same aside. What may be different on
another node, such as memory, is not: the shard waits. If closing windows fails after the rows went in, the state is
`torn`: it belongs to no position and must not be captured. The shard then stands still, and its backup has everything
up to the last good position.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError, InputError, MemoryLimitError, StateError, check, one_line
from holdfast.model.ids import Asset, Edge, operator_of, port_of
from holdfast.model.plan import NEVER_US, InputPlan, OperatorPlan, Plan, to_micros
from holdfast.model.topology import ShardSpec
from holdfast.operators import (
    END,
    LEFT,
    RIGHT,
    CountWindowAggregate,
    Join,
    StateCapture,
    StateConfig,
    Window,
    Within,
)
from holdfast.operators.aside import REASON
from holdfast.operators.build import WINDOW_END, WINDOW_TIME, build, rows_in
from holdfast.runtime.net.rows import ArrowRows, batches_of
from holdfast.runtime.net.wire import OperatorState, StateChunk, StateSlice
from holdfast.runtime.node.letters import INPUT, RESULT, Letters
from holdfast.runtime.shards import cut
from holdfast.state.pages import Snapshot

if TYPE_CHECKING:
    from holdfast.checkpoint.restore import RestoreTimes
    from holdfast.checkpoint.write import BuiltOn

#: Column of partial aggregates that says in which pane a row belongs.
PANE = "pane_start"


@dataclass
class Figures:
    """What an operator has done, for status and metrics."""

    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    rows_aside: int = 0
    captures: int = 0
    captured_bytes: int = 0
    pastes: int = 0


@dataclass(frozen=True)
class StateImage:
    """The state of one moment for a checkpoint (`runtime/stable/` writes it). Whoever has written it, or gives it up,
    closes the snapshot."""

    snapshot: Snapshot
    meta: bytes
    #: What it needs to be read, beside its own pages; None: nothing.
    base: BuiltOn | None
    #: Called with what the next one can build on, once this one counts; None: it has to be a full one. From any thread.
    keep: Callable[[BuiltOn | None], None]


def read_schema(raw: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(raw))


P = ParamSpec("P")
R = TypeVar("R")


def _counted(work: Callable[Concatenate[ShardOperator, P], R]) -> Callable[Concatenate[ShardOperator, P], R]:
    """Work that counts as load: CPU time of its thread, so that whoever else is on the machine does not matter."""

    @functools.wraps(work)
    def counted(self: ShardOperator, *given: P.args, **named: P.kwargs) -> R:
        began_ns = time.thread_time_ns()
        try:
            return work(self, *given, **named)
        finally:
            self.busy_ns += time.thread_time_ns() - began_ns

    return counted


OnStep = Callable[[Asset, Edge, int, int, int], None]


def _untold(shard: Asset, edge: Edge, rows: int, watermark: int, began_ns: int) -> None:
    """Nobody wants to know."""


class ShardOperator:
    """One shard of an operator, as `core.operator.Operator`."""

    def __init__(self, spec: ShardSpec, plan: Plan, config: StateConfig, on_step: OnStep = _untold) -> None:
        self.id = spec.id
        #: Told of every block that was taken: shard, edge, rows, watermark, and when that began.
        self._on_step = on_step
        self.plan = plan.operator(operator_of(spec.id))
        self.op = build(self.plan, config)
        self.figures = Figures()
        self.busy_ns = 0
        self.aside: Any = ()
        self._letters = Letters()
        #: A step failed half-way: the state belongs to no position.
        self.torn = False
        #: How far the watermark of the output stays behind that of the input: a pair of a join is as old as its older
        #: row, which may be older than the watermark.
        self.lag = self._lag()
        self._schema = read_schema(self.plan.output)
        self._inputs = {edge: _input_of(edge, self.plan, plan) for edge in spec.inputs}
        self._ports = len(spec.outputs)
        #: Slices of a large delta that have come and are not pasted yet.
        self._slices: list[StateSlice] = []
        #: The newest checkpoint of this copy in the store: the next one has only what has changed since.
        self._stored: BuiltOn | None = None
        #: How long it took to bring this copy back from the store, if it was.
        self.times: RestoreTimes | None = None

    def _lag(self) -> int:
        if not isinstance(self.op, Join):
            return 0
        window = self.op.window
        return 2 * window.reach_us if isinstance(window, Within) else window.size_us

    # --- gaps

    def hide(self, to: int) -> None:
        """Rows before `to` are missing. Windows that count rows have no time: they just begin anew."""
        self.op.hidden = to_micros(to) if to > 0 else NEVER_US

    def after(self, to: int) -> int:
        """A window has the time of its end, a pair that of its older row; a row without a partner waits for one."""
        window = self.op.window
        return to + (window.size_us if isinstance(window, Window) else self.lag)

    # --- rows

    def step(self, edge: Edge, rows: Any, watermark: int) -> tuple[Any, ...]:
        began_ns = time.monotonic_ns()
        made = self._step(edge, rows, watermark)
        self._on_step(self.id, edge, len(rows), watermark, began_ns)
        return made

    @_counted
    def _step(self, edge: Edge, rows: Any, watermark: int) -> tuple[Any, ...]:
        self.aside, self._letters = (), Letters()
        before = self.op.rows
        try:
            made = self._take(self._inputs[edge], rows) if len(rows) else []
        except (InputError, MemoryLimitError, ConfigError):
            self.torn = self.op.rows != before  # but for a part of a batch, the state is as it was
            raise
        except Exception as error:
            self.torn = True
            raise _named(self.op.name, error) from error
        self.torn = True
        try:
            made += self._close(to_micros(watermark))
            out = self._out(made)
            self.aside = self._letters.rows()
        except Exception as error:
            raise _named(self.op.name, error) from error
        self.torn = False
        self.figures.rows_aside += len(self.aside)
        return out

    def letters(self, edge: Edge, rows: Any, reason: str) -> Any:
        """Rows of an input edge as dead letters. (A stage that groups before it hands over has sent groups.)"""
        found = Letters()
        for batch in batches_of(rows):
            found.add(INPUT, pa.Table.from_batches([batch]), [reason] * batch.num_rows)
        self.figures.rows_aside += len(found)
        return found.rows()

    def _take(self, index: int, rows: Any) -> list[pa.RecordBatch]:
        """Rows of one block: one batch, so that all of it goes in or nothing, but for what is set aside."""
        plan = self.plan.inputs[index]
        table = pa.Table.from_batches(batches_of(rows))
        chunks = table.combine_chunks().to_batches() if table.num_rows else []
        if len(chunks) > 1:
            raise InputError(
                f"{self.op.name}: a batch is too large",
                detail=f"{len(rows)} rows with more than 2 GiB in one text column.",
                hint="Limit what a micro-batch may take, for example with maxFilesPerTrigger.",
            )
        out = [made for batch in chunks for made in self._feed(plan, batch)]
        self.figures.rows_in += len(rows)
        self.figures.bytes_in += sum(batch.nbytes for batch in batches_of(rows))
        return out

    def _feed(self, plan: InputPlan, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """All rows that the operator takes, in their order. A batch that it refuses is taken by halves, so that only
        rows that it refuses alone are set aside. (If it refuses even no rows, they are not what is wrong.)"""
        try:
            return self._process(plan, batch)
        except InputError as error:
            refused = error
        self._process(plan, batch.slice(0, 0))
        half = batch.num_rows // 2
        if half:
            return self._feed(plan, batch.slice(0, half)) + self._feed(plan, batch.slice(half))
        self._letters.add(INPUT, pa.Table.from_batches([batch]), [one_line(refused).removeprefix("error: ")])
        return []

    def _process(self, plan: InputPlan, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        op = self.op
        if plan.event_time == WINDOW_TIME and not {WINDOW_TIME, WINDOW_END, PANE} & set(batch.schema.names):
            raise InputError(
                f"{op.name}: the input has no event time",
                detail=f"It is derived from {WINDOW_END!r}, which is not among {', '.join(batch.schema.names)}.",
            )
        batch = rows_in(plan, batch)
        if isinstance(op, Join):
            return op.process(plan.side, batch).to_batches()
        if isinstance(op, CountWindowAggregate):
            return self._fitting(op.process(batch))
        if PANE in batch.schema.names and plan.partial:
            op.process_partial(batch)
        else:
            op.process(batch)
        return []

    def _fitting(self, made: pa.Table) -> list[pa.RecordBatch]:
        """Results; those that do not fit their types are dead letters."""
        aside = self.op.aside
        if aside is not None:
            self._letters.add(RESULT, aside.drop_columns([REASON]), aside.column(REASON).to_pylist())
        return made.to_batches()

    def _close(self, watermark: int) -> list[pa.RecordBatch]:
        op = self.op
        if isinstance(op, Join):
            return op.on_watermark(LEFT, watermark).to_batches() + op.on_watermark(RIGHT, watermark).to_batches()
        return self._fitting(op.on_watermark(watermark))

    def _out(self, made: list[pa.RecordBatch]) -> tuple[Any, ...]:
        made = [batch for batch in made if batch.num_rows]
        if not made:
            return ((),) * self._ports
        table = pa.Table.from_batches(made).select(self._schema.names).cast(self._schema)
        self.figures.rows_out += table.num_rows
        ports: list[Any] = [ArrowRows.of(table)]
        for _, _, shards, by in self.plan.feeds:
            batch = table.combine_chunks().to_batches()[0]
            ports += [ArrowRows([part]) if part.num_rows else () for part in cut(batch, tuple(by), shards)]
        return tuple(ports[: self._ports])

    # --- captures

    def delta_ns(self) -> int:
        return int(self.op.estimate_capture() * 1e9)

    def paste_ns(self, piece: object) -> int:
        match piece:
            case StateChunk():
                amounts = (piece.chunk.n_records, 0)
            case OperatorState():
                amounts = (piece.capture.n_new, piece.capture.n_updated)
            case StateSlice():
                amounts = (len(piece) // 64, 0)  # about: what a slice holds shows only when all are there
            case _:
                amounts = (0, 0)
        return int(self.op.paste_cost.estimate(*amounts) * 1e9)

    @_counted
    def delta(self, bytes_max: int) -> tuple[OperatorState | StateSlice, ...]:
        taken = self.op.capture()
        self.figures.captures += 1
        self.figures.captured_bytes += taken.nbytes
        if taken.nbytes <= bytes_max:
            return (OperatorState(taken),)
        raw = memoryview(taken.to_bytes())
        parts = [raw[at : at + bytes_max] for at in range(0, len(raw), bytes_max)]
        return tuple(StateSlice(taken.base, i, len(parts), part) for i, part in enumerate(parts))

    def skip(self) -> None:
        """Count everything as captured without carrying it: no target could use a capture of this moment."""
        self.op.skip()

    def mark_all(self) -> None:
        self.op.mark_all()

    def chunk(self, cursor: int, bytes_max: int) -> tuple[StateChunk, int]:
        """(records from a cursor on, the next cursor or -1), of the moment of the last delta."""
        taken, following = self.op.chunk(cursor, bytes_max)
        chunk = StateChunk(taken.to_bytes())
        self.figures.captured_bytes += chunk.nbytes
        return chunk, following

    @property
    def scanned(self) -> int:
        """Up to which cursor this image has been brought up; -1: it has everything."""
        return self.op.scanned

    def fits(self, piece: object) -> bool:
        """Does a delta continue this image, or a chunk? The first chunk always does."""
        match piece:
            case StateChunk():
                return self.op.fits(piece.chunk)
            case OperatorState():
                return self.op.fits(piece.capture)
            case StateSlice():
                return piece.base == self.op.captured and piece.index == 0
            case _:
                return False

    def paste(self, piece: object) -> None:
        if isinstance(piece, StateChunk):
            self.op.paste_chunk(piece.chunk)
        else:
            self._paste_delta(piece)
        self.figures.pastes += 1

    @_counted
    def _paste_delta(self, piece: object) -> None:
        match piece:
            case OperatorState():
                self.op.paste(piece.capture)
            case StateSlice():
                self._paste_slice(piece)
            case _:
                raise InputError(f"{self.op.name}: a capture without an operator's state")

    def _paste_slice(self, piece: StateSlice) -> None:
        """Slices come in order; the last one makes a delta of them."""
        self._slices = [*self._slices, piece] if piece.index else [piece]
        if len(self._slices) != piece.index + 1 or piece.index >= piece.count:
            raise InputError(f"{self.op.name}: a slice of a delta is missing", detail=f"It is {piece.index}.")
        if len(self._slices) == piece.count:
            raw, self._slices = b"".join(part.raw for part in self._slices), []
            self.op.paste(StateCapture.from_bytes(raw))

    def state_bytes(self) -> int:
        """Memory that the state takes now."""
        return self.op.state_bytes()

    def image(self) -> StateImage:
        """All pages as they are now: marked, not copied. A page that is changed before it is written is copied then."""
        check(not self.torn, "a state was to be stored that is of no position", self.op.name)
        base = self._stored
        usable = base is not None and base.is_worth_it and base.snapshot.pool is self.op.pool
        snapshot, meta = self.op.snapshot(base.snapshot if base is not None and usable else None)
        return StateImage(snapshot, meta, base if usable else None, self._keep)

    def _keep(self, stored: BuiltOn | None) -> None:
        self._stored = stored

    def load(self, image: object) -> None:
        """Become what a checkpoint holds."""
        from holdfast.checkpoint.restore import RestoredState  # here: only nodes with a store need it

        check(isinstance(image, RestoredState), "a state was to be loaded that is none", self.op.name)
        assert isinstance(image, RestoredState)
        began = time.monotonic()
        self.op.become(image.pool, image.manifest.meta)
        self._stored, self.times = image.kept, image.times
        self.times.maps_s = time.monotonic() - began

    def fork(self) -> None:
        self.op.fork()

    def settle(self, *, keep: bool) -> None:
        """What was torn in a fork is torn no more when it has gone back."""
        self.op.settle(keep=keep)
        self.torn = self.torn and keep

    def restore(self) -> None:
        """An image is running state already: lists and indexes are kept up by every paste."""
        check(self.op.scanned == END, "an image that is still being brought up was made to run", self.op.name)


def _named(operator: str, error: Exception) -> HoldfastError:
    """Any error of an operator as one of ours, so that the shard stands still and the node goes on."""
    return error if isinstance(error, HoldfastError) else StateError(f"{operator}: cannot go on", detail=repr(error))


def _input_of(edge: Edge, operator: OperatorPlan, plan: Plan) -> int:
    """Which input of an operator an edge belongs to."""
    producer = plan.topology.producer[edge]
    if producer in plan.topology.stage:
        source = producer
    else:
        source = operator_of(producer)
        port = port_of(edge)
        for name, index, shards, _ in plan.operator(source).feeds if port else ():
            if port <= shards:
                if name == operator.name:
                    return index
                break
            port -= shards
    for index, one in enumerate(operator.inputs):
        if one.source == source:
            return index
    raise ConfigError(
        f"{operator.name}: no input comes from {source!r}",
        detail=f"Edge {edge}; the inputs come from {', '.join(i.source for i in operator.inputs)}.",
    )


class Factory:
    """Makes the operators of this node's copies, and knows them for status and metrics."""

    def __init__(self, plan: Plan, page_bytes: int, limit_bytes: int, on_step: OnStep = _untold) -> None:
        self.plan = plan
        self._on_step = on_step
        self.config = StateConfig(page_bytes=page_bytes, limit_bytes=limit_bytes, clock=time.monotonic_ns)

    def __call__(self, spec: ShardSpec) -> ShardOperator:
        return ShardOperator(spec, self.plan, self.config, self._on_step)
