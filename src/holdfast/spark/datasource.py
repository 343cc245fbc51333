"""`format("holdfast")`: streams of a running pipeline, for its own sinks and for any Spark program.

    spark.dataSource.register(HoldfastDataSource)
    spark.readStream.format("holdfast").option("run", "holdfast-run/netmon").option("stream", "talkers").load()

Writing, to a port of the pipeline, is in writer.py and port.py. What follows is about reading.

Options: `stream` (an operator's name); `run` (directory of the run, or its run.json), or `endpoints` and `secret_file`;
`consumer` (a name for the lease: of two programs with one name the later reads on, the earlier fails); `max_rows` a
micro-batch. A reader that is not the pipeline's own holds a lease: while it reads, nothing is trimmed before it has
committed; if it is silent for longer than the lease, rows may be gone, and it fails rather than skip them. A stream
that ends keeps its lease until it lapses, since it may be started again from its checkpoint; and Spark kills the
process so soon after it has called `stop` that this could tell nobody.

`spark.read` gives what is retained at the moment when Spark plans the query: a lease is taken then, and each task lets
go of what it has read. So a DataFrame is one look; the next one is another `load()`.

Offsets are positions and watermarks, {edge: [position, watermark]}. A guest's also name the run they are of, since its
checkpoint is its own: positions of another run would skip rows here, or point nowhere. The latest offset comes from the
core's `Reader`, which follows the edges without their rows in the driver's Python process; it never goes back. Tasks
fetch rows from the nodes directly. Spark asks for the latest offset beyond `start` only when everything before `start`
is in its commit log, so that each such question acknowledges `start`: the last batch of a stream that falls silent too.

Nothing but positions moves while no rows come; then an empty batch is planned only now and then, so that the shards'
queues can be trimmed (and at once when a stream ends, or with `watermarks`, which stages between operators set).
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.core.reader import Piece, Reader, rows_of
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.ids import Edge, maker_of, name_of
from holdfast.model.plan import OperatorPlan, Plan, edges_of
from holdfast.model.reasons import BarReason
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.spark.connect import WAIT_S, Run, Target, let_go, plan_of, port_of, run_of
from holdfast.spark.fetch import Gone, Order, fetch
from holdfast.spark.hand_over import ask_config, ask_record
from holdfast.spark.writer import BatchPortWriter, StreamPortWriter

#: One task reads at least this many rows: starting a task costs more than reading a few rows.
TASK_ROWS_MIN = 50_000
#: `latestOffset` waits so long for something new: Spark would only ask again.
POLL_S = 0.1
#: Without rows, a batch is planned after so long, so that positions can be acknowledged.
EMPTY_S = 2.0
#: A fail-over is waited out; a reader that has heard nothing for this time says so.
HOLD_S_MAX = 60.0

#: In a guest's offsets: the run. No edge is called so.
RUN = "run"

Offset = dict[Edge, list[int]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader is told; plain data, since it is pickled to wherever Spark wants it."""

    run: Run
    directory: str
    stream: str
    #: Empty: each reader gives itself a name, since one DataFrame may be read by several queries.
    consumer: str
    #: 0: not the pipeline's own.
    epoch: int
    parallelism: int
    max_rows: int
    watermarks: bool


class HoldfastDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast"

    @cached_property
    def settings(self) -> Options:
        options: Mapping[str, str] = self.options
        if not options.get("stream"):
            raise ConfigError('format("holdfast"): which stream?', hint='Give .option("stream", <operator\'s name>).')
        directory = options.get("run", "")
        return Options(
            run=run_of(options),
            directory=directory.removesuffix("run.json"),
            stream=options["stream"],
            consumer=options.get("consumer", ""),
            epoch=_number(options, "epoch", 0),
            parallelism=_number(options, "parallelism", 4),
            max_rows=_number(options, "max_rows", 0),
            watermarks=options.get("watermarks", "") == "true",
        )

    @cached_property
    def plan(self) -> Plan:
        return plan_of(self.settings.run, self.settings.directory)

    def operator(self) -> OperatorPlan:
        found = [o for o in self.plan.operators if o.name == self.settings.stream]
        if not found:
            raise ConfigError(
                f'format("holdfast"): pipeline {self.plan.pipeline!r} has no stream {self.settings.stream!r}',
                hint=f"There are {', '.join(o.name for o in self.plan.operators)}.",
            )
        return found[0]

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(self.operator().output)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HoldfastStreamReader(self.settings)

    def reader(self, schema: StructType) -> DataSourceReader:
        self.operator()  # an error, if there is none
        return HoldfastReader(self.settings, self.plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchPortWriter(self._target(), schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamPortWriter(self._target(), schema, overwrite, self.options)

    def _target(self) -> Target:
        settings = self.settings
        if not settings.directory:
            raise ConfigError(
                'format("holdfast"): to write, the directory of the run is needed',
                detail="Late rows are recorded there.",
                hint='Give .option("run", <its directory>), the --dir of `holdfast run`.',
            )
        return Target(
            run=settings.run,
            directory=os.path.abspath(settings.directory),
            plan=self.plan,
            stage=port_of(self.plan, settings.stream),
            wait_s=float(self.options.get("wait_s", WAIT_S)),
        )


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f'format("holdfast"): option {name!r} must be a number', detail=f"It is {text!r}.")
    return int(text)


class Pieces(InputPartition):
    """What one task fetches."""

    def __init__(self, order: Order) -> None:
        super().__init__(None)
        self.raw = msgspec.json.encode(order)


def read_pieces(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Pieces):
        return  # nothing is retained: Spark plans a task all the same
    order = msgspec.json.decode(partition.raw, type=Order)
    for piece in order.pieces:
        yield from fetch(order, piece)
    if order.last:
        let_go(order.run, order.consumer, [piece.edge for piece in order.pieces])


class HoldfastReader(DataSourceReader):
    """Batch: everything that is retained now."""

    def __init__(self, settings: Options, plan: Plan) -> None:
        # a lease of its own: letting go of it must not end that of a stream with the same name
        self.settings = msgspec.structs.replace(settings, consumer=f"batch-{uuid.uuid4().hex[:12]}", epoch=0)
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        follower, start, end = hold(self.settings, self.plan)
        try:
            wanted, record = follower.pieces(start, end), follower.record()
        finally:
            follower.close()
        idle = set(start) - {piece.edge for piece in wanted}
        if idle:
            let_go(self.settings.run, self.settings.consumer, idle)
        return orders(self.settings, wanted, record, self.plan.topology.query, last=True) if wanted else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition)


def hold(settings: Options, plan: Plan) -> tuple[Follower, Offset, Offset]:
    """A lease on everything that is retained now: who holds it, where it begins and where it ends."""
    edges = edges_of(plan.operator(settings.stream))
    until = time.monotonic() + HOLD_S_MAX
    while True:
        found = bounds(settings, edges)
        start = {e: [first, WATERMARK_MIN] for e, (first, _) in found.items()}
        end = {e: [end, WATERMARK_MIN] for e, (_, end) in found.items()}
        follower = Follower(settings, plan, start)
        try:
            follower.reach(start, end, until)
            return follower, start, end
        except BaseException as error:
            follower.close()
            if not isinstance(error, Gone) or time.monotonic() > until:  # trimmed between the look and the lease
                raise


def bounds(settings: Options, edges: tuple[Edge, ...]) -> dict[Edge, tuple[int, int]]:
    """First retained and next position of edges, from their primaries. Waits for a fail-over to end."""
    run = settings.run
    until = time.monotonic() + HOLD_S_MAX
    peer = Peer(settings.consumer, run.endpoints, run.security(), lambda source, message: None)
    try:
        while True:
            record = ask_record(peer, _silent)
            found, trouble = _look(peer, record, edges)
            missing = [e for e in edges if e not in found]
            if not missing:
                return found
            lost = any(record.places[maker_of(e)].primary is None for e in missing)
            if lost or time.monotonic() > until:
                raise HoldfastError(
                    f'format("holdfast"): no node holds {", ".join(missing)} now',
                    detail="Every node that held them is gone." if lost else trouble,
                    hint="See `holdfast status`; if a fail-over is under way, try again.",
                )
            time.sleep(0.1)
    finally:
        peer.close()


def _look(peer: Peer, record: Record, edges: tuple[Edge, ...]) -> tuple[dict[Edge, tuple[int, int]], str]:
    """What the primaries of a record say; and why one does not."""
    found: dict[Edge, tuple[int, int]] = {}
    trouble = ""
    homes = {name_of(record.places[maker_of(edge)].primary or "") for edge in edges} - {""}
    for name in sorted(homes):
        try:
            held = peer.caller.edges(name)
        except HoldfastError as error:  # it has just died, and the record does not know yet
            trouble = str(error)
            continue
        found |= {edge: (at.trimmed, at.next) for edge, at in held.items() if edge in edges}
    return found, trouble


