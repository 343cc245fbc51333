"""Who may talk to a node: a shared secret on every call, TLS between machines, one protocol version.

The secret is a file that only its owner can read. What goes over the wire is a keyed digest of it, compared in
constant time; neither is ever logged. A node that listens beyond this machine must have TLS, unless its config says
`insecure = true` in so many words. A refusal is one clear error on both sides, and the rest keeps running.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.runtime.net.wire import PROTOCOL

TOKEN, VERSION, ADDRESS, KIND = "holdfast-token", "holdfast-version", "holdfast-address", "holdfast-kind"
SECRET_BYTES_MIN = 16


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files. Every node has a certificate and key; every process the CA that signed them."""

    ca: str
    cert: str = ""
    key: str = ""


class Security:
    """What a process needs to prove who it is, and to check others."""

    def __init__(self, secret: bytes, tls: TlsFiles | None = None) -> None:
        self._token = hmac.new(secret, b"holdfast cluster token 1", hashlib.sha256).hexdigest()
        self.tls = tls
        self._ca = _read(tls.ca, "CA certificate") if tls else b""

    def __repr__(self) -> str:
        return f"Security(secret=***, tls={'yes' if self.tls else 'no'})"

    @classmethod
    def load(cls, secret_file: str | Path, tls: TlsFiles | dict | None = None) -> Security:
        if isinstance(tls, dict):
            tls = msgspec.convert(tls, TlsFiles)
        return cls(read_secret(Path(secret_file)), tls)

    # --- the caller's side

    def headers(self, address: str, kind: str, version: int = PROTOCOL) -> list[tuple[bytes, bytes]]:
        pairs = ((TOKEN, self._token), (VERSION, str(version)), (ADDRESS, address), (KIND, kind))
        return [(key.encode(), value.encode()) for key, value in pairs]

    def client_options(self) -> dict[str, Any]:
        return {"tls_root_certs": self._ca} if self.tls else {}

    @property
    def scheme(self) -> str:
        return "grpc+tls" if self.tls else "grpc"

    # --- the node's side

    def server_options(self) -> dict[str, Any]:
        if self.tls is None:
            return {}
        if not self.tls.cert or not self.tls.key:
            raise ConfigError("TLS without a certificate", hint="Set tls.cert and tls.key to PEM files of this node.")
        cert, key = _read(self.tls.cert, "certificate"), _read(self.tls.key, "private key")
        return {"tls_certificates": [(cert, key)]}

    def objection(self, headers: dict[str, list[str]]) -> str:
        """Why this caller may not talk to us; empty if it may."""
        token = headers.get(TOKEN, [""])[0]
        version = headers.get(VERSION, ["none"])[0]
        who = headers.get(ADDRESS, ["someone"])[0]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return f"wrong secret: {who!r} does not have this cluster's secret. Give it the same secret file."
        if version != str(PROTOCOL):
            return (
                f"unknown protocol version: {who!r} speaks {version[:20]!r}, this node speaks {PROTOCOL}. "
                "Run the same release of holdfast on both."
            )
        return ""


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the {what}", detail=str(error), hint="Check the [tls] part of the config."
        ) from error


def make_secret(path: Path) -> None:
    """A new secret that only this user can read. One that is there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32) + "\n")


def read_secret(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            "cannot read the cluster secret", detail=str(error), hint="Every node needs a copy of the same secret file."
        ) from error
    if mode & 0o077:
        raise ConfigError(
            "the cluster secret can be read by others",
            detail=f"{path} has mode {mode & 0o777:o}.",
            hint=f"chmod 600 {path}",
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            "the cluster secret is too short",
            detail=f"{path} has {len(secret)} bytes; at least {SECRET_BYTES_MIN} are needed.",
            hint="For example: openssl rand -hex 32",
        )
    return secret


def check_listen(host: str, security: Security, insecure: bool) -> None:
    """Beyond this machine only with TLS, or if told so in so many words."""
    if is_loopback(host) or security.tls is not None or insecure:
        return
    raise ConfigError(
        "a node may not listen beyond this machine without TLS",
        detail=f"It would listen on {host}.",
        hint="Set [tls] ca, cert and key; or write insecure = true if the network itself is trusted.",
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
