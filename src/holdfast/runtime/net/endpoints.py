"""Where nodes listen: `grpc://host:port`, `grpc+tls://host:port`, or a socket of this machine, `grpc+unix:///path`.

A socket is in a directory that only its owner can enter, so that nobody else on the machine gets as far as gRPC, which
reads what it is sent before anybody can look at a token, and cannot be told how much of it to take (SECURITY.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import time
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.model.ids import Name
from holdfast.model.ranges import is_word, shown

#: The kernel takes paths of sockets of this many bytes at most.
PATH_BYTES_MAX = 107
#: Directories of sockets are called so, and a few letters by chance.
PREFIX = "holdfast-"
PROBES, PROBE_S = 30, 0.2

UNIX = "grpc+unix://"


def socket_of(endpoint: str) -> str:
    """The path of a socket of this machine; empty: the endpoint is none."""
    return endpoint.removeprefix(UNIX) if endpoint.startswith(UNIX) else ""


def host_port(endpoint: str, name: str) -> tuple[str, int]:
    """grpc://host:port taken apart."""
    found = re.fullmatch(r"grpc(?:\+tls)?://\[?([^\[\]/]+?)\]?:([0-9]{1,5})", endpoint)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise ConfigError(
            f"endpoint of {name!r} cannot be used",
            detail=f"It is {endpoint!r}.",
            hint='Write "grpc://host:port"; "grpc+unix:///directory/name.sock" for nodes of one machine.',
        )
    return found[1], int(found[2])


def check_endpoint(endpoint: str, name: str) -> None:
    path = socket_of(endpoint)
    if not is_word(endpoint):
        raise ConfigError(
            f"endpoint of {name!r} cannot be used",
            detail=f"It is {shown(endpoint)}.",
            hint="Write at most 300 characters, and none that cannot be printed.",
        )
    if not path:
        host_port(endpoint, name)
    elif not path.startswith("/") or len(path.encode()) > PATH_BYTES_MAX:
        raise ConfigError(
            f"endpoint of {name!r} cannot be used",
            detail=f"It is {endpoint!r}.",
            hint=f"A socket needs an absolute path of at most {PATH_BYTES_MAX} bytes.",
        )


def check_private(path: str) -> None:
    """A node's socket must be where only its owner can go."""
    directory = Path(path).parent
    try:
        found = directory.stat()
    except OSError as error:
        raise ConfigError(f"the directory of socket {path} cannot be used", detail=str(error)) from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            "the directory of a node's socket can be entered by others",
            detail=f"{directory} is of user {found.st_uid} and has mode {found.st_mode & 0o777:o}.",
            hint=f"chmod 700 {directory}, as the user whom the node runs as.",
        )


def make_sockets(names: list[Name]) -> dict[Name, str]:
    """An endpoint for each of these nodes, in a new directory that nobody else can enter."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        if len(f"{parent}/{PREFIX}12345678/{max(names, key=len)}.sock".encode()) <= PATH_BYTES_MAX:
            directory = tempfile.mkdtemp(prefix=PREFIX, dir=parent)  # with mode 700
            return {name: f"{UNIX}{directory}/{name}.sock" for name in names}
    raise ConfigError(
        "nodes cannot have sockets: their paths would be too long",
        detail=f"{tempfile.gettempdir()} is too long for paths of {PATH_BYTES_MAX} bytes.",
        hint="Set TMPDIR to a shorter directory.",
    )


def remove_socket(endpoint: str) -> None:
    """What is left of an endpoint of `make_sockets`; with the last one its directory."""
    path = Path(socket_of(endpoint))
    if path.parent.name.startswith(PREFIX):
        with contextlib.suppress(OSError):
            if path.is_socket():
                path.unlink()
            path.parent.rmdir()


def nobody_listens(endpoint: str) -> bool:
    """Does the machine say that nobody is there? Anything less clear (a time-out, say) is no.

    A process that is being killed may lose its connections before its port: such a port still accepts, and hangs up.
    """
    for _ in range(PROBES):
        try:
            with _connected(endpoint) as probe:
                if probe.recv(1):
                    return False  # a server of gRPC speaks first
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except TimeoutError:
            return False  # a server of TLS does not
        except OSError:
            pass
        time.sleep(0.01)
    return False


def _connected(endpoint: str) -> socket.socket:
    path = socket_of(endpoint)
    if not path:
        return socket.create_connection(host_port(endpoint, endpoint), timeout=PROBE_S)
    probe = socket.socket(socket.AF_UNIX)
    probe.settimeout(PROBE_S)
    try:
        probe.connect(path)
    except BaseException:
        probe.close()
        raise
    return probe
