"""Nodes that come and go: why one that no file names is not let in (what a member can say at once, before the record is
changed), and the end of one that has left for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import LEFT, ConfigError, PeerError
from holdfast.model.ids import Name
from holdfast.model.plan import digest
from holdfast.model.ranges import is_name
from holdfast.runtime.net.endpoints import check_endpoint

if TYPE_CHECKING:
    from holdfast.runtime.node.process import NodeProcess


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
            hint="Stop it, and start it again with three nodes or more.",
        )
    record = process.record
    taken = name in record.roster or name in process.config.endpoints
    is_there = address in (record.roster.get(name), process.config.endpoints.get(name))
    if taken and not record.has_left(name) and not body.get("known") and not is_there:
        raise ConfigError(
            f"there is a node {name} already",
            detail=f"It listens at {process.book.endpoints.get(name)}.",
            hint="Every node needs a name of its own; a name that was used has votes on the disk of its node.",
        )


def end_if_left(process: NodeProcess) -> None:
    """A node that is sent away, or that somebody starts again all the same, ends when it hears so."""
    record = process.record
    if record.has_left(process.name) and process.name not in record.members and not process.done.is_set():
        process.events.write("left", f"{process.name} has left this cluster for good, and ends.")
        process.stop(LEFT)
