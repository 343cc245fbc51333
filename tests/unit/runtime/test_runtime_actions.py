"""What one can tell a node, without a network."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.core.ready import Spill
from holdfast.errors import ConfigError, InputError
from holdfast.model.plan import Plan
from holdfast.model.topology import layered
from holdfast.runtime.disk.spill import SpillStore
from holdfast.runtime.node.actions import Actions
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
