"""A Kafka topic as a sink without Spark: what the user says, what is refused, and what `verify` reads.

The client (`confluent-kafka`, the extra `kafka`) is imported only where it is needed. Nothing here asks a broker but
`read_topic`, which `verify` calls.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError, InputError
from holdfast.operators.columns import quoted
from holdfast.pipeline import durations
from holdfast.pipeline.arguments import caller
from holdfast.pipeline.durations import Duration

#: An empty topic that gives the positions of all sinks a name; where they are, see `spark/kafka_sink.py`.
POSITIONS = "holdfast-positions"
WAIT = "2 minutes"
#: Settings of the client that make a sink exactly once, and who it is.
OURS = (
    "bootstrap.servers",
    "transactional.id",
    "enable.idempotence",
    "acks",
    "isolation.level",
    "group.id",
    "enable.auto.commit",
    "enable.partition.eof",
    "delivery.report.only.error",
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^\s:,]+):(\d{1,5})")
#: Where a sink began in each partition of its topic: beside its plans.
BEGAN = "kafka.json"
#: How long `verify` waits for the broker's next word.
READ_S, _READ_S = 30.0, 0.2
_MANY = 10_000

#: As in `graph.py`, which imports this.
Frame = Any
Session = Any
#: Nothing; one column as it is; several as a JSON object.
Columns = None | str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KafkaTarget:
    """Where results go, and what a record of theirs is."""

    topic: str
    #: host:port, or several of them.
    bootstrap: str
    key: Columns
    #: None: all columns, as a JSON object.
    value: Columns
    positions: str = POSITIONS
    #: How long a broker that does not answer is waited for.
    wait_s: float = 120.0
    #: More settings of the client (security, compression, ...).
    options: dict[str, str] = field(default_factory=dict)

    def in_json(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Those of the results' columns that the value has as JSON; none: it is one column as it is."""
        if isinstance(self.value, str):
            return ()
        return tuple(columns) if self.value is None else self.value

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.bootstrap}"


def target_of(
    what: str,
    *,
    topic: str,
    bootstrap: str,
    key: str | Sequence[str] | None,
    value: str | Sequence[str] | None,
    options: Mapping[str, Any] | None,
    wait: Duration,
    positions: str,
) -> KafkaTarget:
    """What was said in the call, if it can be meant."""
    for label, name in (("topic", topic), ("positions", positions)):
        if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
            raise ConfigError(
                f"{what}: {label} {name!r} is not the name of a Kafka topic",
                detail=f"At {caller()}.",
                hint="Letters, digits, '.', '_' and '-', at most 249 of them.",
            )
    if topic == positions:
        raise ConfigError(f"{what}: topic and positions are the same", detail=f"At {caller()}: {topic!r}.")
    return KafkaTarget(
        topic=topic,
        bootstrap=_addresses(bootstrap, what),
        key=_columns(key, f"{what}: key"),
        value=_columns(value, f"{what}: value"),
        positions=positions,
        wait_s=durations.micros(wait, f"{what}: wait") / 1e6,
        options=_options(options, what),
    )


def _addresses(bootstrap: object, what: str) -> str:
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else []
    found = [_ADDRESS.fullmatch(part.strip()) for part in parts]
    if not found or not all(one and 0 < int(one[2]) < 1 << 16 for one in found):
        raise ConfigError(
            f"{what}: bootstrap {bootstrap!r} names no broker",
            detail=f"At {caller()}.",
            hint='Write host:port, or several of them with commas between: "kafka-1:9092,kafka-2:9092".',
        )
    return ",".join(part.strip() for part in parts)


def _columns(given: str | Sequence[str] | None, what: str) -> Columns:
    if given is None or (isinstance(given, str) and given):
        return given
    names = tuple(given) if isinstance(given, Sequence) else ()
    if not names or isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{what} {given!r} names no columns",
            detail=f"At {caller()}.",
            hint="One column is taken as it is, a list of columns as a JSON object.",
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"{what} names a column twice", detail=f"At {caller()}: {', '.join(names)}.")
    return names


def _options(given: Mapping[str, Any] | None, what: str) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{what}: options are not a dictionary", detail=f"At {caller()}: {given!r}.")
    options = {
        str(name): value if isinstance(value, str) else str(value).lower() for name, value in (given or {}).items()
    }
    for name in options:
        if name in OURS:
            raise ConfigError(
                f"{what}: {name} is Holdfast's to set",
                detail=f"At {caller()}.",
                hint="It is what makes the sink exactly once, and has an argument of its own if it may be chosen.",
            )
    return options


