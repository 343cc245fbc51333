"""Where a run came from, if it started from a savepoint of another one: `from.json` in its directory.

`verify` compares what sinks hold with one batch over the whole history. What was changed on the way is named here, so
that it says what it cannot compare instead of calling it wrong.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.errors import ConfigError

FROM = "from.json"


class Origins(msgspec.Struct, kw_only=True, frozen=True):
    savepoint: str
    #: The run of that savepoint, where it lived, and its store.
    deployment: str
    directory: str
    store: str
    #: Sinks that it took over: no other run may write to them, so the store says which one has gone on.
    sinks: tuple[str, ...] = ()
    #: Operators and sinks whose content is not that of one batch over the whole history, and why; of all upgrades.
    changed: dict[str, str] = {}


def read_origins(directory: Path) -> Origins | None:
    """None: the run began with nothing."""
    try:
        return msgspec.json.decode((directory / FROM).read_bytes(), type=Origins)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{directory / FROM} cannot be read", detail=str(error)) from None
