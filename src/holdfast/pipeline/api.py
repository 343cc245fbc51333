"""What a user writes: `Pipeline.read / port / map / filter / union / window(...).by(...).agg(...) / join / write`.

Nothing here touches Spark or starts anything: each call adds a node to a graph and checks what can be checked at once.
The rest is checked when the pipeline is planned, before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, InvariantError
from holdfast.model.plan import BAD_ROWS_MAX
from holdfast.pipeline import durations
from holdfast.pipeline.arguments import (
    caller,
    check_bad_rows_max,
    check_checkpoint,
    check_how,
    check_latency,
    check_mode,
    check_named,
    check_replay,
    check_shards,
    check_steps,
    check_window,
    checkpoint_ns,
    idle_ns,
    interval,
    join_keys,
    join_window,
    need_function,
    need_sink_function,
    need_text,
    need_times,
    optional_function,
    recover_ns,
    trigger_ms,
)
from holdfast.pipeline.durations import Duration
from holdfast.pipeline.graph import (
    AggCall,
    Aggregate,
    Frame,
    Graph,
    GraphNode,
    JoinOf,
    Port,
    Session,
    Sink,
    SinkBatch,
    Source,
    Step,
    UnionOf,
    Writer,
)
from holdfast.pipeline.kafka import POSITIONS, WAIT, target_of

_NAME = re.compile(r"[a-z][a-z0-9_]*")

#: Pipelines made since `load` started to listen.
_made: list[Pipeline] | None = None


class Pipeline:
    """A graph of operators under one name. `read` begins it, `write` ends it."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
            raise ConfigError(
                f"pipeline name {name!r} cannot be used",
                hint="Use lower-case letters, digits, _ and -, beginning with a letter: it names a directory.",
            )
        self.name = name
        self.graph = Graph()
        #: What planning found that will run but should be known; filled by the planner.
        self.warnings: list[str] = []
        if _made is not None:
            _made.append(self)

    def read(
        self,
        read: Callable[[Session], Frame],
        *,
        event_time: str | None = None,
        watermark: Duration | None = None,
        name: str | None = None,
        idle: Duration | None = None,
        trigger: Duration | None = None,
        latency: str | None = None,
        late_to: str | None = None,
        future_max: Duration | None = None,
        bad_rows_max: int = BAD_ROWS_MAX,
        batch: Callable[[Session], Frame] | None = None,
    ) -> Stream:
        """A stream from any replayable Spark source: `read(spark)` gives a streaming DataFrame.

        event_time: the column that windows go by. watermark: how far behind the highest event time a row still counts.
        idle: after so long without rows the watermark moves on all the same. trigger: how often a batch is started.
        latency: "real-time" or "micro-batch". late_to: a directory for late rows. future_max: rows further ahead of the
        clock than this are bad; bad_rows_max: how many are set aside. batch: the same rows for `holdfast verify`.
        """
        what = f"read {name}" if name else "read"
        need_function(read, what, "spark -> streaming DataFrame")
        if name is not None:
            self._claim(name, what)
        optional_function(batch, f"{what}: batch", "spark -> DataFrame")
        time, delay_us = need_times(event_time, watermark, what)
        node = Source(
            number=len(self.graph.nodes),
            where=caller(),
            read=read,
            event_time=time,
            delay_us=delay_us,
            name=name,
            idle_ns=idle_ns(idle, what),
            trigger_ms=trigger_ms(trigger, what),
            late_to=need_text(late_to or "", f"{what}: late_to"),
            future_us=None if future_max is None else durations.micros(future_max, f"{what}: future_max"),
            bad_rows_max=check_bad_rows_max(bad_rows_max, what),
            batch=batch,
            latency=check_latency(latency, what),
        )
        return Stream(self, self.graph.add(node))

    def port(
        self,
        name: str,
        *,
        schema: Any,
        event_time: str | None = None,
        watermark: Duration | None = None,
        late_to: str | None = None,
        future_max: Duration | None = None,
        bad_rows_max: int = BAD_ROWS_MAX,
        batch: Callable[[Session], Frame] | None = None,
    ) -> Stream:
        """A stream that a Spark program of yours writes:
        `df.writeStream.format("holdfast").option("run", DIR).option("stream", name)`.

        schema: columns and types of its rows, as Spark's DDL writes them ("ts timestamp, src string"). event_time,
        watermark, late_to, future_max, bad_rows_max: as with `read`. batch: for `holdfast verify`, the rows that were
        written, as a batch DataFrame.
        """
        what = f"port {name}"
        self._claim(name, what)
        optional_function(batch, f"{what}: batch", "spark -> DataFrame")
        time, delay_us = need_times(event_time, watermark, what)
        node = Port(
            number=len(self.graph.nodes),
            where=caller(),
            schema=schema,
            read=_not_read,
            event_time=time,
            delay_us=delay_us,
            name=name,
            idle_ns=idle_ns(None, what),
            trigger_ms=0,
            late_to=need_text(late_to or "", f"{what}: late_to"),
            future_us=None if future_max is None else durations.micros(future_max, f"{what}: future_max"),
            bad_rows_max=check_bad_rows_max(bad_rows_max, what),
            batch=batch,
        )
        return Stream(self, self.graph.add(node))

    def explain(self, spark: Session | None = None) -> str:
        """Print stages, operators, shards and edges; with a SparkSession also schemas and sinks. Starts nothing."""
        from holdfast.pipeline.explain import explain

        text = explain(self, spark)
        print(text)
        return text

    # -- names ----------------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, str]:
        taken: dict[str, str] = {}
        for node in self.graph.nodes:
            name = getattr(node, "name", None)
            if name:
                taken[name] = node.where
        return taken

    def _claim(self, name: str, what: str) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{what}: name {name!r} cannot be used",
                hint="Use lower-case letters, digits and _, beginning with a letter.",
            )
        taken = self._names()
        if name in taken:
            raise ConfigError(
                f"two operators are named {name!r}",
                detail=f"At {taken[name]} and at {caller()}.",
                hint="Sources, operators and sinks share one space of names: rename one of them.",
            )
        return name

    def _default(self, wish: str) -> str:
        """A name that is free, and the same each time the file is read."""
        base = re.sub(r"[^a-z0-9_]+", "_", wish.lower()).strip("_") or "operator"
        base = base if base[0].isalpha() else f"op_{base}"
        taken = self._names()
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        return name


