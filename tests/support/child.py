"""A stage's process without Spark, as a node starts it: feeds deterministic rows, or reads edges into files.

source   batches of what has appeared, through StageDriver; offsets are row numbers
sink     a query that plans, reads, writes and commits as Structured Streaming does, into DIR/sink/
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import BatchDone, Opened, StageFailed
from holdfast.core.stage import RunBatch, StageDriver
from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.config import Config
from holdfast.model.ids import driver_of, name_of, stage_edge
from holdfast.model.plan import Plan, to_core, to_micros
from holdfast.model.record import Record
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.spark.connect import Run
from holdfast.spark.fetch import Order, fetch
from holdfast.spark.follower import GapFiles


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Commands:
    """What the node says on stdin, after the first line. Its end is ours."""

    def __init__(self) -> None:
        self.order = json.loads(sys.stdin.readline())
        self.finish = threading.Event()
        self.stop = threading.Event()
        self.go = threading.Event()
        self.epoch = self.order["epoch"]
        if self.epoch is not None:
            self.go.set()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if "go" in command:
                self.epoch = command["go"]
                self.go.set()
            if command.get("finish"):
                self.finish.set()
            if command.get("stop"):
                os._exit(0)
        os._exit(0)


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
    raise SystemExit("no node answers")


class ScriptedChild:
    def __init__(self) -> None:
        self.commands = Commands()
        order = self.commands.order
        self.dir = Path(order["dir"])
        self.stage = order["stage"]
        self.plan = msgspec.json.decode((self.dir / "plan.json").read_bytes(), type=Plan)
        self.settings = json.loads((self.dir / "test.json").read_text())
        self.config = msgspec.convert(order["core"], Config)
        self.security = Security.load(order["secret_file"], order["tls"], order["deployment"])
        self.loop: MachineLoop | None = None
        if self.plan.stage(self.stage).kind == "source":
            from holdfast.runtime.shards import cut
            from support.source import rows

            cut(rows(0, 10, 10), ("key",), 2)  # what a standby can do before it is needed
        say("ready")
        self.commands.go.wait()
        self.epoch = self.commands.epoch
        self.peer = Peer(driver_of(self.stage, self.epoch), order["endpoints"], self.security, self._received)
        self.record = ask_record(self.peer, sorted(order["endpoints"]))
        say("running", epoch=self.epoch)

    def _received(self, source: str, message: Any) -> None:
        if self.loop is not None:
            self.loop.received(source, message)


class ScriptedSource(ScriptedChild):
    """Feeds what has appeared since the start of the test."""

    def run(self) -> None:
        from holdfast.runtime.shards import cut
        from support.source import rows

        spec = self.plan.topology.stage[self.stage]
        effects: queue.SimpleQueue[Any] = queue.SimpleQueue()
        driver = StageDriver(spec, self.epoch, self.config, self.record, time.monotonic_ns())
        self.loop = MachineLoop(driver, self.peer.send, on_effect=effects.put, on_crash=effects.put, name=self.stage)
        self.loop.start()
        opened = self._wait(effects, Opened)
        at = opened.commit.offsets[1] if opened.commit else 0
        if opened.commit and opened.commit.watermark >= WATERMARK_MAX:
            say("finished")
            return
        rate, settings = self.settings["rate"], self.settings
        while True:
            finishing = self.commands.finish.is_set()
            end = self._available(rate)
            batch = rows(at, end, rate, settings.get("keys", 50), settings.get("huge", -1))
            low = to_micros(driver.watermark)
            times = batch.column("ts").view(pa.int64()).to_numpy()
            if len(times) and times.min() < low:
                raise SystemExit(f"late rows in a source that has none: {times.min()} < {low}")
            parts = cut(batch, ("key",), len(spec.shards)) if batch.num_rows else []
            edges = {stage_edge(self.stage, u): ArrowRows([p]) for u, p in zip(spec.shards, parts, strict=False)}
            number = driver.next_batch
            if number == settings.get("bad_batch"):  # the second shard gets a column of another type
                edges[stage_edge(self.stage, spec.shards[1])] = ArrowRows(
                    [pa.record_batch({"ts": [1], "key": ["one"]})]
                )
            if number == settings.get("odd_batch"):  # the second shard gets all its rows, with values of another type
                odd = stage_edge(self.stage, spec.shards[1])
                texts = [part.set_column(2, "value", part["value"].cast(pa.string())) for part in edges[odd].batches]
                edges[odd] = ArrowRows(texts)
            self.loop.post(
                RunBatch(
                    batch=number,
                    parts=edges,
                    offsets=(at, end),
                    event_time_max=to_core(int(times.max())) if len(times) else WATERMARK_MIN,
                    final=finishing,
                )
            )
            self._wait(effects, BatchDone)
            say("batch", progress={"batchId": number, "numInputRows": end - at})
            at = end
            if finishing:
                say("finished")
                return
            self.commands.finish.wait(settings.get("trigger_ms", 30) / 1e3)

    def _available(self, rate: int) -> int:
        """Rows that have appeared; a source that was closed has no more than it had then."""
        closed = self.dir / "closed"
        if closed.exists():
            return int(closed.read_text())
        began = float((self.dir / "began").read_text())
        return int((time.time() - began) * rate)

    def _wait(self, effects: queue.SimpleQueue[Any], kind: type) -> Any:
        while True:
            effect = effects.get()
            if isinstance(effect, StageFailed):
                say("failed", text=effect.reason)
                sys.stdout.flush()
                os._exit(3)
            if isinstance(effect, BaseException):
                raise effect
            if isinstance(effect, kind):
                return effect


class ScriptedSink(ScriptedChild):
    """Writes one file per batch. Offsets are planned on disk first; a batch that is written twice is the same."""

    def run(self) -> None:
        self.out = self.dir / "sink"
        self.out.mkdir(exist_ok=True)
        spec = next(r for r in self.plan.topology.readers if r.id == self.stage)
        start = dict.fromkeys(spec.edges, 0)
        batch = 0
        while (self.out / f"commit-{batch}").exists():
            start = json.loads((self.out / f"plan-{batch}").read_text())
            batch += 1
        reader = Reader(spec, self.epoch, self.plan.topology, self.config, self.record, start, time.monotonic_ns())
        self.loop = MachineLoop(reader, self.peer.send, disk=GapFiles(self.dir), name=self.stage)
        self.loop.start()
        ended: dict[str, bool] = {}
        if (self.out / "ended").exists():
            say("finished")
            return
        while True:
            while (self.dir / "hold").exists():  # a sink that is down
                time.sleep(0.02)
            planned = self.out / f"plan-{batch}"
            if not planned.exists():
                latest = self.loop.ask(lambda r, now: r.latest())
                self._commit(start)
                if latest == start:
                    time.sleep(0.01)
                    continue
                _write(planned, json.dumps(latest).encode())
            end = json.loads(planned.read_text())
            pieces, over = self._plan(start, end)
            ended |= dict.fromkeys(over, True)
            rows_read = 0
            with open(self.out / f"batch-{batch}.new", "wb") as file:
                for piece in pieces:
                    for rows in self._fetch(piece):
                        _frame(file, piece.edge, rows)
                        rows_read += rows.num_rows
            os.replace(self.out / f"batch-{batch}.new", self.out / f"batch-{batch}")
            (self.out / f"commit-{batch}").touch()
            say("batch", progress={"batchId": batch, "numInputRows": rows_read}, at=time.time())
            start, batch = end, batch + 1
            if len(ended) == len(spec.edges):
                self._commit(start)
                (self.out / "ended").touch()
                time.sleep(0.2)
                say("finished")
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
            time.sleep(0.01)
        return found

    def _fetch(self, piece: Piece) -> list[pa.RecordBatch]:
        assert self.loop is not None
        record = self.loop.ask(lambda reader, now: reader.record)
        place = record.places[piece.shard]
        order = Order(
            run=Run(
                endpoints=self.peer.endpoints,
                secret_file=self.commands.order["secret_file"],
                tls=self.commands.order["tls"],
                deployment=self.plan.query,
            ),
            consumer=self.stage,
            epoch=self.epoch,
            pieces=(piece,),
            homes={piece.shard: name_of(place.primary or "")},
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
    for file in sorted(path.glob("batch-*"), key=lambda p: int(p.name.partition("-")[2])):
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


def main() -> None:
    with_kind = ScriptedChild()
    kind = with_kind.plan.stage(with_kind.stage).kind
    # the order is on stdin, and can be read once
    with_kind.__class__ = ScriptedSource if kind == "source" else ScriptedSink
    with_kind.run()  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
