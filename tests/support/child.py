"""A driver process without Spark, as a node starts it: feeds deterministic rows, or reads edges into files.

source   batches of what has appeared, through StageDriver; offsets are row numbers
sink     a query that plans, reads, writes and commits as Structured Streaming does, into DIR/sink/

Commands, events and the lives of stages are those of the real one; only what they stand on is another.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import BatchDone, LogBatch, Opened, StageFailed
from holdfast.core.stage import RunBatch, StageDriver
from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.config import Config
from holdfast.model.ids import driver_of, name_of, stage_edge
from holdfast.model.latency import HandOverClock
from holdfast.model.plan import Plan, to_core, to_micros
from holdfast.model.record import Record
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.stable.batches import BatchLog
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark.child import serve
from holdfast.spark.connect import Run
from holdfast.spark.fetch import Order, fetch
from holdfast.spark.follower import GapFiles
from holdfast.spark.hand_over import Say, StageFenced, Stopped
from holdfast.spark.life import Engine
from holdfast.spark.light import LightEngine


class ScriptedEngine:
    """What the stages of this process share."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.dir = Path(order["dir"])
        self.plan = msgspec.json.decode((self.dir / "plan.json").read_bytes(), type=Plan)
        self.settings = json.loads((self.dir / "test.json").read_text())
        self.config = msgspec.convert(order["core"], Config)
        self.security = Security.load(order["secret_file"], order["tls"], order["deployment"])
        stored = order.get("store")
        #: Where batches are kept before they count; None: the nodes have no store.
        self.store = StoreDoor.of(stored["url"], stored["settings"], self.dir / "store.log") if stored else None

    def role(self, stage: str, stopping: threading.Event, say: Say) -> ScriptedRole:
        kind = ScriptedSource if self.plan.stage(stage).kind == "source" else ScriptedSink
        return kind(self, stage, stopping, say)

    def practise(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        pass

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def ask(self) -> None:
        pass

    def wait(self) -> int:
        threading.Event().wait()
        return 0


class ScriptedRole:
    """A thread in the place of a query."""

    def __init__(self, engine: ScriptedEngine, stage: str, stopping: threading.Event, say: Say) -> None:
        self.engine = engine
        self.dir, self.plan, self.settings, self.config = engine.dir, engine.plan, engine.settings, engine.config
        self.stage = stage
        self.say = say
        self.stopping = stopping
        self.finishing = threading.Event()
        self.loop: MachineLoop | None = None
        self.peer: Peer | None = None
        self.query: ScriptedRole | None = None
        self.failure: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, epoch: int) -> bool:
        self.epoch = epoch
        endpoints = self.engine.order["endpoints"]
        self.peer = Peer(driver_of(self.stage, epoch), endpoints, self.engine.security, self._received)
        self.record = ask_record(self.peer, sorted(endpoints))
        if not self.open():
            return False
        self.query = self
        self._thread.start()
        return True

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def awaitTermination(self) -> None:
        self._thread.join()

    def exception(self) -> BaseException | None:
        return self.failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def open(self) -> bool:
        raise NotImplementedError

    def work(self) -> None:
        raise NotImplementedError

    def _received(self, source: str, message: Any) -> None:
        if self.loop is not None:
            self.loop.received(source, message)

    def wait(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise Stopped(f"{self.stage} was told to stop")

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        pass

    def finish(self) -> bool:
        return False

    def is_over(self) -> bool:
        return self.done

    def pause(self, until: float, mark: int) -> None:
        pass

    def is_paused(self) -> bool:
        return False

    def on_idle(self) -> None:
        pass

    def busy_s(self) -> float:
        return 0.0

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(5)

    def close(self) -> None:
        if self.loop is not None:
            self.loop.stop()
        if self.peer is not None:
            self.peer.close()


def ask_record(peer: Peer, names: list[str]) -> Record:
    for _ in range(600):
        for name in names:
            try:
                record = msgspec.msgpack.decode(peer.caller.call_raw(name, "record", timeout=1), type=Record)
            except HoldfastError:
                continue
            if record.version:
                return record
        time.sleep(0.05)
    raise RuntimeError("no node answers")


class ScriptedSource(ScriptedRole):
    """Feeds what has appeared since the start of the test."""

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        from holdfast.runtime.shards import cut
        from support.source import rows

        cut(rows(0, 10, 10), ("key",), 2)  # what a standby can do before it is needed

    def open(self) -> bool:
        spec = self.plan.topology.stage[self.stage]
        self._turn, self._paused = threading.Lock(), (0.0, -1)
        self.effects: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.driver = StageDriver(spec, self.epoch, self.config, self.record, time.monotonic_ns())
        assert self.peer is not None
        door = self.engine.store
        self.log = BatchLog(door, self.plan.query, lambda done: self._post(done)) if door is not None else None
        self.clock = HandOverClock()
        self.loop = MachineLoop(
            self.driver,
            self.peer.send,
            on_effect=self._on_effect,
            on_notes=lambda noted: self.clock.on_notes(noted, time.monotonic_ns()),
            on_crash=self.effects.put,
            name=self.stage,
        )
        self.loop.start()
        opened = self._wait(Opened)
        self.at = opened.commit.offsets[1] if opened.commit else 0
        return not (opened.commit and opened.commit.watermark >= WATERMARK_MAX)

    def _on_effect(self, effect: Any) -> None:
        if isinstance(effect, LogBatch):
            assert self.log is not None
            self.log.want(effect)
        else:
            self.effects.put(effect)

    def _post(self, event: Any) -> None:
        assert self.loop is not None
        self.loop.post(event)

    def pause(self, until: float, mark: int) -> None:
        self._paused = (until, mark)

    def is_paused(self) -> bool:
        return self._is_held() and not self._turn.locked()

    def _is_held(self) -> bool:
        until, mark = self._paused
        return time.monotonic() < until and self.driver.watermark >= mark

    def finish(self) -> bool:
        self.finishing.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return True

    def work(self) -> None:
        while True:
            finishing = self.finishing.is_set()
            with self._turn:
                held = self._is_held()
                if not held:
                    self._run_batch(self._available(self.settings["rate"]), finishing)
            if finishing and not held:
                return
            if self.stopping.is_set():
                raise Stopped(f"{self.stage} was told to stop")
            self.finishing.wait(self.settings.get("trigger_ms", 30) / 1e3)

    def _run_batch(self, end: int, finishing: bool) -> None:
        from holdfast.runtime.shards import cut
        from support.source import rows

        at, driver, settings, began = self.at, self.driver, self.settings, time.monotonic_ns()
        batch = rows(at, end, settings["rate"], settings.get("keys", 50), settings.get("huge", -1))
        low = to_micros(driver.watermark)
        times = batch.column("ts").view(pa.int64()).to_numpy()
        if len(times) and times.min() < low:
            raise RuntimeError(f"late rows in a source that has none: {times.min()} < {low}")
        shards = driver.spec.shards
        parts = cut(batch, ("key",), len(shards)) if batch.num_rows else []
        edges = {stage_edge(self.stage, u): ArrowRows([p]) for u, p in zip(shards, parts, strict=False)}
        number = driver.next_batch
        if number == settings.get("odd_batch"):  # the second shard gets all its rows, with values of another type
            odd = stage_edge(self.stage, shards[1])
            texts = [part.set_column(2, "value", part["value"].cast(pa.string())) for part in edges[odd].batches]
            edges[odd] = ArrowRows(texts)
        if number == settings.get("bad_batch"):  # the second shard gets a column of another type
            edges[stage_edge(self.stage, shards[1])] = ArrowRows([pa.record_batch({"ts": [1], "key": ["one"]})])
        assert self.loop is not None
        collected = time.monotonic_ns()
        self.clock.post(collected)
        self.loop.post(
            RunBatch(
                batch=number,
                parts=edges,
                offsets=(at, end),
                event_time_max=to_core(int(times.max())) if len(times) else WATERMARK_MIN,
                final=finishing,
            )
        )
        self._wait(BatchDone)
        spans = {"handOverMs": self.clock.take(), "durationMs": {"collect": (collected - began) / 1e6}}
        self.say("batch", progress={"batchId": number, "numInputRows": end - at, **spans})
        self.at = end

    def _available(self, rate: int) -> int:
        """Rows that have appeared; a source that was closed has no more than it had then."""
        closed = self.dir / "closed"
        if closed.exists():
            return int(closed.read_text())
        began = float((self.dir / "began").read_text()) + self.settings.get("behind_s", {}).get(self.stage, 0)
        return max(self.at, int((time.time() - began) * rate))

    def _wait(self, kind: type) -> Any:
        while True:
            try:
                effect = self.effects.get(timeout=0.1)
            except queue.Empty:
                if self.stopping.is_set():
                    raise Stopped(f"{self.stage} was told to stop") from None
                continue
            if isinstance(effect, StageFailed):
                raise StageFenced(f"{self.stage} may not go on", reason=effect.reason, detail=effect.detail)
            if isinstance(effect, BaseException):
                raise effect
            if isinstance(effect, kind):
                return effect


class ScriptedSink(ScriptedRole):
    """Writes one file per batch. Offsets are planned on disk first; a batch that is written twice is the same."""

    def open(self) -> bool:
        self.out = self.dir / "sink"
        self.out.mkdir(exist_ok=True)
        self.spec = next(r for r in self.plan.topology.readers if r.id == self.stage)
        self.start_at = dict.fromkeys(self.spec.edges, 0)
        self.batch = 0
        while (self.out / f"commit-{self.batch}").exists():
            self.start_at = json.loads((self.out / f"plan-{self.batch}").read_text())
            self.batch += 1
        topology, now_ns = self.plan.topology, time.monotonic_ns()
        reader = Reader(self.spec, self.epoch, topology, self.config, self.record, self.start_at, now_ns)
        assert self.peer is not None
        self.loop = MachineLoop(reader, self.peer.send, disk=GapFiles(self.dir), name=self.stage)
        self.loop.start()
        return not (self.out / "ended").exists()

    def work(self) -> None:
        assert self.loop is not None
        start, batch = self.start_at, self.batch
        ended: dict[str, bool] = {}
        while True:
            while (self.dir / "hold").exists():  # a sink that is down
                self.wait(0.02)
            self.wait(0)
            planned = self.out / f"plan-{batch}"
            if not planned.exists():
                latest = self.loop.ask(lambda r, now: r.latest())
                self._commit(start)
                if latest == start:
                    self.wait(0.01)
                    continue
                _write(planned, json.dumps(latest).encode())
            end = json.loads(planned.read_text())
            pieces, over = self._plan(start, end)
            ended |= dict.fromkeys(over, True)
            rows_read, fetched_s, began = 0, 0.0, time.monotonic()
            with open(self.out / f"batch-{batch}.new", "wb") as file:
                for piece in pieces:
                    asked = time.monotonic()
                    got = self._fetch(piece)
                    fetched_s += time.monotonic() - asked
                    for rows in got:
                        _frame(file, piece.edge, rows)
                        rows_read += rows.num_rows
            os.replace(self.out / f"batch-{batch}.new", self.out / f"batch-{batch}")
            (self.out / f"commit-{batch}").touch()
            spans = {"fetch": 1e3 * fetched_s, "write": 1e3 * (time.monotonic() - began - fetched_s)}
            progress = {"batchId": batch, "numInputRows": rows_read, "durationMs": spans}
            self.say("batch", progress=progress, at=time.time())
            start, batch = end, batch + 1
            if len(ended) == len(self.spec.edges):
                self._commit(start)
                (self.out / "ended").touch()
                time.sleep(0.2)
                self.done = True
                self.stopping.wait()  # until its life has seen it
                return

    def _commit(self, start: dict[str, int]) -> None:
        assert self.loop is not None
        self.loop.ask(lambda r, now: r.commit(start, now))

    def _plan(self, start: dict[str, int], end: dict[str, int]) -> tuple[list[Piece], list[str]]:
        """What is to be fetched, and which edges end with it. A later life waits until it has heard of it all."""
        assert self.loop is not None

        def look(reader: Reader, now: int) -> tuple[list[Piece], list[str]] | None:
            if any(reader.latest()[edge] < to for edge, to in end.items()):
                return None
            last = {e: b.watermark for e, blocks in reader.buffers.items() for b in blocks if b.end <= end[e]}
            return reader.pieces(start, end), [edge for edge, mark in last.items() if mark >= WATERMARK_MAX]

        while (found := self.loop.ask(look)) is None:
            self.wait(0.01)
        return found

    def _fetch(self, piece: Piece) -> list[pa.RecordBatch]:
        assert self.loop is not None
        record = self.loop.ask(lambda reader, now: reader.record)
        place = record.places[piece.shard]
        given = self.engine.order
        order = Order(
            run=Run(
                endpoints=given["endpoints"],
                secret_file=given["secret_file"],
                tls=given["tls"],
                deployment=self.plan.query,
            ),
            consumer=self.stage,
            epoch=self.epoch,
            pieces=(piece,),
            homes={piece.shard: name_of(place.primary or "")},
            standbys={piece.shard: name_of(place.beside or "")},
            epochs={piece.shard: place.epoch},
            version=record.version,
            query=self.plan.topology.query,
        )
        return fetch(order, piece)


def _frame(file: Any, edge: str, batch: pa.RecordBatch) -> None:
    raw = ArrowRows([batch]).to_ipc()
    name = edge.encode()
    file.write(len(name).to_bytes(4, "little") + name + len(raw).to_bytes(8, "little"))
    file.write(raw)


def _write(path: Path, raw: bytes) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(raw)
    os.link(new, path) if not path.exists() else None
    new.unlink()


def read_sink(path: Path) -> dict[str, list[pa.RecordBatch]]:
    """What the sink holds, per edge."""
    found: dict[str, list[pa.RecordBatch]] = {}
    for file in sorted(path.glob("batch-*[0-9]"), key=lambda p: int(p.name.partition("-")[2])):
        raw = file.read_bytes()
        at = 0
        while at < len(raw):
            n = int.from_bytes(raw[at : at + 4], "little")
            edge = raw[at + 4 : at + 4 + n].decode()
            at += 4 + n
            n = int.from_bytes(raw[at : at + 8], "little")
            found.setdefault(edge, []).extend(ArrowRows.from_ipc(raw[at + 8 : at + 8 + n]).batches)
            at += 8 + n
    return found


def _engine(order: dict[str, Any]) -> Engine:
    """Arrow sinks need no Spark: theirs is the real one."""
    return LightEngine(order) if order["light"] else ScriptedEngine(order)


if __name__ == "__main__":
    serve(_engine)
