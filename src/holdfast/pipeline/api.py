"""What a user writes: `Pipeline.read / map / filter / union / window(...).by(...).agg(...) / join / write`.

Nothing here touches Spark or starts anything: each call adds a node to a graph and checks what can be checked at once.
The rest is checked when the pipeline is planned, before anything starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.pipeline import durations
from holdfast.pipeline.durations import Duration
from holdfast.pipeline.graph import (
    AggCall,
    Aggregate,
    Frame,
    Graph,
    JoinOf,
    Node,
    Session,
    Sink,
    Source,
    Step,
    UnionOf,
    Writer,
)

#: Modes a unit can run in today; `auto` is the prescriber's choice, of which there is one so far.
MODES = ("auto", "passive")
MODES_TO_COME = ("none", "replay", "hybrid", "active")
SHARDS_DEFAULT = 4
SHARDS_MAX = 1024
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NEVER_IDLE_NS = 1 << 60

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
        late_to: str | None = None,
        batch: Callable[[Session], Frame] | None = None,
    ) -> Stream:
        """A stream from any replayable Spark source: `read(spark)` gives a streaming DataFrame.

        event_time: the timestamp column that windows go by. watermark: how far behind the highest event time a row
        may come and still count. idle: after so long without rows the watermark moves on all the same. trigger: how
        often a micro-batch is started (as soon as the last is done, if not given). late_to: a directory for late
        rows. batch: for `holdfast verify`, the same rows as a batch DataFrame, where it cannot derive that itself.
        """
        what = f"read {name}" if name else "read"
        _need_function(read, what, "spark -> streaming DataFrame")
        if name is not None:
            self._claim(name, what)
        if not event_time:
            raise ConfigError(
                f"{what}: no event time is given",
                detail=f"At {_caller()}.",
                hint='Name the timestamp column that windows go by: event_time="ts".',
            )
        if watermark is None:
            raise ConfigError(
                f"{what}: no watermark is given",
                detail=f"At {_caller()}.",
                hint='Say how late a row may be: watermark="2 seconds".',
            )
        node = Source(
            number=len(self.graph.nodes),
            where=_caller(),
            read=read,
            event_time=event_time,
            delay_us=durations.micros(watermark, f"{what}: watermark"),
            name=name,
            idle_ns=_NEVER_IDLE_NS if idle is None else 1_000 * durations.micros(idle, f"{what}: idle"),
            trigger_ms=0 if trigger is None else durations.micros(trigger, f"{what}: trigger") // 1_000,
            late_to=late_to or "",
            batch=batch,
        )
        return Stream(self, self.graph.add(node))

    def explain(self, spark: Session | None = None) -> str:
        """Print stages, operators, units and edges; with a SparkSession also schemas and sinks. Starts nothing."""
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
                detail=f"At {taken[name]} and at {_caller()}.",
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

    def __init__(self, pipeline: Pipeline, node: Node) -> None:
        self.pipeline = pipeline
        self.node = node

    def map(self, function: Callable[[Frame], Frame]) -> Stream:
        """Any DataFrame -> DataFrame without state: select, withColumn, where, a join with a table, ..."""
        _need_function(function, "map", "DataFrame -> DataFrame")
        return self._add(Step(number=self._next, where=_caller(), parent=self.node, kind="map", apply=function))

    def filter(self, condition: str | Callable[[Frame], Frame]) -> Stream:
        """Rows for which a condition in SQL holds; or a function, as with `map`."""
        if isinstance(condition, str):
            sql = condition
            return self._add(
                Step(
                    number=self._next,
                    where=_caller(),
                    parent=self.node,
                    kind="filter",
                    apply=lambda frame: frame.where(sql),
                )
            )
        _need_function(condition, "filter", "DataFrame -> DataFrame, or a condition in SQL")
        return self._add(Step(number=self._next, where=_caller(), parent=self.node, kind="filter", apply=condition))

    def union(self, *others: Stream) -> Stream:
        """The rows of several streams of one schema; the watermark is the lowest of theirs."""
        if not others:
            raise ConfigError("union: no other stream is given", detail=f"At {_caller()}.")
        for other in others:
            _need_stream(other, self.pipeline, "union")
        parents = (self.node, *(o.node for o in others))
        return self._add(UnionOf(number=self._next, where=_caller(), parents=parents))

    def window(
        self, size: Duration | None = None, every: Duration | int | None = None, *, rows: int | None = None
    ) -> Windowed:
        """Windows of event time (`window("10 seconds", every="1 second")`), or of rows of a key (`rows=100`)."""
        if (size is None) == (rows is None):
            raise ConfigError(
                "window: give either a size or a number of rows",
                detail=f"At {_caller()}.",
                hint='window("10 seconds", every="1 second") or window(rows=100, every=10).',
            )
        if rows is not None:
            step = rows if every is None else every
            if not isinstance(rows, int) or not isinstance(step, int):
                raise ConfigError(
                    "window: rows and every must be whole numbers",
                    detail=f"At {_caller()}: rows={rows!r}, every={every!r}.",
                )
            return Windowed(self, _check_window(rows, step, lambda n: f"{n} rows"), counted=True)
        if isinstance(every, int):
            raise ConfigError("window: every needs a unit", detail=f"At {_caller()}: every={every!r}.")
        size_us = durations.micros(size, "window")  # type: ignore[arg-type]
        step_us = size_us if every is None else durations.micros(every, "window: every")
        return Windowed(self, _check_window(size_us, step_us, durations.text), counted=False)

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
    ) -> Stream:
        """Pairs of rows with equal keys whose times fit: at most `within` apart, or in the same tumbling `window`.

        on: a column of both sides, or pairs (left, right), or a list of either. within=("0s", "10s"): the right row
        comes 0 to 10 s after the left one. how: "inner" or "left_outer". where: a further condition on both rows, in
        SQL. Columns of the right side whose names the left one has too come out with `right_` before them.
        """
        _need_stream(other, self.pipeline, "join")
        what = f"join {name}" if name else "join"
        keys = _join_keys(on, what)
        if (within is None) == (window is None):
            raise ConfigError(
                f"{what}: give either within or window",
                detail=f"At {_caller()}.",
                hint='within="10 seconds" (times at most so far apart) or window="10 seconds" (the same window).',
            )
        how = {"left": "left_outer", "leftouter": "left_outer"}.get(how, how)
        if how not in ("inner", "left_outer"):
            raise ConfigError(
                f"{what}: how={how!r} is not known", detail=f"At {_caller()}.", hint='There are "inner", "left_outer".'
            )
        name = self._name(name, "join_" + "_".join(a for a, _ in keys))
        node = JoinOf(
            number=self._next,
            where=_caller(),
            name=name,
            left=self.node,
            right=other.node,
            on=keys,
            how=how,
            within=_interval(within, name) if within is not None else None,
            window_us=durations.micros(window, f"{name}: window") if window is not None else 0,
            where_sql=where,
            shards=_check_shards(shards, name),
            mode=_check_mode(mode, name),
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
        _need_function(write, what, "DataFrame -> DataStreamWriter")
        sinks = len(self.pipeline.graph.of(Sink))
        node = Sink(
            number=self._next,
            where=_caller(),
            parent=self.node,
            name=self._name(name, f"out_{sinks}"),
            write=write,
            result=result,
        )
        self.pipeline.graph.add(node)

    @property
    def _next(self) -> int:
        return len(self.pipeline.graph.nodes)

    def _add(self, node: Node) -> Stream:
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
                    f"by: {column!r} is no column name",
                    detail=f"At {_caller()}.",
                    hint="Compute it in a map before, and name the new column here.",
                )
        return Windowed(self.stream, self.window, self.counted, (*self.keys, *columns))

    def agg(
        self,
        *,
        name: str | None = None,
        shards: int | None = None,
        mode: str = "auto",
        overflow: str = "error",
        **aggs: AggCall,
    ) -> Stream:
        """One row per window and group: window_start, window_end, the keys, and these aggregates."""
        stream = self.stream
        name = stream._name(name, "by_" + "_".join(self.keys) if self.keys else "all")
        if not aggs:
            raise ConfigError(f"{name}: no aggregate is given", hint="For example .agg(rows=hf.count()).")
        for label, call in aggs.items():
            if not isinstance(call, AggCall):
                raise ConfigError(
                    f"{name}: {label}={call!r} is no aggregate",
                    hint='Use hf.count(), hf.sum("x"), hf.min, hf.max, hf.avg, hf.stddev, hf.first, hf.last.',
                )
        if not self.keys and shards not in (None, 1):
            raise ConfigError(
                f"{name}: shards={shards} without a key",
                detail="Rows are cut into shards by their key, and here is none.",
                hint="Leave out shards, or group by something.",
            )
        node = Aggregate(
            number=stream._next,
            where=_caller(),
            name=name,
            parent=stream.node,
            size=self.window[0],
            step=self.window[1],
            counted=self.counted,
            by=self.keys,
            aggs=dict(aggs),
            overflow=overflow,
            shards=_check_shards(shards, name) if self.keys else 1,
            mode=_check_mode(mode, name),
        )
        return stream._add(node)


# -- checks -----------------------------------------------------------------------------------------------------------


def _caller() -> str:
    """File and line of the user's call: the first frame that is not of this file."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "?"


