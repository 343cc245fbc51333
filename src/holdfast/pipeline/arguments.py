"""What a user may hand to the API: durations, windows, keys, modes. Each check names the call that was wrong."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.model.plan import AUTO, LATENCIES, WINDOWS_MAX
from holdfast.model.protection import CHECKPOINT_NS_MIN, CHECKPOINTS, MODES, PERIOD_NS_MAX, RECOVER_NS_MIN
from holdfast.pipeline import durations
from holdfast.pipeline.durations import Duration

#: How many copies of a shard there are, in every mode that keeps more than one.
COPIES = 2
SHARDS_DEFAULT = 4
SHARDS_MAX = 1024
#: The files that make up the API: a user's line is the first one outside.
_OWN = tuple(
    os.path.join(os.path.dirname(__file__), name) for name in ("arguments.py", "api.py", "aggs.py", "kafka.py")
)
_NEVER_IDLE_NS = 1 << 60


def caller() -> str:
    """File and line of the user's call: the first frame that is not of the API's own."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _OWN:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "?"


def need_function(function: object, what: str, kind: str) -> None:
    if not callable(function):
        raise ConfigError(
            f"{what}: a function is needed", detail=f"At {caller()}: got {function!r}.", hint=f"It is {kind}."
        )


def need_sink_function(function: object, what: str) -> None:
    """It is first called when there are rows. One that cannot be called as it will be would fail again and again; a
    coroutine or a generator would do nothing, and every row would count as written."""
    need_function(function, what, "(pyarrow.Table, SinkBatch) -> None")
    lazy = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    is_lazy = any(test(body) for test in lazy for body in (function, type(function).__call__))
    why = "it is a coroutine or a generator, so calling it does nothing" if is_lazy else ""
    try:
        inspect.signature(function).bind(None, None)  # pyright: ignore[reportArgumentType] (it can be called)
    except TypeError as error:
        why = why or str(error)
    except ValueError:  # built in, and does not say what it takes
        pass
    if why:
        raise ConfigError(
            f"{what}: the function cannot be called with (table, batch)",
            detail=f"At {caller()}: {why}.",
            hint="It is called as function(table, batch), and has written the rows when it returns.",
        )


def need_times(event_time: str | None, watermark: Duration | None, what: str) -> tuple[str, int]:
    """Event time and the watermark's delay in microseconds: every stream that comes in has them."""
    if not event_time:
        raise ConfigError(
            f"{what}: no event time is given",
            detail=f"At {caller()}.",
            hint='Name the timestamp column that windows go by: event_time="ts".',
        )
    if not isinstance(event_time, str):
        raise ConfigError(f"{what}: event_time={event_time!r} is not a column name", detail=f"At {caller()}.")
    if watermark is None:
        raise ConfigError(
            f"{what}: no watermark is given",
            detail=f"At {caller()}.",
            hint='Say how late a row may be: watermark="2 seconds".',
        )
    return event_time, durations.micros(watermark, f"{what}: watermark")


def optional_function(function: object, what: str, kind: str) -> None:
    if function is not None:
        need_function(function, what, kind)


