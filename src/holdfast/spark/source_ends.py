"""Where a Kafka source of a real-time stage begins and ends: asked of Spark's own reader of the topic.

A real-time query is always reading, so it cannot say that there is nothing to be read. And where a stage's first driver
began must be known to the second one, also if the first one has handed nothing over. Both come from the reader that
Spark would make for the same options, with its client, its retries and its rules for partitions that are new.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.pipeline.checks import nodes_of
from holdfast.pipeline.graph import Frame
from holdfast.spark.inlet import offsets_of, positions_of

_REAL_TIME = "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode"


class SourceEnds:
    """`metadata`: the directory in a checkpoint where Spark writes down where this source began."""

    def __init__(self, frame: Frame, metadata: Path) -> None:
        spark = frame.sparkSession
        self._jvm: Any = spark._jvm
        self._session = spark._jsparkSession
        plan = frame._jdf.queryExecution().analyzed()
        relation = next(node for node in nodes_of(plan) if node.nodeName() == "StreamingRelationV2")
        builder = relation.table().newScanBuilder(relation.extraOptions())
        #: Spark's reader is for one thread at a time.
        self._lock = threading.Lock()
        self._stream = builder.build().toMicroBatchStream(metadata.absolute().as_uri())

    def is_real_time(self) -> bool:
        """Can this connector read in real-time mode?"""
        return bool(self._jvm.java.lang.Class.forName(_REAL_TIME).isInstance(self._stream))

    def beginning(self) -> dict[str, int]:
        """Where the stage has begun. The first who asks has it written down."""
        kind = self._jvm.org.apache.spark.sql.classic.SparkSession
        kind.setActiveSession(self._session)  # of this thread
        return positions_of(json.loads(self._stream.initialOffset().json()))

    def ends(self, since: Mapping[str, int]) -> dict[str, int]:
        """Where each partition ends now. `since`: positions that are known. An error if no broker answers, or if a
        partition is gone."""
        limit = self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
        start = self._stream.deserializeOffset(offsets_of(since))
        with self._lock:
            latest = self._stream.latestOffset(start, limit)
        return positions_of(json.loads(latest.json())) if latest is not None else {}

    def close(self) -> None:
        with contextlib.suppress(Exception):  # its JVM has ended, say
            self._stream.stop()
