"""The driver of a stage as `foreachBatch` sees it: run a batch, and wait until it counts.

`StageDriver` decides, `MachineLoop` runs it; this is the door between Spark's thread and the loop's. A wait has no end
of its own, since a node's death must never end a query: it ends when the batch counts, when a newer driver has taken
over (`StageFenced`), or when this process is told to stop. Meanwhile it says every so often what it waits for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.ready import BatchDone, Done, Effect, LogBatch, Opened, StageFailed
from holdfast.core.stage import Phase, RunBatch, StageDriver
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, Name, driver_of
from holdfast.model.latency import HandOverClock
from holdfast.model.note import Note
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import NEVER_US, Plan, to_core
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Record
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.stable.batches import BatchLog
from holdfast.runtime.stable.door import StoreDoor

#: How often a wait says what it waits for.
SAY_S = 5.0
RECORD_S_MAX = 60.0
#: So long a driver that ends waits for seals that are on their way.
SEALS_S_MAX = 5.0

Say = Callable[..., None]


class StageFenced(HoldfastError):
    """A newer driver of this stage exists, or its ledger is of another query: nothing more may be done here."""

    def __init__(self, what: str, *, reason: HandOverReason, detail: str = "", hint: str = "") -> None:
        super().__init__(what, detail=f"{reason} {detail}".strip(), hint=hint)
        self.reason = reason


class Stopped(HoldfastError):
    """This process was told to stop; the batch was not handed over and will be run again."""


def ask_record(peer: Peer, say: Say, limit_s: float = RECORD_S_MAX) -> Record:
    """The placement record, from the first node that knows it."""
    until = time.monotonic() + limit_s
    said, trouble = time.monotonic(), "no node has been asked"
    while time.monotonic() < until:
        for name, answer in peer.caller.call_all("record"):
            try:
                if isinstance(answer, HoldfastError):
                    raise answer
                record = msgspec.msgpack.decode(answer, type=Record)
                if record.version:
                    return record
                trouble = f"{name} does not know the record yet"
            except (HoldfastError, msgspec.MsgspecError) as error:
                trouble = str(error)
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            say("waiting", what="the placement record", detail=trouble)
        time.sleep(0.1)
    raise HoldfastError(
        "no node answers with the placement record",
        detail=f"Asked {', '.join(sorted(peer.endpoints))} for {limit_s:g} s. {trouble}",
        hint="Are the nodes running, and is this the secret of their cluster?",
    )


def ask_config(peer: Peer) -> Config:
    """The settings that the nodes run with: times and credits must be alike on both sides."""
    for _, answer in peer.caller.call_all("config"):
        with contextlib.suppress(HoldfastError, msgspec.MsgspecError):
            if not isinstance(answer, HoldfastError):
                return msgspec.json.decode(answer, type=Config)
    return Config()


class StageHandOver:
    """One life of a stage's driver."""

    def __init__(
        self,
        plan: Plan,
        stage: Asset,
        epoch: int,
        endpoints: dict[Name, str],
        security: Security,
        say: Say,
        stopping: threading.Event | None = None,
        store: StoreDoor | None = None,
    ) -> None:
        self.stage = stage
        self.epoch = epoch
        self.say = say
        #: Set: give up waiting.
        self.stopping = stopping or threading.Event()
        self._effects: queue.SimpleQueue[Effect | BaseException] = queue.SimpleQueue()
        self._loop: MachineLoop | None = None
        #: How long the parts of a hand-over take.
        self.clock = HandOverClock()
        self.peer = Peer(driver_of(stage, epoch), endpoints, security, self._received, self._troubled)
        record = ask_record(self.peer, say)
        config = ask_config(self.peer)
        driver = StageDriver(plan.topology.stage[stage], epoch, config, record, time.monotonic_ns())
        self._loop = MachineLoop(
            driver,
            self.peer.send,
            on_effect=self._on_effect,
            on_notes=self._on_notes,
            on_crash=self._effects.put,
            name=driver.address,
        )
        #: Where batches are kept before they count, if the pipeline has a store.
        self._log = BatchLog(store, plan.query, self._on_logged) if store is not None else None
        #: The ledger's last commit, kept here so that Spark's thread need not ask the loop.
        self.last: CommitRecord | None = None

    def _on_notes(self, noted: list[Note]) -> None:
        self.clock.on_notes(noted, time.monotonic_ns())

    def _on_effect(self, effect: Effect) -> None:
        if not isinstance(effect, LogBatch):
            self._effects.put(effect)
        elif self._log is not None:
            self._log.want(effect)
        else:
            self._effects.put(
                ConfigError(
                    f"stage {self.stage} does not know the store of this pipeline",
                    detail="Its batches would have to be kept there before they count.",
                    hint="Programs that write to a port cannot feed a pipeline with a store yet.",
                )
            )

    def _on_logged(self, done: Done) -> None:
        """On the log's thread. A store that refuses makes the stage wait, and a person has to know why."""
        assert self._loop is not None
        if not done.ok:
            self.say("waiting", what="the store", detail=done.why)
        self._loop.post(done)

    def _received(self, source: str, message: Any) -> None:
        if self._loop is not None:
            self._loop.received(source, message)

    def _troubled(self, what: str, peer: str, text: str) -> None:
        """A batch that is too large to be sent, say: it would be tried again and again, and nobody would know why."""
        self.say("waiting", what=f"{peer}: {what}", detail=text)

    @property
    def driver(self) -> StageDriver:
        assert self._loop is not None
        machine = self._loop.machine
        assert isinstance(machine, StageDriver)
        return machine

    @property
    def watermark(self) -> int:
        """Of the last commit, in the core's terms."""
        return self.driver.watermark

    def open(self) -> CommitRecord | None:
        """Take over the ledger, finish what it says is committed; gives its last commit."""
        assert self._loop is not None
        self._loop.start()
        effect = self._wait(Opened, "the ledger")
        self.last = effect.commit
        return self.last

    def run(
        self,
        parts: dict[Edge, Any],
        *,
        spark_batch: int,
        plan: str,
        max_us: int = NEVER_US,
        late: int = 0,
        bad: int = 0,
        watermark: int | None = None,
        idle_ns: int | None = None,
        final: bool = False,
        gap: int = 0,
        positions: Mapping[str, int] | None = None,
    ) -> CommitRecord:
        """Hand a batch over; returns when it counts. A final one is sealed, too: nothing comes after it.

        positions: where the source stands after it, if it is not one of Spark's."""
        assert self._loop is not None
        batch = self.last.batch + 1 if self.last else 0
        event = RunBatch(
            batch=batch,
            parts=parts,
            offsets=(spark_batch, spark_batch + 1),
            event_time_max=to_core(max_us),
            late=late,
            bad=bad,
            final=final,
            watermark=watermark,
            idle_ns=idle_ns,
            plan=plan,
            gap=gap,
            positions=dict(positions or {}),
        )
        self.clock.post(time.monotonic_ns())
        self._loop.post(event)
        self._wait(BatchDone, f"batch {batch}")
        self.last = self.driver.last
        assert self.last is not None
        return self.last

    def close(self) -> None:
        """End, when every holder has sealed the last batch, or after a moment: then the next driver sees to it."""
        if self._loop is not None:
            until = time.monotonic() + SEALS_S_MAX
            while self._is_sealing() and time.monotonic() < until:
                self.stopping.wait(0.01)
            self._loop.stop()
        if self._log is not None:
            self._log.close()
        self.peer.close()

    def _is_sealing(self) -> bool:
        assert self._loop is not None
        waits = self.driver.phase is Phase.READY and self.driver.unsealed()
        return bool(waits) and self._loop.failure is None and not self.stopping.is_set()

    def _wait(self, kind: type, what: str) -> Any:
        said = time.monotonic()
        while True:
            try:
                effect = self._effects.get(timeout=0.2)
            except queue.Empty:
                if self.stopping.is_set():
                    raise Stopped(f"stage {self.stage} was told to stop while it waited for {what}") from None
                if time.monotonic() - said > SAY_S:
                    said = time.monotonic()
                    self.say("waiting", what=what, detail=self.standing())
                continue
            if isinstance(effect, kind):
                return effect
            if isinstance(effect, StageFailed):
                raise StageFenced(
                    f"stage {self.stage}: epoch {self.epoch} may not go on",
                    reason=effect.reason,
                    detail=effect.detail,
                    hint="A newer driver of this stage runs elsewhere; this one ends.",
                )
            if isinstance(effect, BaseException):
                raise effect

    def standing(self) -> str:
        """Who has not answered yet, in the present phase."""
        if self.peer.refused:
            return self.peer.refused
        driver = self.driver
        phase, grouped = driver.phase, driver.grouped
        if not driver.complete:
            lost = [u for u in driver.spec.shards if driver.record.places[u].primary is None]
            return f"shards {', '.join(lost)} are lost: every node that held them is gone"
        if phase in (Phase.OPENING, Phase.COMMITTING):
            asked = driver.unwritten() if phase is Phase.COMMITTING else [driver.ledger.primary or "no node"]
            return f"{phase.value}: no answer from the ledger on {', '.join(asked)}"
        if driver.spoilt:
            return f"{phase.value}: a holder got other rows than were sent to it; the next try goes to every holder"
        if phase is Phase.DELIVERING and driver.logs and driver.logged != driver.attempt:
            return f"{phase.value}: the store has not taken the batch"
        undelivered = [s for s in grouped if driver.delivered.get(s) != grouped[s]]
        seats = undelivered if phase is Phase.DELIVERING else driver.unsealed()
        return f"{phase.value}: no answer from {', '.join(sorted(seats)) or 'nobody'}"
