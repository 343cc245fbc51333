"""The input of a stage once more, as a batch: the user's own function, with a session whose streams are batch readers.

What a stage has read stands in Spark's checkpoint of it (`checkpoints/<stage>`):

    commits/<k>           the last one: Spark's last batch that was done
    offsets/<k>           a line for each source: where batch k ends
    sources/<n>/<i>       files: which file came with which step of the log; Kafka: where the first batch began

A file source is read as exactly those files, rate-micro-batch as the range of its numbers with exactly Spark's
timestamps, Kafka from the first to the last offset of each partition. Anything else needs the `batch=` of
`pipeline.read`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from holdfast.errors import ConfigError, InputError
from holdfast.pipeline.graph import Frame, Session, Source

_FILES = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
#: Options that a batch reader does not know, or that must not limit it.
_STREAM_ONLY = (
    "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "filenameonly", "maxfileage", "cleansource",
    "sourcearchivedir", "maxcachedfiles", "discardcachedinputratio", "maxoffsetspertrigger", "minoffsetspertrigger",
    "maxtriggerdelay", "startingoffsets", "endingoffsets", "failondataloss",
)  # fmt: skip
#: Options that say what of Kafka is to be read: patterns may find more by now, and a moment is not an offset.
_KAFKA_WHICH = (
    "subscribe", "subscribepattern", "assign", "startingtimestamp", "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy", "endingtimestamp", "endingoffsetsbytimestamp",
)  # fmt: skip


def batch_frame(source: Source, spark: Session, checkpoint: Path, last: int | None = None) -> Frame:
    """Everything that a stage has read of its source up to its last batch (`last`, or what the checkpoint says)."""
    if source.batch is not None:
        return source.batch(spark)
    progress = Progress(checkpoint, last)
    return source.read(BatchSession(spark, progress, source.label))


class Progress:
    """How far a stage has read, from Spark's checkpoint."""

    def __init__(self, checkpoint: Path, last: int | None = None) -> None:
        self.checkpoint = checkpoint
        done = [int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")] if last is None else [last]
        self.batch = max(done, default=-1)

    def offset(self, source: int) -> dict[str, Any] | None:
        """Where the last batch ended, for the n-th source of the query; None: it has read nothing."""
        if self.batch < 0:
            return None
        file = self.checkpoint / "offsets" / str(self.batch)
        if not file.is_file():
            raise InputError(
                f"checkpoint {self.checkpoint.name}: batch {self.batch} has no offsets",
                detail=f"{file} is not there.",
                hint="Spark keeps them for the last batches; was the checkpoint copied while the stage ran?",
            )
        lines = self._lines(file)[1:]
        if source >= len(lines):
            raise self._damaged(file, f"source {source} is not in it")
        return lines[source]

    def files(self, source: int) -> list[str]:
        """The files that a file source has read."""
        offset = self.offset(source)
        log = self.checkpoint / "sources" / str(source)
        if offset is None or not log.is_dir():
            return []
        steps = [p for p in log.iterdir() if p.name.partition(".")[0].isdigit()]
        compacts = [int(p.stem) for p in steps if p.suffix == ".compact"]
        first = max(compacts, default=-1)
        kept = [p for p in steps if (p.suffix == ".compact" and int(p.stem) == first) or _after(p, first)]
        found: dict[str, None] = {}
        for step in sorted(kept, key=lambda p: int(p.name.partition(".")[0])):
            for entry in self._lines(step):
                if entry["batchId"] <= offset["logOffset"]:
                    found[_local(entry["path"])] = None
        return list(found)

    def _lines(self, file: Path) -> list[Any]:
        """What a file of Spark's logs says after its version: JSON in every line, or "-" for nothing."""
        try:
            version, *lines = file.read_text().splitlines()
            found = [None if line == "-" else json.loads(line) for line in lines]
        except (OSError, ValueError) as error:
            raise self._damaged(file, str(error)) from error
        if not version.startswith("v") or not found:
            raise self._damaged(file, "it is cut, or not what Spark has written")
        return found

    def _damaged(self, file: Path, why: str) -> InputError:
        return InputError(
            f"checkpoint {self.checkpoint.name} is damaged: what the stage has read is not known",
            detail=f"{file}: {why}.",
            hint="Restore it from a backup, or give pipeline.read(..., batch=...).",
        )

    def beginning(self, source: int) -> dict[str, dict[str, int]]:
        """Where a Kafka source began: {topic: {partition: offset}}."""
        file = self.checkpoint / "sources" / str(source) / "0"
        if not file.is_file():
            raise InputError(
                f"checkpoint {self.checkpoint.name}: where its Kafka source began is not known",
                detail=f"{file} is not there.",
                hint="Restore it from a backup, or give pipeline.read(..., batch=...).",
            )
        return json.loads(file.read_text().partition("\n")[2])


def _after(step: Path, first: int) -> bool:
    return step.suffix == "" and int(step.name) > first


def _local(path: str) -> str:
    """A path of the log (a URI) as Spark's readers take it; a local one without its scheme."""
    plain = unquote(path)
    if plain.startswith("file:"):
        return "/" + plain.removeprefix("file:").lstrip("/")
    return plain


class BatchSession:
    """A SparkSession whose `readStream` reads in batch what a stage has read as a stream."""

    def __init__(self, spark: Session, progress: Progress, label: str) -> None:
        self._spark = spark
        self._progress = progress
        self._label = label
        self._sources = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    @property
    def readStream(self) -> BatchReader:
        return BatchReader(self._spark, self)

    def next_source(self) -> int:
        """Spark numbers a query's sources in the order in which its plan names them."""
        self._sources += 1
        return self._sources - 1


class BatchReader:
    """What a user calls on `spark.readStream`, answered in batch."""

    def __init__(self, spark: Session, session: BatchSession) -> None:
        self._spark = spark
        self._session = session
        self._format = "parquet"
        self._schema: Any = None
        self._options: dict[str, Any] = {}

    def format(self, source: str) -> BatchReader:
        self._format = source
        return self

    def schema(self, schema: Any) -> BatchReader:
        self._schema = schema
        return self

    def option(self, key: str, value: Any) -> BatchReader:
        self._options[key] = value
        return self

    def options(self, **options: Any) -> BatchReader:
        self._options |= options
        return self

    def name(self, source_name: str) -> BatchReader:
        return self

    def load(self, path: str | None = None, format: str | None = None, schema: Any = None, **options: Any) -> Frame:
        self._format = format or self._format
        self._schema = schema if schema is not None else self._schema
        self._options |= {k: v for k, v in options.items() if v is not None}
        number = self._session.next_source()
        name = self._format.lower()
        if name == "rate-micro-batch":
            return self._numbers(number)
        if name in _FILES:
            return self._files(number, path or self._options.get("path"))
        if name == "kafka":
            return self._kafka(number)
        raise ConfigError(
            f"{self._session._label}: verify cannot read source {self._format!r} again by itself",
            hint="Give pipeline.read(..., batch=lambda spark: ...): the same rows as a batch DataFrame.",
        )

    def json(self, path: str, schema: Any = None, **options: Any) -> Frame:
        return self.load(path, "json", schema, **options)

    def parquet(self, path: str, **options: Any) -> Frame:
        return self.load(path, "parquet", **options)

    def orc(self, path: str, **options: Any) -> Frame:
        return self.load(path, "orc", **options)

    def csv(self, path: str, schema: Any = None, **options: Any) -> Frame:
        return self.load(path, "csv", schema, **options)

    def text(self, path: str, **options: Any) -> Frame:
        return self.load(path, "text", **options)

    def xml(self, path: str, schema: Any = None, **options: Any) -> Frame:
        return self.load(path, "xml", schema, **options)

    def table(self, tableName: str) -> Frame:
        return self.load(format=f"table {tableName}")

    def _numbers(self, number: int) -> Frame:
        """rate-micro-batch: `value` counts on, and all rows of a batch have the time at which it begins."""
        options = {k.lower(): v for k, v in self._options.items()}
        offset = self._session._progress.offset(number)
        end = int(offset["offset"]) if offset else 0
        begin, step = int(options.get("starttimestamp", 0)), int(options.get("advancemillisperbatch", 1000))
        moment = f"timestamp_millis({begin}L + id div {int(options['rowsperbatch'])}L * {step}L)"
        return self._spark.range(end).selectExpr(f"{moment} as timestamp", "id as value")

    def _reader(self, without: tuple[str, ...] = (), /, **more: Any) -> Any:
        reader = self._spark.read.format(self._format)
        for key, value in self._options.items():
            if key.lower() not in (*_STREAM_ONLY, "path", *without):
                reader = reader.option(key, value)
        for key, value in more.items():
            reader = reader.option(key, value)
        return reader.schema(self._schema) if self._schema is not None else reader

    def _files(self, number: int, path: Any) -> Frame:
        files = self._session._progress.files(number)
        gone = [f for f in files if f.startswith("/") and not Path(f).exists()]
        if gone:
            raise InputError(
                f"{self._session._label}: an input file is no longer there",
                detail=f"{gone[0]}, and {len(gone) - 1} more." if len(gone) > 1 else gone[0],
                hint="verify reads the same files again: keep them, or give pipeline.read(..., batch=...).",
            )
        if files:
            root = {"basePath": str(path)} if path and Path(str(path)).is_dir() else {}
            return self._reader(**root).load([_escaped(f) for f in files])
        if self._schema is None:
            return self._reader().load(path).limit(0)
        return self._spark.createDataFrame([], self._schema)

    def _kafka(self, number: int) -> Frame:
        """Exactly what was read, wherever the stream began (Spark's default is the end of the topic at that moment).
        Partitions that came later were read from their first row on."""
        end = self._session._progress.offset(number)
        if end is None:
            return self._reader().load().limit(0)
        began = self._session._progress.beginning(number)
        begin = {topic: {p: began.get(topic, {}).get(p, 0) for p in ends} for topic, ends in end.items()}
        which = {topic: [int(p) for p in ends] for topic, ends in end.items()}
        found = {"assign": which, "startingOffsets": begin, "endingOffsets": end}
        return self._reader(_KAFKA_WHICH, **{key: json.dumps(value) for key, value in found.items()}).load()


def _escaped(path: str) -> str:
    """Spark takes paths as patterns."""
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in path)
