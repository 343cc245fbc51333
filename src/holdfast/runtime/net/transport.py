"""How processes hear each other: Arrow Flight, one stream per pair, lane and direction of opening.

Nodes open streams to every other node and write to them; what comes back is only an error. Drivers and readers
(guests) open streams to nodes and are answered on the same streams, so they listen nowhere. Every call, stream or
action, says in its headers who calls whom, of which deployment, with a token for just that, and is refused if any of it
is wrong (`security.py`). What arrives on a stream is from whoever opened it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import ConfigError, HoldfastError, PeerError, SaidNoError
from holdfast.model import messages as m
from holdfast.model import parts
from holdfast.model.ids import Address, Consumer, Edge, Name, name_of
from holdfast.model.record import NO_RECORD, Record
from holdfast.runtime.net import wire
from holdfast.runtime.net.doorman import Doorman
from holdfast.runtime.net.endpoints import socket_of
from holdfast.runtime.net.links import (
    CHANNEL,
    FAST,
    KNOCK,
    WELCOME,
    Link,
    OnMessage,
    OnTrouble,
    Outgoing,
    first_line,
    lane_of,
    not_its_own,
)
from holdfast.runtime.net.refusal import FetchError
from holdfast.runtime.net.security import GUEST, SAID_MAX, Passport, Security

#: do_action bodies are small; anything larger is a mistake.
ACTION_BYTES_MAX = 8 << 20
#: What a caller may ask that does not know the deployment yet: is somebody there, and what runs.
UNNAMED = ("ping", "plan")

Action = Callable[[dict], dict]
#: (schema, batches) of a ticket.
OnFetch = Callable[[m.Fetch], tuple[pa.Schema, Iterator[pa.RecordBatch]]]


class _Who(flight.ServerMiddleware):
    def __init__(self, passport: Passport) -> None:
        self.passport = passport


class Guest:
    """A process that listens nowhere, by the streams it opened: of each lane, those that are open, the newest last."""

    def __init__(self) -> None:
        self.lanes: dict[bytes, list[Outgoing]] = {}

    def send(self, target: Address, message: m.Message) -> None:
        """By the newest stream: an older one of the same process may be dead without knowing it."""
        open_ones = self.lanes.get(lane_of(message)) or next(iter(list(self.lanes.values())), [])
        with contextlib.suppress(IndexError):  # closed just now
            open_ones[-1].send(target, message)


class _Gate(flight.ServerMiddlewareFactory):
    """Looks at the headers of every call before anything else happens."""

    def __init__(self, name: Name, members: Collection[Name], security: Security, on_trouble: OnTrouble) -> None:
        self.name = name
        self.members = members
        self.security = security
        self.on_trouble = on_trouble

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Who:
        passport = Passport.of(headers)
        self.check(passport, self.security.objection(headers, self.name, self.members))
        return _Who(passport)

    def check(self, passport: Passport, objection: str) -> None:
        if objection:
            self.on_trouble("turned-away", passport.address[:SAID_MAX], objection)
            raise flight.FlightUnauthenticatedError(objection)

    def check_named(self, passport: Passport) -> None:
        """For all but the question which deployment this is."""
        if not passport.deployment:
            who = passport.address[:SAID_MAX]
            self.check(
                passport, f"no deployment: {who!r} does not say which one it belongs to. Ask for the plan first."
            )
        self.check(passport, self.security.foreign(passport, self.name))  # again: it may have become known meanwhile


class Server(flight.FlightServerBase):
    """A node's ear. Handlers run on gRPC's threads and must not block for long."""

    def __init__(
        self,
        endpoint: str,
        name: Name,
        security: Security,
        *,
        members: Collection[Name],
        on_message: OnMessage,
        on_trouble: OnTrouble,
        actions: dict[str, Action],
        fetch: OnFetch,
    ) -> None:
        self.guests: dict[Address, Guest] = {}
        self._lock = threading.Lock()
        self._on_message = on_message
        self._on_trouble = on_trouble
        self._actions = actions
        self._fetch = fetch
        self.source: Address = ""
        #: Set when all is prepared: calls wait for it rather than meet a node that is half there.
        self.open = threading.Event()
        self._gate = _Gate(name, members, security, on_trouble)
        options = security.server_options(endpoint)
        try:
            super().__init__(endpoint, middleware={"who": self._gate}, **options)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(
                f"cannot listen on {endpoint}",
                detail=first_line(error),
                hint="Does another node run there? Is it an address of this machine?",
            ) from None
        self._doorman = None
        if not socket_of(endpoint):
            self._doorman = Doorman(self.port, lambda text: on_trouble("hung-up", "a stranger", text))

    def shutdown(self) -> None:
        if self._doorman is not None:
            self._doorman.close()
        super().shutdown()

    def _who(self, context: Any) -> Passport:
        """The caller, who has passed the gate."""
        if self._doorman is not None:
            self._doorman.let_in(context.peer())
        return context.get_middleware("who").passport

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        passport: Passport = self._who(context)
        if not self.open.wait(30):
            raise flight.FlightUnavailableError("this node is not ready yet")  # it would speak without its own name
        self._gate.check_named(passport)
        if not self._gate.security.deployment:
            raise flight.FlightUnavailableError("this node waits for a pipeline")
        writer.write_metadata(WELCOME)
        lane: bytes = descriptor.command or FAST
        out = self._let_in(passport.address, lane, writer) if passport.kind == GUEST else None
        try:
            while True:
                raw = reader.read_chunk().app_metadata
                if raw is not None and raw.size > len(KNOCK):
                    self._take(passport.address, raw)
        except (StopIteration, pa.ArrowException, OSError):
            pass
        finally:
            if out is not None:
                self._let_out(passport.address, lane, out)

    def _let_in(self, address: Address, lane: bytes, writer: Any) -> Outgoing:
        """A later stream of the same process is spoken to in place of an earlier one, until it ends. Somebody else who
        has the secret may have opened it in the name of that process: then the earlier one must be heard again."""
        out = Outgoing(address, self.source, writer.write_metadata, self._on_trouble)
        with self._lock:
            self.guests.setdefault(address, Guest()).lanes.setdefault(lane, []).append(out)
        return out

    def _let_out(self, address: Address, lane: bytes, out: Outgoing) -> None:
        """Returns when nobody writes to the stream any more: gRPC frees it then, and a write under way would be the
        node's end. (A write to a peer that is gone fails at once; one that waits for a peer keeps only this thread.)"""
        with self._lock:
            guest = self.guests.get(address)
            if guest is not None and out in guest.lanes.get(lane, []):
                guest.lanes[lane].remove(out)
                if not guest.lanes[lane]:
                    del guest.lanes[lane]
                if not guest.lanes:
                    del self.guests[address]
        out.close()
        while not out.has_ended(1.0):
            pass

    def _take(self, peer: str, raw: pa.Buffer) -> None:
        try:
            source, target, message = wire.decode(raw, peer)
            if source != peer:
                raise not_its_own(source, peer)
            self._on_message(source, target, message)
        except HoldfastError as error:
            self._on_trouble("damaged", peer, str(error))

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        passport = self._who(context)
        if action.type not in UNNAMED:
            self._gate.check_named(passport)
        handler = self._actions.get(action.type)
        if handler is None:
            raise flight.FlightServerError(
                f"unknown action {action.type!r}; there are {', '.join(sorted(self._actions))}"
            )
        raw = action.body.to_pybytes()
        try:
            if len(raw) > ACTION_BYTES_MAX:
                raise PeerError(f"the body of action {action.type!r} is too large", detail=f"{len(raw)} bytes.")
            body = json.loads(raw) if raw else {}
            if action.type != "ping":
                self.open.wait(30)
            answer = handler(body)
        except HoldfastError as error:
            raise flight.FlightServerError(_told(error)) from error
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise flight.FlightServerError(
                _told(PeerError(f"{action.type}: bad request", detail=repr(error)))
            ) from error
        yield answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(name, (handler.__doc__ or "").strip()) for name, handler in sorted(self._actions.items())]

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        self._gate.check_named(self._who(context))
        try:
            asked = msgspec.msgpack.decode(ticket.ticket, type=m.Fetch)
            schema, batches = self._fetch(asked)
        except FetchError as error:
            raise flight.FlightServerError(error.to_text()) from error
        except HoldfastError as error:
            raise flight.FlightServerError(_told(error)) from error
        except msgspec.MsgspecError as error:
            raise flight.FlightServerError(_told(PeerError("bad ticket", detail=repr(error)))) from error
        return flight.GeneratorStream(schema, batches)


