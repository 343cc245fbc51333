"""A Kafka sink on real node processes and a real broker, without Spark: whatever is killed, each row counts once."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from support.arrow_runs import difference_of, finish, home_of, told
from support.kafka import Broker
from support.nodes import Nodes
from support.plans import ROWS, WINDOW_US, aggregate_plan

from holdfast.errors import HoldfastError, InputError
from holdfast.model.plan import Plan, StagePlan
from holdfast.pipeline import load
from holdfast.pipeline.graph import SinkBatch
from holdfast.pipeline.kafka import KafkaTarget, read_topic
from holdfast.pipeline.layout import lay_out
from holdfast.spark import checkpoint
from holdfast.spark.hand_over import StageFenced
from holdfast.spark.kafka_sink import KafkaWriter

pytestmark = pytest.mark.long

PIPELINE = """
import holdfast as hf

pipeline = hf.Pipeline("kafka")
given = pipeline.read(lambda spark: None, event_time="ts", watermark="20 ms", name="s0")
counts = given.window("100 ms").by("key").agg(n=hf.count(), total=hf.sum("value"), shards=2, name="u")
counts.write_kafka(topic="counts", bootstrap="{address}", key="key", name="r0", wait="{wait}")
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("kafka"), connector=False)
    yield made
    made.close()


@pytest.fixture
def topic(broker: Broker) -> Iterator[Broker]:
    broker.create("counts", 3)
    yield broker
    broker.delete("counts")


def kafka_plan(base: Path, address: str, wait: str) -> Plan:
    file = base / "kafka.py"
    file.write_text(PIPELINE.replace("{address}", address).replace("{wait}", wait))
    aggs = {"n": ["count", None, False], "total": ["sum", "value", False]}
    operator = aggregate_plan("u", [("s0", ROWS, "ts")], WINDOW_US, aggs, shards=2)
    stages = (
        StagePlan(id="s0", kind="source", feeds=(("u", 0),), delay_us=20_000, event_time="ts"),
        StagePlan(id="r0", kind="sink", reads=("u",), arrow=True),
    )
    query = f"kafka-{base.name}"
    topology = lay_out(load(file)).topology(query)
    return Plan(pipeline="kafka", query=query, topology=topology, operators=(operator,), stages=stages)


def begin(base: Path, address: str, wait: str = "10 minutes", **settings: Any) -> Nodes:
    plan = kafka_plan(base, address, wait)
    settings = {"standby": True, "standby_delay": "100 ms", **settings}
    made = Nodes(base / "run", plan, 4, settings=settings, trigger_ms=60)
    (made.dir / "pipeline.py").write_text((base / "kafka.py").read_text())
    made.start()
    made.wait_up()
    made.begin()
    return made


@pytest.fixture
def nodes(topic: Broker, tmp_path: Path) -> Iterator[Nodes]:
    made = begin(tmp_path, topic.address)
    yield made
    made.close()


def content(broker: Broker) -> pa.Table:
    """What a consumer with `read_committed` finds in the topic."""
    target = KafkaTarget(topic="counts", bootstrap=broker.address, key=None, value=None)
    found = [json.loads(value) for value in read_topic(target, "r0", {}).to_pylist()]
    columns = {name: pa.array([row[name] for row in found], pa.int64()) for name in ("key", "n", "total")}
    starts = pa.array([row["window_start"] for row in found], pa.string())
    return pa.table({"window_start": starts.cast(pa.timestamp("us", "UTC")), **columns})


def rows_in(broker: Broker) -> int:
    try:
        return content(broker).num_rows
    except InputError:  # it is down
        return 0


def sink_process(nodes: Nodes) -> int:
    """The process that the sink runs in now."""

    def found() -> int:
        place = nodes.status()["places"]["r0"]["primary"].partition("#")[0]
        driver = nodes.status(place)["drivers"].get("r0", {}) if place else {}
        return driver["pid"] if driver.get("epoch") else 0

    return nodes.until("a process of the sink", found, 60)


def grows(nodes: Nodes, broker: Broker, rows: int = 50, seconds: float = 240.0) -> None:
    before = rows_in(broker)
    nodes.until("rows", lambda: rows_in(broker) > before + rows, seconds)


