"""Who may talk to a node: tokens made from a shared secret, TLS between machines, one protocol version.

The secret is a file that only its owner can read, and never leaves the process. What goes over the wire with every call
is a token: a keyed digest of the deployment, the node that is called, and the kind and address of the caller. A token
opens one node of one deployment for one caller, is compared in constant time, and is never logged. A node that listens
beyond this machine must have TLS, unless its config says `insecure = true` in so many words; with TLS it takes
certificates of its own CA only, from callers too. A refusal is one clear error on both sides, and the rest keeps
running. What a secret opens and what is bounded before it is looked at: SECURITY.md.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.ids import Address, Name, name_of
from holdfast.runtime.net.endpoints import check_private, host_port, socket_of
from holdfast.runtime.net.wire import PROTOCOL

#: Headers of every call. The token vouches for the others but the version, which says how to read them.
TOKEN, VERSION = "holdfast-token", "holdfast-version"
DEPLOYMENT, TARGET, KIND, ADDRESS = "holdfast-deployment", "holdfast-target", "holdfast-kind", "holdfast-address"
NODE, GUEST = "node", "guest"
SECRET_BYTES_MIN = 16
#: Longer names are nobody's: what strangers say goes into the event log.
SAID_MAX = 100


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files: the CA, and this process's certificate and key, which the CA has signed."""

    ca: str
    cert: str = ""
    key: str = ""
    #: Must callers have a certificate of the CA? Without one, nobody gets as far as a node's ear.
    clients: bool = True


class Passport(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller says of itself and of whom it calls. True if the token fits."""

    #: Empty: a caller that does not know it yet. It may ask for it, and nothing else.
    deployment: str
    target: Name
    kind: str
    address: Address

    @staticmethod
    def of(headers: dict[str, list[str]]) -> Passport:
        def said(key: str, otherwise: str = "") -> str:
            return unquote(headers.get(key, [otherwise])[0])

        return Passport(
            deployment=said(DEPLOYMENT),
            target=Name(said(TARGET)),
            kind=said(KIND, GUEST),
            address=said(ADDRESS, "someone"),
        )


class Security:
    """What a process needs to prove who it is, and to check others."""

    def __init__(self, secret: bytes, tls: TlsFiles | None = None, deployment: str = "") -> None:
        self._key = hmac.digest(secret, b"holdfast token key 2", hashlib.sha256)
        self.tls = tls
        #: Which deployment (`Plan.query`) this process belongs to; empty: none yet.
        self.deployment = deployment
        self._ca = _read(tls.ca, "CA certificate") if tls else b""

    def __repr__(self) -> str:
        return f"Security(secret=***, tls={'yes' if self.tls else 'no'}, deployment={self.deployment!r})"

    @classmethod
    def load(cls, secret_file: str | Path, tls: TlsFiles | dict | None = None, deployment: str = "") -> Security:
        if isinstance(tls, dict):
            tls = msgspec.convert(tls, TlsFiles)
        return cls(read_secret(Path(secret_file)), tls, deployment)

    def _token(self, passport: Passport) -> str:
        said = msgspec.msgpack.encode(passport)  # with lengths: no two claims are the same bytes
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()

    # --- the caller's side

    def headers(self, address: Address, kind: str, target: Name, version: int = PROTOCOL) -> list[tuple[bytes, bytes]]:
        """Of a call to the node `target`."""
        passport = Passport(deployment=self.deployment, target=target, kind=kind, address=address)
        pairs = {VERSION: str(version), TOKEN: self._token(passport)}
        pairs |= {DEPLOYMENT: passport.deployment, TARGET: target, KIND: kind, ADDRESS: address}
        return [(key.encode(), quote(value, safe="#@:/").encode()) for key, value in pairs.items()]

    def client_options(self, endpoint: str) -> dict[str, Any]:
        if self.tls is None or socket_of(endpoint):
            return {}
        own = dict(zip(("cert_chain", "private_key"), self._own(), strict=True)) if self.tls.cert else {}
        return {"tls_root_certs": self._ca, **own}

    @property
    def scheme(self) -> str:
        return "grpc+tls" if self.tls else "grpc"

    # --- the node's side

    def server_options(self, endpoint: str) -> dict[str, Any]:
        if self.tls is None or socket_of(endpoint):
            return {}
        clients = {"verify_client": True, "root_certificates": self._ca} if self.tls.clients else {}
        return {"tls_certificates": [self._own()], **clients}

    def _own(self) -> tuple[bytes, bytes]:
        """Certificate and key of this process."""
        if self.tls is None or not self.tls.cert or not self.tls.key:
            raise ConfigError("TLS without a certificate", hint="Set tls.cert and tls.key to PEM files.")
        return _read(self.tls.cert, "certificate"), _read(self.tls.key, "private key")

    def objection(self, headers: dict[str, list[str]], name: Name, members: Collection[Name]) -> str:
        """Why this caller may not talk to the node `name`, one of `members`; empty if it may."""
        passport = Passport.of(headers)
        who = repr(passport.address[:SAID_MAX])
        version = headers.get(VERSION, ["none"])[0]
        if version != str(PROTOCOL):  # first: its tokens may be made in another way
            return (
                f"unknown protocol version: {who} speaks {version[:20]!r}, this node speaks {PROTOCOL}. "
                "Run the same release of holdfast on both."
            )
        if not hmac.compare_digest(headers.get(TOKEN, [""])[0].encode(), self._token(passport).encode()):
            return f"wrong secret: {who} does not have this cluster's secret. Give it the same secret file."
        if passport.target != name:
            return (
                f"wrong endpoint: {who} wants to talk to {passport.target[:SAID_MAX]!r}, this node is {name!r}. "
                "Look at its endpoints."
            )
        if passport.kind == NODE and name_of(passport.address) not in members:
            return f"unknown node: {who} is not among the endpoints of {name!r}. Give all nodes the same endpoints."
        return self.foreign(passport, name)

    def foreign(self, passport: Passport, name: Name) -> str:
        """Is a caller of another deployment than the node `name`? Both are named; empty if it is not."""
        if not self.deployment or passport.deployment in ("", self.deployment):
            return ""
        return (
            f"another deployment: {passport.address[:SAID_MAX]!r} belongs to {passport.deployment[:SAID_MAX]!r}, "
            f"{name!r} to {self.deployment!r}. Is an endpoint wrong, or was this one started anew?"
        )


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


def ear_of(endpoint: str, name: Name, listen: str, security: Security, insecure: bool) -> str:
    """Where a node listens, if it may listen there."""
    if path := socket_of(endpoint):
        check_private(path)
        if listen:
            raise ConfigError(
                f"{name} has a socket and listens nowhere else",
                detail=f"listen is {listen!r}, its endpoint {endpoint!r}.",
                hint="For other machines: `holdfast node` with grpc+tls endpoints.",
            )
        return endpoint
    host, port = host_port(endpoint, name)
    check_listen(listen or host, security, insecure)
    return f"{security.scheme}://{listen or host}:{port}"


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
