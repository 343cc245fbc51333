"""A page for whoever asks, over HTTP on loopback, whatever else strangers send: the server of `/metrics`.

One thread serves all connections and waits for none of them. What they can take is bounded: their number (a new one
takes the place of the oldest), the bytes of a request, the time from connecting to the end of the answer. A scraper
that sends its request at once is served between any number of others that do not.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 8 << 10
LIMIT_S = 5.0
#: How often it looks whether somebody has taken too long, or it shall end.
LOOK_S = 0.5


class _Asker:
    """A connection: its request until that is whole, then what is left of its answer."""

    __slots__ = ("answer", "request", "socket", "until")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.until = time.monotonic() + LIMIT_S
        self.request = bytearray()
        self.answer = memoryview(b"")


class PageServer:
    """`GET path` is answered with what `page` returns (content type, bytes)."""

    def __init__(self, port: int, path: str, page: Callable[[], tuple[str, bytes]]) -> None:
        self._path = path
        self._page = page
        self._ear = socket.create_server(("127.0.0.1", port), backlog=CONNECTIONS_MAX)
        self._ear.setblocking(False)
        self.port: int = self._ear.getsockname()[1]
        self._askers: dict[socket.socket, _Asker] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2 * LOOK_S + LIMIT_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select(LOOK_S):
                if key.fileobj is self._ear:
                    self._accept()
                else:
                    self._serve(self._askers.get(key.fileobj))  # pyright: ignore[reportArgumentType]
            now = time.monotonic()
            for asker in [a for a in self._askers.values() if a.until < now]:
                self._drop(asker)
        for asker in list(self._askers.values()):
            self._drop(asker)
        self._selector.close()
        self._ear.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._ear.accept()
        except OSError:  # gone again, or no descriptor is left
            return
        connection.setblocking(False)
        if len(self._askers) >= CONNECTIONS_MAX:
            self._drop(next(iter(self._askers.values())))
        self._askers[connection] = _Asker(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, asker: _Asker) -> None:
        del self._askers[asker.socket]
        self._selector.unregister(asker.socket)
        asker.socket.close()

    def _serve(self, asker: _Asker | None) -> None:
        """It has sent something, or takes more of its answer. `None`: it was dropped just now."""
        if asker is None:
            return
        try:
            if asker.answer:
                asker.answer = asker.answer[asker.socket.send(asker.answer) :]
                is_over = not asker.answer
            else:
                is_over = False
                if self._has_asked(asker):
                    asker.answer = memoryview(self._answer(bytes(asker.request)))
                    asker.until = time.monotonic() + LIMIT_S
                    self._selector.modify(asker.socket, selectors.EVENT_WRITE)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._drop(asker)

    def _has_asked(self, asker: _Asker) -> bool:
        """Is the request whole? An error if it will never be."""
        sent = asker.socket.recv(REQUEST_BYTES_MAX)
        asker.request += sent
        if not sent or len(asker.request) > REQUEST_BYTES_MAX:
            raise ConnectionError
        return b"\r\n\r\n" in asker.request or b"\n\n" in asker.request

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n")
        if path not in (self._path, "/"):
            return _response("404 Not Found", "text/plain", f"see {self._path}\n".encode())
        try:
            kind, page = self._page()
        except Exception as error:  # whatever it is, the next one who asks shall be answered
            return _response("500 Internal Server Error", "text/plain", f"{error}\n".encode())
        return _response("200 OK", kind, page, with_body=method == b"GET")


def _response(status: str, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
