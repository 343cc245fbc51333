"""Real node processes on loopback, without Spark: what they do with bad input, and when things go wrong around them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.nodes import PATHS, Nodes
from support.plans import layered_plan
from support.tls import make_tls

from holdfast.cli.story import read_events
from holdfast.core.errand import Limits
from holdfast.errors import DAMAGED, LEFT, PeerError
from holdfast.model import messages as m
from holdfast.model.reasons import FetchReason
from holdfast.runtime.client.local import LocalNodes
from holdfast.runtime.net import wire
from holdfast.runtime.net.refusal import FetchError
from holdfast.runtime.net.security import Security, make_secret
from holdfast.runtime.net.transport import Caller, Peer
from holdfast.runtime.node.warm import warm
from holdfast.spark.connect import Run
from holdfast.spark.fetch import Order, Piece, fetch

pytestmark = pytest.mark.slow

Make = Callable[..., Nodes]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def one(*args: Any, **settings: Any) -> Nodes:
        made.append(Nodes(tmp_path / "run", *args, **settings))
        return made[-1]

    yield one
    for nodes in made:
        nodes.close()


def run(nodes: Nodes, *names: str) -> Nodes:
    """Start, and wait for the first rows at the sink."""
    nodes.start(*names)
    nodes.wait_up(*names)
    nodes.begin()
    nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
    return nodes


def told(nodes: Nodes, name: str, event: str) -> list[str]:
    return [e["text"] for e in nodes.events(name) if e["event"] == event]


def until_told(nodes: Nodes, name: str, event: str, part: str) -> None:
    """Events are written beside the work: an answer may be here before the line about it."""
    nodes.until(f"{name} to tell {event} with {part!r}", lambda: any(part in t for t in told(nodes, name, event)))


def test_a_node_starts_fast_and_stays_small(make: Make):
    nodes = make(layered_plan(), 1)
    warm(nodes.plan)  # what is compiled once on a machine is not the node's
    began = time.monotonic()
    nodes.start()
    nodes.wait_up()
    seconds = time.monotonic() - began
    process = psutil.Process(nodes.processes["n0"].pid)
    memory, used = process.memory_full_info(), process.cpu_times()
    print(
        f"\nup after {seconds:.2f} s, {used.user + used.system:.2f} s of a core; "
        f"{memory.rss >> 20} MB resident, {memory.uss >> 20} MB of its own"
    )
    assert used.user + used.system < 5  # about 1.5: not the wall's time, since tests share their cores
    assert memory.uss < 200 << 20


def test_a_node_with_the_wrong_secret_is_turned_away_and_the_rest_runs(make: Make, tmp_path: Path):
    nodes = make(layered_plan(shards=2, tops=0), 3, settings={"start_wait": "1 s"})
    make_secret(tmp_path / "other")
    nodes.start("n0", "n1")
    nodes.processes["n2"] = nodes.spawn("n2", secret_file=str(tmp_path / "other"))
    nodes.wait_up("n0", "n1")
    nodes.begin()
    nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
    until_told(nodes, "n0", "turned-away", "wrong secret")
    until_told(nodes, "n2", "refused", "wrong secret")
    with pytest.raises(PeerError, match="wrong secret") as refused:
        Caller("stranger", nodes.endpoints, Security.load(tmp_path / "other")).call("n0", "status")
    assert "same secret file" in refused.value.hint
    log = (nodes.dir / "n2.log").read_text() + str(nodes.events("n2")) + str(nodes.events("n0"))
    assert (tmp_path / "other").read_text().strip() not in log
    assert (nodes.dir / "secret").read_text().strip() not in log
    nodes.finish()
    assert nodes.difference() == ""


class Newer(Security):
    """Of a release that this node does not know yet."""

    def headers(self, address: str, kind: str, target: str, version: int = 99) -> list[tuple[bytes, bytes]]:
        return super().headers(address, kind, target, 99)


def test_an_unknown_version_and_damaged_messages_are_refused_and_the_rest_runs(make: Make):
    nodes = run(make(layered_plan(shards=2, tops=0), 2))
    secret = nodes.dir / "secret"
    with pytest.raises(PeerError, match="unknown protocol version") as refused:
        Caller("newer", nodes.endpoints, Newer.load(secret)).call("n0", "status")
    assert "same release" in refused.value.hint
    peer = Peer("newer@1", nodes.endpoints, Newer.load(secret), lambda source, message: None)
    peer.send("n0", m.Pull(version=0))
    nodes.until("the peer to know", lambda: "unknown protocol version" in peer.refused)
    peer.close()
    until_told(nodes, "n0", "turned-away", "'99'")
    client = flight.FlightClient(nodes.endpoints["n0"])
    ours = Security.load(secret, deployment=nodes.plan.query)
    options = flight.FlightCallOptions(headers=ours.headers("liar@1", "guest", "n0"))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"fast"), options)
    good = wire.encode("liar@1", "n0", m.Pull(version=0))
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    for raw in (b"no message at all", good[:-3], flipped, os.urandom(1000)):
        writer.write_metadata(raw)
    foreign = m.Subscribe(edge="nowhere.0", consumer="liar", epoch=1, at=0, ack=0)
    writer.write_metadata(wire.encode("liar@1", "n0", foreign))
    writer.write_metadata(good)  # and then a good one is answered
    reader.read_chunk()  # welcome
    answer = wire.decode(reader.read_chunk().app_metadata, "n0")
    assert isinstance(answer[2], m.Push)
    until_told(nodes, "n0", "damaged", "liar@1")
    until_told(nodes, "n0", "refused-message", "liar@1")
    with pytest.raises(pa.ArrowException, match="bad ticket"):
        nodes.caller.client("n0").do_get(flight.Ticket(b"no ticket"), nodes.caller.options("n0", 5)).read_all()
    nodes.finish()
    assert nodes.difference() == ""


def test_a_schema_that_changes_stops_its_shard_and_no_other(make: Make):
    nodes = run(make(layered_plan(shards=2, tops=0), 3, source={"bad_batch": 20}))
    where = nodes.until(
        "the shard to fail", lambda: next((n for n in nodes.names if told(nodes, n, "shard-failed")), None)
    )
    text = told(nodes, where, "shard-failed")[0]
    assert "u1 cannot take" in text
    assert "batch 20" in text
    assert "schema has changed" in text
    shard = nodes.status(where)["shards"]["u1"]
    assert "schema has changed" in shard["failed"]
    other = nodes.status()["places"]["u0"]["primary"].partition("#")[0]

    def position() -> int:
        return nodes.status(other)["shards"]["u0"]["inputs"]["s0>u0"]["position"]

    before = position()
    nodes.until("the other shard to go on", lambda: position() > before + 500)
    assert nodes.status(where)["shards"]["u1"]["inputs"]["s0>u1"]["position"] == shard["inputs"]["s0>u1"]["position"]
    assert nodes.status(where)["shards"]["u1"]["inputs"]["s0>u1"]["waiting"] > 0  # nothing is lost
    metrics = next(e["port"] for e in nodes.events(where) if e["event"] == "metrics")
    page = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5).read().decode()
    assert f'holdfast_failed_shards{{node="{where}"}} 1.0' in page
    assert "holdfast_queue_rows" in page


def test_rows_are_fetched_from_where_they_are(make: Make):
    nodes = make(layered_plan(shards=2, tops=0), 2)
    (nodes.dir / "hold").touch()
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    place = nodes.until("the record", nodes.status)["places"]["u0"]
    home = place["primary"].partition("#")[0]
    other = next(n for n in nodes.names if n != home)

    def made() -> int:
        return nodes.status(home)["shards"]["u0"]["outputs"]["u0.0"]["next"]

    nodes.until("some rows", lambda: made() > 200)
    end = made()
    ask = m.Fetch(ticket=1, edge="u0.0", start=0, end=end, consumer="r0", epoch=1, wait_ns=5_000_000_000)

    def refusal(node: str, **fields) -> m.FetchRefused:
        with pytest.raises(FetchError) as found:
            nodes.caller.fetch(node, msgspec.structs.replace(ask, **fields))
        return found.value.refusal

    table = nodes.caller.fetch(home, ask)
    assert table.num_rows > 100
    assert table.schema.equals(pa.ipc.read_schema(pa.py_buffer(nodes.plan.operator("u0").output)))
    assert (refusal(other).reason, refusal(other).home) == (FetchReason.NOT_HERE, place["primary"])
    assert refusal(home, producer_epoch=place["epoch"] + 1).reason is FetchReason.NOT_HERE
    assert refusal(home, epoch=0).reason is FetchReason.FENCED
    assert refusal(home, query="of another run").reason is FetchReason.FOREIGN
    assert refusal(home, edge="nowhere.0").reason is FetchReason.FOREIGN
    assert refusal(home, end=10**9, wait_ns=100_000_000).reason is FetchReason.NOT_YET
    (nodes.dir / "hold").unlink()
    nodes.until("it to be trimmed", lambda: nodes.status(home)["shards"]["u0"]["outputs"]["u0.0"]["trimmed"] > 0)
    gone = refusal(home)
    assert gone.reason is FetchReason.TRIMMED
    assert gone.first > 0


def test_rows_of_a_node_that_hangs_are_fetched_from_whoever_took_over(make: Make):
    """It refuses nothing and answers nothing. Once a task waited a minute for it and then ended its query."""
    nodes = make(layered_plan(shards=2, tops=0), 3)
    (nodes.dir / "hold").touch()
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    home = nodes.until("the record", nodes.status)["places"]["u0"]["primary"].partition("#")[0]
    nodes.until("some rows", lambda: nodes.status(home)["shards"]["u0"]["outputs"]["u0.0"]["next"] > 200)
    record = nodes.status(home)
    end = record["shards"]["u0"]["outputs"]["u0.0"]["next"]
    access = Run(endpoints=nodes.endpoints, secret_file=str(nodes.dir / "secret"), deployment=nodes.plan.query)
    piece = Piece(edge="u0.0", shard="u0", start=0, end=end)
    # of the sink that reads it, as it was planned before the failure
    order = Order(run=access, consumer="r0", epoch=1, pieces=(piece,), homes={"u0": home}, version=record["version"])
    there = pa.Table.from_batches(fetch(order, piece))
    assert there.num_rows > 100
    nodes.signal(home, signal.SIGSTOP)
    try:
        began = time.monotonic()
        batches = fetch(order, piece, Limits(limit_ns=40_000_000_000))
        seconds = time.monotonic() - began
    finally:
        nodes.signal(home, signal.SIGCONT)
    assert pa.Table.from_batches(batches).equals(there)
    assert seconds < 30  # one patience of four seconds; the limit would end it with an error
    (nodes.dir / "hold").unlink()
    nodes.finish()
    assert nodes.difference() == ""


@pytest.mark.long  # needs both cores: beside anything else it measures the machine
def test_a_node_that_is_long_busy_with_one_step_is_not_taken_for_dead(make: Make):
    """A window of a million and more keys closes at once: no suspicion may come of it."""
    plan = layered_plan(shards=1, tops=0, window_us=2_500_000)
    settings = {"queue_memory": 10_000_000, "retained_hard": 50_000_000, "credit": 10_000_000}
    nodes = make(plan, 3, rate=800_000, keys=5_000_000, trigger_ms=200, settings=settings)
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    home = "n0"

    def closed() -> bool:
        shard = nodes.status(home)["shards"].get("u0")
        assert shard is not None, nodes.tail()
        return shard["rows_out"] > 1_000_000

    nodes.until("a large window to close", closed, 60)
    busy = nodes.status(home)
    print("\nrows out", busy["shards"]["u0"]["rows_out"], "state", busy["shards"]["u0"]["state_bytes"] >> 20, "MB")
    for name in nodes.names:
        assert not [t for t in told(nodes, name, "promotion") if "takes over" in t]
    assert sorted(nodes.status()["members"]) == nodes.names
    print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, "MB")


def test_a_pipeline_is_submitted_to_nodes_that_wait_told_of_and_stopped(make: Make):
    nodes = make(layered_plan(shards=2, tops=0), 3, submit=True)
    nodes.start()
    nodes.wait_up()
    assert nodes.status("n1") == {"name": "n1", "waiting": True}
    with pytest.raises(PeerError, match="runs no pipeline"):
        nodes.caller.call("n0", "drain", {"name": "n1"})
    plan = msgspec.to_builtins(nodes.plan)
    plan["operators"] = msgspec.json.decode(msgspec.json.encode(nodes.plan.operators))
    nodes.begin()
    answer = nodes.caller.call("n0", "submit", {"plan": plan, "files": {"pipeline.py": "# nothing\n"}}, timeout=120)
    assert sorted(answer["told"]) == nodes.names
    nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
    with pytest.raises(PeerError, match="no node is named"):
        nodes.caller.call("n0", "drain", {"name": "n9"})
    with pytest.raises(PeerError, match="runs another pipeline"):
        nodes.caller.call("n0", "submit", {"plan": {**plan, "query": "other"}}, timeout=20)
    with pytest.raises(PeerError, match="unknown action"):
        nodes.caller.call("n0", "dance")
    found = nodes.caller.call("n0", "events", {"since": 0})
    assert any(e["event"] == "started" for e in found["events"])
    nodes.finish()
    assert nodes.difference() == ""
    nodes.caller.call("n2", "stop", {"all": True})
    for process in nodes.processes.values():
        assert process.wait(20) == 0


def test_a_node_leaves_under_traffic_and_comes_back_as_a_member_and_no_row_is_lost(make: Make):
    """What `holdfast leave` does: drained, ended for good, voted out. Then it is started as any node is."""
    nodes = run(make(layered_plan(shards=4, tops=0), 4))

    def held() -> list[str]:
        places = nodes.status("n0")["places"].items()
        return [a for a, p in places if any((p[s] or "").startswith("n2") for s in ("primary", "backup", "joining"))]

    def epochs() -> dict[str, int]:
        return {a: p["epoch"] for a, p in nodes.status("n0")["places"].items() if not p["stage"]}

    nodes.caller.call("n0", "drain", {"name": "n2"}, timeout=30)
    nodes.until("n2 to be empty", lambda: not held(), 60)
    before = epochs()
    nodes.caller.call("n2", "stop", {"left": True}, timeout=30)
    assert nodes.processes["n2"].wait(30) == LEFT
    others = ["n0", "n1", "n3"]
    nodes.until("n2 to be out", lambda: sorted(nodes.status("n0")["members"]) == others, 60)
    assert epochs() == before  # it had nothing that anybody would have to take over
    nodes.start("n2")
    nodes.until("n2 to be a member", lambda: "n2" in nodes.status("n0")["members"], 60)
    nodes.finish()
    assert nodes.difference() == ""


def test_a_restarted_node_comes_back_in_a_new_life_and_a_foreign_directory_is_refused(make: Make):
    nodes = run(make(layered_plan(shards=2, tops=0), 3))
    nodes.kill("n2")
    nodes.until("n2 to be out", lambda: "n2" not in nodes.status()["members"])
    nodes.start("n2")
    nodes.until("n2 to be back", lambda: nodes.status()["members"].get("n2") == 2, 60)
    nodes.finish()
    assert nodes.difference() == ""
    nodes.kill("n1")
    plan = msgspec.structs.replace(nodes.plan, query="another")
    (nodes.dir / "plan.json").write_bytes(msgspec.json.encode(plan))
    foreign = nodes.spawn("n1")
    assert foreign.wait(30) == 2
    assert "belongs to another deployment" in (nodes.dir / "n1.log").read_text()


def test_nodes_speak_tls_and_refuse_those_who_do_not(make: Make, tmp_path: Path):
    ca, cert, key = make_tls(tmp_path)
    tls = {"ca": ca, "cert": cert, "key": key}
    nodes = run(make(layered_plan(shards=2, tops=0), 2, settings={"tls": tls}, scheme="grpc+tls"))
    plain = {n: e.replace("grpc+tls", "grpc") for n, e in nodes.endpoints.items()}
    with pytest.raises(PeerError):
        Caller("plain", plain, Security.load(nodes.dir / "secret")).call("n0", "ping", timeout=2)
    nodes.finish()
    assert nodes.difference() == ""


def test_it_listens_nowhere_else_without_tls(make: Make):
    nodes = make(layered_plan(shards=1, tops=0), 1, settings={"listen": "0.0.0.0"})
    nodes.start()
    assert nodes.processes["n0"].wait(30) == 2
    assert "without TLS" in (nodes.dir / "n0.log").read_text()


#: Moves the wall clock of a node that imports it, by as many seconds as a file says at the moment.
CLOCK = """
import os, sys, time
def shift(real, shard):
    def told():
        try:
            with open(os.environ["HOLDFAST_TEST_CLOCK"]) as file:
                return real() + type(real())(float(file.read() or 0) * shard)
        except (OSError, ValueError):
            return real()
    return told
