"""What one can tell a node, without a network."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.core.ready import Spill
from holdfast.errors import ConfigError, InputError, PeerError
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.plan import Plan
from holdfast.model.topology import layered
from holdfast.runtime.disk.spill import SpillStore
from holdfast.runtime.node.actions import Actions, _blocks
from holdfast.runtime.node.process import NodeProcess

PLAN = Plan(pipeline="p", query="q", topology=layered(stages=1, shards=1), operators=(), stages=())


@pytest.mark.parametrize("name", ["../x", "/tmp/holdfast-x", "a/../../x"])
def test_files_of_a_pipeline_stay_in_its_directory(tmp_path, name):
    process = SimpleNamespace(name="n0", plan=None, config=SimpleNamespace(dir=str(tmp_path)))
    with pytest.raises(InputError, match="outside"):
        Actions(process).submit({"plan": msgspec.to_builtins(PLAN), "files": {name: "x"}})  # pyright: ignore[reportArgumentType]


def test_a_submit_leaves_the_plan_of_another_deployment_alone(tmp_path):
    """The directory is shared: a node that waited must not put its plan over the one that the others run."""
    deployed: list[Plan] = []
    process = SimpleNamespace(
        name="n3", plan=None, config=SimpleNamespace(dir=str(tmp_path)), deploy_soon=deployed.append
    )

    def submit(plan: Plan, text: str) -> None:
        body = {"plan": msgspec.to_builtins(plan), "files": {"pipeline.py": text}, "forwarded": True}
        Actions(process).submit(body)  # pyright: ignore[reportArgumentType]

    def found() -> tuple[str, str]:
        return msgspec.json.decode((tmp_path / "plan.json").read_bytes())["query"], (
            tmp_path / "pipeline.py"
        ).read_text()

    submit(PLAN, "first")
    assert found() == ("q", "first")
    with pytest.raises(ConfigError, match="another pipeline"):
        submit(msgspec.structs.replace(PLAN, query="other"), "second")
    assert found() == ("q", "first")
    submit(PLAN, "third")  # as the others run it
    assert found() == ("q", "first")
    assert deployed == [PLAN, PLAN]


def test_a_slow_spill_does_not_hold_up_what_leaves_the_node(tmp_path):
    """Heartbeats leave by the thread that does effects: a slow disk must not look like a death."""
    process, gate, asked = NodeProcess.__new__(NodeProcess), threading.Event(), []

    def find(edge: str, to: int) -> list:
        asked.append((edge, to))
        gate.wait(5)
        if to == 9:
            process.done.set()
        return []

    process.children = SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    process.spill, process.done = SpillStore(tmp_path, find, lambda full, text: None), threading.Event()
    thread = threading.Thread(target=process._write_spills)
    thread.start()
    for to in range(1, 10):
        process._on_effect(Spill(edge="u0.0", trimmed=0, to=to))
        while not asked:
            time.sleep(0.001)
    gate.set()
    thread.join(5)
    assert asked == [("u0.0", 1), ("u0.0", 9)]


def test_a_guest_that_fetches_keeps_its_leases_on_all_it_has_yet_to_fetch():
    """It reads one edge after the other: those it comes to last must not lapse while it reads the first."""
    queues = [OutputQueue(edge, ("sink",), 100, 100) for edge in ("u0.0", "u1.0")]
    for queue_ in queues:
        queue_.append(((1, 2, 3),), 1)
        queue_.lease("guest", 10)
    config = SimpleNamespace(lease_ns=100)
    runners = {
        shard: SimpleNamespace(copy=SimpleNamespace(outputs=[queue_]), config=config)
        for shard, queue_ in zip(("u0", "u1"), queues, strict=True)
    }
    node = SimpleNamespace(record=SimpleNamespace(places={}), host=SimpleNamespace(runners=runners))

    def fetch(consumer: str, now_ns: int):
        return _blocks(node, "u0", "u0.0", 0, queues[0].next, {"consumer": consumer}, now_ns)  # pyright: ignore[reportArgumentType]

    assert fetch("guest", 9) == list(queues[0].blocks)
    for queue_ in queues:
        queue_.ack("sink", queue_.next)
        assert queue_.lapse(109) == []
    assert fetch("a stranger", 9) == list(queues[0].blocks)
    assert "a stranger" not in queues[0].leases | queues[1].leases
    for queue_ in queues:
        assert queue_.lapse(110) == ["guest"]
    with pytest.raises(PeerError, match="trimmed"):
        fetch("guest", 110)


def test_a_fetch_that_begins_or_ends_inside_a_block_is_refused_rather_than_cut():
    queue_ = OutputQueue("u0.0", ("sink",), 100, 100)
    for mark in range(2):
        queue_.append(((1, 2, 3),), mark)
    runner = SimpleNamespace(copy=SimpleNamespace(outputs=[queue_]), config=SimpleNamespace(lease_ns=100))
    node = SimpleNamespace(record=SimpleNamespace(places={}), host=SimpleNamespace(runners={"u0": runner}))

    def fetch(start: int, end: int):
        return _blocks(node, "u0", "u0.0", start, end, {"consumer": "guest"}, 0)  # pyright: ignore[reportArgumentType]

    assert fetch(0, 4) == list(queue_.blocks)
    assert fetch(2, 2) == []
    assert fetch(2, 6) is None  # still to come
    for start, end in ((0, 3), (1, 4), (1, 2)):
        with pytest.raises(PeerError, match="foreign"):
            fetch(start, end)
