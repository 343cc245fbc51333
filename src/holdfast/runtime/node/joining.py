"""Nodes that come and go: why one that no file names is not let in (what a member can say at once, before the record is
changed), and the end of one that has left for good.

A node that joined never makes a record of its own, however it is started: its pipeline began without it, and with a
first record that has it as a member it could decide against those who were there before. So its directory says that it
joined before any file names it (a start of all nodes from `run.json` knows nothing else of it).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import LEFT, ConfigError, PeerError
from holdfast.model.ids import Name
from holdfast.model.plan import digest
from holdfast.model.ranges import is_name
from holdfast.model.record import ROSTER_MAX, Record
from holdfast.runtime.config import NodeConfig
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.net.endpoints import check_endpoint

if TYPE_CHECKING:
    from holdfast.runtime.node.process import NodeProcess

_MARK = "joined"


def mark_joined(home: Path) -> None:
    """Before a file names the node that lives here."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(home / _MARK, b"")


def has_joined(config: NodeConfig) -> bool:
    """Once is for good, whatever its file says. (`join` says more: that the others have files without its name. What
    such files say of the store's vote they say without it; in a run that goes on all have the same.)"""
    return config.join or (config.home / _MARK).exists()


def check_guest(process: NodeProcess, name: Name, address: str, body: dict[str, Any]) -> None:
    """`plan`: digest of the plan that it has. `known`: it has a journal of this name here, so it comes back."""
    if process.plan is None or process.node is None:
        raise PeerError(
            f"{process.name} runs no pipeline",
            hint="A node that joins before one is submitted has nothing to join: add it to the file of all nodes.",
        )
    check_endpoint(address, name)
    if not is_name(name):
        raise ConfigError(f"{name!r} cannot be the name of a node", hint="Use letters and digits, like n4.")
    if body.get("plan") != digest(process.plan):
        raise ConfigError(
            f"{name} has another plan than {process.name}",
            detail=f"{process.name} runs {process.plan.pipeline!r} ({process.plan.query}).",
            hint="Give the directory of the run that it shall join.",
        )
    if process.node.election.witness is not None:
        raise ConfigError(
            f"{name} cannot join: in this run the store votes",
            detail="It was started with two nodes and a store, which casts the third vote.",
            hint="Keep a savepoint of it, and start a new run from that with three nodes or more (docs/upgrades.md).",
        )
    record = process.record
    taken = name in record.roster or name in process.config.endpoints
    if taken and not record.has_left(name) and not body.get("known") and not is_let_in(process, name, address):
        raise ConfigError(
            f"there is a node {name} already",
            detail=f"It listens at {process.book.endpoints.get(name)}.",
            hint="Every node needs a name of its own; a name that was used has votes on the disk of its node.",
        )
    check_room(record, name, "join", "Use the name and the disk of one that has left.")


def check_room(record: Record, name: Name, what: str, hint: str) -> None:
    """Is there room for one more name?"""
    if name not in record.roster and len(record.roster) >= ROSTER_MAX:
        raise ConfigError(
            f"{name} cannot {what}: {ROSTER_MAX} nodes have joined or left this cluster already",
            detail="The record keeps their names, so that none of them votes twice.",
            hint=hint,
        )


def is_let_in(process: NodeProcess, name: Name, address: str) -> bool:
    """Does the record say so, or the file? Who has left is not in, whatever the file of those who stayed says."""
    record = process.record
    listens = record.roster.get(name), process.config.endpoints.get(name)
    return not record.has_left(name) and address in listens


def end_if_left(process: NodeProcess) -> None:
    """A node that is sent away, or that somebody starts again all the same, ends when it hears so."""
    record = process.record
    if record.has_left(process.name) and process.name not in record.members and not process.done.is_set():
        process.events.write("left", f"{process.name} has left this cluster for good, and ends.")
        process.stop(LEFT)
