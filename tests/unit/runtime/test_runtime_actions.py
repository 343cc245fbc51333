"""What one can tell a node, without a network."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.core.ready import Spill
from holdfast.errors import InputError
from holdfast.model import messages as m
from holdfast.model.plan import Plan
from holdfast.model.topology import layered
from holdfast.runtime.actions import Actions
from holdfast.runtime.border import is_known
from holdfast.runtime.process import NodeProcess

PLAN = Plan(pipeline="p", query="q", topology=layered(stages=1, units=1), operators=(), stages=())


@pytest.mark.parametrize("name", ["../x", "/tmp/holdfast-x", "a/../../x"])
def test_files_of_a_pipeline_stay_in_its_directory(tmp_path, name):
    process = SimpleNamespace(name="n0", plan=None, config=SimpleNamespace(dir=str(tmp_path)))
    with pytest.raises(InputError, match="outside"):
        Actions(process).submit({"plan": msgspec.to_builtins(PLAN), "files": {name: "x"}})  # pyright: ignore[reportArgumentType]


def test_a_message_that_no_part_of_a_node_takes_is_turned_away():
    node = SimpleNamespace(topology=PLAN.topology, handlers={m.Data: None}, ledgers={})
    assert not is_known(m.Trimmed(edge="u0.0", epoch=1, first=3), node)  # pyright: ignore[reportArgumentType]
    assert is_known(m.Data(edge="u0.0", epoch=1, blocks=()), node)  # pyright: ignore[reportArgumentType]


def test_a_slow_spill_does_not_hold_up_what_leaves_the_node():
    """Heartbeats leave by the thread that does effects: a slow disk must not look like a death."""
    process, gate, written = NodeProcess.__new__(NodeProcess), threading.Event(), []

    def on_spill(effect: Spill) -> None:
        gate.wait(5)
        written.append(effect)
        process.done.set()

    process.children = SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    process.spill = SimpleNamespace(on_spill=on_spill, full=False)  # pyright: ignore[reportAttributeAccessIssue]
    process.done, process._spills = threading.Event(), queue.SimpleQueue()
    thread = threading.Thread(target=process._write_spills)
    thread.start()
    effect = Spill(edge="u0.0", trimmed=0, to=3)
    process._on_effect(effect)
    assert written == []
    gate.set()
    thread.join(5)
    assert written == [effect]
