"""A Kafka sink: batches of results into a topic, each in one transaction with the position after it.

The position is an offset of a consumer group that nobody consumes with: of the group `holdfast/RUN/SINK`, on partition
0 of the topic `positions`, which stays empty. Its offset is the number of the next batch, its metadata names the last
one by its content. The transactional id has the same name, so the broker knows one producer of a sink at a time.

Why every row counts once, whatever is killed and whenever:

1. *A number always means the same rows.* Where a batch ends is durable before it is written, and the first such plan
   of a number is the only one (`checkpoint.plan_batch`); rows at positions never change.
2. *One writer.* `init_transactions` ends what an older life has begun: an open transaction is aborted, one that has
   begun to commit is completed first, and after it the broker refuses the old life for good. So the position that is
   read after it (only what is committed, and only when nothing of the group is open) changes by this life alone.
3. *A batch is written only if the position is not beyond it, and moves the position.* Rows and position are committed
   or aborted together. A second transaction with a batch would need a life that read the position before the first
   was committed, and commits after it; by 2 the broker refuses that.
4. *A batch is noted as written only when its commit was confirmed, or the position is beyond it.* A commit whose end
   is not known is never taken for one: the producer is thrown away, and a new one begins at 2. So none is left out.
5. *Absence proves nothing.* A position is there before the first batch is planned. Where a batch is planned and there
   is none (the group was deleted, or expired while the run was down), the sink stops and says so.

Fenced by the broker means that a newer life exists: this one ends and does not begin anew, or they would take turns.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import xxhash

from holdfast.errors import HoldfastError
from holdfast.model.reasons import HandOverReason
from holdfast.pipeline.graph import SinkBatch
from holdfast.pipeline.kafka import BEGAN, KafkaTarget, client
from holdfast.spark import checkpoint
from holdfast.spark.hand_over import Say, StageFenced, Stopped
from holdfast.spark.kafka_calls import CallLost, ClientCalls
from holdfast.spark.kafka_rows import records_of

#: One call to the client; between them it is looked whether to stop.
SLICE_S = 0.5
#: A call that has not come back after so many times the client's limit for a request never will.
LOST_AFTER = 2.5
#: A wait is told after so long, and then again and again.
TELL_S = 3.0
#: A topic that has been unknown for this time is not there.
GONE_S = 3.0
#: Between two tries.
PAUSE_S = 0.2
#: A position is written again after so long without rows, so that it does not expire while the sink runs.
REFRESH_S = 600.0
#: Errors of one record after another are not listed.
TROUBLE_MAX = 300
#: The client's own settings, where the user has no others. Its pauses between tries of a request are of the order of a
#: transaction: the broker is still closing the last one when the next one begins.
SETTINGS = {
    "retry.backoff.ms": "5",
    "retry.backoff.max.ms": "100",
    "reconnect.backoff.max.ms": "1000",
    "socket.timeout.ms": "10000",
    "linger.ms": "0",
    "queue.buffering.max.messages": "500000",
    "partitioner": "murmur2_random",
}

_T = TypeVar("_T")


class Patience:
    """Of one piece of work: how long it may wait for the broker, who is told, and whether it should stop."""

    def __init__(self, sink: str, target: KafkaTarget, say: Say, stopping: threading.Event) -> None:
        self._sink, self._target, self._say, self._stopping = sink, target, say, stopping
        self._since = self._told = time.monotonic()

    def passed_s(self) -> float:
        return time.monotonic() - self._since

    def spend(self, trouble: str) -> None:
        """It did not work, and may yet: pause, tell, or give up."""
        now = time.monotonic()
        if now - self._since > self._target.wait_s:
            raise HoldfastError(
                f"sink {self._sink}: {self._target} has not answered for {self._target.wait_s:g} s",
                detail=trouble,
                hint="Nothing is lost: the batch is written when it answers. Is `bootstrap` right, and a broker up?",
            )
        if now - self._told > TELL_S:
            self._told = now
            left = self._target.wait_s - (now - self._since)
            waits = f"For {now - self._since:.0f} s, for {left:.0f} s more at most. {trouble}"
            self._say("waiting", what=f"Kafka ({self._target})", detail=waits)
        if self._stopping.wait(PAUSE_S):
            raise Stopped(f"sink {self._sink} was told to stop while it waited for Kafka")


class KafkaWriter:
    """The writing end of one life of a sink."""

    #: What takes long here is told by itself.
    tells = True

    def __init__(self, target: KafkaTarget, run: str, sink: str, folder: Path, say: Say) -> None:
        self._target = target
        self._sink = sink
        self._folder = folder
        self._say = say
        self._kafka = client(sink)
        #: Of the transactions, and of the group that has the position.
        self._id = f"holdfast/{run}/{sink}"
        self._stopping = threading.Event()
        self._calls = self._new_calls()
        #: Of the work that is being done.
        self._patience = Patience(sink, target, say, self._stopping)
        self._producer: Any = None
        self._group: Any = None
        #: The last batch that is in the topic, and what it was; None: not known.
        self._last: tuple[int, str] | None = None
        self._moved = 0.0
        self._trouble = ""

    # --- what a sink's loop asks

    def prepare(self) -> None:
        """Of a standby: know the brokers. Nothing is fenced by that."""
        with contextlib.suppress(HoldfastError, self._kafka.KafkaException):
            consumer = self._consumer()
            try:
                consumer.list_topics(self._target.topic, timeout=SLICE_S)
            finally:
                consumer.close()

    def begin(self, stopping: threading.Event, committed: int) -> None:
        """Before a batch is planned or written once more in this life: fence older ones, and know the position."""
        self._stopping = stopping
        self._until(self._open)
        planned = checkpoint.newest_planned(self._folder)
        last = self._last
        if last is not None:
            if last[0] > planned:
                raise HoldfastError(
                    f"sink {self._sink}: its checkpoint is older than what it has written",
                    detail=f"{self._target} has batch {last[0]}; {self._folder} ends at batch {planned}.",
                    hint="Bring the newest checkpoint back, or run the pipeline in a new --dir.",
                )
            return
        if planned > committed:
            raise self._not_known(planned)
        self._until(self._note_beginning)
        self._until(lambda: self._place_first(committed))

    def write(self, table: pa.Table, batch: SinkBatch) -> None:
        """Returns when the rows are in the topic, exactly once."""
        digest = _digest(batch)
        records = records_of(self._target, table)
        self._until(lambda: self._once(records, batch.number, digest))

    def idle(self) -> None:
        """Keep the position alive."""
        if self._last is not None and time.monotonic() - self._moved > REFRESH_S:
            self._until(self._place_again)

    def close(self) -> None:
        self._drop()
        self._calls.close()

    # --- one try

    def _once(self, records: tuple[list, list], number: int, digest: str) -> None:
        if self._producer is None:
            self._open()
        if self._last is None:
            raise self._not_known(number)
        if self._last[0] >= number:
            if self._last[0] == number and self._last[1] != digest:
                raise HoldfastError(
                    f"sink {self._sink}: batch {number} was written before, with other rows",
                    detail=f"{self._target} has {self._last[1]}, this is {digest}.",
                    hint="The sink's checkpoint is not the one it had: bring that back, or use a new --dir.",
                )
            return  # by an older life, or by a try whose end was not known
        self._transact(records, number, digest)

    def _not_known(self, number: int) -> HoldfastError:
        return HoldfastError(
            f"sink {self._sink}: whether batch {number} was written is not known",
            detail=f"Group {self._id} has no position on {self._target.positions}: it was deleted, or has expired.",
            hint=f"Look whether the topic has its rows. If so, make the file {self._folder}/commits/{number} (empty "
            f"will do); if not, remove {self._folder}/offsets/{number}.",
        )

    def _place_first(self, committed: int) -> None:
        if self._producer is None:
            self._open()
        if self._last is None:  # a try whose end was not known may have done it
            self._transact(None, committed, "")

    def _place_again(self) -> None:
        """Never what was known before a fence: a newer life may have moved it since."""
        if self._producer is None:
            self._open()
        if self._last is not None:
            self._transact(None, *self._last)

    def _open(self) -> None:
        """Fence whoever wrote before, then see how far it came. In this order, or it could still write."""
        target, kafka = self._target, self._kafka
        consumer = self._consumer()
        try:
            found = self._call(lambda limit: consumer.list_topics(target.topic, timeout=limit)).topics[target.topic]
            if found.error is not None:
                raise kafka.KafkaException(found.error)
            self._need_positions(consumer)
            producer = kafka.Producer(self._settings())
            self._call(producer.init_transactions)
            place = kafka.TopicPartition(target.positions, 0)
            (at,) = self._call(lambda limit: consumer.committed([place], limit))
            if at.error is not None:
                raise kafka.KafkaException(at.error)
            self._group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        self._producer = producer
        self._last = (at.offset - 1, at.metadata or "") if at.offset >= 0 else None
        self._moved = time.monotonic()

    def _transact(self, records: tuple[list, list] | None, number: int, digest: str) -> None:
        """Rows and the position after them, together. What is there was looked at since this producer was opened."""
        producer: Any = self._producer
        kafka = self._kafka
        place = kafka.TopicPartition(self._target.positions, 0, number + 1, digest)
        self._trouble = ""
        producer.begin_transaction()
        if records is not None:
            self._produce(producer, records)
        self._call(lambda limit: producer.send_offsets_to_transaction([place], self._group, limit))
        self._call(producer.commit_transaction)
        self._last, self._moved = (number, digest), time.monotonic()

    def _produce(self, producer: Any, records: tuple[list, list]) -> None:
        topic = self._target.topic
        for key, value in zip(*records, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:  # more than the client holds at a time
                    if not producer.poll(PAUSE_S):
                        self._patience.spend("Its queue is full.")

    def _call(self, function: Callable[[float], _T]) -> _T:
        """In slices of time; what may be called again is."""
        while True:
            try:
                return self._calls.do(lambda: function(SLICE_S), self._stopping)
            except self._kafka.KafkaException as error:
                found = error.args[0]
                again = found.retriable() or found.code() == self._kafka.KafkaError._TIMED_OUT
                if found.fatal() or found.txn_requires_abort() or not again:
                    raise
                self._patience.spend(self._said(found))

    # --- tries until it is done

    def _until(self, work: Callable[[], _T]) -> _T:
        """Whatever goes wrong, nothing of it is taken for done: a new producer finds out what was."""
        self._patience = Patience(self._sink, self._target, self._say, self._stopping)
        while True:
            try:
                return work()
            except self._kafka.KafkaException as error:
                found = error.args[0]
                self._drop()
                self._give_up_on(found)
                self._patience.spend(self._said(found))
            except CallLost as error:
                self._producer = self._last = None  # left to the thread that is in it
                self._calls = self._new_calls()
                self._patience.spend(str(error))

    def _new_calls(self) -> ClientCalls:
        options = {**SETTINGS, **self._target.options}
        return ClientCalls(f"kafka-{self._sink}", LOST_AFTER * float(options["socket.timeout.ms"]) / 1e3)

    def _says_fenced(self, error: Any) -> bool:
        kinds = self._kafka.KafkaError
        return error.code() in (kinds._FENCED, kinds.PRODUCER_FENCED, kinds.INVALID_PRODUCER_EPOCH)

    def _give_up_on(self, error: Any) -> None:
        """What waiting does not help against."""
        kinds, code = self._kafka.KafkaError, error.code()
        if self._says_fenced(error):
            raise StageFenced(
                f"sink {self._sink}: the broker has fenced it", reason=HandOverReason.EPOCH_OVER, detail=error.str()
            )
        if code in (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_TOPIC, kinds._UNKNOWN_PARTITION):
            if self._patience.passed_s() < GONE_S:
                return  # brokers hear of a new topic one after the other
            raise HoldfastError(
                f"sink {self._sink}: there is no topic {self._target.topic} at {self._target.bootstrap}",
                detail=f"{self._said(error)}.",
                hint="Create it. Nothing is lost: the batch is written when it is there.",
            )
        if code in _refusals(kinds):
            raise HoldfastError(
                f"sink {self._sink}: Kafka refuses it ({self._target})",
                detail=f"{error.name()}: {self._said(error)}",
                hint="The client's settings are given with options=; docs/kafka.md says what a sink must be allowed.",
            )

    def _said(self, error: Any) -> str:
        """What the client says, and what it has said meanwhile about records and connections."""
        text = error.str() if hasattr(error, "str") else str(error)
        more = f" ({self._trouble})" if self._trouble and self._trouble not in text else ""
        return f"{text}{more}"[:TROUBLE_MAX]

    def _drop(self) -> None:
        """Its open transaction is aborted by whoever begins next, or by the broker in a minute."""
        producer, self._producer, self._last = self._producer, None, None
        if producer is not None:
            with contextlib.suppress(Exception):
                producer.purge(blocking=False)

    # --- the client

    def _settings(self) -> dict[str, Any]:
        return {
            **SETTINGS,
            **self._target.options,
            "bootstrap.servers": self._target.bootstrap,
            "transactional.id": self._id,
            "delivery.report.only.error": True,
            "on_delivery": self._on_record,
            "error_cb": self._on_error,
        }

    def _consumer(self) -> Any:
        """It consumes nothing: it knows topics and positions, and unlike a producer it makes no topic by asking."""
        return self._kafka.Consumer(
            {
                "retry.backoff.ms": SETTINGS["retry.backoff.ms"],
                "reconnect.backoff.max.ms": SETTINGS["reconnect.backoff.max.ms"],
                **self._shared_options(),
                "bootstrap.servers": self._target.bootstrap,
                "group.id": self._id,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "error_cb": self._on_error,
            }
        )

    def _on_record(self, error: Any, record: Any) -> None:
        """Called for records that were not taken, and for no others."""
        if error is not None:
            self._trouble = error.str()

    def _on_error(self, error: Any) -> None:
        self._trouble = error.str()

    # --- what has to be there

    def _need_positions(self, consumer: Any) -> None:
        """The topic whose name the positions are under. It stays empty, so one partition is enough for all sinks."""
        name, kafka = self._target.positions, self._kafka
        found = self._call(lambda limit: consumer.list_topics(name, timeout=limit)).topics[name]
        if found.error is None:
            return
        admin_client = importlib.import_module("confluent_kafka.admin")
        admin = admin_client.AdminClient({"bootstrap.servers": self._target.bootstrap, **self._shared_options()})
        made = admin.create_topics([admin_client.NewTopic(name, 1)])[name]
        try:
            made.result(TELL_S)
        except kafka.KafkaException as error:
            if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise HoldfastError(
                    f"sink {self._sink}: the topic {name} is not there, and cannot be made",
                    detail=f"{self._said(error.args[0])}.",
                    hint="Create it, with one partition: it names the positions of sinks, and stays empty.",
                ) from error
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.LEADER_NOT_AVAILABLE))  # look again in a moment

    def _shared_options(self) -> dict[str, str]:
        return {name: value for name, value in self._target.options.items() if name not in _PRODUCERS}

    def _note_beginning(self) -> None:
        """For `verify`: what the topic had before the first batch is not of this sink."""
        path = self._folder / BEGAN
        if path.exists():
            return
        topic, began = self._target.topic, {}
        consumer = self._consumer()
        try:
            found = self._call(lambda limit: consumer.list_topics(topic, timeout=limit)).topics[topic]
            for number in sorted(found.partitions):
                place = self._kafka.TopicPartition(topic, number)
                _, began[str(number)] = self._call(
                    lambda limit, place=place: consumer.get_watermark_offsets(place, timeout=limit)
                )
        finally:
            consumer.close()
        checkpoint.note_beside(path, json.dumps({"topic": topic, "began": began}))


#: Options that a consumer or an admin client would only warn of.
_PRODUCERS = frozenset(
    (
        *(
            "linger.ms",
            "batch.size",
            "batch.num.messages",
            "compression.type",
            "compression.codec",
            "compression.level",
        ),
        *("partitioner", "transaction.timeout.ms", "message.timeout.ms", "delivery.timeout.ms", "request.timeout.ms"),
        *("queue.buffering.max.messages", "queue.buffering.max.kbytes", "queue.buffering.max.ms"),
        *("sticky.partitioning.linger.ms", "message.send.max.retries", "retries", "retry.backoff.max.ms"),
    )
)


def _refusals(kinds: Any) -> tuple[int, ...]:
    return (
        kinds.TOPIC_AUTHORIZATION_FAILED,
        kinds.GROUP_AUTHORIZATION_FAILED,
        kinds.CLUSTER_AUTHORIZATION_FAILED,
        kinds.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        kinds.SASL_AUTHENTICATION_FAILED,
        kinds._AUTHENTICATION,
        kinds.INVALID_TRANSACTION_TIMEOUT,
        kinds.MSG_SIZE_TOO_LARGE,
        kinds.INVALID_MSG,
        kinds.INVALID_MSG_SIZE,
        kinds.POLICY_VIOLATION,
        kinds.UNSUPPORTED_VERSION,
        kinds.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        kinds._UNSUPPORTED_FEATURE,
        kinds._INVALID_ARG,
        kinds._SSL,
    )


def _digest(batch: SinkBatch) -> str:
    """What a batch is, in few letters: where it ends on every edge."""
    ends = json.dumps(batch.positions, sort_keys=True)
    return f"batch {batch.number} {xxhash.xxh3_64_hexdigest(ends.encode())}"
