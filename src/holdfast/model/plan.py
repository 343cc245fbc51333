"""What the planner hands to nodes and stages: a topology, and what each part of it is. Plain data, no code.

A node needs this and nothing else: neither the user's file nor Spark. A stage's child process loads the user's file
too, plans it again (planning is deterministic) and finds its functions under the same ids.

Ids: an operator's name is `[a-z][a-z0-9_]*`; shard `talkers-3` is its fourth; stage `talkers_in`, sink `out_0`.
Ports of a shard: port 0 carries everything it emits, for stages, sinks and other readers; ports 1, 2, … carry the same
rows cut by key for each shard of the operators that consume it directly, in the order of `OperatorPlan.feeds`.

Watermarks are microseconds since the epoch, shifted so that the core's smallest value (-1, nothing known) stays the
smallest: `to_core` and `to_micros` are the only places that know.
"""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, Name, shard_edge, shard_id
from holdfast.model.protection import MODES, Protection
from holdfast.model.record import Record, first_record
from holdfast.model.topology import Topology

_SHIFT = 1 << 60
_encoder = msgspec.json.Encoder(order="sorted")
#: Bad rows that a stage may set aside, unless the pipeline says otherwise.
BAD_ROWS_MAX = 1_000
NEVER_US = -(2**63)
FOREVER_US = 2**63 - 1


def to_core(micros: int) -> int:
    """A watermark in the core's terms."""
    if micros <= NEVER_US // 2:
        return WATERMARK_MIN
    return WATERMARK_MAX if micros >= FOREVER_US // 2 else micros + _SHIFT


def to_micros(watermark: int) -> int:
    """A watermark of the core in microseconds since the epoch."""
    if watermark <= WATERMARK_MIN:
        return NEVER_US
    return FOREVER_US if watermark >= WATERMARK_MAX else watermark - _SHIFT


class InputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One logical input of an operator: what one stage or one operator feeds it. A join has one a side at least."""

    #: The stage or the operator it comes from.
    source: str
    #: Arrow schema of the rows that cross the edge (IPC bytes), all nullable; also if they come as partial aggregates.
    schema: bytes
    #: Columns by which rows are cut into shards, by their names on the edge.
    by: tuple[str, ...]
    #: Column with the event time; "window_time" of an aggregate's output is derived: window_end less a microsecond.
    event_time: str
    #: Rows may come as partial aggregates (`pane_start`, keys, parts): a batch says so by having that column.
    partial: bool = False
    #: 1: the right side of a join. A union gives a side several inputs, all of one schema.
    side: int = 0
    #: Columns that the operator knows by another name: on the edge -> in the operator (`operators.build.rows_in`).
    rename: dict[str, str] = {}


#: Windows that one row may be in: each of them is a row of output for its key. (A day every second is 86,400.)
WINDOWS_MAX = 100_000
#: In place of a mode: the one that the nodes' settings name.
AUTO = "auto"


#: How the rows of a source come to the nodes: in Spark's micro-batches, or while a long batch of Spark's goes on.
MICRO_BATCH, REAL_TIME = LATENCIES = ("micro-batch", "real-time")

#: Time between two entries of footprints, where nothing else is said: each has only what is new.
EVENTUAL_NS = 1_000_000_000


class OperatorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful operator. `kind` and `settings` are what `holdfast.operators` is built from."""

    name: str
    kind: str  # "aggregate" | "count_window" | "join"
    shards: int
    mode: str
    #: What of it is kept in the store, and how often in nanoseconds; "auto" and 0: as the nodes' settings say.
    checkpoint: str = AUTO
    checkpoint_ns: int = 0
    #: How long a recovery may take; 0: as the nodes' settings say.
    recover_ns: int = 0
    inputs: tuple[InputPlan, ...]
    #: See `operators/build.py`, which makes the operator from it.
    settings: dict
    #: Arrow schema of what it emits on port 0 (IPC bytes).
    output: bytes
    #: Operators that consume it directly, shard to shard, in port order: (operator, input number, shards, by).
    feeds: tuple[tuple[str, int, int, tuple[str, ...]], ...] = ()

    def protection(self, default: Protection) -> Protection:
        mode = default.mode if self.mode == AUTO else self.mode
        if self.mode == AUTO and MODES[mode].keeps_input and self.kind != "aggregate":
            mode = Protection().mode  # what the nodes' setting says is for what can be made again
        checkpoint = default.checkpoint if self.checkpoint == AUTO else self.checkpoint
        often_ns = min(default.checkpoint_ns, EVENTUAL_NS) if checkpoint == "eventual" else default.checkpoint_ns
        every_ns = self.checkpoint_ns or often_ns
        recover_ns = self.recover_ns or default.recover_ns
        change = {"mode": mode, "checkpoint": checkpoint, "checkpoint_ns": every_ns, "recover_ns": recover_ns}
        return msgspec.structs.replace(default, **change)


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One Spark query (or, of an Arrow sink, a loop): from a source or from operators, to an operator or to a sink."""

    id: Asset
    #: "source": reads the user's source; "between": reads operators and feeds one; "sink": reads operators, writes;
    #: "port": has no query of its own, a Spark program of the user's hands it rows.
    kind: str
    #: Operators whose port 0 it reads (between, sink).
    reads: tuple[str, ...] = ()
    #: Operator and input that it feeds (source, between); several if one source feeds several operators.
    feeds: tuple[tuple[str, int], ...] = ()
    #: Of each of these its outlet, where the stage has several: the column, a struct, that holds its rows
    #: (`outlet_rows` in pipeline/frames.py).
    outlets: tuple[str, ...] = ()
    delay_us: int = 0
    idle_ns: int = 1 << 60
    #: Time between two micro-batches; 0: each starts when the last one is done (a sink's is in the user's writer).
    trigger_ms: int = 0
    #: The source makes rows without end (rate-micro-batch): to finish is to stop where it stands.
    endless: bool = False
    #: Column with the event time of the stage's rows ("" for a sink): rows before the watermark are late.
    event_time: str = ""
    #: Late rows go to a stream of their own (a directory) as well as being recorded for `verify`.
    late_to: str = ""
    #: Rows further ahead of the clock than this are bad; None: no row is.
    future_us: int | None = None
    #: How many bad rows are set aside before the stage stops with an error.
    bad_rows_max: int = BAD_ROWS_MAX
    #: Arrow schema of the rows that a port takes (IPC bytes), all nullable.
    rows: bytes = b""
    #: A sink whose rows go to a function as Arrow tables: it needs no Spark, and so no JVM.
    arrow: bool = False
    #: One of LATENCIES; not there: what the nodes' setting `latency` says.
    latency: str | msgspec.UnsetType = msgspec.UNSET


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    #: Identity of this deployment: ledgers refuse stages of another.
    query: str
    topology: Topology
    operators: tuple[OperatorPlan, ...]
    stages: tuple[StagePlan, ...]
    #: Digest of the file that was planned, whose functions the stages call ("": it is not known).
    file: str = ""

    def operator(self, name: str) -> OperatorPlan:
        return next(o for o in self.operators if o.name == name)

    def protections(self, default: Protection) -> dict[str, Protection]:
        """How each operator is protected at the beginning: as the nodes' settings say, but for what it says itself."""
        return {operator.name: operator.protection(default) for operator in self.operators}

    def first_record(self, names: tuple[Name, ...], config: Config) -> Record:
        """The record that it starts with on these nodes."""
        own, draws = self.protections(config.protection), config.assignor == "random_static"
        return first_record(self.topology, names, own=own, domains=config.domains, draws=draws)

    def check_store(self, *, has_store: bool) -> None:
        """What is to be kept in a store needs one."""
        for operator in self.operators:
            if operator.checkpoint not in (AUTO, "none") and not has_store:
                raise ConfigError(
                    f'{operator.name}: checkpoint="{operator.checkpoint}" needs a store, and this run has none',
                    hint="Give one with --store (for `holdfast node`: the setting `store`), or leave out checkpoint.",
                )

    def stage(self, id: Asset) -> StagePlan:
        return next(s for s in self.stages if s.id == id)


def digest(plan: Plan) -> str:
    """Of all that a plan says, in whichever order and by whomever it was written down."""
    return hashlib.sha256(_encoder.encode(plan)).hexdigest()[:16]


def edges_of(operator: OperatorPlan) -> tuple[Edge, ...]:
    """Port 0 of every shard: what a stage or a reader of this operator reads."""
    return tuple(shard_edge(shard_id(operator.name, i)) for i in range(operator.shards))
