"""The network as an administrator describes it: switches, racks, servers and what each may carry (sguard §5).

A TOML file. Capacities are chunks per timestep: a timestep is about the time that one chunk takes to all its replicas.
Links between switches form a tree. That is what makes scheduling fast (`tree.py`), so a loop is refused; two links
between the same switches are one link with the sum of their capacities.

Nothing has a default capacity: a guess would be believed. Reading the file is left to the caller; here is only text.
"""

from __future__ import annotations

import enum
import tomllib
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ConfigError

CAPACITY_MAX = 1_000_000
SERVERS_MAX = 100_000
REPLICAS_MAX = 10
#: Longest name of a server, a rack or a switch.
NAME_MAX = 200


class Where(enum.StrEnum):
    """Where one replica may be, seen from the server before it in the chain; for the first one that is the writer."""

    SAME_NODE = "same node"  #: on the writer's own disk; only the first replica can be
    SAME_RACK = "same rack"
    OTHER_RACK = "other rack"
    ANYWHERE = "anywhere"


class SwitchEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: The switch above this one. Exactly one switch has none.
    uplink: str | None = None
    #: Chunks per timestep from here to `uplink`, and from there to here.
    up: int | None = None
    down: int | None = None


class RackEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    switch: str
    #: For every server of the rack that says nothing else.
    send: int | None = None
    receive: int | None = None


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rack: str
    #: Chunks per timestep that it can send, and that it can take onto its disk.
    send: int | None = None
    receive: int | None = None
    #: The data node of HDFS on it, "host:port"; where real blocks shall go.
    data_node: str | None = None


class StoreEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store that places chunks by itself, behind one switch. Peace then only orders and paces what goes there."""

    switch: str
    receive: int | None = None


class NetworkModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that has been looked through: every name is known, every capacity is there, the links are a tree."""

    switches: dict[str, SwitchEntry]
    racks: dict[str, RackEntry]
    servers: dict[str, ServerEntry]
    replicas: tuple[Where, ...]
    store: StoreEntry | None = None


Entry = TypeVar("Entry", bound=msgspec.Struct)
_TABLES = ("switches", "racks", "servers")
_WHERES = ", ".join(f'"{where}"' for where in Where)


