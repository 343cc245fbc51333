"""`format("holdfast-state")`: the state of an operator in a stable store, for any Spark program.

    spark.dataSource.register(HoldfastStateSource)
    spark.read.format("holdfast-state").option("run", "holdfast-run/netmon").option("operator", "talkers").load()

Options: `run` (directory of the run) or `plan` (its plan.json); `store` (a URL; default: the store of the run) and
`store_conf` (settings of its client, as JSON); `operator`, or `shard`, and with a single shard `sequence`; or
`checkpoint`, the URL of one, in place of store, shard and sequence. The plan is needed: a checkpoint has words, and a
fingerprint of the operator that can read them, not the operator.

Rows are what `operators/contents.py` makes of an operator, with `shard` and `sequence` before them. One task reads one
shard: it opens the store itself, checks every page, and restores the state into memory of its own. The checkpoint is
chosen when Spark plans, so that a task that runs again reads the same. Only if it was collected before it was read, and
nobody asked for that very one, is the newest taken.

Nothing is claimed or written: this is `checkpoint/look.py`, and no node notices. Whoever reads needs the store, not
the nodes; a run that has ended can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.checkpoint import keys
from holdfast.checkpoint.head import ShardHead
from holdfast.checkpoint.inspect import entry_of
from holdfast.checkpoint.look import heads_of, look_at
from holdfast.errors import ConfigError
from holdfast.model.ids import Asset, asset_id, operator_of
from holdfast.model.plan import OperatorPlan, Plan
from holdfast.operators.build import build
from holdfast.operators.contents import contents, contents_schema
from holdfast.runtime.config import read_plan
from holdfast.store import IoService, check_url, open_store

SHOWN = pa.schema([pa.field("shard", pa.string()), pa.field("sequence", pa.int64())])
FORMAT = 'format("holdfast-state")'


class StoreSettings(msgspec.Struct, frozen=True):
    """Which store, and the settings of its client. `run.json` has both among the settings of a run."""

    store: str = ""
    store_conf: dict[str, str] = {}

    @contextmanager
    def opened(self) -> Iterator[IoService]:
        service = IoService(open_store(self.store, self.store_conf))
        try:
            yield service
        finally:
            service.close()


class _RunWithStore(msgspec.Struct):
    """The part of `run.json` that is needed here."""

    settings: StoreSettings = StoreSettings()


class StateWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the options ask for."""

    store: StoreSettings
    deployment: str
    operator: OperatorPlan
    shards: tuple[Asset, ...]
    sequence: int | None


class ShardWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reads."""

    store: StoreSettings
    deployment: str
    operator: OperatorPlan
    shard: Asset
    sequence: int
    #: That one and no other.
    firm: bool


class HoldfastStateSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast-state"

    @cached_property
    def wanted(self) -> StateWanted:
        return _wanted(self.options)

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_schema(self.wanted.operator))

    def reader(self, schema: StructType) -> DataSourceReader:
        return HoldfastStateReader(self.wanted)


class StoredShard(InputPartition):
    """The shard of one task."""

    def __init__(self, wanted: ShardWanted) -> None:
        super().__init__(None)
        self.raw = msgspec.json.encode(wanted)


class HoldfastStateReader(DataSourceReader):
    def __init__(self, wanted: StateWanted) -> None:
        self.wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self.wanted
        with wanted.store.opened() as service:
            heads = [head for head in service.run(heads_of(wanted.shards)).values() if head.entries]
        if not heads:
            raise ConfigError(
                f"{FORMAT}: the store has no checkpoints of {' or '.join(wanted.shards)}",
                detail=f"It is {wanted.store.store}.",
                hint="`holdfast checkpoint list` shows what it has. A shard is first checkpointed when it has rows.",
            )
        return [StoredShard(_of_shard(wanted, head)) for head in heads]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StoredShard):
            return
        wanted = msgspec.json.decode(partition.raw, type=ShardWanted)
        with wanted.store.opened() as service:
            seen = service.run(
                look_at(
                    wanted.shard,
                    wanted.sequence,
                    lambda config: build(wanted.operator, config),
                    wanted.deployment,
                    firm=wanted.firm,
                )
            )
        schema = _schema(wanted.operator)
        try:
            for batch in contents(seen.op):
                n = batch.num_rows
                ours = [pa.repeat(pa.scalar(wanted.shard), n), pa.repeat(seen.manifest.sequence, n)]
                yield pa.RecordBatch.from_arrays([*ours, *batch.columns], schema=schema)
        finally:
            seen.op.pool.abandon()


def _schema(operator: OperatorPlan) -> pa.Schema:
    return pa.schema([*SHOWN, *contents_schema(build(operator))])


def _of_shard(wanted: StateWanted, head: ShardHead) -> ShardWanted:
    if head.deployment != wanted.deployment:
        raise ConfigError(
            f"{FORMAT}: the checkpoints of {head.shard} are of another pipeline",
            detail=f"They are of {head.deployment!r}, the plan is of {wanted.deployment!r}.",
            hint="Give the directory of the run that wrote them: .option('run', ...).",
        )
    return ShardWanted(
        store=wanted.store,
        deployment=wanted.deployment,
        operator=wanted.operator,
        shard=head.shard,
        sequence=entry_of(head, wanted.sequence).sequence,
        firm=wanted.sequence is not None,
    )


# --- options


def _wanted(options: Mapping[str, str]) -> StateWanted:
    plan = _plan(options)
    store, shard, sequence = _place(options)
    operator = _operator(plan, options.get("operator", ""), shard)
    shards = tuple(s.id for s in plan.topology.shards if operator_of(s.id) == operator.name)
    if shard and shard not in shards:
        raise ConfigError(
            f"{FORMAT}: operator {operator.name!r} has no shard {shard!r}", hint=f"Its shards are {', '.join(shards)}."
        )
    shards = (asset_id(shard),) if shard else shards
    if sequence is not None and len(shards) > 1:
        raise ConfigError(
            f"{FORMAT}: sequence {sequence} of which shard?",
            detail=f"Every shard numbers its checkpoints itself; there are {', '.join(shards)}.",
            hint=f"Give one: .option('shard', '{shards[0]}').",
        )
    return StateWanted(store=store, deployment=plan.query, operator=operator, shards=shards, sequence=sequence)


def _directory(options: Mapping[str, str]) -> Path | None:
    run = options.get("run", "").removesuffix("run.json")
    return Path(run or ".") if options.get("run") else None


def _plan(options: Mapping[str, str]) -> Plan:
    directory = _directory(options)
    if not options.get("plan") and directory is None:
        raise ConfigError(
            f"{FORMAT}: which pipeline?",
            detail="A checkpoint does not say what its words mean; the plan of its pipeline does.",
            hint="Give .option('run', <directory of the run>), or .option('plan', <its plan.json>).",
        )
    return read_plan(Path(options["plan"]) if options.get("plan") else (directory or Path()) / "plan.json")


def _place(options: Mapping[str, str]) -> tuple[StoreSettings, str, int | None]:
    """Store, shard ("": all) and sequence (None: the newest)."""
    checkpoint = options.get("checkpoint", "")
    if not checkpoint:
        text = options.get("sequence", "")
        if text and not text.isdecimal():
            raise ConfigError(f"{FORMAT}: option 'sequence' must be a number", detail=f"It is {text!r}.")
        return _store(options, options.get("store", "")), options.get("shard", ""), int(text) if text else None
    also = [name for name in ("store", "shard", "sequence") if options.get(name)]
    if also:
        raise ConfigError(f"{FORMAT}: option 'checkpoint' says {also[0]} already", hint="Give one of them.")
    url, _, name = checkpoint.rstrip("/").rpartition("/checkpoint/")
    found = keys.parse(f"checkpoint/{name}/manifest")
    if not url or found is None:
        raise ConfigError(
            f"{FORMAT}: this is not a checkpoint",
            detail=f"{checkpoint!r}.",
            hint="Write STORE/checkpoint/SHARD-NUMBER, for example file:///var/holdfast/checkpoint/talkers-0-12.",
        )
    return _store(options, url), found.shard, found.sequence


def _store(options: Mapping[str, str], url: str) -> StoreSettings:
    """The one that is named, or that of the run."""
    ours = StoreSettings()
    directory = _directory(options)
    file = directory / "run.json" if directory else None
    try:
        if file is not None and file.is_file():
            ours = msgspec.json.decode(file.read_bytes(), type=_RunWithStore).settings
        if options.get("store_conf"):
            ours = StoreSettings(ours.store, msgspec.json.decode(options["store_conf"], type=dict[str, str]))
    except (OSError, msgspec.MsgspecError) as error:
        what = "store_conf" if options.get("store_conf") else str(file)
        raise ConfigError(f"{FORMAT}: {what} cannot be read", detail=str(error)) from error
    found = StoreSettings(url or ours.store, ours.store_conf)
    if not found.store:
        raise ConfigError(
            f"{FORMAT}: which store?",
            detail="The run has none." if directory else "",
            hint="Give .option('store', 'file:///var/holdfast'), the --store of `holdfast run`.",
        )
    check_url(found.store)
    return found


def _operator(plan: Plan, name: str, shard: str) -> OperatorPlan:
    if not name and not shard:
        raise ConfigError(f"{FORMAT}: which operator?", hint=_there(plan))
    name = name or operator_of(asset_id(shard))
    found = [o for o in plan.operators if o.name == name]
    if not found:
        raise ConfigError(f"{FORMAT}: pipeline {plan.pipeline!r} has no operator {name!r}", hint=_there(plan))
    return found[0]


def _there(plan: Plan) -> str:
    return f"There are {', '.join(o.name for o in plan.operators)}."
