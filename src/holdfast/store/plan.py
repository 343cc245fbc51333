"""What is to be done with a store, as data: a plan is a generator that yields operations and is sent their results.

So whatever decides about checkpoints (`checkpoint/`) knows no thread, no clock and no store. `store/service.py` runs a
plan on a real one, many operations at a time; a test or a simulator runs several plans step by step, in any order it
likes, and lets any of them end at any operation.

    plan = publish(tenure, job)             # Generator[Operation, result, Published]
    service.run(plan)

An error of an operation is raised inside the plan, where it was yielded. `All` does several at once and gives their
results in order; if some fail, the rest is still waited for, and the first error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.store.port import Buffer, Range, Store, StoredObject, Version

T = TypeVar("T")
#: A plan that ends with a T.
Steps = Generator["Operation", Any, T]


@dataclass(frozen=True)
class PutNew:
    """Make a new object. `chunks` is used once: if it cannot be walked again, this cannot be tried again."""

    key: str
    chunks: Iterable[Buffer]
    #: Safe to try again: the chunks can be walked twice.
    again: bool = False

    def do(self, store: Store) -> int:
        return store.put(self.key, self.chunks)


@dataclass(frozen=True)
class SwapSmall:
    """Never tried again by itself: whether the first try was done is for the plan to find out."""

    key: str
    data: bytes
    version: Version | None
    again: bool = False

    def do(self, store: Store) -> Version:
        return store.swap(self.key, self.data, self.version)


@dataclass(frozen=True)
class LookAt:
    key: str
    again: bool = True

    def do(self, store: Store) -> tuple[bytes, Version] | None:
        return store.look(self.key)


@dataclass(frozen=True)
class ListKeys:
    prefix: str
    again: bool = True

    @property
    def key(self) -> str:
        return self.prefix + "*"

    def do(self, store: Store) -> list[StoredObject]:
        return store.list(self.prefix)


@dataclass(frozen=True)
class GetWhole:
    key: str
    bytes_max: int
    again: bool = True

    def do(self, store: Store) -> bytes:
        return store.get(self.key, self.bytes_max)


@dataclass(frozen=True)
class ReadRanges:
    """Fill ranges of an object. `then` is called right after, on the same thread: what it finds wrong counts."""

    key: str
    ranges: Sequence[Range]
    then: Callable[[], None] | None = None
    again: bool = True

    def do(self, store: Store) -> None:
        store.read(self.key, self.ranges)
        if self.then is not None:
            self.then()


@dataclass(frozen=True)
class DeleteKeys:
    keys: Sequence[str]
    again: bool = True

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""

    def do(self, store: Store) -> None:
        store.delete(self.keys)


@dataclass(frozen=True)
class All:
    """Several operations, in any order or at once; a list of their results."""

    operations: Sequence[PutNew | GetWhole | ReadRanges | DeleteKeys]


Single = PutNew | SwapSmall | LookAt | ListKeys | GetWhole | ReadRanges | DeleteKeys
Operation = Single | All


def drive(plan: Steps[T], do: Callable[[Operation], Any]) -> T:
    """Run a plan to its end: `do` gives the result of each operation, or raises its error."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = plan.send(result) if error is None else plan.throw(error)
        except StopIteration as end:
            return end.value
        result, error = None, None
        try:
            result = do(step)
        except Exception as failed:
            error = failed


def run_alone(store: Store, plan: Steps[T]) -> T:
    """Run a plan on this thread, one operation after the other, without a second try."""
    return drive(plan, lambda step: [x.do(store) for x in step.operations] if isinstance(step, All) else step.do(store))