if "holdfast.runtime.node" in sys.orig_argv:  # not the source of its rows, which makes them by the clock
    time.time, time.time_ns = shift(time.time, 1), shift(time.time_ns, 10**9)
"""


def test_a_clock_that_jumps_is_named_and_changes_nothing_else(make: Make, tmp_path: Path):
    """One node of three has its wall clock moved ahead and back."""
    nodes = make(layered_plan(), 3)
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "sitecustomize.py").write_text(CLOCK)
    clock = tmp_path / "clock"
    nodes.env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "moved"), PATHS]), "HOLDFAST_TEST_CLOCK": str(clock)}
    nodes.start("n0")
    nodes.env = {}
    nodes.start("n1", "n2")

    def promotions() -> int:
        return sum(len(told(nodes, name, "promotion")) for name in nodes.names)

    nodes.wait_up()
    nodes.begin()
    nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
    lives, calm = nodes.status()["members"], promotions()
    for seconds, word in ((3_600, "ahead by 3,600"), (-86_400, "back by 90,000"), (0, "ahead by 86,400")):
        clock.write_text(str(seconds))
        nodes.until(
            f"n0 to see its clock {word}", lambda word=word: any(word in text for text in told(nodes, "n0", "clock"))
        )
        time.sleep(1.0)  # ten heartbeats
    assert nodes.status()["members"] == lives
    assert promotions() == calm
    assert not told(nodes, "n1", "clock")
    nodes.finish()
    assert nodes.difference() == ""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_gone_for_good_costs_no_row(make: Make, sign: signal.Signals):
    nodes = run(make(layered_plan(), 4))
    time.sleep(0.5)
    nodes.signal("n3", sign)
    nodes.until("n3 to be out", lambda: "n3" not in nodes.status()["members"])
    if sign == signal.SIGSTOP:
        time.sleep(5)
        nodes.signal("n3", signal.SIGCONT)
        nodes.until("n3 to be back", lambda: nodes.status()["members"].get("n3") == 1, 30)
    nodes.finish()
    assert nodes.difference() == ""


def test_a_supervisor_that_cannot_start_a_node_tries_again_and_takes_none_with_it(tmp_path: Path, monkeypatch):
    """The kernel kills what a thread has started when that thread ends: its watcher must outlive a full disk."""
    nodes = LocalNodes(tmp_path, ["n0", "n1"], restart_s=0.2, environment={"PYTHONPATH": PATHS})
    nodes.start()

    def again(name: str) -> int:
        """Kill a node; the process that takes its place."""
        dead = nodes.kill(name)
        until = time.monotonic() + 60
        while nodes.processes[name].pid == dead or name not in nodes.alive():
            assert time.monotonic() < until, f"{name} was not started again"
            time.sleep(0.05)
        nodes.wait_until_up()
        return nodes.processes[name].pid

    try:
        restarted = again("n0")
        real, troubles = nodes.start_node, [OSError(28, "no space left on device")]

        def start(name: str) -> None:
            if troubles:
                raise troubles.pop()
            real(name)

        monkeypatch.setattr(nodes, "start_node", start)
        again("n1")
        assert troubles == []
        assert nodes.processes["n0"].pid == restarted
        assert sorted(nodes.alive()) == ["n0", "n1"]
    finally:
        nodes.stop()
    assert {name: process.returncode for name, process in nodes.processes.items()} == {"n0": 0, "n1": 0}


def test_a_node_whose_journal_was_damaged_says_so_and_is_not_started_again(tmp_path):
    """It may have voted, or promised, in what it cannot read: whoever starts it again would only make it lie."""
    nodes = LocalNodes(
        tmp_path,
        ["n0"],
        settings={"child_command": [sys.executable, "-c", "import sys; sys.stdin.read()"]},
        restart_s=1.0,
        environment={"PYTHONPATH": PATHS},
    )
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
    journal = tmp_path / "nodes" / "n0" / "journal"
    try:
        nodes.start()
        waited(lambda: journal.exists() and journal.read_bytes().count(b"\xf5HF\n") >= 2)
        nodes.kill("n0")
        nodes.processes["n0"].wait(10)
        raw = bytearray(journal.read_bytes())
        raw[20] ^= 1
        journal.write_bytes(raw)
        waited(lambda: "n0" in nodes.retired)
        assert nodes.processes["n0"].returncode == DAMAGED
        (said,) = [e for e in read_events(tmp_path) if e["event"] == "journal-damaged"]
        assert f"{journal}: what was written at byte 4 cannot be read" in said["text"]
        assert "new name" in said["text"]
        assert journal.read_bytes() == raw
    finally:
        nodes.stop()


def waited(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not test():
        assert time.monotonic() < until
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-s"]))
