"""Failure domains: what fails together, by labels of nodes such as "zone-a/rack-1".

A label goes from the large to the small; two nodes share as much as their labels agree from the beginning on. A second
copy goes where least is shared with the first one. It is a preference, not a promise: where every other node is in the
same rack, a copy there beats none. A node without a label shares nothing with anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from holdfast.model.ids import Asset, Name


def shared(one: Name, other: Name, domains: Mapping[Name, str]) -> int:
    """How many parts of their labels agree: 0 means that nothing known could take both."""
    found = 0
    for mine, theirs in zip(_parts(one, domains), _parts(other, domains), strict=False):
        if mine != theirs:
            break
        found += 1
    return found


def farthest(home: Name, names: Sequence[Name], domains: Mapping[Name, str]) -> list[Name]:
    """Of these nodes, without `home`, the ones that share least with it, in the order given."""
    others = [name for name in names if name != home]
    if not domains:
        return others
    least = min((shared(home, name, domains) for name in others), default=0)
    return [name for name in others if shared(home, name, domains) == least]


def draw(asset: Asset, names: Sequence[Name]) -> Name:
    """One of these nodes by lot: the same whoever draws, and another one only if that node is gone or a new one won."""
    return max(names, key=lambda name: (blake2b(f"{asset} {name}".encode(), digest_size=8).digest(), name))


def _parts(name: Name, domains: Mapping[Name, str]) -> list[str]:
    label = domains.get(name, "")
    return label.split("/") if label else []