def read_model(text: str, source: str = "the network model") -> NetworkModel:
    """A model out of the text of its file; `source` is named in errors. Raises `ConfigError`."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("the network model is not valid TOML", detail=f"{source}: {error}") from error
    try:
        return make_model(found)
    except ConfigError as error:
        raise ConfigError(
            error.what, detail=f"{source}: {error.detail}" if error.detail else source, hint=error.hint
        ) from error


def make_model(found: dict[str, Any]) -> NetworkModel:
    """A model out of what a TOML file holds, checked as a whole."""
    unknown = sorted(found.keys() - {*_TABLES, "replicas", "store"})
    if unknown:
        raise ConfigError(
            f"the network model has an unknown entry {unknown[0]!r}",
            hint="It may have switches, racks, servers, replicas and store.",
        )
    switches = _entries(found, "switches", "switch", SwitchEntry)
    racks = _entries(found, "racks", "rack", RackEntry)
    servers = _entries(found, "servers", "server", ServerEntry)
    store = _entry(found["store"], "the store", StoreEntry) if "store" in found else None
    _check_switches(switches)
    for name, rack in racks.items():
        _check_known(f"rack {name!r}", "switch", rack.switch, switches)
        _check_numbers(f"rack {name!r}", send=rack.send, receive=rack.receive)
    if len(servers) > SERVERS_MAX:
        raise ConfigError(f"the network model has {len(servers)} servers", hint=f"At most {SERVERS_MAX} can be used.")
    for name, server in servers.items():
        _check_known(f"server {name!r}", "rack", server.rack, racks)
        servers[name] = _complete(name, server, racks[server.rack], placed=store is None)
    if store is not None:
        _check_known("the store", "switch", store.switch, switches)
        _check_numbers("the store", receive=store.receive)
        _check_there("the store", "receive", store.receive)
    replicas = _replicas(found.get("replicas"), store)
    return NetworkModel(switches=switches, racks=racks, servers=servers, replicas=replicas, store=store)


def _entries(found: dict[str, Any], table: str, kind: str, type_: type[Entry]) -> dict[str, Entry]:
    entries = found.get(table)
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"the network model has no {table}", hint=f"Write at least one [{table}.NAME].")
    for name in entries:
        if not name or len(name) > NAME_MAX or not name.isprintable():
            raise ConfigError(f"a {kind} cannot be named {name[:40]!r}")
    return {name: _entry(entry, f"{kind} {name!r}", type_) for name, entry in entries.items()}


def _entry(entry: object, who: str, type_: type[Entry]) -> Entry:
    try:
        return msgspec.convert(entry, type_)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{who} cannot be used", detail=str(error)) from error


def _check_known(who: str, kind: str, name: str, known: dict[str, Any]) -> None:
    if name not in known:
        raise ConfigError(
            f"{who} names an unknown {kind}",
            detail=f"{name!r} is not in the model.",
            hint=f"Known: {', '.join(list(known)[:10])}.",
        )


def _check_numbers(who: str, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 <= value <= CAPACITY_MAX:
            raise ConfigError(
                f"{who}: {name} is {value}", hint=f"A capacity is a number of chunks from 0 to {CAPACITY_MAX}."
            )


def _check_there(who: str, name: str, value: int | None) -> None:
    if value is None:
        raise ConfigError(f"{who} has no capacity {name!r}", hint="Write how many chunks fit into one timestep.")


def _check_switches(switches: dict[str, SwitchEntry]) -> None:
    """One root, capacities on every link, and nobody above himself."""
    for name, switch in switches.items():
        who = f"switch {name!r}"
        _check_numbers(who, up=switch.up, down=switch.down)
        if switch.uplink is None:
            if switch.up is not None or switch.down is not None:
                raise ConfigError(f"{who} has capacities of an uplink, but no uplink")
            continue
        _check_known(who, "switch", switch.uplink, switches)
        _check_there(who, "up", switch.up)
        _check_there(who, "down", switch.down)
    _check_loops(switches)
    roots = [name for name, switch in switches.items() if switch.uplink is None]
    if len(roots) != 1:
        raise ConfigError(
            "the network model is not connected",
            detail=f"No link leads up from {', '.join(repr(name) for name in roots[:5])}.",
            hint="All switches but one have an uplink.",
        )


def _check_loops(switches: dict[str, SwitchEntry]) -> None:
    known: set[str] = set()  # it is known that these lead up to a root
    for start in switches:
        seen: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in known:
            if at in seen:
                ring = [*list(seen)[list(seen).index(at) :], at]
                raise ConfigError(
                    "the links between switches form a loop",
                    detail=" -> ".join(ring[:10]) + (" ..." if len(ring) > 10 else ""),
                    hint="Links must form a tree; two links between the same switches are one with both capacities.",
                )
            seen[at] = None
            at = switches[at].uplink
        known.update(seen)


def _complete(name: str, server: ServerEntry, rack: RackEntry, *, placed: bool) -> ServerEntry:
    """A server with its rack's capacities where it has none of its own."""
    who = f"server {name!r}"
    _check_numbers(who, send=server.send, receive=server.receive)
    send = rack.send if server.send is None else server.send
    receive = rack.receive if server.receive is None else server.receive
    _check_there(who, "send", send)
    if placed:
        _check_there(who, "receive", receive)
    return msgspec.structs.replace(server, send=send, receive=receive if placed else 0)


def _replicas(given: object, store: StoreEntry | None) -> tuple[Where, ...]:
    if store is not None:
        if given is not None:
            raise ConfigError(
                "a store that places chunks by itself takes no replicas", hint="Leave out one of the two."
            )
        return (Where.ANYWHERE,)
    hint = f'Write for example replicas = ["same rack", "other rack"]; there are {_WHERES}.'
    if not isinstance(given, list) or not 1 <= len(given) <= REPLICAS_MAX:
        raise ConfigError(f"replicas must be a list of 1 to {REPLICAS_MAX} places", hint=hint)
    try:
        replicas = tuple(Where(place) for place in given)
    except ValueError as error:
        raise ConfigError("a place of a replica cannot be read", detail=f"{error}.", hint=hint) from error
    if Where.SAME_NODE in replicas[1:]:
        raise ConfigError('only the first replica can be on the "same node"', hint="The others go on from there.")
    return replicas