class Stream:
    """Rows with an event time, on their way through a pipeline."""

    def __init__(self, pipeline: Pipeline, node: GraphNode) -> None:
        self.pipeline = pipeline
        self.node = node

    def map(self, function: Callable[[Frame], Frame]) -> Stream:
        """Any DataFrame -> DataFrame without state: select, withColumn, where, a join with a table, ..."""
        need_function(function, "map", "DataFrame -> DataFrame")
        return self._add(Step(number=self._next, where=caller(), parent=self.node, kind="map", apply=function))

    def filter(self, condition: str | Callable[[Frame], Frame]) -> Stream:
        """Rows for which a condition in SQL holds; or a function, as with `map`."""
        if isinstance(condition, str):
            sql = condition
            return self._add(
                Step(
                    number=self._next,
                    where=caller(),
                    parent=self.node,
                    kind="filter",
                    apply=lambda frame: frame.where(sql),
                )
            )
        need_function(condition, "filter", "DataFrame -> DataFrame, or a condition in SQL")
        return self._add(Step(number=self._next, where=caller(), parent=self.node, kind="filter", apply=condition))

    def union(self, *others: Stream) -> Stream:
        """The rows of several streams of one schema; the watermark is the lowest of theirs."""
        if not others:
            raise ConfigError("union: no other stream is given", detail=f"At {caller()}.")
        for other in others:
            _need_stream(other, self.pipeline, "union")
        parents = (self.node, *(o.node for o in others))
        return self._add(UnionOf(number=self._next, where=caller(), parents=parents))

    def window(
        self, size: Duration | None = None, every: Duration | int | None = None, *, rows: int | None = None
    ) -> Windowed:
        """Windows of event time (`window("10 seconds", every="1 second")`), or of rows of a key (`rows=100`)."""
        if (size is None) == (rows is None):
            raise ConfigError(
                "window: give either a size or a number of rows",
                detail=f"At {caller()}.",
                hint='window("10 seconds", every="1 second") or window(rows=100, every=10).',
            )
        if rows is not None:
            step = rows if every is None else every
            if type(rows) is not int or type(step) is not int:
                raise ConfigError(
                    "window: rows and every must be whole numbers",
                    detail=f"At {caller()}: rows={rows!r}, every={every!r}.",
                )
            return Windowed(self, check_window(rows, step, lambda n: f"{n} rows"), counted=True)
        if isinstance(every, int):
            raise ConfigError("window: every needs a unit", detail=f"At {caller()}: every={every!r}.")
        size_us = durations.micros(size, "window")  # type: ignore[arg-type]
        step_us = size_us if every is None else durations.micros(every, "window: every")
        check_window(size_us, step_us, durations.text)
        return Windowed(self, check_steps(size_us, step_us, durations.text), counted=False)

    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str | tuple[str, str]],
        within: Duration | tuple[Duration, Duration] | None = None,
        window: Duration | None = None,
        how: str = "inner",
        where: str = "",
        name: str | None = None,
        shards: int | None = None,
        mode: str = "auto",
        copies: int | None = None,
        checkpoint: str = "auto",
        checkpoint_every: Duration | None = None,
        recover_in: Duration | None = None,
    ) -> Stream:
        """Pairs of rows with equal keys whose times fit: at most `within` apart, or in the same tumbling `window`.

        on: a column of both sides, or pairs (left, right), or a list of either. within=("0s", "10s"): the right row
        comes 0 to 10 s after the left one. how: "inner" or "left_outer". where: a further condition on both rows, in
        SQL. Columns of the right side whose names the left one has too come out with `right_` before them. mode,
        copies, checkpoint, checkpoint_every, recover_in: as for `agg`.
        """
        _need_stream(other, self.pipeline, "join")
        what = f"join {name}" if name else "join"
        keys = join_keys(on, what)
        if (within is None) == (window is None):
            raise ConfigError(
                f"{what}: give either within or window",
                detail=f"At {caller()}.",
                hint='within="10 seconds" (times at most so far apart) or window="10 seconds" (the same window).',
            )
        name = self._name(name, "join_" + "_".join(a for a, _ in keys))
        check_replay(mode, name, "a join")
        node = JoinOf(
            number=self._next,
            where=caller(),
            name=name,
            left=self.node,
            right=other.node,
            on=keys,
            how=check_how(how, what),
            within=interval(within, name) if within is not None else None,
            window_us=join_window(window, name),
            where_sql=need_text(where, f"{name}: where"),
            shards=check_shards(shards, name),
            mode=check_mode(mode, name, copies),
            checkpoint=check_checkpoint(checkpoint, name, joins=True),
            checkpoint_ns=checkpoint_ns(checkpoint, checkpoint_every, name),
            recover_ns=recover_ns(mode, recover_in, name),
        )
        return self._add(node)

    def write(
        self,
        write: Callable[[Frame], Writer],
        *,
        name: str | None = None,
        result: Callable[[Session], Frame] | None = None,
    ) -> None:
        """Write with any Spark sink: `write(df)` gives a DataStreamWriter that is not started.

        result: for `holdfast verify`, what the sink holds as a batch DataFrame, where it is not a file sink.
        """
        what = f"write {name}" if name else "write"
        need_function(write, what, "DataFrame -> DataStreamWriter")
        optional_function(result, f"{what}: result", "spark -> DataFrame")
        self._end(name, write=write, result=result)

    def write_arrow(
        self,
        function: Callable[[Any, SinkBatch], None],
        *,
        name: str | None = None,
        result: Callable[[Session], Frame] | None = None,
    ) -> None:
        """Give every batch of results to a function, as an Arrow table: `function(table, batch)`.

        Needs no Spark: rows come sooner, and a failure is over sooner. After one a batch may be given again, with the
        same `batch.number` and the same rows (see `SinkBatch`). result: as with `write`.
        """
        what = f"write_arrow {name}" if name else "write_arrow"
        need_sink_function(function, what)
        optional_function(result, f"{what}: result", "spark -> DataFrame")
        self._end(name, write=_not_written, result=result, arrow=function)

    def write_kafka(
        self,
        *,
        topic: str,
        bootstrap: str,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        wait: Duration = WAIT,
        positions: str = POSITIONS,
        name: str | None = None,
        result: Callable[[Session], Frame] | None = None,
    ) -> None:
        """Write to a Kafka topic, without Spark: each batch in one transaction with the position after it.

        So whoever reads the topic with `read_committed` sees every row exactly once, whatever fails. key, value: a
        column as it is, or a list of columns as a JSON object; no key, and all columns as JSON, if they are not given.
        wait: how long a broker that does not answer is waited for. positions: a topic that stays empty and names the
        positions; it is made if it is not there. options: settings of the client. result: as with `write`; not needed
        for JSON.
        """
        what = f"write_kafka {name}" if name else "write_kafka"
        optional_function(result, f"{what}: result", "spark -> DataFrame")
        said = {"topic": topic, "bootstrap": bootstrap, "key": key, "value": value, "options": options}
        target = target_of(what, **said, wait=wait, positions=positions)
        self._end(name, write=_not_written, result=result, kafka=target)

    def _end(self, given: str | None, **how: Any) -> None:
        name = self._name(given, f"out_{len(self.pipeline.graph.of(Sink))}")
        self.pipeline.graph.add(Sink(number=self._next, where=caller(), parent=self.node, name=name, **how))

    @property
    def _next(self) -> int:
        return len(self.pipeline.graph.nodes)

    def _add(self, node: GraphNode) -> Stream:
        return Stream(self.pipeline, self.pipeline.graph.add(node))

    def _name(self, given: str | None, wish: str) -> str:
        if given is None:
            return self.pipeline._default(wish)
        return self.pipeline._claim(given, given if isinstance(given, str) else "operator")


