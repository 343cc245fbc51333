"""Who may talk to a node, and settings as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.model.config import MS, SECOND
from holdfast.model.ids import Name
from holdfast.runtime.config import duration_ns, load_config, make_config, size_bytes
from holdfast.runtime.net.security import (
    ADDRESS,
    DEPLOYMENT,
    GUEST,
    KIND,
    NODE,
    TARGET,
    TOKEN,
    Security,
    TlsFiles,
    check_listen,
    make_secret,
    read_secret,
)
from holdfast.runtime.net.wire import PROTOCOL

ENDPOINTS = {"n0": "grpc://127.0.0.1:7100", "n1": "grpc://127.0.0.1:7101"}


SECRET = b"a secret of some length"
MEMBERS = ("n0", "n1")


def headers(
    security: Security, address: str = "s0@1", kind: str = GUEST, target: str = "n0", version: int = PROTOCOL
) -> dict[str, list[str]]:
    return {k.decode(): [v.decode()] for k, v in security.headers(address, kind, Name(target), version)}


def objection(ours: Security, given: dict[str, list[str]]) -> str:
    return ours.objection(given, Name("n0"), MEMBERS)


def test_only_the_same_secret_and_version_pass_and_the_refusal_says_what_to_do():
    ours, other = Security(SECRET), Security(b"another one of that length")
    assert objection(ours, headers(ours)) == ""
    assert "wrong secret" in objection(ours, headers(other))
    assert "'s0@1'" in objection(ours, headers(other))
    assert "unknown protocol version" in objection(ours, headers(ours, version=99))
    assert "'someone' speaks 'none'" in objection(ours, {})


def test_a_token_is_of_one_deployment_one_caller_and_one_node():
    ours = Security(SECRET, deployment="größe: a-1")
    given = headers(ours, "n1#1", NODE)
    assert objection(ours, given) == ""
    assert all(value[0].isascii() for value in given.values())
    for key, said in ((ADDRESS, "n0#1"), (KIND, GUEST), (TARGET, "n1"), (DEPLOYMENT, "a-2"), (TOKEN, "0" * 64)):
        assert "wrong secret" in objection(ours, {**given, key: [said]}), key
    for target in ("n1", "elsewhere"):
        assert f"wrong endpoint: 'n1#1' wants to talk to {target!r}" in objection(
            ours, headers(ours, "n1#1", NODE, target)
        )
    assert "unknown node: 'n7#1'" in objection(ours, headers(ours, "n7#1", NODE))


def test_another_deployment_is_refused_and_both_are_named():
    ours, theirs, nobody = (Security(SECRET, deployment=d) for d in ("a-1", "b-2", ""))
    refused = objection(ours, headers(theirs, "n1#1", NODE))
    assert refused.startswith("another deployment: 'n1#1' belongs to 'b-2', 'n0' to 'a-1'.")
    assert objection(ours, headers(nobody)) == ""  # may ask for the plan: see transport
    assert objection(nobody, headers(theirs)) == ""  # waits for a pipeline


def test_the_secret_and_tokens_appear_nowhere():
    secret = b"0123456789abcdef-very-secret"
    security = Security(secret)
    told = repr(security) + objection(security, {}) + str(headers(security))
    assert secret.decode() not in told
    (token,) = headers(security)[TOKEN]
    assert token not in repr(security) + objection(Security(b"x" * 20), headers(security))


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
