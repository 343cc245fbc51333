"""Where tables are printed: as wide as the terminal, or as wide as they are where there is none.

A table that is wider than its terminal loses whole columns, those that matter least. Rich would cut every cell instead,
and nobody can look for a shard whose name reads `by_…`.
"""

from __future__ import annotations

import sys

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

#: Into a file or a pipe: nothing is cut for want of columns.
WIDE = 200


def table_console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def fitted(table: Table, width: int, less: tuple[str, ...]) -> Table:
    """The same table without as many columns of `less`, in this order, as it takes to fit."""
    kept = list(table.columns)
    for name in less:
        if _width(kept) <= width:
            break
        kept = [column for column in kept if column.header != name]
    if len(kept) == len(table.columns):
        return table
    found = Table(title=table.title)
    for column in kept:
        found.add_column(column.header, justify=column.justify, overflow="fold")
    cells = [list(column.cells) for column in kept]
    for number, row in enumerate(table.rows):
        found.add_row(*(column[number] for column in cells), style=row.style)
    return found


def _width(columns: list[Column]) -> int:
    """With a line and two spaces for each column."""
    texts = [[str(column.header), *map(str, column.cells)] for column in columns]
    return sum(max(map(cell_len, cells)) + 3 for cells in texts) + 1
