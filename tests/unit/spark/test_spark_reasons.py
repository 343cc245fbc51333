"""Why a query failed, in one line: texts as Spark 4.3 gives them."""

from __future__ import annotations

import pytest

from holdfast.errors import InputError
from holdfast.spark.reasons import Reason

CORRUPT = """\
[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Job aborted due to stage failure: Task \
0 in stage 3.0 failed 1 times, most recent failure: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///data/in/00004.parquet. SQLSTATE: KD001
Caused by: java.lang.RuntimeException: file:/data/in/00004.parquet is not a Parquet file.
=== Streaming Query ===
FileSink[file:/data/out]
"""
CHANGED = """[STREAM_FAILED] Query terminated: [FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error \
while reading file file:///data/in/00005.parquet. Data type mismatches when reading Parquet column [bytes]. Expected \
Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001
"""
PYTHON = """[STREAM_FAILED] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown from the Python \
worker: Traceback (most recent call last):
  File "fetch.py", line 80, in fetch
holdfast.errors.HoldfastError: rows of talkers-1.0 did not come within 60 s
"""


def test_a_file_that_cannot_be_parsed_is_named():
    why = Reason("s", RuntimeError(CORRUPT))
    assert why.what == "stage s: cannot read file:///data/in/00004.parquet"
    assert why.kind == "FAILED_READ_FILE.NO_HINT"
    assert "/data/out" not in str(why.fields())


def test_a_column_whose_type_changed_is_named_with_its_file():
    why = Reason("s", RuntimeError(CHANGED))
    assert "00005.parquet" in why.what
    assert "bytes" in why.detail


def test_an_error_of_a_python_worker_is_told_by_its_last_line():
    why = Reason("s", RuntimeError(PYTHON))
    assert why.detail == "holdfast.errors.HoldfastError: rows of talkers-1.0 did not come within 60 s"


@pytest.mark.parametrize("text", ["Answer from Java side is empty", "[Errno 111] Connection refused"])
def test_a_dead_jvm_is_called_that(text):
    assert Reason("s", RuntimeError(text)).what == "stage s: its JVM is gone"


def test_errors_of_ours_keep_their_words():
    why = Reason("s", InputError("what", detail="where", hint="do this"))
    assert (why.what, why.detail, why.hint) == ("what", "where", "do this")
    assert set(why.fields()) == {"stage", "reason", "what", "detail", "hint"}


def test_what_java_says_is_told_and_not_that_something_was_called():
    text = (
        "An error occurred while calling o79.count.\n"
        ": org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost;\n"
        "Reason: Could not read records in offset [10, 400) for topic partition packets-0\n"
        "\tat org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.get(KafkaDataConsumer.scala:422)\n"
        "Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: out of range\n\t... 1 more\n"
    )
    assert Reason("s", RuntimeError(text)).detail == (
        "KafkaIllegalStateException: Some data may have been lost; "
        "Reason: Could not read records in offset [10, 400) for topic partition packets-0"
    )
