"""Nodes that ask Peace before they write: what they may begin, who answers, and what happens if nobody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.small_checkpoints import SHARD, aggregate, feed, job_of

from holdfast.checkpoint.pages import PageStreams
from holdfast.errors import ConfigError, PeerError
from holdfast.model.ids import Name
from holdfast.peace import read_model
from holdfast.runtime.stable import peace as module
from holdfast.runtime.stable.peace import PeaceDesk, PeaceWriter, differ, load_model
from holdfast.store.memory import MemoryStore
from holdfast.store.plan import All, PutNew
from holdfast.store.service import IoService

LIMIT_S = 30.0
#: Three servers in one rack; each sends and takes one chunk a timestep.
MODEL = """
replicas = ["same rack"]
[switches.one]
[racks.one]
switch = "one"
send = 1
receive = 1
[servers]
n0 = { rack = "one", data_node = "10.0.0.1:9866" }
n1 = { rack = "one", data_node = "10.0.0.2:9866" }
n2 = { rack = "one", data_node = "10.0.0.3:9866" }
"""
MEMBERS = frozenset(("n0", "n1", "n2"))


class Coordinators:
    """Who answers: a desk for each term, or nobody."""

    def __init__(self) -> None:
        self.term = 1
        self.away = False
        self.desk = PeaceDesk(read_model(MODEL), seed=1)

    def ask(self, name: Name, body: dict[str, Any]) -> dict[str, Any]:
        if self.away:
            raise PeerError("nobody answers")
        return self.desk.answer(body, self.term, MEMBERS, time.monotonic_ns())


@pytest.fixture
def writer(request):
    made: list[PeaceWriter] = []

    def make(coordinators: Coordinators, name: str = "n0", told: list[str] | None = None) -> PeaceWriter:
        tell = told.append if told is not None else lambda text: None
        made.append(PeaceWriter(Name(name), lambda: Name("n0"), coordinators.ask, tell))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def key(chunk: int) -> str:
    return f"checkpoint/u0-1/pages-{chunk}"


def test_a_chunk_begins_when_it_is_granted_and_the_next_when_that_is_over(writer):
    one = writer(Coordinators())
    assert one.may_begin(key(0)), "nothing is asked for yet"
    one.open(2)
    wait(lambda: one.may_begin(key(0)), "the first")
    assert not one.may_begin(key(1)), "a server sends one at a time"
    assert one.may_begin("checkpoint/u0-1/manifest"), "what is small does not ask"
    assert one.favoured(key(0))[0] in ("10.0.0.2:9866", "10.0.0.3:9866")
    one.ended(key(0), True)
    wait(lambda: one.may_begin(key(1)), "the second")
    one.ended(key(1), True)
    one.close()


def test_writers_share_the_disks_and_everybody_gets_through(writer):
    """Never more than one write to a disk, whoever writes; by the service that runs real writes."""
    coordinators, lock = Coordinators(), threading.Lock()
    busy: dict[str, int] = {}
    most: dict[str, int] = {}
    threads = []
    for name in ("n0", "n1", "n2"):
        peace = writer(coordinators, name)

        class BusyStore(MemoryStore):
            def put(self, key, chunks, peace=peace):
                (node,) = peace.favoured(key)
                with lock:
                    busy[node] = busy.get(node, 0) + 1
                    most[node] = max(most.get(node, 0), busy[node])
                time.sleep(0.02)
                found = super().put(key, chunks)
                with lock:
                    busy[node] -= 1
                return found

        def run(peace=peace, make=BusyStore) -> None:
            service = IoService(make(), gate=peace)
            peace.open(4)
            service._do(All([PutNew(key(i), [b"x"]) for i in range(4)]), None)
            peace.close()

        threads.append(threading.Thread(target=run))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert max(most.values()) == 1
    assert len(most) >= 2


def test_a_new_coordinator_is_asked_for_what_is_left(writer):
    coordinators = Coordinators()
    one = writer(coordinators)
    one.open(3)
    wait(lambda: one.may_begin(key(0)), "the first")
    one.ended(key(0), True)
    wait(lambda: one.may_begin(key(1)), "the second")
    coordinators.term += 1  # it knows nothing, not even that the first is over
    one.ended(key(1), True)
    wait(lambda: one.may_begin(key(2)), "the third")


def test_without_an_answer_a_checkpoint_is_written_all_the_same_and_that_is_told(writer, monkeypatch):
    monkeypatch.setattr(module, "ALONE_S", 0.2)
    coordinators, told = Coordinators(), []
    coordinators.away = True
    one = writer(coordinators, told=told)
    one.open(2)
    wait(lambda: one.may_begin(key(1)), "it goes alone")
    assert "without Peace: no coordinator has answered" in told[0]
    assert one.favoured(key(1)) == ()


def test_a_writer_that_the_model_does_not_know_goes_alone_at_once(writer):
    told: list[str] = []
    one = writer(Coordinators(), "n9", told)
    one.open(1)
    wait(lambda: one.may_begin(key(0)), "it goes alone")
    assert "does not know the writer" in told[0]


def test_a_checkpoint_that_was_given_up_leaves_its_places_to_others(writer):
    coordinators = Coordinators()
    one, other = writer(coordinators), writer(coordinators, "n1")
    one.open(5)
    wait(lambda: one.may_begin(key(0)), "the first")
    one.close()
    other.open(1)
    wait(lambda: other.may_begin(key(0)), "the other one")


def test_with_peace_every_file_of_pages_is_as_large_as_the_others():
    op = aggregate()
    feed(op, 1, rows=4000)
    snapshot, _ = op.snapshot(None)
    streams = PageStreams(snapshot, 3, stage_bytes=snapshot.pool.page_bytes, even=True)
    sizes = [sum(chunk.nbytes for chunk in streams.stream(i)) for i in range(streams.writers)]
    assert sum(sizes) == snapshot.nbytes
    assert max(sizes) - min(sizes[:-1] or sizes) == 0
    assert len(sizes) == min(3, len(snapshot))
    streams.table(1, None)
    snapshot.close()
    job = job_of(op, 1)
    assert job.writers >= 1
    job.close()
    assert SHARD


def test_where_blocks_went_is_compared_with_what_was_asked():
    wanted = ("a:1", "b:1")
    assert differ(wanted, [["b:1", "a:1"], ["a:1", "c:1"], ["a:1"]]) == 2
    assert differ((), [["a:1"]]) == 0


def test_a_model_that_does_not_fit_the_nodes_or_the_store_is_one_clear_error(tmp_path):
    file = tmp_path / "net.toml"
    file.write_text(MODEL)
    assert load_model(str(file), [Name("n0")], places=True).servers
    with pytest.raises(ConfigError, match="does not know n7"):
        load_model(str(file), [Name("n0"), Name("n7")], places=True)
    with pytest.raises(ConfigError, match="cannot be told where"):
        load_model(str(file), [Name("n0")], places=False)
    file.write_text(MODEL.replace(', data_node = "10.0.0.2:9866"', ""))
    with pytest.raises(ConfigError, match="which data node is on n1"):
        load_model(str(file), [Name("n0")], places=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(str(tmp_path / "none.toml"), [], places=True)
