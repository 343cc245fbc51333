"""A node that cannot start names the endpoint, the port or the path, in one line."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.client import local
from holdfast.runtime.client.local import LocalNodes
from holdfast.runtime.config import NodeConfig, load_cluster, make_config
from holdfast.runtime.net.endpoints import check_endpoint, check_private, nobody_listens, socket_of
from holdfast.runtime.net.security import make_secret
from holdfast.runtime.node import metrics
from holdfast.runtime.node.joining import mark_joined
from holdfast.runtime.node.process import NodeProcess


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def config(directory: Path, port: int) -> NodeConfig:
    return make_config({"name": "n0", "dir": str(directory), "endpoints": {"n0": f"grpc://127.0.0.1:{port}"}})


def test_a_port_in_use(tmp_path, taken):
    make_secret(tmp_path / "secret")
    with pytest.raises(ConfigError, match=f"cannot listen on grpc://127.0.0.1:{taken}"):
        NodeProcess(config(tmp_path, taken))


def test_a_node_that_joined_once_never_makes_a_first_record(tmp_path):
    make_secret(tmp_path / "secret")
    given = msgspec.structs.replace(config(tmp_path, 1), endpoints={"n0": f"grpc+unix://{tmp_path}/n0.sock"})
    tmp_path.chmod(0o700)
    mark_joined(given.home)
    process = NodeProcess(given)
    assert process.joined  # the core then makes none (tests/unit/core)
    process.close()
    process.server.shutdown()


def test_a_metrics_port_in_use(taken):
    with pytest.raises(ConfigError, match=f"127.0.0.1:{taken}") as refused:
        metrics.serve("n0", taken, list)
    assert "metrics_port" in refused.value.hint


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as refused:
        NodeProcess(config(tmp_path / "file", 1))
    assert str(tmp_path / "file") in refused.value.detail


def test_a_cluster_file_names_no_node_or_one(tmp_path):
    file = tmp_path / "cluster.toml"
    shared = 'dir = "/d"\n[endpoints]\nn0 = "grpc://127.0.0.1:1"\nn1 = "grpc://127.0.0.1:2"\n'
    file.write_text(shared)
    assert sorted(load_cluster(file).endpoints) == ["n0", "n1"]
    file.write_text(f'name = "n1"\n{shared}')
    assert load_cluster(file).name == "n1"
    for wrong in ('dir = "/d"\n', 'dir = "/d"\nendpoints = 3\n', 'dir = "/d"\n[endpoints]\n', b"\xff"):
        file.write_bytes(wrong.encode() if isinstance(wrong, str) else wrong)
        with pytest.raises(ConfigError):
            load_cluster(file)


def ports_of(nodes: LocalNodes) -> list[int]:
    nodes.stop()
    return list(nodes.metrics.values())


def test_nodes_of_one_machine_listen_where_nobody_else_can_go(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 25)))
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    nodes = LocalNodes(tmp_path, ["n0", "a-node-with-a-name"])
    directory = Path(socket_of(nodes.endpoints["n0"])).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    for name, endpoint in nodes.endpoints.items():
        check_endpoint(endpoint, name)
        check_private(socket_of(endpoint))
        assert nobody_listens(endpoint)
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match="can be entered by others"):
        check_private(socket_of(nodes.endpoints["n0"]))
    (directory / "n0.sock").touch()  # not ours
    nodes.stop()
    assert directory.exists()
    (directory / "n0.sock").unlink()
    nodes.stop()
    assert not directory.exists()
    unwritable = ("grpc://a\ud800:1", "grpc+unix:///a\ud800", f"grpc://{300 * 'a'}:1")  # JSON can say them
    for wrong in ("grpc+unix://here/n0.sock", "grpc+unix:///" + 107 * "x", "grpc+unix://", *unwritable):
        with pytest.raises(ConfigError, match="endpoint of 'n0'"):
            check_endpoint(wrong, "n0")


def test_no_connection_can_take_the_port_of_a_node_that_is_down(tmp_path):
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = ports_of(LocalNodes(tmp_path, [f"n{i}" for i in range(20)]))
    assert len(set(ports)) == 20
    assert max(ports) < first


@pytest.mark.parametrize("told", [None, "1024 65535", "10001 65535", "?"])
def test_ports_where_nothing_is_left_below_those_of_connections(tmp_path, monkeypatch, told):
    file = tmp_path / "range"
    if told is not None:
        file.write_text(told)
    monkeypatch.setattr(local, "PORT_RANGE", file)
    assert len(set(ports_of(LocalNodes(tmp_path, ["n0", "n1", "n2"])))) == 3


def test_the_settings_know_the_sizes_of_pages_that_the_state_takes():
    from holdfast.runtime import config
    from holdfast.state import pages

    assert (config.PAGE_BYTES_MIN, config.PAGE_BYTES_MAX) == (pages.PAGE_BYTES_MIN, pages.PAGE_BYTES_MAX)
