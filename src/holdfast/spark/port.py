"""Rows from a program of the user's own, handed over to a port of a pipeline: each batch of its query exactly once.

A port is a stage whose driver is whichever process commits a batch of the writing query (Spark gives that to a Python
worker, which may be another one each time) or finishes the stream. No record places it, so a driver takes its epoch
from the ledger: above the fence, and drawn so that two that look at the same moment never have the same one. Opening
fences whoever was there before. That alone would let two queries take turns, each with batch ids of its own; so every
commit names its writer (the id that Spark gave the query, which lives in its checkpoint), and a port keeps the first:

    the ledger's last batch is k, of this writer     k is done at once, k + 1 is handed over, anything else is refused
    the ledger is of another writer                  refused
    the stream was finished                          refused, unless it is k

A driver that finds itself fenced opens again: a sibling of the same query does no harm, since the batch counts once.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError, PeerError
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.ids import Asset
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import to_micros
from holdfast.model.reasons import HandOverReason
from holdfast.runtime.net.transport import Caller
from holdfast.spark.ahead import JUMP_US, WatermarkWatch
from holdfast.spark.aside import AsideFiles
from holdfast.spark.bad import told_of
from holdfast.spark.collect import Collector
from holdfast.spark.connect import Run, Target
from holdfast.spark.hand_over import StageFenced, StageHandOver, Stopped

#: How many times a driver that was fenced in the middle opens again.
TRIES = 5
_DRAWN_BITS = 32
_NO_GROUPS_IN_SPARK = 1 << 62


def next_epoch(fence: int) -> int:
    """Above the fence, and nobody else's."""
    return ((fence >> _DRAWN_BITS) + 1 << _DRAWN_BITS) | secrets.randbits(_DRAWN_BITS)


def is_done(port: Asset, last: CommitRecord | None, writer: str, batch: int) -> bool:
    """Does the ledger have this batch of this writer? An error, if it cannot be the next one either."""
    known = json.loads(last.plan).get("writer", "") if last is not None and last.plan else ""
    if known and known != writer:
        raise ConfigError(
            f"port {port} is written by another query",
            detail=f"It is {known}'s; this is {writer}. Batch ids of two queries cannot be told apart.",
            hint="Go on with the checkpoint of the first one, or declare a port for each.",
        )
    before = last.offsets[0] if last is not None else -1
    if known and batch == before:
        return True
    if last is not None and last.watermark >= WATERMARK_MAX:
        raise ConfigError(
            f"port {port} was finished: it takes no more rows",
            detail=f"Its last batch is {before}; batch {batch} was not handed over.",
            hint="End the writing query before `holdfast stop --finish`; a new run takes new rows.",
        )
    if batch != before + 1:
        raise ConfigError(
            f"port {port} expects batch {before + 1}, and was given batch {batch}",
            detail="Its run and the checkpoint of the writing query do not belong together.",
            hint="Batches count from 0 without a hole: start both anew, or restore the checkpoint of this run.",
        )
    return False


