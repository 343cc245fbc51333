"""What may be said of a Kafka sink, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.pipeline import light_sink
from holdfast.pipeline.api import Stream
from holdfast.pipeline.kafka import POSITIONS, KafkaTarget, check_target
from holdfast.pipeline.layout import lay_out

SCHEMA = pa.schema(
    [("window_start", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64()), ("raw", pa.binary())]
)


def counts(pipeline: hf.Pipeline) -> Stream:
    read = pipeline.read(lambda spark: None, event_time="ts", watermark="1 s", name="packets")
    return read.window("10 s").by("k").agg(n=hf.count(), name="talkers")


def written(**said: Any) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    counts(pipeline).write_kafka(**{"topic": "out", "bootstrap": "kafka:9092", "name": "sink", **said})
    return pipeline


def test_a_kafka_sink_is_a_sink_without_spark_and_is_explained():
    pipeline = written(key="k", options={"security.protocol": "SSL", "enable.ssl.certificate.verification": True})
    layout = lay_out(pipeline)
    stage = layout.stages["sink"]
    assert (stage.kind, stage.reads) == ("sink", ("talkers",))
    assert next(s for s in layout.topology("q").stages if s.id == "sink").light
    target = light_sink(pipeline, "sink").kafka
    assert target is not None
    assert (target.topic, target.key, target.value, target.positions) == ("out", "k", None, POSITIONS)
    assert target.options["enable.ssl.certificate.verification"] == "true"


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"topic": "no spaces"}, "topic 'no spaces' is not the name of a Kafka topic"),
        ({"topic": ""}, "topic '' is not the name"),
        ({"topic": POSITIONS}, "topic and positions are the same"),
        ({"bootstrap": "kafka"}, "bootstrap 'kafka' names no broker"),
        ({"bootstrap": "kafka:9092,"}, "names no broker"),
        ({"bootstrap": "kafka:99999"}, "names no broker"),
        ({"bootstrap": ["kafka:9092"]}, "names no broker"),
        ({"key": []}, r"key \[\] names no columns"),
        ({"value": 7}, "value 7 names no columns"),
        ({"value": ["n", "n"]}, "value names a column twice"),
        ({"wait": "soon"}, "wait"),
        ({"options": {"transactional.id": "mine"}}, "transactional.id is Holdfast's to set"),
        ({"options": "linger.ms=5"}, "options are not a dictionary"),
        ({"result": "out"}, "result"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_the_call_and_names_its_line(said, what):
    with pytest.raises(ConfigError, match=f"write_kafka sink: .*{what}") as refused:
        written(**said)
    assert "test_pipeline_kafka.py:" in refused.value.detail or said.keys() & {"wait"}


def test_a_step_before_a_kafka_sink_and_a_union_are_refused():
    pipeline = hf.Pipeline("p")
    counts(pipeline).filter("n > 1").write_kafka(topic="out", bootstrap="kafka:9092", name="sink")
    with pytest.raises(ConfigError, match=r"sink: filter \(.*\) stands between talkers and write_kafka"):
        lay_out(pipeline)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"key": "K"}, "sink: key has no column named 'K'"),
        ({"value": ("n", "octets")}, "sink: value has no column named 'octets'"),
        ({"value": None}, "sink: value: column 'raw' is binary, which JSON cannot hold"),
        ({"key": ("raw",)}, "sink: key: column 'raw' is binary"),
        ({"options": {"no.such.setting": "1"}}, "sink: Kafka's client refuses the options"),
        ({"options": {"linger.ms": "soon"}}, "sink: Kafka's client refuses the options"),
    ],
)
def test_what_the_results_cannot_be_written_as_is_refused_when_it_is_planned(said, what):
    given = {"key": "k", "value": ("k", "n"), **said}
    with pytest.raises(ConfigError, match=what):
        check_target(KafkaTarget(topic="out", bootstrap="kafka:9092", **given), SCHEMA, "sink")


def test_what_can_be_written_is_taken_without_asking_a_broker():
    for value in ("raw", "k", "n", ("k", "n", "window_start")):
        check_target(KafkaTarget(topic="out", bootstrap="kafka:9092", key=None, value=value), SCHEMA, "sink")