class Windowed:
    """A stream cut into windows; say what to group by, and what to compute."""

    def __init__(self, stream: Stream, window: tuple[int, int], counted: bool, by: tuple[str, ...] = ()) -> None:
        self.stream = stream
        self.window = window
        self.counted = counted
        self.keys = by

    def by(self, *columns: str) -> Windowed:
        """Group by these columns; without, all rows of a window are one group."""
        for column in columns:
            if not isinstance(column, str):
                raise ConfigError(
                    f"by: {column!r} is not a column name",
                    detail=f"At {caller()}.",
                    hint="Compute it in a map before, and name the new column here.",
                )
        return Windowed(self.stream, self.window, self.counted, (*self.keys, *columns))

    def agg(
        self,
        *unnamed: object,
        name: str | None = None,
        shards: int | None = None,
        mode: str = "auto",
        copies: int | None = None,
        checkpoint: str = "auto",
        checkpoint_every: Duration | None = None,
        recover_in: Duration | None = None,
        overflow: str = "error",
        **aggs: AggCall,
    ) -> Stream:
        """One row per window and group: window_start, window_end, the keys, and these aggregates.

        mode: what happens when a node fails. copies: how many nodes have a copy of each shard (2). checkpoint: "paged"
        keeps the state in the run's store as well, beside any mode; "eventual" keeps footprints of its windows there,
        one after the other (docs/eventual.md); "none" keeps nothing; "auto": pages, if the run has a store.
        checkpoint_every="10 s": how often. recover_in="300 ms": how long a recovery may take once it is
        decided; captures are taken early enough, as far as that can be done.
        """
        stream = self.stream
        check_named(unnamed)
        name = stream._name(name, "by_" + "_".join(self.keys) if self.keys else "all")
        if not aggs:
            raise ConfigError(f"{name}: no aggregate is given", hint="For example .agg(rows=hf.count()).")
        for label, call in aggs.items():
            if not isinstance(call, AggCall):
                raise ConfigError(
                    f"{name}: {label}={call!r} is not an aggregate",
                    hint='Use hf.count(), hf.sum("x"), hf.min, hf.max, hf.avg, hf.stddev, hf.first, hf.last.',
                )
        if self.counted:
            check_replay(mode, name, "a window that counts rows")
        if not self.keys and shards not in (None, 1):
            raise ConfigError(
                f"{name}: shards={shards} without a key",
                detail="Rows are cut into shards by their key, and here is none.",
                hint="Leave out shards, or group by something.",
            )
        node = Aggregate(
            number=stream._next,
            where=caller(),
            name=name,
            parent=stream.node,
            size=self.window[0],
            step=self.window[1],
            counted=self.counted,
            by=self.keys,
            aggs=dict(aggs),
            overflow=overflow,
            shards=check_shards(shards, name) if self.keys else 1,
            mode=check_mode(mode, name, copies),
            checkpoint=check_checkpoint(checkpoint, name),
            checkpoint_ns=checkpoint_ns(checkpoint, checkpoint_every, name),
            recover_ns=recover_ns(mode, recover_in, name),
        )
        return stream._add(node)


def _not_read(spark: Session) -> Frame:
    raise InvariantError("a port was read", hint="Its rows come from another program.")


def _not_written(frame: Frame) -> Writer:
    raise InvariantError("a sink without Spark was written by Spark", hint="Its rows go elsewhere.")


def _need_stream(other: object, pipeline: Pipeline, what: str) -> None:
    if not isinstance(other, Stream):
        raise ConfigError(f"{what}: {other!r} is not a stream", detail=f"At {caller()}.")
    if other.pipeline is not pipeline:
        raise ConfigError(
            f"{what}: the streams are of two pipelines",
            detail=f"At {caller()}: {pipeline.name!r} and {other.pipeline.name!r}.",
        )
