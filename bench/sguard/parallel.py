"""Table 8: parallel reads and writes on a real HDFS, of one client and towards one data node.

Name node and three data nodes on loopback, started by the project. Client: so many writers, then readers, share a
number of megabytes. Data node: so many clients write a chunk to one data node, one replica each, then read it there.
All processes share one machine and one disk, so only the shape is claimed: more at once help a client until something
is full, and hurt whoever shares a data node.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import Report, scratch
from holdfast.cli.calibrate import Aimed, measure
from holdfast.store.hadoop import HadoopStore

DESCRIPTION = "table 8: parallel I/O on a real HDFS, of a client and of a data node"
TESTS = Path(__file__).resolve().parents[2] / "tests"
AT_ONCE, QUICK_AT_ONCE = (1, 2, 4, 8, 16), (1, 2, 4)
TOTAL_MB, QUICK_TOTAL_MB = 256, 32
CHUNK_MB, QUICK_CHUNK_MB = 16, 4
MB = 1_000_000
#: MB/s of table 8: client read, client write, data node read and write per client.
PAPER = {
    1: (60.5, 63.7, 42.7, 30.0), 2: (56.3, 91.3, 6.16, 22.5), 4: (95.3, 102.0, 3.04, 9.90),
    8: (105.0, 104.0, 1.29, 6.03), 16: (110.0, 105.0, 0.63, 2.57),
}  # fmt: skip


def run(quick: bool) -> Report:
    report = Report("sguard/parallel", DESCRIPTION)
    sys.path[:0] = [p for p in (str(TESTS),) if p not in sys.path]
    from support.hdfs import running  # pyright: ignore[reportMissingImports]

    counts = QUICK_AT_ONCE if quick else AT_ONCE
    total, chunk = (QUICK_TOTAL_MB, QUICK_CHUNK_MB) if quick else (TOTAL_MB, CHUNK_MB)
    with scratch("sguard-parallel") as base, running(base / "hdfs") as hdfs:
        aimed = Aimed()
        settings = {"fs.defaultFS": hdfs.url}
        client = HadoopStore(f"{hdfs.url}/bench", settings, log=base / "client.log")
        alone = HadoopStore(f"{hdfs.url}/bench", {**settings, "dfs.replication": "1"}, favoured=aimed)
        try:
            measure(client, 1, MB)
            rows = [_row(client, alone, aimed, hdfs.data_address("d0"), count, total, chunk) for count in counts]
        finally:
            client.close()
            alone.close()
    report.data["table 8: MB/s"] = rows
    first, last = rows[0], rows[-1]
    best = max(row["client write"] for row in rows)
    report.claim("a client writes faster with several writers", "sguard table 8 (63.7 to 105 MB/s)", "more than one's",
                 f"{best / first['client write']:.2f} times one writer's, at best",
                 best > first["client write"])  # fmt: skip
    per_client = last["node write, per client"] / first["node write, per client"]
    report.claim(f"{last['at once']} clients at one data node slow each other down",
                 "sguard table 8 (2.57 of 30.0 MB/s at 16)", "each below a lone one's",
                 f"{per_client:.2f} of a lone client's", per_client < 1.0)  # fmt: skip
    report.notes.append("one machine, one disk, loopback: MB/s are not the paper's; the paper used 17 machines")
    report.plot = lambda figure: _plot(figure, rows)
    return report


def _row(
    client: HadoopStore, alone: HadoopStore, aimed: Aimed, node: str, count: int, total_mb: int, chunk_mb: int
) -> dict[str, Any]:
    aimed.node = node
    row: dict[str, Any] = {"at once": count}
    row["client read"] = _reads(client, count, total_mb * MB // count) / MB
    row["client write"] = measure(client, count, total_mb * MB // count) / MB
    row["node read, per client"] = _reads(alone, count, chunk_mb * MB) / MB / count
    row["node write, per client"] = measure(alone, count, chunk_mb * MB) / MB / count
    for name, value in zip(("client read", "client write", "node read", "node write"), PAPER[count], strict=True):
        row[f"paper, {name}"] = value
    print(f"    {row}", flush=True)
    return row


def _reads(store: HadoopStore, readers: int, nbytes: int) -> float:
    """Bytes per second of so many readers at once, of an object each."""
    keys = [f"read/{i}" for i in range(readers)]
    for key in keys:
        store.put(key, [bytes(MB)] * (nbytes // MB) + [bytes(nbytes % MB)])
    buffers = [memoryview(bytearray(nbytes)) for _ in keys]
    bodies: list[Callable[[], None]] = [
        lambda key=key, into=into: store.read(key, [(0, into)]) for key, into in zip(keys, buffers, strict=True)
    ]
    try:
        took = _at_once(bodies)
    finally:
        store.delete(keys)
    return readers * nbytes / took


def _at_once(bodies: list[Callable[[], None]]) -> float:
    threads = [threading.Thread(target=body) for body in bodies]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def _plot(figure: Any, rows: list[dict[str, Any]]) -> None:
    for axes, names in zip(
        figure.subplots(1, 2), (("client read", "client write"), ("node read", "node write")), strict=True
    ):
        for name in names:
            mine = f"{name}, per client" if name.startswith("node") else name
            axes.plot([r["at once"] for r in rows], [r[mine] for r in rows], marker="o", label=name)
            axes.plot([r["at once"] for r in rows], [r[f"paper, {name}"] for r in rows], ":", label=f"paper, {name}")
        axes.set(
            xlabel="at once", ylabel="MB/s" + (" per client" if names[0].startswith("node") else ""), ylim=(0, None)
        )
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle("Parallel I/O on HDFS (sguard table 8)")
