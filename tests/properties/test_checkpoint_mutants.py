"""Bugs planted into the protocol of checkpoints: the property test must find each, or it promises nothing."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from test_checkpoint_protocol import live_through, schedule

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import inspect, keys, tenure
from holdfast.errors import InvariantError, StoreUnreachableError, SwapConflictError
from holdfast.store import DeleteKeys, ListKeys, SwapSmall

pytestmark = pytest.mark.slow
#: A bug that this number of schedules does not find is not found.
SCHEDULES = 1000


def _clear_first(t):
    """What a try has written goes before the head has changed: its publication may still come."""
    if t.tried:
        yield DeleteKeys(tuple(t.debris))
        sequence = t.tried
        yield from tenure._change(t, lambda h: heads.skipped(h, sequence), lambda h: h.reserved != sequence)
        t.tried, t.debris = 0, []


def _keeps_sequence(t):
    """A failed try writes under the same sequence again, over what a late publication may name."""
    if t.tried:
        yield DeleteKeys(tuple(t.debris))
        t.tried, t.debris = 0, []


def _forgets_sharing(before, after):
    """Files of a forgotten checkpoint go, although others need them."""
    gone = [e for e in before.entries if after.entry(e.sequence) is None]
    doomed = [keys.file_key(after.shard, name) for e in gone for name in e.files]
    if doomed:
        yield DeleteKeys(tuple(doomed))
    return tuple(e.sequence for e in gone)


def _files_before_head(t, keep):
    """Files go before the head forgets them: whoever dies in between leaves a checkpoint that counts and is empty."""
    going = heads.superfluous(t.head, keep)
    if not going:
        return ()
    yield from tenure.delete_forgotten(t.head, heads.without(t.head, going))
    yield from tenure._change(t, lambda h: heads.without(h, heads.superfluous(h, keep)), lambda h: False)
    return going


def _sweeps_by_listing(t):
    """Whatever the head does not name is swept, without asking whether the head is still ours."""
    found = yield ListKeys(keys.folder_prefix(t.shard))
    places = [(one.key, keys.parse(one.key)) for one in found]
    known = t.head.files
    doomed = [k for k, p in places if p and not (t.head.entry(p.sequence) if p.is_manifest else p.file in known)]
    if doomed:
        yield DeleteKeys(tuple(doomed))
    return tuple(doomed)


def _no_fence(t):
    """A primary that finds somebody else's head takes it for its own."""
    found = yield tenure.LookAt(keys.head_key(t.shard))
    t.head, t.version = tenure.read_head(found[0], t.shard), found[1]
    t.claim = t.head.claim


def _any_base(head, entry):
    """A publication may name files that nobody keeps any more."""
    new = {"entries": (*head.entries, entry), "reserved": head.next, "next": head.next + 1, "restoring": False}
    return msgspec.structs.replace(head, **new)


def _believes_errors(t, change, is_done):
    """A change that was not answered is taken for not done, and what was written is called the next one's."""
    made = msgspec.structs.replace(change(t.head), stamp="x")
    try:
        t.version = yield SwapSmall(keys.head_key(t.shard), heads.encode(made), t.version)
    except StoreUnreachableError:
        yield DeleteKeys(tuple(t.debris))
        raise
    except SwapConflictError:
        yield from tenure.refresh(t)
        raise
    before, t.head = t.head, made
    return before


BUGS = [
    (tenure, "clear", _clear_first),
    (tenure, "clear", _keeps_sequence),
    (tenure, "delete_forgotten", _forgets_sharing),
    (tenure, "sweep", _sweeps_by_listing),
    (tenure, "refresh", _no_fence),
    (tenure, "_change", _believes_errors),
    (heads, "published", _any_base),
    (tenure, "collect", _files_before_head),
]


@pytest.mark.parametrize(("where", "name", "bug"), BUGS, ids=[bug.__name__ for _, _, bug in BUGS])
def test_a_planted_bug_is_found(where, name, bug, monkeypatch):
    import test_checkpoint_protocol as protocol

    original = getattr(where, name)
    for module in (where, tenure, inspect, protocol):
        if getattr(module, name, None) is original:
            monkeypatch.setattr(module, name, bug)

    with pytest.raises((AssertionError, InvariantError)):
        _many_schedules()


def _many_schedules() -> None:
    for number in range(SCHEDULES):
        live_through(schedule(Random(number)))
