"""A way to a port of this machine that takes time, as one across an ocean does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def far(port: int, connect_s: float) -> Iterator[str]:
    """The endpoint of a door to `port` that lets nothing pass in the first `connect_s` of each connection."""
    door = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_let_in, args=(door, port, connect_s), daemon=True).start()
    try:
        yield f"grpc://127.0.0.1:{door.getsockname()[1]}"
    finally:
        door.shutdown(socket.SHUT_RDWR)  # a close alone does not wake the thread that accepts
        door.close()


def _let_in(door: socket.socket, port: int, connect_s: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            outside, _ = door.accept()
            threading.Thread(target=_join, args=(outside, port, connect_s), daemon=True).start()


def _join(outside: socket.socket, port: int, connect_s: float) -> None:
    time.sleep(connect_s)
    with outside, socket.create_connection(("127.0.0.1", port)) as inside:
        there = threading.Thread(target=_pump, args=(outside, inside), daemon=True)
        there.start()
        _pump(inside, outside)
        there.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