def _need_function(function: object, what: str, kind: str) -> None:
    if not callable(function):
        raise ConfigError(
            f"{what}: a function is needed", detail=f"At {_caller()}: got {function!r}.", hint=f"It is {kind}."
        )


def _need_stream(other: object, pipeline: Pipeline, what: str) -> None:
    if not isinstance(other, Stream):
        raise ConfigError(f"{what}: {other!r} is no stream", detail=f"At {_caller()}.")
    if other.pipeline is not pipeline:
        raise ConfigError(
            f"{what}: the streams are of two pipelines",
            detail=f"At {_caller()}: {pipeline.name!r} and {other.pipeline.name!r}.",
        )


def _check_window(size: int, step: int, text: Callable[[int], str]) -> tuple[int, int]:
    if size <= 0 or not 0 < step <= size:
        raise ConfigError(
            "window cannot be used",
            detail=f"At {_caller()}: size {text(size)}, every {text(step)}.",
            hint="Both must be positive, and the step no longer than the window.",
        )
    if size % step:
        raise ConfigError(
            "window is not a multiple of its step",
            detail=f"At {_caller()}: size {text(size)}, every {text(step)}.",
            hint=f"A size of {text(step * (size // step))} or {text(step * (size // step + 1))} would be.",
        )
    return size, step


