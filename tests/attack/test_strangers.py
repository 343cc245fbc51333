"""Who is not of the cluster: without a secret or a certificate, or of another deployment with the same secret.

What strangers cost is measured on living nodes: threads, descriptors, memory, lines of the event log. After each attack
the nodes answer their own people.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.nodes import Nodes
from support.planned import Command, run_arguments
from support.plans import layered_plan
from support.tls import make_tls

from holdfast.cli.runs import RunFile, read_run
from holdfast.errors import PeerError
from holdfast.runtime.net.doorman import WAITING_MAX
from holdfast.runtime.net.endpoints import socket_of
from holdfast.runtime.net.security import GUEST, Security
from holdfast.runtime.net.transport import Caller
from holdfast.runtime.node.events import TROUBLES_MAX
from holdfast.runtime.node.scrape import CONNECTIONS_MAX

pytestmark = pytest.mark.slow

#: What most systems give a process.
DESCRIPTORS = 1_024
NOBODY = 65_534


def few_descriptors(pid: int) -> None:
    """As a process has them that nobody gave more; it may take more by itself."""
    _, hard = psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE)
    psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def many_connections(port: int, count: int, said: bytes = b"") -> ExitStack:
    opened = ExitStack()
    for _ in range(count):
        one = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        one.sendall(said)
    return opened


def most_memory(pid: int) -> int:
    """The most that a process has had resident so far."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def as_nobody(attempt: Callable[[], None]) -> bool:
    """Does it work for another user of this machine?"""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            attempt()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- a run on one machine


