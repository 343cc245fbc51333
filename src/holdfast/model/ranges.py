"""What a number or an id that comes from outside may be: the types of fields say so, and this reads it from them.

A field `at: Position` is an `int` for everybody who computes with it; over the wire the decoder refuses what is out of
range, and `check_of` makes the same check for a message that was not decoded (the simulator's). The bounds are far
beyond what could ever happen, and far below where arithmetic would go wrong: in 64 bits, and in `base_of(epoch)`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.model.ids import Address, Asset, Consumer, Edge, Name, Seat

NUMBER_MAX = 1 << 62
#: A shard that starts empty numbers its output from `epoch << 40`, which must stay a position.
EPOCH_MAX = 1 << 21
#: Event times of the core are microseconds shifted by 2**60; windows may add to them.
TIME_MAX = 3 << 61
PIECES_MAX = 1 << 20

#: Terms, versions of the record, lives, epochs of drivers, batches, rounds, tickets: they count from 0 or 1.
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: The same, or -1 for none.
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
Position = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
PositionOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
#: Of what the record places: how often its primary has changed.
PlaceEpoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
#: Watermarks and event times.
Time = Annotated[int, Meta(ge=-1, le=TIME_MAX)]
#: How many pieces a capture has, and which of them this is.
Piece = Annotated[int, Meta(ge=0, le=PIECES_MAX)]
Life = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]

# Half a surrogate pair (JSON can say it) cannot be written anywhere: not to a journal, and not to another node.
_NAME = re.compile(r"[^\s#@>/\ud800-\udfff]{1,200}")
_SEAT = re.compile(r"[^\s#@>/\ud800-\udfff]{1,200}(#[1-9][0-9]{0,18})?")
_ADDRESS = re.compile(r"[^\s#\ud800-\udfff]{1,300}(#[1-9][0-9]{0,18})?")
_WORD = re.compile(r"[^\x00-\x1f\ud800-\udfff]{0,300}")

#: What is wrong with a value; empty: nothing.
Check = Callable[[Any], str]


@lru_cache(maxsize=10_000)
def is_address(text: Address) -> bool:
    """May a message come from here? A node says which life it is in by a number."""
    return _ADDRESS.fullmatch(text) is not None


@lru_cache(maxsize=10_000)
def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


@lru_cache(maxsize=10_000)
def is_seat(text: str) -> bool:
    """A seat, or the name of a node whose disk is meant; of a reader: empty."""
    return text == "" or _SEAT.fullmatch(text) is not None


@lru_cache(maxsize=10_000)
def is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


def shown(value: object) -> str:
    """A value of who knows what length, for a line of an event log."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _id_check(kind: str, is_right: Callable[[str], bool]) -> Check:
    return lambda value: "" if is_right(value) else f"{shown(value)} cannot be a {kind}"


_IDS: dict[Any, Check] = {
    Name: _id_check("name", is_name),
    Seat: _id_check("seat", is_seat),
    Consumer: _id_check("consumer", is_word),
    Asset: _id_check("asset", is_word),
    Edge: _id_check("edge", is_word),
}


def _range_check(low: int, high: int) -> Check:
    return lambda value: "" if low <= value <= high else f"{shown(value)} is not between {low} and {high}"


@cache
def check_of(annotation: Any) -> Check | None:
    """What the type of a field asks of its value, beyond its Python type; None: nothing. Rows are not looked at."""
    if annotation in _IDS:
        return _IDS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        meta = next(m for m in inner if isinstance(m, Meta))
        return _range_check(int(meta.ge or 0), int(meta.le or 0))
    if origin in (Union, types.UnionType):
        return _optional(inner)
    if origin is dict:
        return _of_dict(check_of(inner[0]), check_of(inner[1]))
    if origin is tuple:
        return _of_tuple(inner)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _of_struct(annotation)
    return None


def _optional(inner: tuple[Any, ...]) -> Check | None:
    found = [each for kind in inner if (each := check_of(kind)) is not None]
    if len(found) != 1:
        return None
    inner_check = found[0]
    return lambda value: "" if value is None else inner_check(value)


def _of_dict(of_key: Check | None, of_value: Check | None) -> Check | None:
    if of_key is None and of_value is None:
        return None

    def check(values: dict) -> str:
        for key, value in values.items():
            why = (of_key(key) if of_key else "") or (of_value(value) if of_value else "")
            if why:
                return f"{shown(key)}: {why}"
        return ""

    return check


def _of_tuple(inner: tuple[Any, ...]) -> Check | None:
    if len(inner) == 2 and inner[1] is Ellipsis:
        of_each = check_of(inner[0])
        return None if of_each is None else lambda values: next(filter(None, map(of_each, values)), "")
    checks = [check_of(kind) for kind in inner]
    if not any(checks):
        return None
    return lambda values: next((why for c, v in zip(checks, values, strict=True) if c and (why := c(v))), "")


def _of_struct(kind: type[msgspec.Struct]) -> Check | None:
    hints = get_type_hints(kind, include_extras=True)
    found = [(name, each) for name in kind.__struct_fields__ if (each := check_of(hints[name])) is not None]
    if not found:
        return None

    def check(value: Any) -> str:
        for name, of_field in found:
            why = of_field(getattr(value, name))
            if why:
                return f"{name}: {why}"
        return ""

    # a record has as many places as there are shards, and nearly all are those of the record before
    return lru_cache(maxsize=10_000)(check) if all(map(_is_flat, hints.values())) else check


def _is_flat(annotation: Any) -> bool:
    """Numbers, words and names: a struct of nothing else has a hash."""
    if get_origin(annotation) in (Union, types.UnionType):
        return all(kind is types.NoneType or _is_flat(kind) for kind in get_args(annotation))
    return get_origin(annotation) is Annotated or annotation in _IDS or annotation in (int, bool, str)