def orders(settings: Options, wanted: list[Piece], record: Record, query: str, *, last: bool = False) -> list[Pieces]:
    """Pieces dealt out to tasks: few tasks if there is little to read."""
    rows = sum(piece.rows for piece in wanted)
    count = max(1, min(len(wanted), settings.parallelism, -(-rows // TASK_ROWS_MIN)))
    hands: list[list[Piece]] = [[] for _ in range(count)]
    load = [0] * count
    for piece in sorted(wanted, key=lambda piece: -piece.rows):
        least = load.index(min(load))
        load[least] += piece.rows
        hands[least].append(piece)
    places = record.places
    return [
        Pieces(
            Order(
                run=settings.run,
                consumer=settings.consumer,
                epoch=settings.epoch,
                query=query,
                pieces=tuple(hand),
                homes={piece.shard: name_of(places[piece.shard].primary or "") for piece in hand},
                epochs={piece.shard: places[piece.shard].epoch for piece in hand},
                version=record.version,
                last=last,
            )
        )
        for hand in hands
        if hand
    ]


class HoldfastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Options) -> None:
        name = settings.consumer or f"reader-{uuid.uuid4().hex[:12]}"
        self.settings = msgspec.structs.replace(settings, consumer=name)
        self._follower: Follower | None = None
        self._moved = time.monotonic()
        #: With the trigger `availableNow`: where each edge ended when the query began.
        self._ends: dict[Edge, int] | None = None

    @cached_property
    def plan(self) -> Plan:
        plan = plan_of(self.settings.run, self.settings.directory)
        if not self.settings.epoch and self.settings.consumer in (*plan.topology.shard, *plan.topology.stage):
            raise ConfigError(
                f'format("holdfast"): consumer {self.settings.consumer!r} is a part of the pipeline itself',
                hint='Give another name: .option("consumer", ...), or none.',
            )
        return plan

    def follower(self, start: Offset) -> Follower:
        if self._follower is None:
            self._follower = Follower(self.settings, self.plan, start)
        return self._follower

    def _signed(self, positions: Offset) -> dict:
        """As Spark keeps it. The pipeline's own stages need no run in it: their checkpoints are claimed for one."""
        return positions if self.settings.epoch else {**positions, RUN: self.plan.query}

    def _own(self, offset: dict) -> Offset:
        """The positions of what Spark has kept, if they are of this run."""
        if not self.settings.epoch and offset.get(RUN) != self.plan.query:
            raise _of_another_run(f"The run is {self.plan.query}, they are of {offset.get(RUN, 'an unknown one')}.")
        return {edge: at for edge, at in offset.items() if edge != RUN}

    def initialOffset(self) -> dict:
        if self.settings.epoch:
            return {edge: [0, WATERMARK_MIN] for edge in edges_of(self.plan.operator(self.settings.stream))}
        self.stop()
        self._follower, start, _ = hold(self.settings, self.plan)
        return self._signed(start)

    def prepareForTriggerAvailableNow(self) -> None:
        found = bounds(self.settings, edges_of(self.plan.operator(self.settings.stream)))
        self._ends = {edge: end for edge, (_, end) in found.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.settings.max_rows) if self.settings.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        return self._signed(self._latest(self._own(start), limit))

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        follower = self.follower(start)
        follower.acknowledge(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        if self._ends is not None:
            follower.reach(start, {e: [end, 0] for e, end in self._ends.items()}, time.monotonic() + HOLD_S_MAX)
            return follower.latest(start, rows_max, self._ends)[0]
        latest, rows = follower.latest(start, rows_max)
        if latest == start:
            follower.wait(POLL_S)
            latest, rows = follower.latest(start, rows_max)
        now = time.monotonic()
        over = all(mark >= WATERMARK_MAX for _, mark in latest.values())
        if rows or self.settings.watermarks or over or now - self._moved > EMPTY_S:
            if latest != start:
                self._moved = now
            return latest
        return start

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:
        first, last = self._own(start), self._own(end)
        follower = self.follower(first)
        return orders(self.settings, follower.pieces(first, last), follower.record(), self.plan.topology.query)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition)

    def commit(self, end: dict) -> None:
        if self._follower is not None:
            self._follower.acknowledge(self._own(end))

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


class Follower:
    """Follows edges without their rows: the core's Reader, on a loop of its own."""

    def __init__(self, settings: Options, plan: Plan, start: Offset) -> None:
        run = settings.run
        self.consumer = settings.consumer
        # nobody counts a guest's lives: of two programs with one name, the one that began later goes on
        epoch = settings.epoch or time.time_ns()
        spec = ReaderSpec(id=settings.consumer, edges=tuple(start), leased=not settings.epoch)
        self._changed = threading.Event()
        self._loop: MachineLoop | None = None
        address = f"{settings.consumer}.{settings.stream}@{epoch}"
        self.peer = Peer(address, run.endpoints, run.security(), self._hear)
        record = ask_record(self.peer, _silent)
        positions = {edge: position for edge, (position, _) in start.items()}
        machine = Reader(
            spec,
            epoch,
            plan.topology,
            ask_config(self.peer),
            record,
            positions,
            time.monotonic_ns(),
        )
        self._loop = MachineLoop(machine, self.peer.send, on_step=self._stepped, name=self.peer.address)
        self._seen: dict[Edge, int] = {}
        self._loop.start()

    def _hear(self, source: str, message: Any) -> None:
        if self._loop is not None:
            self._loop.received(source, message)

    def _stepped(self, now_ns: int) -> None:
        assert self._loop is not None
        latest = self._loop.machine.latest()  # pyright: ignore[reportAttributeAccessIssue]
        if latest != self._seen:
            self._seen = latest
            self._changed.set()

    def _ask(self, question: Any) -> Any:
        assert self._loop is not None
        if self._loop.failure is not None:
            raise self._loop.failure
        return self._loop.ask(question)

    def acknowledge(self, offset: Offset) -> None:
        positions = {edge: position for edge, (position, _) in offset.items()}
        self._ask(lambda reader, now_ns: reader.commit(positions, now_ns))

    def wait(self, limit_s: float) -> None:
        self._changed.wait(limit_s)
        self._changed.clear()

    def reach(self, start: Offset, end: Offset, until: float) -> None:
        """Wait until everything before `end` is known: its shard may have to make it again."""
        while any(self.latest(start, 1 << 62)[0][edge][0] < position for edge, (position, _) in end.items()):
            if time.monotonic() > until:
                behind = {e: at for e, (at, _) in self.latest(start, 1 << 62)[0].items() if at < end[e][0]}
                raise HoldfastError(
                    'format("holdfast"): the stream has not reached the position it had before',
                    detail=f"{json.dumps(behind)} of {json.dumps({e: end[e][0] for e in behind})}.",
                    hint="`holdfast status` says which nodes are up.",
                )
            self.wait(POLL_S)

    def latest(self, start: Offset, rows_max: int, ends: dict[Edge, int] | None = None) -> tuple[Offset, int]:
        """As far as the edges have come since `start` (and no further than `ends`), and the rows in between."""

        def look(reader: Reader, now_ns: int) -> tuple[Offset, int, dict[Edge, int], dict[Edge, BarReason]]:
            found: Offset = {}
            rows = 0
            each_max = max(1, rows_max // max(1, len(reader.buffers)))
            for edge, blocks in reader.buffers.items():
                at, mark = start.get(edge, [0, WATERMARK_MIN])
                taken = 0
                for block in blocks:
                    if block.start < at:
                        continue  # before `start`: not acknowledged yet
                    if block.start > at or (taken and taken + rows_of(block) > each_max):
                        break
                    if ends is not None and block.end > ends[edge]:
                        break
                    at, mark = block.end, block.watermark
                    taken += rows_of(block)
                rows += taken
                found[edge] = [at, mark]
            return found, rows, dict(reader.lost), dict(reader.barred)

        found, rows, lost, barred = self._ask(look)
        if BarReason.FENCED in barred.values():
            raise HoldfastError(
                f"another program reads as consumer {self.consumer!r}",
                detail="It began later, and goes on; this one ends.",
                hint='Give each its own name: .option("consumer", ...), or none.',
            )
        if barred:
            raise _of_another_run(f"{json.dumps({e: start[e][0] for e in barred})} are not positions of this one.")
        if lost:
            raise Gone(
                "rows of this stream were given up before they were read",
                detail=f"{json.dumps(lost)}: the edges start there now. The reader's lease had lapsed.",
                hint="Start with a new checkpoint to go on from what is retained; read more often, or raise `lease`.",
            )
        return found, rows

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """What tasks must fetch."""
        first, last = ({edge: position for edge, (position, _) in offset.items()} for offset in (start, end))
        return self._ask(lambda reader, now_ns: reader.pieces(first, last))

    def record(self) -> Record:
        return self._ask(lambda reader, now_ns: reader.record)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.stop()
        self.peer.close()


def _of_another_run(detail: str) -> HoldfastError:
    return HoldfastError(
        'format("holdfast"): these offsets are of another run of the pipeline',
        detail=detail,
        hint="Positions start at 0 in every run. Remove the query's checkpoint (checkpointLocation), or use a new "
        "one, to read this run from what is retained.",
    )


def _silent(event: str, **fields: Any) -> None:
    """The driver's Python process has nobody to tell."""