# --- when a pipeline is planned


def check_target(target: KafkaTarget, schema: pa.Schema, name: str) -> None:
    """Refuse what the results cannot be written as, and settings that the client does not know."""
    for label, columns in (("key", target.key), ("value", target.value)):
        for column in (columns,) if isinstance(columns, str) else columns or ():
            if column not in schema.names:
                raise ConfigError(
                    f"{name}: {label} has no column named {column!r}",
                    detail=f"The results have {', '.join(schema.names)}.",
                    hint="Names are case-sensitive.",
                )
        if not isinstance(columns, str):
            _check_json(schema, columns if columns or label == "key" else tuple(schema.names), f"{name}: {label}")
    kafka = client(name)
    try:
        kafka.Producer({"bootstrap.servers": target.bootstrap, **target.options})
    except (kafka.KafkaException, TypeError, ValueError) as error:
        said: Any = error.args[0] if error.args else error
        reason = said.str() if isinstance(said, kafka.KafkaError) else str(said)
        raise ConfigError(f"{name}: Kafka's client refuses the options", detail=f"{reason}.") from error


def _check_json(schema: pa.Schema, columns: Columns, what: str) -> None:
    for column in columns or ():
        if pa.types.is_binary(schema.field(column).type):
            raise ConfigError(
                f"{what}: column {column!r} is binary, which JSON cannot hold",
                hint=f"Take it as it is (value={column!r}), name the other columns in a list, or make it a string.",
            )


def client(name: str) -> Any:
    """confluent_kafka, if it is here."""
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise ConfigError(
            f"{name}: write_kafka needs the package confluent-kafka",
            detail=str(error),
            hint="pip install 'holdfast[kafka]', on every machine that has nodes.",
        ) from error


# --- when it is verified


def topic_rows(spark: Session, target: KafkaTarget, name: str, checkpoint: Path, like: Frame) -> Frame:
    """The rows that a sink has written to its topic as JSON; `like` has their columns."""
    noted = checkpoint / BEGAN
    began = json.loads(noted.read_text())["began"] if noted.exists() else {}
    values = read_topic(target, name, began)
    texts = spark.createDataFrame(pa.table({"value": values.cast(pa.string())}))
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in like.schema.fields)
    escaped = columns.replace("\\", "\\\\").replace("'", "\\'")
    return texts.selectExpr(f"from_json(value, '{escaped}') as row").select("row.*")


def read_topic(target: KafkaTarget, name: str, began: Mapping[str, int]) -> pa.Array:
    """The values of all records that count (`read_committed`), from where the sink began in each partition."""
    kafka = client(name)
    settings = {
        **target.options,
        "bootstrap.servers": target.bootstrap,
        "group.id": "holdfast-verify",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }
    consumer = kafka.Consumer(settings)
    try:
        found = consumer.list_topics(target.topic, timeout=READ_S).topics[target.topic]
        if found.error is not None:
            raise InputError(f"{name}: {target} cannot be read", detail=f"{found.error.str()}.")
        values: list[bytes | None] = []
        for partition in sorted(found.partitions):
            values += _read_partition(kafka, consumer, target.topic, partition, began.get(str(partition), 0))
    except kafka.KafkaException as error:
        raise InputError(f"{name}: {target} cannot be read", detail=f"{error.args[0].str()}.") from error
    finally:
        consumer.close()
    return pa.array(values, pa.binary())


def _read_partition(kafka: Any, consumer: Any, topic: str, partition: int, begin: int) -> list[bytes | None]:
    """Up to where it ends now, or to the first transaction that is open: what is behind it does not count yet. Somebody
    may write all the time, so that the end is never reached."""
    first, end = consumer.get_watermark_offsets(kafka.TopicPartition(topic, partition), timeout=READ_S)
    consumer.assign([kafka.TopicPartition(topic, partition, max(first, begin))])
    values: list[bytes | None] = []
    silent_s = 0.0
    while silent_s < READ_S:
        records = consumer.consume(_MANY, timeout=_READ_S)  # it takes all of this time, unless there are so many
        silent_s = 0.0 if records else silent_s + _READ_S
        for record in records:
            if record.error() is None:
                if record.offset() >= end:
                    return values
                values.append(record.value())
            elif record.error().code() == kafka.KafkaError._PARTITION_EOF:
                return values
            else:
                raise kafka.KafkaException(record.error())
    raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT, f"partition {partition} is silent"))
