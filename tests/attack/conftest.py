"""Commands that a test starts end with it, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.planned import Command


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Any]:
    started: list[Command] = []

    def start(*arguments: str, **how: Any) -> Command:
        started.append(Command(*arguments, cwd=tmp_path, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()
