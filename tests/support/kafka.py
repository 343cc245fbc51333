"""A real Kafka broker (KRaft, one node) on loopback, and the jars that Spark reads from it with.

The broker runs in a JVM of its own behind a py4j gateway, as PySpark's do: so the same process makes topics, writes
rows and forgets them, and no Kafka client for Python is needed. The jars come from Maven's own cache, or through
`mvn` from wherever it is set up to load them; without them nothing here works, and it says so.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from holdfast.jvm import find_java
from support.packets import packets
from support.run import free_ports

#: What the tests run with; docs/kafka.md names the same versions.
BROKER = ("org.apache.kafka:kafka_2.13:4.1.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")
#: Spark's connector. It should be of PySpark's own version, but 4.3.0 is not to be had from Maven Central yet, nor are
#: the parts of 4.2.0 complete: its token provider (for Kerberos, which no test uses) is the newest that there is.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
LOAD_LIMIT_S = 300.0
START_LIMIT_S = 60.0


def jars(directory: Path, artifacts: tuple[str, ...], *, with_what_they_need: bool) -> list[str]:
    """Paths of these artifacts in Maven's cache, loaded if they are not there."""
    rest = "" if with_what_they_need else _tag("exclusions", _tag("exclusion", _coordinates("*", "*")))
    wanted = [_tag("dependency", _coordinates(*one.split(":")) + rest) for one in artifacts]
    project = _tag("modelVersion", "4.0.0") + _coordinates("holdfast.test", "jars", "1")
    directory.mkdir(parents=True, exist_ok=True)
    pom, found = directory / "pom.xml", directory / "classpath"
    pom.write_text(_tag("project", project + _tag("dependencies", "".join(wanted))))
    command = ["mvn", "-q", "-B", "-f", str(pom), f"{PLUGIN}:build-classpath", f"-Dmdep.outputFile={found}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"Kafka's jars cannot be had: mvn is needed, and what it loads from: {error}") from None
    if done.returncode or not found.exists():
        raise AssertionError(f"Kafka's jars cannot be had: mvn failed\n{(done.stdout + done.stderr)[:2000]}")
    return found.read_text().strip().split(os.pathsep)


def _tag(name: str, inside: str) -> str:
    return f"<{name}>{inside}</{name}>"


def _coordinates(group: str, artifact: str, version: str = "") -> str:
    named = _tag("groupId", group) + _tag("artifactId", artifact)
    return named + _tag("version", version) if version else named


class Broker:
    """One broker with its log under `directory`; `connector=False` where Spark reads nothing from it."""

    def __init__(self, directory: Path, connector: bool = True) -> None:
        self.directory = directory
        self._classpath = os.pathsep.join(jars(directory / "broker", BROKER, with_what_they_need=True))
        #: For `spark.jars`.
        self.connector = ""
        if connector:
            self.connector = ",".join(jars(directory / "connector", CONNECTOR, with_what_they_need=False))
        ours, controller = free_ports(2)
        self.address = f"127.0.0.1:{ours}"
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(directory / "log"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "auto.create.topics.enable": "false",
        }
        self.start()

    def start(self) -> None:
        """Also again, after `kill`: with the same address, and what it had."""
        (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
        with open(self.directory / "broker.log", "ab") as log:
            port, token, self.process = launch_gateway(
                jarpath=str(py4j), classpath=self._classpath, javaopts=["-Xmx256m", "-XX:+UseSerialGC"],
                die_on_exit=True, java_path=f"{find_java()}/bin/java", enable_auth=True, redirect_stderr=log,
                return_proc=True,
            )  # fmt: skip
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self.gateway = JavaGateway(gateway_parameters=parameters)
        self.jvm: Any = self.gateway.jvm
        try:
            self._serve()
        except BaseException:
            self.process.kill()
            raise

    def _serve(self) -> None:
        file = self.directory / "server.properties"
        if not file.exists():
            file.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
            words = ["format", "--cluster-id", cluster, "--config", str(file)]
            arguments = self.gateway.new_array(self.jvm.java.lang.String, len(words))
            for i, word in enumerate(words):
                arguments[i] = word
            assert self.jvm.kafka.tools.StorageTool.execute(arguments, self.jvm.System.err) == 0
        config = self.jvm.kafka.server.KafkaConfig.fromProps(self._properties(self._settings))
        self.server = self.jvm.kafka.server.KafkaRaftServer(config, self.jvm.org.apache.kafka.common.utils.Time.SYSTEM)
        self.server.startup()
        text = "org.apache.kafka.common.serialization.StringSerializer"
        clients = self.jvm.org.apache.kafka.clients
        client = {"bootstrap.servers": self.address}
        writer = {"key.serializer": text, "value.serializer": text, "metadata.max.age.ms": "500", "linger.ms": "20"}
        self.admin = clients.admin.Admin.create(self._properties(client))
        self.producer = clients.producer.KafkaProducer(self._properties({**client, **writer}))

    def _properties(self, pairs: dict[str, str]) -> Any:
        found = self.jvm.java.util.Properties()
        for key, value in pairs.items():
            found.setProperty(key, value)
        return found

    def _done(self, future: Any) -> Any:
        return future.get(int(START_LIMIT_S), self.jvm.java.util.concurrent.TimeUnit.SECONDS)

    def create(self, topic: str, partitions: int) -> None:
        made = self.jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
        self._done(self.admin.createTopics([made]).all())

    def delete(self, topic: str) -> None:
        self._done(self.admin.deleteTopics([topic]).all())

    def grow(self, topic: str, partitions: int) -> None:
        more = self.jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(partitions)
        self._done(self.admin.createPartitions({topic: more}).all())

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete the rows before an offset, as a topic's retention does."""
        where = self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        kind = self.jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        arguments = self.gateway.new_array(self.jvm.java.lang.Object, 1)
        arguments[0] = before
        # by reflection: py4j takes `beforeOffset` for the getter of the same name
        bound = next(m for m in kind.getMethods() if m.getName() == "beforeOffset" and m.getParameterCount() == 1)
        self._done(self.admin.deleteRecords({where: bound.invoke(None, arguments)}).all())

    def send(self, topic: str, rows: list[dict]) -> None:
        """Each row as JSON under its `src`; returns when the broker has them."""
        record = self.jvm.org.apache.kafka.clients.producer.ProducerRecord
        for row in rows:
            self.producer.send(record(topic, row["src"], json.dumps(row)))
        self.producer.flush()

    def kill(self) -> None:
        """As kill -9 does. What it had confirmed is in its log."""
        self.process.kill()
        self.process.wait(10)
        self.gateway.close()

    def close(self) -> None:
        self.kill()  # nobody reads its log again


class TopicFeed:
    """Sends a second of packets (support/packets.py) every so often until it is stopped."""

    def __init__(self, broker: Broker, topic: str, every_s: float = 0.3, rows: int = 120) -> None:
        self.broker, self.topic = broker, topic
        self.every_s, self.rows = every_s, rows
        #: How many rows the broker has.
        self.sent = 0
        self.number = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.every_s):
                self.broker.send(self.topic, packets(self.number, rows=self.rows))
                self.sent += self.rows
                self.number += 1
        except BaseException as error:
            self._failure = error

    def wait_sent(self, rows: int, limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while self.sent < rows:
            assert self._failure is None, self._failure
            assert time.monotonic() < until, f"{self.sent} of {rows} rows after {limit_s:g} s"
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._failure is None, self._failure