def test_kills_of_nodes_and_light_processes_at_any_moment_leave_every_row_once(nodes: Nodes, topic: Broker):
    chance = random.Random(19)
    grows(nodes, topic)
    for turn in range(8):
        grows(nodes, topic, chance.randrange(1, 120))
        time.sleep(chance.random() * 0.1)  # anywhere in a batch
        if turn % 4 == 3:
            victim = home_of(nodes)
            nodes.kill(victim)
            grows(nodes, topic)
            nodes.start(victim)
        else:
            os.kill(sink_process(nodes), signal.SIGKILL)
    grows(nodes, topic)
    finish(nodes)
    assert difference_of(nodes, content(topic)) == (0, 0)
    assert not any("JVM" in e["text"] for name in nodes.names for e in nodes.events(name))


def test_a_process_that_is_stopped_is_fenced_by_the_broker_and_does_no_harm_when_it_goes_on(
    nodes: Nodes, topic: Broker
):
    grows(nodes, topic)
    victim, process = home_of(nodes), sink_process(nodes)
    nodes.signal(victim, signal.SIGSTOP)
    os.kill(process, signal.SIGSTOP)
    nodes.until("another node to run it", lambda: nodes.status()["places"]["r0"]["primary"].partition("#")[0] != victim)
    grows(nodes, topic)
    os.kill(process, signal.SIGCONT)
    nodes.signal(victim, signal.SIGCONT)
    grows(nodes, topic)
    finish(nodes)
    assert difference_of(nodes, content(topic)) == (0, 0)


def test_a_broker_that_is_away_for_30_s_is_waited_for_and_nothing_is_lost(nodes: Nodes, topic: Broker):
    grows(nodes, topic)
    before = len(told(nodes, "stage-waiting"))
    topic.kill()
    waits = nodes.until("word of the wait", lambda: told(nodes, "stage-waiting")[before:], 180)
    assert "r0 waits for Kafka (topic counts at 127.0.0.1:" in waits[0]["text"]
    time.sleep(30)
    topic.start()
    grows(nodes, topic)
    assert not told(nodes, "stage-failed")
    finish(nodes)
    assert difference_of(nodes, content(topic)) == (0, 0)


def test_a_topic_that_is_gone_is_one_clear_line_and_the_sink_goes_on_when_it_is_back(nodes: Nodes, topic: Broker):
    grows(nodes, topic)
    topic.delete("counts")
    failed = nodes.until("word of it", lambda: told(nodes, "stage-failed"), 180)
    assert failed[0]["text"].startswith(f"sink r0: there is no topic counts at {topic.address}.")
    topic.create("counts", 2)
    grows(nodes, topic)
    finish(nodes)
    missing, wrong = difference_of(nodes, content(topic))
    assert not wrong
    assert missing  # what the topic had is gone with it


def test_another_producer_under_its_name_fences_a_sink_which_comes_back_as_a_newer_one(nodes: Nodes, topic: Broker):
    grows(nodes, topic)
    thieves: list[Producer] = []

    def robbed() -> bool:
        """A sink that is just opening its producer fences the thief, and not the other way round."""
        thief = Producer({"bootstrap.servers": topic.address, "transactional.id": f"holdfast/{nodes.plan.query}/r0"})
        thief.init_transactions(60)
        thief.begin_transaction()
        thief.produce("counts", b"not of this run")
        thief.poll(2)
        thieves.append(thief)
        return any("the broker has fenced it" in event["text"] for event in told(nodes, "stage-failed"))

    nodes.until("word of it", robbed, 180)
    grows(nodes, topic)
    for thief in thieves:
        with pytest.raises(KafkaException, match="fenced"):
            thief.commit_transaction(60)
    finish(nodes)
    assert difference_of(nodes, content(topic)) == (0, 0)


def test_a_bootstrap_where_nobody_listens_is_a_wait_and_then_one_clear_line(tmp_path: Path):
    nodes = begin(tmp_path, "127.0.0.1:9", wait="6 s")
    try:
        waits = nodes.until("word of the wait", lambda: told(nodes, "stage-waiting"), 180)
        assert "r0 waits for Kafka (topic counts at 127.0.0.1:9)" in waits[0]["text"]
        failed = nodes.until("the end of it", lambda: told(nodes, "stage-failed"), 180)
        assert failed[0]["text"].startswith("sink r0: topic counts at 127.0.0.1:9 has not answered for 6 s.")
    finally:
        nodes.close()