class Attacked:
    """A run of two nodes, and the processes of these."""

    def __init__(self, command: Command, home: Path) -> None:
        self.command = command
        self.home = home
        self.run: RunFile = read_run(home)
        children = psutil.Process(command.process.pid).children()
        self.nodes = [p for p in children if "holdfast.runtime.node" in " ".join(p.cmdline())]

    def events(self, name: str, kind: str) -> list[dict]:
        lines = (self.home / "nodes" / name / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    @property
    def metrics_port(self) -> int:
        return int(self.run.metrics["n0"].rpartition(":")[2].partition("/")[0])

    def scrape(self) -> str:
        return urllib.request.urlopen(self.run.metrics["n0"], timeout=10).read().decode()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Iterator[Attacked]:
    home = tmp_path_factory.mktemp("strangers") / "run"
    one = Command(*run_arguments(home, nodes=2), cwd=home.parent)
    few_descriptors(one.process.pid)
    try:
        one.wait_for("running in")
        yield Attacked(one, home)
        code, said = one.end(signal.SIGTERM)
        assert code == 0, said
    finally:
        one.close()


def test_a_run_listens_where_no_other_user_of_the_machine_can_go(attacked):
    assert len(attacked.nodes) == 2
    for process in attacked.nodes:
        ears = [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert [ear.ip for ear in ears] == ["127.0.0.1"], "only /metrics"
    path = socket_of(attacked.run.endpoints["n0"])
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700

    def connect() -> None:
        socket.socket(socket.AF_UNIX).connect(path)

    connect()  # we can
    if os.geteuid() == 0:
        assert not as_nobody(connect)
    assert attacked.run.ask("status")["places"]


def test_half_requests_for_metrics_are_bounded_and_a_whole_one_is_answered(attacked):
    process = next(p for p in attacked.nodes if "/n0/" in " ".join(p.cmdline()))
    attacked.scrape()
    threads, descriptors = process.num_threads(), process.num_fds()
    with many_connections(attacked.metrics_port, 800, b"GET /metrics HTTP/1.1\r\nHost: "):
        assert "holdfast_members" in attacked.scrape()
        assert process.num_threads() <= threads + 2
        assert process.num_fds() <= descriptors + CONNECTIONS_MAX + 5
    with pytest.raises(OSError, match=r"reset|pipe"):
        many_connections(attacked.metrics_port, 1, b"x" * (64 << 20))
    assert "holdfast_members" in attacked.scrape()


def test_refused_calls_do_not_fill_the_event_log(attacked):
    path = attacked.run.endpoints["n0"]
    client = flight.FlightClient(path)
    other = Security(b"not the secret of this run", deployment=attacked.run.deployment)
    for number in range(300):
        options = flight.FlightCallOptions(timeout=10, headers=other.headers(f"stranger-{number}", GUEST, "n0"))
        with pytest.raises(flight.FlightUnauthenticatedError, match="wrong secret"):
            list(client.do_action(flight.Action("status", b""), options))
    client.close()
    assert 0 < len(attacked.events("n0", "turned-away")) <= 2 * TROUBLES_MAX  # should a minute end in between
    assert attacked.run.ask("status")["places"]


def test_what_a_run_listened_on_is_gone_with_it(tmp_path, command):
    """Also after a kill -9: by the next run in that directory."""
    home = tmp_path / "run"
    first = command(*run_arguments(home))
    first.wait_for("running in")
    killed = Path(socket_of(read_run(home).endpoints["n0"])).parent
    first.end(signal.SIGKILL)
    second = command(*run_arguments(home, "--fresh"))
    second.wait_for("running in")
    assert not killed.exists()
    ended = Path(socket_of(read_run(home).endpoints["n0"])).parent
    assert ended.exists()
    assert second.end(signal.SIGTERM)[0] == 0
    assert not ended.exists()


# --- nodes on machines of their own


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def one(name: str, *args, **kwargs) -> Nodes:
        made.append(Nodes(tmp_path / name, *args, **kwargs))
        return made[-1]

    yield one
    for nodes in made:
        nodes.close()


def test_with_tls_a_stranger_without_a_certificate_costs_a_node_next_to_nothing(make, tmp_path):
    ca, cert, key = make_tls(tmp_path)
    settings = {"tls": {"ca": ca, "cert": cert, "key": key}}
    nodes = make("tls", layered_plan(shards=1, tops=0), 1, settings=settings, scheme="grpc+tls")
    nodes.start()
    few_descriptors(nodes.processes["n0"].pid)
    nodes.wait_up()
    process = psutil.Process(nodes.processes["n0"].pid)
    before = process.memory_info().rss
    # 200 MB without a certificate, and without a token
    client = flight.FlightClient(nodes.endpoints["n0"], tls_root_certs=Path(ca).read_bytes())
    with pytest.raises(pa.ArrowException):
        list(client.do_action(flight.Action("status", bytes(200 << 20)), flight.FlightCallOptions(timeout=30)))
    client.close()
    assert process.memory_info().rss - before < 50 << 20
    # the secret alone is not enough
    half = Security.load(nodes.dir / "secret", {"ca": ca}, nodes.plan.query)
    with pytest.raises(PeerError) as refused:
        Caller("half", nodes.endpoints, half).call("n0", "ping", timeout=5)
    assert "certificate" in refused.value.hint
    # connections that say nothing, more than most processes may have
    port = int(nodes.endpoints["n0"].rpartition(":")[2])
    with many_connections(port, DESCRIPTORS + 76):
        whole = Security.load(nodes.dir / "secret", settings["tls"], nodes.plan.query)
        member = Caller("member", nodes.endpoints, whole)
        assert member.call("n0", "ping", timeout=20)["name"] == "n0"
        member.close()
    assert process.memory_info().rss - before < 100 << 20


def test_two_clusters_with_one_secret_and_a_wrong_endpoint_refuse_each_other(make, tmp_path):
    ours = make("ours", layered_plan(shards=2, tops=0), 3, settings={"start_wait": "1 s"})
    plan = msgspec.structs.replace(layered_plan(shards=2, tops=0), query="theirs-1")
    theirs = make("theirs", plan, 3)
    (theirs.dir / "secret").write_bytes((ours.dir / "secret").read_bytes())
    theirs.caller = Caller("test", theirs.endpoints, Security.load(theirs.dir / "secret", deployment=plan.query))
    ours.endpoints["n2"] = theirs.endpoints["n2"]
    theirs.start()
    theirs.wait_up()
    ours.start("n0", "n1")
    ours.wait_up("n0", "n1")
    for nodes in (ours, theirs):
        nodes.begin()

    def both_named(nodes: Nodes, name: str, kind: str) -> bool:
        texts = [e["text"] for e in nodes.events(name) if e["event"] == kind]
        return any("'layered-1'" in t and "'theirs-1'" in t and "another deployment" in t for t in texts)

    theirs.until("n2 of theirs to say so", lambda: both_named(theirs, "n2", "turned-away"))
    ours.until("n0 of ours to say so", lambda: both_named(ours, "n0", "refused"))
    ours.until("n2 to be out of ours", lambda: "n2" not in ours.status()["members"])
    assert sorted(theirs.status()["members"]) == ["n0", "n1", "n2"]
    wrong = Caller("cli", theirs.endpoints, Security.load(ours.dir / "secret", deployment="layered-1"))
    with pytest.raises(PeerError, match="another deployment: 'cli' belongs to 'layered-1', 'n0' to 'theirs-1'"):
        wrong.call("n0", "stop", {"all": True})
    wrong.close()
    swapped = {"n0": theirs.endpoints["n1"]}
    lost = Caller("cli", swapped, Security.load(theirs.dir / "secret", deployment="theirs-1"))
    with pytest.raises(PeerError, match="wrong endpoint: 'cli' wants to talk to 'n0', this node is 'n1'"):
        lost.call("n0", "ping")
    lost.close()
    _without_a_token(theirs)
    for nodes in (ours, theirs):
        nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
        nodes.finish()
        assert nodes.difference() == ""


def _without_a_token(nodes: Nodes) -> None:
    """On TCP without TLS everybody gets as far as gRPC: who shows no token is hung up before it costs much."""
    pid, port = nodes.processes["n0"].pid, int(nodes.endpoints["n0"].rpartition(":")[2])
    before = most_memory(pid)
    client = flight.FlightClient(nodes.endpoints["n0"])
    with pytest.raises(pa.ArrowException):
        list(client.do_action(flight.Action("status", bytes(200 << 20)), flight.FlightCallOptions(timeout=30)))
    client.close()
    assert most_memory(pid) - before < 150 << 20  # it was 580 MB
    descriptors = psutil.Process(pid).num_fds()
    with many_connections(port, 2 * WAITING_MAX):
        nodes.until("the oldest to go", lambda: psutil.Process(pid).num_fds() <= descriptors + WAITING_MAX + 20)
        assert nodes.status("n0")["members"]
        nodes.until("all of them to go", lambda: psutil.Process(pid).num_fds() <= descriptors + 20)
    assert any("showed no token" in e["text"] for e in nodes.events("n0") if e["event"] == "hung-up")
