"""One node: a process without a JVM that runs the core's `Node` with real operators, links, disk and children.

    python -m holdfast.runtime.node --config node.toml
    python -m holdfast.runtime.node --dir DIR --name n0 --peer n0=grpc://127.0.0.1:7100 --peer n1=…

It starts with the plan it finds in DIR/plan.json, or waits for `submit`. Kernels are warm before it says hello. It
ends with exit code 0 when told to stop, 2 if its settings or its directory cannot work, 1 if it could not start for
another reason, 65 if its journal is damaged (it must not be started again), and 70 if an invariant of the core was
broken: then the others take over, since a wrong answer is worse than a stopped node.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from holdfast.errors import HoldfastError, exit_code, one_line
from holdfast.runtime.config import NodeConfig, load_config, make_config
from holdfast.runtime.node.lean import be_lean
from holdfast.runtime.node.loop import SWITCH_S
from holdfast.runtime.node.process import NodeProcess
from holdfast.runtime.signals import on_end

#: More descriptors than a node ever needs, and still few for a program that looks at each of them.
DESCRIPTORS = 1 << 16


def _arguments(argv: list[str] | None) -> tuple[NodeConfig, bool]:
    parser = argparse.ArgumentParser(prog="holdfast node", description="Run one node of a cluster.")
    parser.add_argument("--config", type=Path, help="TOML file with the node's settings")
    parser.add_argument("--dir", help="directory of the pipeline")
    parser.add_argument("--name", help="name of this node; it never changes")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="every node, this one too")
    parser.add_argument("--secret-file", help="file with the cluster's secret")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument("--json", action="store_true", help="the event log on stdout, too")
    given = parser.parse_args(argv)
    found: dict[str, Any] = {}
    for item in given.set:
        key, _, value = item.partition("=")
        try:
            found[key] = msgspec.json.decode(value.encode())
        except msgspec.DecodeError:
            found[key] = value
    if given.peer:
        found["endpoints"] = dict(item.partition("=")[::2] for item in given.peer)
    for key in ("dir", "name", "secret_file"):
        if getattr(given, key):
            found[key] = getattr(given, key)
    return load_config(given.config, **found) if given.config else make_config(found), given.json


def take_descriptors() -> None:
    """As many as this process may have: with the usual 1,024, a thousand connections of strangers shut members out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(config: NodeConfig, as_json: bool = False) -> int:
    """Run a node until it is told to stop."""
    be_lean()
    take_descriptors()
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(OSError):  # the node itself says what it cannot write
        Path(config.dir).mkdir(mode=0o700, parents=True, exist_ok=True)  # rows and settings are nobody else's
    process = NodeProcess(config, echo=sys.stdout if as_json else None)
    on_end(lambda: process.stop())
    try:
        process.start()
        process.done.wait()
        process.close()
    finally:
        process.events.flush()  # why it ended is among the last
    return process.exit_code


def serve(config: NodeConfig, as_json: bool = False) -> NoReturn:
    """Run a node, and end this process with its exit code."""
    try:
        code = run(config, as_json)
    except HoldfastError as error:
        code = _told(error)
    sys.stderr.flush()  # stdout belongs to the event log, which has flushed it: its reader may be stuck
    os._exit(code)  # gRPC's threads would be waited for


def _told(error: HoldfastError) -> int:
    print(one_line(error), file=sys.stderr)
    return exit_code(error)


def main(argv: list[str] | None = None) -> NoReturn:
    try:
        config, as_json = _arguments(argv)
    except HoldfastError as error:
        sys.exit(_told(error))
    serve(config, as_json)


if __name__ == "__main__":
    main()
