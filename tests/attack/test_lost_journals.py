"""A node that has lost its journal does not come back under its name, and those that wait for it say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.errors import DAMAGED

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, layered_plan(shards=1, tops=0), 2, rate=500, settings={"metrics_port": -1})
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    nodes.until("a record that both decided", lambda: nodes.status("n1")["version"] > 1)
    nodes.until("a first commit", lambda: committed(nodes, "n1") >= 0)
    yield nodes
    nodes.close()


def committed(nodes: Nodes, name: str) -> int:
    return max((ledger["batch"] for ledger in nodes.status(name)["ledgers"].values()), default=-1)


def told(nodes: Nodes, name: str, kind: str) -> list[str]:
    return [event["text"] for event in nodes.events(name) if event["event"] == kind]


@pytest.mark.parametrize("lost", ["journal", "all"])
def test_a_lost_journal_ends_its_node_and_the_other_one_says_for_whom_it_waits(pair: Nodes, lost: str):
    home = pair.dir / "nodes" / "n0"
    pair.kill("n0")
    if lost == "all":
        shutil.rmtree(home)  # nothing on this disk says that it has lived: only the others know
    else:
        (home / "journal").unlink()
    again = pair.spawn("n0")
    pair.processes["n0"] = again
    assert again.wait(60) == DAMAGED
    said = (pair.dir / "n0.log").read_text().strip().splitlines()[-1]
    assert "lost its journal" in said
    assert "new name" in said
    assert told(pair, "n0", "journal-damaged")
    if lost == "all":
        heard = pair.until("n1 to say who has", lambda: told(pair, "n1", "journal-damaged"))
        assert "n0 has lost its journal" in heard[0]
    waits = pair.until("n1 to say for whom it waits", lambda: pair.status("n1")["waits_for"])
    assert waits.startswith("n1 waits for n0: without it there is no majority of n0, n1.")
    assert "cannot commit: a ledger of theirs is there" in waits
    pair.until("its event log to say so, too", lambda: waits in told(pair, "n1", "no-quorum"))


def test_a_node_that_kept_its_journal_comes_back_and_nobody_waits_any_more(pair: Nodes):
    pair.kill("n0")
    pair.until("n1 to say for whom it waits", lambda: pair.status("n1")["waits_for"])
    pair.start("n0")
    pair.wait_up("n0")
    pair.until("n0 to be a member again", lambda: pair.status("n1")["members"].get("n0") == 2)
    pair.until("n1 to go on", lambda: not pair.status("n1")["waits_for"])
    pair.finish()
    assert pair.difference() == ""


@pytest.mark.parametrize("lost", ["journal", "half of it", "all"])
def test_three_nodes_go_on_without_the_one_that_has_lost_its_journal_and_lose_no_row(tmp_path: Path, lost: str):
    nodes = Nodes(tmp_path, layered_plan(shards=2, tops=1), 3, rate=500, settings={"metrics_port": -1})
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        nodes.until("some batches", lambda: any(committed(nodes, name) > 3 for name in nodes.names))
        home = nodes.dir / "nodes" / "n0"
        nodes.kill("n0")
        if lost == "all":
            shutil.rmtree(home)
        elif lost == "journal":
            (home / "journal").unlink()
        else:
            (home / "journal").write_bytes((home / "journal").read_bytes()[:100])
        nodes.processes["n0"] = again = nodes.spawn("n0")
        assert again.wait(60) == DAMAGED
        nodes.until("the others to have all of it", lambda: "n0" not in nodes.status("n1")["members"])
        nodes.finish()
        assert nodes.difference() == ""
    finally:
        nodes.close()