def need_text(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is not a text", detail=f"At {caller()}: it is {text!r}.")
    return text


def idle_ns(idle: Duration | None, what: str) -> int:
    """After how long without rows a watermark moves on; it needs a moment, or rows on their way would be late."""
    if idle is None:
        return _NEVER_IDLE_NS
    found = durations.micros(idle, f"{what}: idle")
    if not found:
        raise ConfigError(f"{what}: idle must be longer than nothing", detail=f"At {caller()}: it is {idle!r}.")
    return 1_000 * found


def trigger_ms(trigger: Duration | None, what: str) -> int:
    found = 0 if trigger is None else durations.micros(trigger, f"{what}: trigger")
    if found % 1_000:
        raise ConfigError(
            f"{what}: trigger is finer than a millisecond",
            detail=f"At {caller()}: it is {trigger!r}.",
            hint="Leave it out, and each batch starts when the last one is done.",
        )
    return found // 1_000


def check_latency(latency: object, what: str) -> str:
    """ "": as the run says."""
    if latency is not None and latency not in LATENCIES:
        raise ConfigError(
            f"{what}: latency={latency!r} is not known",
            detail=f"At {caller()}.",
            hint=f"There are {' and '.join(map(repr, LATENCIES))}; without it, it is as `holdfast run --latency` says.",
        )
    return str(latency or "")


def check_how(how: object, what: str) -> str:
    known = {"inner": "inner", "left_outer": "left_outer", "left": "left_outer", "leftouter": "left_outer"}
    if not isinstance(how, str) or how not in known:
        raise ConfigError(
            f"{what}: how={how!r} is not known", detail=f"At {caller()}.", hint='There are "inner", "left_outer".'
        )
    return known[how]


def join_window(window: Duration | None, name: str) -> int:
    found = 0 if window is None else durations.micros(window, f"{name}: window")
    if window is not None and not found:
        raise ConfigError(f"{name}: window must be longer than nothing", detail=f"At {caller()}: it is {window!r}.")
    return found


def check_window(size: int, step: int, text: Callable[[int], str]) -> tuple[int, int]:
    if size <= 0 or not 0 < step <= size:
        raise ConfigError(
            "window cannot be used",
            detail=f"At {caller()}: size {text(size)}, every {text(step)}.",
            hint="Both must be positive, and the step no longer than the window.",
        )
    if size % step:
        raise ConfigError(
            "window is not a multiple of its step",
            detail=f"At {caller()}: size {text(size)}, every {text(step)}.",
            hint=f"A size of {text(step * (size // step))} or {text(step * (size // step + 1))} would be.",
        )
    return size, step


def check_steps(size: int, step: int, text: Callable[[int], str]) -> tuple[int, int]:
    """A row of event time is in every window that covers it: so many, and no more."""
    if size // step > WINDOWS_MAX:
        raise ConfigError(
            f"window has more than {WINDOWS_MAX:,} steps",
            detail=f"At {caller()}: size {text(size)}, every {text(step)}.",
            hint=f"Every row would be in {size // step:,} windows, and each of them comes out. Give a longer step.",
        )
    return size, step


def check_shards(shards: int | None, name: str) -> int:
    if shards is None:
        return SHARDS_DEFAULT
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(f"{name}: shards must be 1 to {SHARDS_MAX}", detail=f"It is {shards!r}.")
    return shards


def check_bad_rows_max(most: int, what: str) -> int:
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        raise ConfigError(
            f"{what}: bad_rows_max must be a whole number, 0 or more",
            detail=f"At {caller()}: it is {most!r}.",
            hint="0 stops the stage at the first bad row.",
        )
    return most


def check_mode(mode: str, name: str, copies: int | None = None) -> str:
    if not isinstance(mode, str) or (mode != AUTO and mode not in MODES):
        known = ", ".join(repr(m) for m in MODES)
        raise ConfigError(
            f"{name}: mode {mode!r} is not known",
            hint=f"There are {known}, and {AUTO!r}: what the nodes' setting `mode` says (passive by default).",
        )
    if copies is not None:
        _check_copies(copies, mode, name)
    return mode


def check_replay(mode: str, name: str, what: str) -> None:
    """Mode replay makes state again from the rows of a stretch of event time: `what` is not such a state."""
    if mode == "replay":
        raise ConfigError(
            f"{name}: {what} cannot be in mode 'replay'",
            detail=f"At {caller()}: its state is not of windows over event time, so no stretch of its input has it.",
            hint="Choose 'passive': a second node then keeps the state itself.",
        )


def _check_copies(copies: int, mode: str, name: str) -> None:
    """Two, in every mode but `none` and `replay`: nothing else can be kept yet."""
    if copies != COPIES or isinstance(copies, bool) or mode in ("none", "replay"):
        what = (
            "keeps no second copy"
            if mode in ("none", "replay")
            else f"keeps {COPIES} copies of every shard, not {copies!r}"
        )
        raise ConfigError(
            f"{name}: mode {mode!r} {what}",
            detail=f"At {caller()}.",
            hint=f"Leave `copies` out, or say copies={COPIES} with a mode that has a second copy.",
        )


def check_checkpoint(checkpoint: str, name: str, *, joins: bool = False) -> str:
    if joins and checkpoint == "eventual":
        raise ConfigError(
            f'{name}: joins leave no footprints, so checkpoint="eventual" is not for them',
            detail=f"At {caller()}.",
            hint='Take checkpoint="paged" or "auto".',
        )
    if not isinstance(checkpoint, str) or checkpoint not in (AUTO, *CHECKPOINTS):
        raise ConfigError(
            f"{name}: checkpoint={checkpoint!r} is not known",
            detail=f"At {caller()}.",
            hint=f"There are {', '.join(map(repr, CHECKPOINTS))}, and {AUTO!r}: its state is kept if there is a store.",
        )
    return checkpoint


def checkpoint_ns(checkpoint: str, every: Duration | None, name: str) -> int:
    """0: as the nodes' settings say."""
    if every is None:
        return 0
    found = 1_000 * durations.micros(every, f"{name}: checkpoint_every")
    if checkpoint == "none":
        raise ConfigError(
            f'{name}: checkpoint_every is given, but checkpoint="none"',
            detail=f"At {caller()}.",
            hint="Leave out one of them.",
        )
    if not CHECKPOINT_NS_MIN <= found <= PERIOD_NS_MAX:
        raise ConfigError(
            f"{name}: checkpoint_every must lie between 10 ms and an hour", detail=f"At {caller()}: it is {every!r}."
        )
    return found


def recover_ns(mode: str, within: Duration | None, name: str) -> int:
    """0: as the nodes' settings say."""
    if within is None:
        return 0
    found = 1_000 * durations.micros(within, f"{name}: recover_in")
    if mode in ("none", "replay"):
        raise ConfigError(
            f'{name}: recover_in is given, but mode="{mode}" keeps no copy to recover from',
            detail=f"At {caller()}.",
            hint="Leave out one of them.",
        )
    if not RECOVER_NS_MIN <= found <= PERIOD_NS_MAX:
        raise ConfigError(
            f"{name}: recover_in must lie between 10 ms and an hour", detail=f"At {caller()}: it is {within!r}."
        )
    return found


def join_keys(on: object, what: str) -> tuple[tuple[str, str], ...]:
    items: list[Any] = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(k, str) for k in on):
        items = [on]  # on=("query", "server_name") is one pair
    keys = tuple((k, k) if isinstance(k, str) else tuple(k) if isinstance(k, Sequence) else (k,) for k in items)
    if not keys or not all(len(k) == 2 and all(isinstance(c, str) for c in k) for k in keys):
        raise ConfigError(
            f"{what}: on={on!r} names no keys",
            detail=f"At {caller()}.",
            hint='on="id", on=["a", "b"] for columns of both sides, on=[("src", "client")] for (left, right).',
        )
    return keys  # type: ignore[return-value]


def interval(within: Duration | tuple[Duration, Duration], name: str) -> tuple[int, int]:
    if isinstance(within, tuple):
        if len(within) != 2:
            raise ConfigError(f"{name}: within={within!r} is not an interval", hint='For example ("0s", "10s").')
        after, before = (durations.micros(d, f"{name}: within", negative=True) for d in within)
        if after > before:
            raise ConfigError(f"{name}: within={within!r} is empty", hint="The earlier bound comes first.")
        return after, before
    distance = durations.micros(within, f"{name}: within")
    return -distance, distance


def check_named(unnamed: tuple[object, ...]) -> None:
    """Of what `agg` was given: Python's own complaint would count positional arguments."""
    if unnamed:
        raise ConfigError(
            "agg: every aggregate needs a name",
            detail=f"At {caller()}. It is the name of its column in the result.",
            hint="Write .agg(rows=hf.count()) instead of .agg(hf.count()).",
        )