_MARK = "holdfast-error:"


def _told(error: HoldfastError) -> str:
    """An error as text that the other side can take apart again."""
    return _MARK + json.dumps([error.what, error.detail, error.hint]) + ":"


def told_error(error: Exception, where: str) -> PeerError:
    """What a node said, as an error of ours."""
    text = str(error)
    if _MARK in text:
        try:
            parts, _ = json.JSONDecoder().raw_decode(text[text.index(_MARK) + len(_MARK) :])
            return SaidNoError(parts[0], detail=parts[1], hint=parts[2])
        except ValueError:
            pass
    if isinstance(error, flight.FlightUnauthenticatedError):
        what, _, hint = first_line(error).partition(". ")
        return PeerError(f"{where} refuses this process: {what}", hint=hint)
    hint = "Is the node running?"
    if "grpc+tls" in where:
        hint += " With TLS: has the CA of the nodes signed this process's certificate (tls.cert, tls.key)?"
    return PeerError(f"{where} cannot be reached", detail=first_line(error), hint=hint)


class Caller:
    """Flight actions and fetches, with a client per endpoint. Safe to use from several threads."""

    def __init__(self, address: str, endpoints: dict[Name, str], security: Security, kind: str = GUEST) -> None:
        self.endpoints = endpoints
        self._address = address
        self._kind = kind
        self._security = security
        #: And where each of them calls.
        self._clients: dict[Name, tuple[str, flight.FlightClient]] = {}
        self._lock = threading.Lock()

    def client(self, name: Name) -> flight.FlightClient:
        if name not in self.endpoints and not self._find(name):
            raise PeerError(f"unknown node {name!r}", detail=f"Known are {', '.join(sorted(self.endpoints))}.")
        with self._lock:
            endpoint = self.endpoints[name]
            at, client = self._clients.get(name, ("", None))
            if client is None or at != endpoint:  # it may have left, and come back elsewhere
                options = self._security.client_options(endpoint)
                client = flight.FlightClient(endpoint, generic_options=CHANNEL, **options)
                self._clients[name] = endpoint, client
            return client

    def _find(self, name: Name) -> bool:
        """A node that has joined since this process was told where the nodes are: any other one knows where it is."""
        for other in list(self.endpoints):
            with contextlib.suppress(HoldfastError):
                found = self.call(other, "endpoints")
                if name in found:
                    self.endpoints[name] = found[name]
                    return True
        return False

    def options(self, name: Name, timeout: float) -> flight.FlightCallOptions:
        headers = self._security.headers(self._address, self._kind, name)
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    def call(self, name: Name, action: str, body: dict | None = None, timeout: float = 5.0) -> dict:
        raw = self.call_raw(name, action, json.dumps(body or {}).encode(), timeout)
        return json.loads(raw) if raw else {}

    def call_raw(self, name: Name, action: str, body: bytes = b"", timeout: float = 5.0) -> bytes:
        try:
            found = list(self.client(name).do_action(flight.Action(action, body), self.options(name, timeout)))
        except (pa.ArrowException, OSError) as error:
            raise told_error(error, f"node {name} ({self.endpoints.get(name)})") from error
        return found[0].body.to_pybytes() if found else b""

    def call_all(
        self, action: str, body: dict | None = None, timeout: float = 2.0
    ) -> Iterator[tuple[Name, bytes | HoldfastError]]:
        """Ask every node at once; answers as they come, so that one that hangs keeps nobody waiting for the others."""
        answers: queue.SimpleQueue[tuple[Name, bytes | HoldfastError]] = queue.SimpleQueue()
        raw = json.dumps(body or {}).encode()

        def ask(name: Name) -> None:
            try:
                answers.put((name, self.call_raw(name, action, raw, timeout)))
            except HoldfastError as error:
                answers.put((name, error))

        names = list(self.endpoints)
        for name in names:
            threading.Thread(target=ask, args=(name,), name=f"ask-{name}", daemon=True).start()
        for _ in names:
            with contextlib.suppress(queue.Empty):  # every call has its own limit; this one only says so here, too
                yield answers.get(timeout=2 * timeout)

    def edges(self, name: Name) -> dict[Edge, parts.EdgeState]:
        """Where the edges stand that this node makes."""
        return msgspec.json.decode(self.call_raw(name, "edges"), type=dict[Edge, parts.EdgeState])

    def leave(self, consumer: Consumer, edges: Iterable[Edge]) -> None:
        """Tell the nodes that this guest reads no more. Who does not hear it finds out when the lease lapses."""
        for _ in self.call_all("leave", {"consumer": consumer, "edges": sorted(edges)}, timeout=1.0):
            pass

    def fetch(self, name: Name, asked: m.Fetch, timeout: float = 60.0) -> pa.Table:
        """Rows of an edge, all of them: see the node's `do_get`. A `FetchError` is what the node's core says to it."""
        try:
            ticket = flight.Ticket(msgspec.msgpack.encode(asked))
            return self.client(name).do_get(ticket, self.options(name, timeout)).read_all()
        except (pa.ArrowException, OSError) as error:
            refusal = FetchError.from_text(str(error), asked)
            if refusal is not None:
                raise refusal from error
            raise told_error(error, f"node {name} ({self.endpoints.get(name)})") from error

    def close(self) -> None:
        with self._lock:
            for _, client in self._clients.values():
                client.close()
            self._clients.clear()


