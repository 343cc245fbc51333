"""Who may talk to a node, and settings as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.model.config import MS, SECOND
from holdfast.runtime.config import duration_ns, load_config, make_config, size_bytes
from holdfast.runtime.net.security import Security, TlsFiles, check_listen, make_secret, read_secret
from holdfast.runtime.net.wire import PROTOCOL

ENDPOINTS = {"n0": "grpc://127.0.0.1:7100", "n1": "grpc://127.0.0.1:7101"}


def headers(security: Security, version: int = PROTOCOL) -> dict[str, list[str]]:
    return {k.decode(): [v.decode()] for k, v in security.headers("s0@1", "guest", version)}


def test_only_the_same_secret_and_version_pass_and_the_refusal_says_what_to_do():
    ours, other = Security(b"a secret of some length"), Security(b"another one of that length")
    assert ours.objection(headers(ours)) == ""
    assert "wrong secret" in ours.objection(headers(other))
    assert "'s0@1'" in ours.objection(headers(other))
    assert "unknown protocol version" in ours.objection(headers(ours, 99))
    assert "wrong secret" in ours.objection({})


def test_the_secret_appears_nowhere():
    secret = b"0123456789abcdef-very-secret"
    security = Security(secret)
    told = repr(security) + security.objection({}) + str(headers(security))
    assert secret.decode() not in told
    assert security._token not in repr(security) + security.objection(headers(Security(b"x" * 20)))


def test_a_secret_file_is_private_long_and_there(tmp_path: Path):
    path = tmp_path / "sub" / "secret"
    make_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    first = read_secret(path)
    make_secret(path)
    assert read_secret(path) == first
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="read by others"):
        read_secret(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="too short"):
        read_secret(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(tmp_path / "none")


def test_beyond_this_machine_only_with_tls_or_in_so_many_words(tmp_path: Path):
    plain = Security(b"a secret of some length")
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"):
        check_listen(host, plain, insecure=False)
    for host in ("0.0.0.0", "10.0.0.1", "node.example"):
        with pytest.raises(ConfigError, match="without TLS"):
            check_listen(host, plain, insecure=False)
        check_listen(host, plain, insecure=True)
    (tmp_path / "ca.pem").write_text("x")
    check_listen("0.0.0.0", Security(b"a secret of some length", TlsFiles(ca=str(tmp_path / "ca.pem"))), insecure=False)
    with pytest.raises(ConfigError, match="cannot read the CA"):
        Security(b"a secret of some length", TlsFiles(ca=str(tmp_path / "none")))


def test_times_and_sizes_are_read_as_people_write_them():
    assert duration_ns("100 ms", "x") == 100 * MS
    assert duration_ns("1.5s", "x") == 1_500 * MS
    assert duration_ns("2 min", "x") == 120 * SECOND
    assert size_bytes("64 KB", "x") == 65_536
    for wrong in ("100", "ms", "5 parsecs", "-1 s", ""):
        with pytest.raises(ConfigError, match="'heartbeat'"):
            duration_ns(wrong, "heartbeat")


def test_a_config_file_with_every_kind_of_mistake(tmp_path: Path):
    path = tmp_path / "node.toml"
    head = 'name = "n0"\ndir = "/tmp/x"\n'
    tail = '[endpoints]\nn0 = "grpc://127.0.0.1:7100"\nn1 = "grpc://127.0.0.1:7101"\n'
    path.write_text(head + 'heartbeat = "50 ms"\n' + tail)
    assert load_config(path).core().heartbeat_ns == 50 * MS
    assert load_config(path, name="n1").name == "n1"
    for wrong in ("heartbeat = 50", "hartbeat = '1 s'", "misses = 0", "election = '100 ms'", "page = '64'", "x = ["):
        path.write_text(head + wrong + "\n" + tail)
        with pytest.raises(ConfigError):
            load_config(path)
    with pytest.raises(ConfigError, match="not among the endpoints"):
        make_config({"name": "n9", "dir": "x", "endpoints": ENDPOINTS})
    with pytest.raises(ConfigError, match="endpoint of 'n0'"):
        make_config({"name": "n0", "dir": "x", "endpoints": {"n0": "http://here"}})
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "none.toml")