def _check_shards(shards: int | None, name: str) -> int:
    if shards is None:
        return SHARDS_DEFAULT
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(f"{name}: shards must be 1 to {SHARDS_MAX}", detail=f"It is {shards!r}.")
    return shards


def _check_mode(mode: str, name: str) -> str:
    if mode not in MODES:
        what = "is not built yet" if mode in MODES_TO_COME else "is not known"
        raise ConfigError(
            f"{name}: mode {mode!r} {what}", hint=f"There are {' and '.join(repr(m) for m in MODES)} (auto = passive)."
        )
    return "passive" if mode == "auto" else mode


def _join_keys(on: object, what: str) -> tuple[tuple[str, str], ...]:
    items: list[Any] = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(k, str) for k in on):
        items = [on]  # on=("query", "server_name") is one pair
    keys = tuple((k, k) if isinstance(k, str) else tuple(k) for k in items)
    if not keys or not all(len(k) == 2 and all(isinstance(c, str) for c in k) for k in keys):
        raise ConfigError(
            f"{what}: on={on!r} names no keys",
            detail=f"At {_caller()}.",
            hint='on="id", on=["a", "b"] for columns of both sides, on=[("src", "client")] for (left, right).',
        )
    return keys  # type: ignore[return-value]


def _interval(within: Duration | tuple[Duration, Duration], name: str) -> tuple[int, int]:
    if isinstance(within, tuple):
        if len(within) != 2:
            raise ConfigError(f"{name}: within={within!r} is no interval", hint='For example ("0s", "10s").')
        after, before = (durations.micros(d, f"{name}: within", negative=True) for d in within)
        if after > before:
            raise ConfigError(f"{name}: within={within!r} is empty", hint="The earlier bound comes first.")
        return after, before
    distance = durations.micros(within, f"{name}: within")
    return -distance, distance
