"""A large state on its way to a new image: how fast, and how much memory on either side.

Two processes and a pipe. The sender goes on working: between two chunks it takes rows for keys all over its state and
captures. Half-way the walk is given up and starts over, as after a cut link. Each side says how far its memory rose
above what it had before the transfer; kernels are loaded before that. Nodes and their network are in `bench recovery`.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from bench.harness import Report
from holdfast.operators import END, START, Agg, Chunk, StateCapture, StateConfig, Window, WindowAggregate

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TIME), ("key", pa.int64()), ("v", pa.int64())])
DAY_US = 86_400 * 1_000_000
BATCH = 250_000
#: A record here: list word, pane, key, count, sum in two words; and its part of the index.
RECORD_BYTES = 8 * 6 + 10
CHUNK_BYTES = 4 << 20
#: Memory beside the state that either side may take.
SPARE_BYTES = 64 << 20


def _operator(limit_bytes: int) -> WindowAggregate:
    return WindowAggregate(
        "silent",
        SCHEMA,
        event_time="ts",
        window=Window(DAY_US, DAY_US),
        by=["key"],
        aggs={"n": Agg("count"), "total": Agg("sum", "v")},
        config=StateConfig(limit_bytes=limit_bytes),
    )


def _feed(op: WindowAggregate, keys: np.ndarray) -> None:
    times = pa.array(np.zeros(len(keys), np.int64)).view(TIME)
    op.process(pa.RecordBatch.from_arrays([times, pa.array(keys), pa.array(keys)], schema=SCHEMA))


def _memory(what: str) -> int:
    """VmRSS or VmHWM of this process."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(what))
    return int(line.split()[1]) * 1024


def _settle() -> int:
    """Memory now; the peak is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _warm() -> None:
    """Load every kernel that the transfer uses."""
    op, image = _operator(16 << 20), _operator(16 << 20)
    for _ in range(2):
        _feed(op, np.arange(30_000))
        op.capture()
        chunk, _ = op.chunk(START, 1 << 30)
        image.paste_chunk(Chunk.from_bytes(chunk.to_bytes()))
        _feed(op, np.arange(10))
        image.paste(StateCapture.from_bytes(op.capture().to_bytes()))
    _digest(op)


def _digest(op: WindowAggregate) -> int:
    """Of every record, in order, by chunks."""
    op.skip()
    digest, cursor = xxhash.xxh3_64(), START
    while cursor != END:
        chunk, cursor = op.chunk(cursor, CHUNK_BYTES)
        for buffer in chunk.parts[0].buffers:
            digest.update(buffer)
    return digest.intdigest()


def _send(pipe: Connection, state_bytes: int) -> None:
    _warm()
    op, keys = _operator(2 * state_bytes + (64 << 20)), state_bytes // RECORD_BYTES
    for start in range(0, keys, BATCH):
        _feed(op, np.arange(start, min(start + BATCH, keys)))
    op.skip()
    rng = np.random.default_rng(1)
    before, started, sent, longest = _settle(), time.perf_counter(), 0, 0.0
    cursor, cut = START, False
    while cursor != END:
        _feed(op, rng.integers(0, keys, 1000))
        began = time.perf_counter()
        delta = op.capture()
        if cursor != START:
            pipe.send_bytes(delta.to_bytes())
        if not cut and sent > state_bytes // 2:
            cursor, cut = START, True
        else:
            chunk, cursor = op.chunk(cursor, CHUNK_BYTES)
            raw = chunk.to_bytes()
            del chunk
            longest = max(longest, time.perf_counter() - began)
            pipe.send_bytes(raw)
            sent += len(raw)
    pipe.send_bytes(b"end")
    pipe.recv_bytes()
    seconds, risen = time.perf_counter() - started, _memory("VmHWM") - before
    pipe.send((op.state_bytes(), sent, seconds, longest, risen, _digest(op)))


def _receive(pipe: Connection, state_bytes: int) -> None:
    _warm()
    image = _operator(2 * state_bytes + (64 << 20))
    before, pastes = _settle(), []
    while (raw := pipe.recv_bytes()) != b"end":
        began = time.perf_counter()
        if raw.startswith(b"HFCA"):
            image.paste(StateCapture.from_bytes(raw))
        else:
            image.paste_chunk(Chunk.from_bytes(raw))
            pastes.append(time.perf_counter() - began)
        del raw
    pipe.send_bytes(b"done")
    risen = _memory("VmHWM") - before
    pipe.send((image.state_bytes(), float(np.median(pastes)), max(pastes), risen, _digest(image), image.scanned))


def measure(state_bytes: int) -> dict[str, Any]:
    """Carry a state of about so many bytes from one process to another."""
    context = mp.get_context("spawn")
    (here, sender), (there, receiver) = context.Pipe(), context.Pipe()
    workers = [
        context.Process(target=_send, args=(sender, state_bytes)),
        context.Process(target=_receive, args=(receiver, state_bytes)),
    ]
    for worker in workers:
        worker.start()
    try:
        while (raw := here.recv_bytes()) != b"end":
            there.send_bytes(raw)
        there.send_bytes(b"end")
        here.send_bytes(there.recv_bytes())
        state, sent, seconds, longest, sender_rose, digest = here.recv()
        image, paste, paste_max, receiver_rose, image_digest, scanned = there.recv()
    finally:
        for worker in workers:
            worker.join(60)
            worker.kill()
    return {
        "state MB": state / 1e6,
        "sent MB": sent / 1e6,
        "seconds": seconds,
        "MB/s": sent / 1e6 / seconds,
        "capture and chunk ms max": longest * 1e3,
        "paste ms median": paste * 1e3,
        "paste ms max": paste_max * 1e3,
        "sender beside its state MiB": sender_rose / 2**20,
        "receiver beside its state MiB": (receiver_rose - image) / 2**20,
        "equal": digest == image_digest and scanned == END,
    }


def run(quick: bool) -> Report:
    report = Report("state/transfer", "")
    rows: list[dict[str, Any]] = []
    for gib in (0.1,) if quick else (1, 3):
        row = {"GiB": gib} | measure(int(gib * 2**30))
        rows.append(row)
        most = max(row["sender beside its state MiB"], row["receiver beside its state MiB"])
        report.claim(
            f"peak memory beside a state of {gib:g} GiB in a transfer that starts over half-way, sender or receiver",
            "issue 12: state + 64 MiB",
            f"at most {SPARE_BYTES >> 20} MiB, and the image equal",
            f"{most:.0f} MiB, {'equal' if row['equal'] else 'NOT equal'}; {row['MB/s']:.0f} MB/s, paste of a chunk "
            f"{row['paste ms median']:.0f} ms",
            most <= SPARE_BYTES / 2**20 and bool(row["equal"]),
        )
    report.data["transfer"] = rows
    return report