def _quiet(what: str, peer: str, text: str) -> None:
    """Nobody wants to know."""


class Peer:
    """A process that is not a node (a driver, a reader): sends to nodes, and hears their answers."""

    def __init__(
        self,
        address: Address,
        endpoints: dict[Name, str],
        security: Security,
        on_message: Callable[[Address, m.Message], None],
        on_trouble: OnTrouble = _quiet,
    ) -> None:
        self.address = address
        self._security = security
        self._on_message = on_message
        self._on_trouble = on_trouble
        self._links: dict[Name, Link] = {}
        self._lock = threading.Lock()
        self.endpoints = dict(endpoints)
        #: The newest record that was looked at for where nodes are.
        self._seen: Record = NO_RECORD
        self.caller = Caller(address, self.endpoints, security)

    def send(self, target: Address, message: m.Message) -> None:
        """To a node, by the name in its address. Never blocks; nobody says whether it arrived."""
        link = self._links.get(name_of(target)) or self._connect().get(name_of(target))
        if link is not None:
            link.send(target, message)

    def _connect(self) -> dict[Name, Link]:
        """All nodes at once: any of them may have news for this process."""
        with self._lock:
            for name, endpoint in list(self.endpoints.items()):
                if name not in self._links:
                    self._links[name] = Link(
                        name, endpoint, self.address, GUEST, self._security, self._take, self._on_trouble
                    )
            return self._links

    def _take(self, source: Address, target: Address, message: m.Message) -> None:
        if isinstance(message, m.Push):
            self._learn(message.record)
        if target == self.address:
            self._on_message(source, message)

    def _learn(self, record: Record) -> None:
        """Nodes may have joined since this process was told where the nodes are, or left and come back elsewhere. (What
        it was told may be newer than the first record that it hears, as in a node's `AddressBook`.)"""
        with self._lock:
            before = self._seen
            if record.rank <= before.rank:
                return
            self._seen = record
            for name, endpoint in record.roster.items():
                is_news = before.version and before.roster.get(name) != endpoint
                if endpoint and (is_news or name not in self.endpoints) and self.endpoints.get(name) != endpoint:
                    self.endpoints[name] = endpoint
                    if (link := self._links.pop(name, None)) is not None:  # closing may take a while
                        threading.Thread(target=link.close, name="close link", daemon=True).start()

    @property
    def refused(self) -> str:
        """Why nodes refuse this process; empty if they do not."""
        return next((link.refused for link in list(self._links.values()) if link.refused), "")

    def call(self, name: Name, action: str, body: dict | None = None, timeout: float = 5.0) -> dict:
        return self.caller.call(name, action, body, timeout)

    def call_raw(self, name: Name, action: str, body: bytes = b"", timeout: float = 5.0) -> bytes:
        """The same for answers that are not JSON (the record is msgpack)."""
        return self.caller.call_raw(name, action, body, timeout)

    def close(self) -> None:
        for link in list(self._links.values()):
            link.close()
        self.caller.close()
