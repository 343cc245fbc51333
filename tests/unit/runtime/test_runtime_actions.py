"""What one can tell a node, without a network."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from holdfast.core.ready import Done, Spill
from holdfast.errors import ConfigError, InputError
from holdfast.model import messages as m
from holdfast.model.block import shard_block
from holdfast.model.plan import Plan
from holdfast.model.record import ROSTER_MAX, Record
from holdfast.model.topology import layered
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.disk.letters import LetterStore
from holdfast.runtime.net.rows import ArrowRows
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


def test_nobody_is_sent_away_whose_name_the_record_has_no_room_for():
    full = Record(version=9, term=3, members={"n0": 1}, places={}, roster={f"x{i}": "" for i in range(ROSTER_MAX)})
    process = SimpleNamespace(name="n0", record=full)
    with pytest.raises(ConfigError, match="n0 cannot leave: 256 nodes have joined or left"):
        Actions(process).send_away({"name": "n0"})  # pyright: ignore[reportArgumentType]


def test_who_has_left_is_let_in_again_by_the_record_whatever_the_files_say(monkeypatch):
    """The file of those who stayed still names it, at that very address."""
    at = {"n0": "grpc+unix:///t/n0.sock", "n2": "grpc+unix:///t/n2.sock"}
    sent: list[object] = []

    def send(target: str, message: m.LetIn) -> None:
        sent.append((target, message))
        process.record = Record(version=10, term=3, members={"n0": 1}, places={}, roster={"n2": message.address})

    monkeypatch.setattr("holdfast.runtime.node.actions.check_guest", lambda *given: None)
    process = SimpleNamespace(
        name="n0", send=send, config=SimpleNamespace(endpoints=at), book=SimpleNamespace(endpoints=at), waits_for="",
        record=Record(version=9, term=3, members={"n0": 1}, places={}, roster={"n2": ""}),
        loop=SimpleNamespace(ask=lambda question, *limit, **more: "n0"),
    )  # fmt: skip
    for _ in range(2):  # the second time it is in
        answer = Actions(process).let_in({"name": "n2", "address": at["n2"]})  # pyright: ignore[reportArgumentType]
        assert (answer, sent) == ({"endpoints": at}, [("n0", m.LetIn(name="n2", address=at["n2"]))])


def test_a_slow_spill_does_not_hold_up_what_leaves_the_node(tmp_path, monkeypatch):
    """Heartbeats leave by the thread that does effects: a slow disk must not look like a death."""
    process, syncing, gate = NodeProcess.__new__(NodeProcess), threading.Event(), threading.Event()
    right = os.fdatasync

    def slow(handle: int) -> None:
        syncing.set()
        assert gate.wait(5)
        right(handle)

    def answered(done: Done) -> None:
        said.append(done.ticket)
        if done.ticket == 9:
            process.done.set()

    said: list[int] = []
    monkeypatch.setattr(os, "fdatasync", slow)
    process.children = SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    process.spill, process.done = EdgeLogs(tmp_path, answered, pytest.fail), threading.Event()
    process.letters = LetterStore(tmp_path, "n0", answered)
    process.spill.start(process.done)
    rows = ArrowRows([pa.record_batch({"a": [1, 2]})])
    for ticket in range(1, 10):
        process._on_effect(Spill(ticket=ticket, edge="u0.0", blocks=(shard_block(0, rows, 1),)))
        assert syncing.wait(5)
    assert said == []
    gate.set()
    assert process.done.wait(5)
    assert said == [1, 9]  # what the core had given up before it was begun is not written