# --- one writer after another, without nodes


class Lives:
    """Writers of one sink, one after the other, and its checkpoint."""

    def __init__(self, address: str, folder: Path) -> None:
        self.target = KafkaTarget(topic="counts", bootstrap=address, key="k", value=None, wait_s=60)
        self.folder = folder
        self.said: list[tuple[str, dict]] = []

    def begin(self, committed: int) -> KafkaWriter:
        say = lambda event, **fields: self.said.append((event, fields))  # noqa: E731
        writer = KafkaWriter(self.target, f"run-{self.folder.parent.name}", "r0", self.folder, say)
        writer.begin(threading.Event(), committed)
        return writer

    def write(self, writer: KafkaWriter, number: int, end: int | None = None) -> None:
        checkpoint.plan_batch(self.folder, number, {"u-0.0": [10 + number, 0]})
        positions = {"u-0.0": 10 + number if end is None else end}
        table = pa.table({"k": ["a", "b", "c"], "n": [number] * 3})
        writer.write(table, SinkBatch(run="run", sink="r0", number=number, positions=positions))

    def held(self) -> list[int]:
        """How many records there are of each batch."""
        found = [json.loads(value)["n"] for value in read_topic(self.target, "r0", {}).to_pylist()]
        return [found.count(number) for number in range(max(found, default=-1) + 1)]


@pytest.fixture
def lives(topic: Broker, tmp_path: Path) -> Lives:
    return Lives(topic.address, tmp_path / "r0")


def test_a_batch_that_is_given_again_is_there_once_whoever_gives_it(lives: Lives):
    first = lives.begin(-1)
    lives.write(first, 0)
    lives.write(first, 0)
    second = lives.begin(-1)  # the first one was killed before it could note the batch
    lives.write(second, 0)
    lives.write(second, 1)
    with pytest.raises(StageFenced, match="the broker has fenced it"):
        lives.write(first, 2)
    lives.write(second, 2)
    assert lives.held() == [3, 3, 3]


def test_what_a_killed_life_has_begun_is_not_read_and_cannot_be_committed_any_more(lives: Lives):
    first = lives.begin(-1)
    lives.write(first, 0)
    first._producer.begin_transaction()
    first._producer.produce("counts", b'{"k":"zombie","n":1}')
    first._producer.poll(0.5)
    second = lives.begin(0)
    assert lives.held() == [3]
    lives.write(second, 1)
    with pytest.raises(KafkaException, match="fenced"):
        first._producer.commit_transaction(30)
    assert lives.held() == [3, 3]


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_whose_end_is_not_known_is_looked_up_and_never_guessed(lives: Lives, done: bool):
    writer = lives.begin(-1)
    lives.write(writer, 0)
    producer = writer._producer

    class Unsure:
        """The connection is lost during the commit: before the broker has it, or after."""

        def __getattr__(self, name: str) -> Any:
            return getattr(producer, name)

        def commit_transaction(self, limit: float) -> None:
            if done:
                producer.commit_transaction(30)
            raise KafkaException(KafkaError(KafkaError._STATE, "nobody knows"))

    writer._producer = Unsure()
    lives.write(writer, 1)
    lives.write(writer, 2)
    assert lives.held() == [3, 3, 3]


def test_a_position_that_is_not_there_stops_the_sink_only_if_a_batch_was_planned(lives: Lives):
    checkpoint.plan_batch(lives.folder, 7, {"u-0.0": [17, 0]})
    with pytest.raises(HoldfastError, match="whether batch 7 was written is not known") as stopped:
        lives.begin(6)
    assert f"{lives.folder}/offsets/7" in stopped.value.hint
    lives.write(lives.begin(7), 8)  # as after an upgrade, under another name of the transactions
    assert lives.held()[-1] == 3


def test_a_checkpoint_that_is_older_than_the_topic_is_refused_and_so_are_other_rows(lives: Lives):
    writer = lives.begin(-1)
    for number in range(3):
        lives.write(writer, number)
    with pytest.raises(HoldfastError, match="batch 2 was written before, with other rows"):
        lives.write(writer, 2, end=99)
    (lives.folder / "offsets" / "2").unlink()
    with pytest.raises(HoldfastError, match="its checkpoint is older than what it has written"):
        lives.begin(1)
    assert lives.held() == [3, 3, 3]
