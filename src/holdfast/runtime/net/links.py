"""Messages on their way out: bounded queues and threads per peer, so that a send never waits.

A pair has two lanes, each a stream and a connection of its own: rows and captures take one, everything else the
other. A heartbeat that waits behind fifty megabytes of state would be a death notice.

When a peer is slow or gone, its queue drops the oldest: the core sends again whatever matters. A message that is sent
again while it still waits takes the place of the older one, so that a slow peer is not buried under repetitions.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import HoldfastError, InputError
from holdfast.model import messages as m
from holdfast.model.ids import Address, Name, name_of
from holdfast.runtime.net import wire
from holdfast.runtime.net.endpoints import nobody_listens
from holdfast.runtime.net.security import Security

QUEUE_MAX = 4_096
BACKOFF_MIN_S, BACKOFF_MAX_S, REFUSED_S = 0.05, 0.5, 2.0
#: Closing a link waits so long for a write that is under way.
CLOSE_S_MAX = 0.2
#: gRPC's own back-off is made short, and each link has its own connection: a dead peer must not slow a living one.
#: Its "min_reconnect_backoff" is not one: it is how long an attempt to connect may take. A peer that is far or busy
#: needs more than the back-off. One that is dead says so at once; one that is cut off the kernel asks every second.
CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would ask the proxy of the environment (http_proxy) for every node, also for those of this machine
    ("grpc.enable_http_proxy", 0),
    # What the kernel could not get across for 10 s ends the connection. Else it would wait twice as long with every
    # try, and after a cut of a minute be silent for another. (gRPC wants a time between pings for it. Flight's servers
    # hang up on a client that pings more often than every 5 min, and cannot be told otherwise.)
    ("grpc.keepalive_time_ms", 400_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]

#: What the opener of a stream says first, and what it hears when it was let in.
KNOCK, WELCOME = b"knock", pa.py_buffer(b"welcome")

#: The lanes of a pair, as the opener of a stream names them.
FAST, BULK = b"fast", b"bulk"

OnMessage = Callable[[Address, Address, m.Message], None]
#: (what happened, peer, text), for an event log.
OnTrouble = Callable[[str, str, str], None]

_unique = itertools.count()


def key_of(target: Address, message: m.Message) -> object:
    """Two messages of one key say the same, the later one better."""
    if message.key is None:
        return next(_unique)
    return (type(message), target, *(getattr(message, field) for field in message.key))


def lane_of(message: m.Message) -> bytes:
    return BULK if message.bulk else FAST


class Outgoing:
    """A queue and the thread that empties it. `write` may block and may raise; then the message is lost."""

    def __init__(
        self, name: Address, source: Address, write: Callable[[bytes | bytearray], None], on_trouble: OnTrouble
    ) -> None:
        self.name = name
        self.source = source
        self.dropped = 0
        self.bytes = 0
        self._write = write
        self._on_trouble = on_trouble
        #: None: only show that we are here.
        self._pending: dict[object, tuple[Address, m.Message] | None] = {}
        self._wanted = threading.Condition(threading.Lock())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"to-{name}", daemon=True)
        self._thread.start()

    def send(self, target: Address, message: m.Message) -> None:
        key = key_of(target, message)
        with self._wanted:
            if len(self._pending) >= QUEUE_MAX and key not in self._pending:
                self._pending.pop(next(iter(self._pending)))
                self.dropped += 1
            self._pending[key] = (target, message)
            self._wanted.notify()

    def knock(self) -> None:
        """Open the way without having anything to say."""
        with self._wanted:
            self._pending.setdefault("knock", None)
            self._wanted.notify()

    def __len__(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        with self._wanted:
            self._closed = True
            self._wanted.notify()

    def has_ended(self, limit_s: float) -> bool:
        """After `close`: does nobody write any more?"""
        if self._thread is not threading.current_thread():
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wanted:
                while not self._pending and not self._closed:
                    self._wanted.wait()
                if self._closed:
                    return
                waiting = self._pending.pop(next(iter(self._pending)))
            try:
                raw = wire.encode(self.source, *waiting) if waiting else KNOCK
                self._write(raw)
                self.bytes += len(raw)
            except (pa.ArrowException, OSError, StopIteration):
                self.dropped += 1  # the stream is gone: whatever mattered will be said again
            except Exception as error:  # of one message: it must not silence this peer for good
                self.dropped += 1
                self._on_trouble("unsendable", self.name, str(error) or repr(error))


class Link:
    """All that this process says to a node, and what it answers."""

    def __init__(
        self,
        name: Name,
        endpoint: str,
        address: Address,
        kind: str,
        security: Security,
        on_message: OnMessage,
        on_trouble: OnTrouble,
        on_gone: Callable[[Name], None] | None = None,
    ) -> None:
        rest = (name, endpoint, address, kind, security, on_message, on_trouble)
        self._bulk = _Lane(BULK, *rest)
        self._fast = _Lane(FAST, *rest, on_gone, self._bulk.renew)

    def send(self, target: Address, message: m.Message) -> None:
        (self._bulk if lane_of(message) == BULK else self._fast).out.send(target, message)

    @property
    def refused(self) -> str:
        return self._fast.refused

    @property
    def dropped(self) -> int:
        return self._fast.out.dropped + self._bulk.out.dropped

    def close(self) -> None:
        self._fast.close()
        self._bulk.close()


class _Lane:
    """One stream to a node. Opens itself, and again whenever it breaks."""

    def __init__(
        self,
        lane: bytes,
        name: Name,
        endpoint: str,
        address: Address,
        kind: str,
        security: Security,
        on_message: OnMessage,
        on_trouble: OnTrouble,
        on_gone: Callable[[Name], None] | None = None,
        on_again: Callable[[], None] | None = None,
    ) -> None:
        self.lane = lane
        self.name = name
        self.endpoint = endpoint
        #: Told when a stream that was open has ended and nothing listens there any more.
        self._on_gone = on_gone
        #: Told when the node lets in another stream than the first.
        self._on_again = on_again
        self._was_let_in = False
        self._address = address
        self._kind = kind
        self._security = security
        self._on_message = on_message
        self._on_trouble = on_trouble
        self._closed = threading.Event()
        self._client: flight.FlightClient | None = None
        #: The stream as it was opened, and where to write to: None when it has ended.
        self._opened: flight.FlightStreamWriter | None = None
        self._writer: flight.FlightStreamWriter | None = None
        self._reader: flight.FlightStreamReader | None = None
        #: The reason of the last refusal, until a message gets through.
        self.refused = ""
        self._backoff_s = BACKOFF_MIN_S
        self.out = Outgoing(name, address, self._write, on_trouble)
        self.out.knock()

    def close(self) -> None:
        self._closed.set()
        self.out.close()
        reader = self._reader
        if reader is not None:
            reader.cancel()
        if self.out.has_ended(CLOSE_S_MAX):
            self._drop()  # here, or Arrow writes to stderr what it thinks of a stream that is closed by its destructor

    def renew(self) -> None:
        """Open another stream in place of this one. After a cut, a node's kernel may wait long before it tries again to
        get across what the node has said on this one; ours has nothing to get across, and notices nothing."""
        self._writer = None
        self.out.knock()

    def _open(self) -> flight.FlightStreamWriter:
        self._drop()
        how = self._security.client_options(self.endpoint)
        client = flight.FlightClient(self.endpoint, generic_options=CHANNEL, **how)
        options = flight.FlightCallOptions(headers=self._security.headers(self._address, self._kind, self.name))
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(self.lane), options)
        self._client, self._opened, self._writer, self._reader = client, writer, writer, reader
        try:
            threading.Thread(target=self._read, args=(reader,), name=f"from-{self.name}", daemon=True).start()
        except RuntimeError:  # no thread is left: nobody would notice the end of this stream
            self._drop()
            raise
        return writer

    def _write(self, raw: bytes | bytearray) -> None:
        """On the queue's thread: open if need be, then write. A failure costs this message and a short wait."""
        try:
            (self._writer or self._open()).write_metadata(raw)
        except (pa.ArrowException, OSError):
            self._drop()
            self._closed.wait(REFUSED_S if self.refused else self._backoff_s)
            self._backoff_s = min(BACKOFF_MAX_S, 2 * self._backoff_s)
            raise

    def _drop(self) -> None:
        """Let go of a stream that has ended; what it says to that is known already."""
        self._writer = None
        reader, self._reader = self._reader, None
        opened, self._opened = self._opened, None
        client, self._client = self._client, None
        with contextlib.suppress(pa.ArrowException, OSError):
            if reader is not None:
                reader.cancel()
            if opened is not None:
                opened.close()
        if client is not None:
            client.close()

    def _read(self, reader: flight.FlightStreamReader) -> None:
        """What comes back on the same stream; and the news that it has ended."""
        let_in = False
        try:
            while not self._closed.is_set():
                raw = reader.read_chunk().app_metadata
                if not let_in:
                    let_in = True
                    self._on_let_in()
                self._backoff_s, self.refused = BACKOFF_MIN_S, ""
                if raw is not None and not raw.equals(WELCOME):
                    self._take(raw)
        except StopIteration:
            pass
        except flight.FlightUnauthenticatedError as error:
            text = first_line(error)
            if text != self.refused and not self._closed.is_set():
                self._on_trouble("refused", self.name, text)
            self.refused = text
        except (pa.ArrowException, OSError):
            pass
        if self._reader is reader:
            self._writer = None  # the next message opens a new one
        if let_in and self._on_gone is not None and not self._closed.is_set() and nobody_listens(self.endpoint):
            self._on_gone(self.name)

    def _on_let_in(self) -> None:
        if self._was_let_in and self._on_again is not None:
            self._on_again()
        self._was_let_in = True

    def _take(self, raw: pa.Buffer) -> None:
        try:
            source, target, message = wire.decode(raw, self.name)
            if name_of(source) != self.name:
                raise not_its_own(source, self.name)
            self._on_message(source, target, message)
        except HoldfastError as error:
            self._on_trouble("damaged", self.name, str(error))


def not_its_own(source: Address, peer: Address) -> InputError:
    return InputError(
        f"a message from {peer} says that it is from {source[:100]}",
        detail="Who opens a stream speaks for itself only.",
        hint="It was dropped.",
    )


def first_line(error: Exception) -> str:
    text = str(error)
    lines = (
        text.split(". Detail:")[0].splitlines() or text.splitlines()
    )  # a node without memory says no word before that
    return lines[0] if lines else type(error).__name__
