"""Where tables are printed: as wide as the terminal, or as wide as they are where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

#: Into a file or a pipe: nothing is cut for want of columns.
WIDE = 200


def table_console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)