class Door:
    """One life of a port's driver: open from its first batch until it is fenced."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.port = target.stage.id
        self.hand_over = _opened(target)
        self.aside = AsideFiles(Path(target.directory), target.stage, self.hand_over.epoch)
        self.aside.recover(self.hand_over.last)
        self.watch = WatermarkWatch(self.port, JUMP_US, _say)
        self.collector = Collector(target.plan, target.stage, _NO_GROUPS_IN_SPARK)

    def take(self, writer: str, spark_batch: int, table: pa.Table) -> bool:
        """Hand a batch over; false: the ledger had it."""
        hand_over = self.hand_over
        last = hand_over.last
        if is_done(self.port, last, writer, spark_batch):
            return False
        batch = last.batch + 1 if last else 0
        watermark_us = to_micros(hand_over.watermark)
        made = self.collector.split(table, watermark_us, lambda: table)
        self.aside.write(batch, made.late, made.bad, last)
        with _limited(hand_over, self.target.wait_s):
            commit = hand_over.run(
                made.parts,
                spark_batch=spark_batch,
                plan=json.dumps({"writer": writer}),
                max_us=made.max_us,
                late=made.late_rows,
                bad=made.bad_rows,
            )
        self.aside.settle(batch, late=made.late is not None, bad=made.bad is not None)
        if made.bad is not None:
            told = told_of(made.bad)
            _say("bad", what=f"{told['rows']} rows of batch {batch} were set aside", detail=told["reason"])
        self.watch.look(watermark_us, to_micros(commit.watermark))
        return True

    def finish(self) -> None:
        """Seal the final watermark: every window closes."""
        last = self.hand_over.last
        if last is not None and last.watermark >= WATERMARK_MAX:
            return
        spark_batch, plan = (last.offsets[0], last.plan) if last else (-1, "")
        with _limited(self.hand_over, self.target.wait_s):
            self.hand_over.run({}, spark_batch=spark_batch, plan=plan, final=True)

    def close(self) -> None:
        self.hand_over.close()


#: Doors of this process: a worker commits many batches of a query, and opening costs as much as a small batch.
_doors: dict[bytes, Door] = {}


def write(target: Target, writer: str, spark_batch: int, table: pa.Table) -> bool:
    """Hand a batch over, exactly once; false: it had been before. Returns when it counts."""
    return _with_door(target, lambda door: door.take(writer, spark_batch, table))


def finish(target: Target) -> None:
    """No more rows will come. The writing query, if it still runs, fails at its next batch."""
    _with_door(target, lambda door: door.finish())
    close(target)


def close(target: Target) -> None:
    door = _doors.pop(_key(target), None)
    if door is not None:
        door.close()


def _key(target: Target) -> bytes:
    return msgspec.msgpack.encode((target.run, target.plan.query, target.stage.id))


def _with_door(target: Target, act: Any) -> Any:
    key = _key(target)
    tries = 0
    while True:
        try:
            if key not in _doors:
                _doors[key] = Door(target)
            return act(_doors[key])
        except ConfigError:
            raise  # what is wrong is the batch, not the door
        except StageFenced as error:
            close(target)
            tries += 1
            if tries == TRIES:
                raise PeerError(
                    f"port {target.stage.id}: other drivers of it take over again and again",
                    detail=error.detail,
                    hint="Only one program may write to a port, and not while it is finished.",
                ) from error
        except BaseException:
            close(target)  # it may stand in the middle of a batch
            raise


def _opened(target: Target) -> StageHandOver:
    """Take over the ledger. Whoever opens at the same time may be ahead: then look again."""
    run, stage = target.run, target.stage.id
    until = time.monotonic() + target.wait_s
    while True:
        epoch = next_epoch(fence_of(run, stage))
        hand_over = StageHandOver(target.plan, stage, epoch, run.endpoints, run.security(), _say)
        try:
            with _limited(hand_over, target.wait_s):
                hand_over.open()
            return hand_over
        except StageFenced as error:
            hand_over.close()
            if error.reason is HandOverReason.FOREIGN:
                raise ConfigError(
                    f"port {stage}: the nodes run another deployment of this pipeline",
                    detail=error.detail,
                    hint='Give .option("run", ...) of the run that is there now.',
                ) from error
            if time.monotonic() > until:
                raise
            time.sleep(0.05 + 0.1 * secrets.randbelow(1_000) / 1_000)
        except BaseException:
            hand_over.close()
            raise


def fence_of(run: Run, stage: Asset) -> int:
    """The highest epoch that a ledger of this stage has seen, of nodes that answer. Too low a one is refused."""
    caller = Caller(f"{stage}.fence", run.endpoints, run.security())
    found = 0
    try:
        for name in run.names:
            try:
                found = max(found, int(caller.call(name, "fences", timeout=5.0).get(stage, 0)))
            except HoldfastError:
                continue
    finally:
        caller.close()
    return found


@contextmanager
def _limited(hand_over: StageHandOver, wait_s: float) -> Iterator[None]:
    """Nodes may come back, but a program of the user's must hear that they do not."""
    timer = threading.Timer(wait_s, hand_over.stopping.set)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Stopped as error:
        raise PeerError(
            f"port {hand_over.stage}: the batch does not count after {wait_s:g} s",
            detail=hand_over.standing(),
            hint="Do the nodes run? `holdfast status` shows it. Start the query again from its checkpoint: "
            "a batch counts once, however often it is tried.",
        ) from error
    finally:
        timer.cancel()


def _say(event: str, **fields: Any) -> None:
    """Into the log of the worker: the writing program has no event log of ours."""
    print(f"holdfast: {event} {fields.get('what', '')}: {fields.get('detail', '')}", file=sys.stderr, flush=True)
