"""`holdfast`: one program, one command per task, and one line for every mistake.

A mistake of the user (a flag, a value, a file) ends with exit code 2 and a single line on stderr; what goes wrong at
work (a node that does not answer, results that differ) with 1. Ctrl-C ends a command with 130, and a line that says so.
A bug of ours keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from holdfast import __version__
from holdfast.errors import HoldfastError, InvariantError, exit_code, one_line

from .alone import INTERRUPTED
from .bad import bad
from .checkpoint import app as checkpoint_app
from .cluster import node, submit
from .control import drain, stop
from .demo import demo
from .leave import leave
from .log import app as log_app
from .mode import mode
from .peace import app as peace
from .prescribe import prescribe_command
from .run import run_command
from .savepoint import app as savepoint_app
from .sim import sim
from .skip import skip
from .trace import trace
from .upgrade import upgrade
from .verify import verify
from .watch import events, status

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command("run")(run_command)
app.command("demo")(demo)
app.command("verify")(verify)
app.command("node")(node)
app.command("submit")(submit)
app.command("status")(status)
app.command("events")(events)
app.command("trace")(trace)
app.command("drain")(drain)
app.command("leave")(leave)
app.command("stop")(stop)
app.command("upgrade")(upgrade)
app.command("mode")(mode)
app.command("bad")(bad)
app.command("skip")(skip)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(savepoint_app, name="savepoint")
app.add_typer(log_app, name="log")
app.command("prescribe")(prescribe_command)
app.command("sim")(sim)
app.add_typer(peace, name="peace")


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """High availability for Spark streaming pipelines.

    Begin with `holdfast demo`, or with `holdfast run PIPELINE.py`. While it runs,
    `status`, `events` and `trace` show it from another terminal. Every command
    has --help, and --json for machines.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the program and leave with its exit code."""
    try:
        code = app(args=arguments, prog_name="holdfast", standalone_mode=False)
    except InvariantError:
        raise
    except HoldfastError as error:
        print(one_line(error), file=sys.stderr)
        sys.exit(exit_code(error))
    except Exception as error:
        # The parser's own complaints (unknown flag, missing value) come as exceptions with an exit code.
        code, message = getattr(error, "exit_code", None), getattr(error, "format_message", None)
        if code is None or message is None:
            raise
        text = " ".join(message().split())
        if text:  # without a command the help was printed, and there is nothing to add
            print(f"error: {text}", file=sys.stderr)
        sys.exit(2)
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def entry() -> NoReturn:
    """The installed command. Leaves at once: threads of gRPC have nothing more to say that anyone wants to read."""
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)
