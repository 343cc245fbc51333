"""Planted bugs: each one breaks one rule of the core, as a careless change could. The checkers must find every one.

A mutant replaces one method for the time of a run; nothing of it is in the product. The bugs themselves are in the
files `mutants_of_...` beside this one, by what they are in; every such file is found by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from holdfast.core.fence import Fence
from holdfast.model.message import FencedBy, Message

Patch = tuple[object, str, object]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug is in, until the end of the block."""
    load()
    patches = MUTANTS[name]()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def unfenced(by: FencedBy, *kinds: type[Message]) -> Patch:
    """Nothing is fenced by this number, in messages of these kinds."""
    right = Fence.behind

    def behind(self, source, message):
        found = right(self, source, message)
        return None if found and found.by is by and isinstance(message, kinds) else found

    return (Fence, "behind", behind)


def load() -> None:
    """Enter all there are."""
    for path in sorted(Path(__file__).parent.glob("mutants_of_*.py")):
        import_module(path.stem)
