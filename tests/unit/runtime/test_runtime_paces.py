"""What starts and take-overs really took is what `status` says that the next one would cost."""

from __future__ import annotations

import pytest

from holdfast.runtime.node import paces as module
from holdfast.runtime.node.paces import GUESSES, Paces, took_s


def test_what_nobody_has_measured_is_a_guess():
    assert {step: Paces(None).seconds(step) for step in GUESSES} == GUESSES


def test_the_first_one_replaces_the_guess_and_the_last_ones_count_most():
    made = Paces(None)
    made.add("ready", 3.0)
    assert made.seconds("ready") == 3.0
    for _ in range(20):
        made.add("ready", 1.0)
    assert made.seconds("ready") == pytest.approx(1.0, abs=0.01)
    assert made.seconds("session") == GUESSES["session"]


def test_a_node_knows_what_the_others_have_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_S", 0.0)
    nodes = [Paces(tmp_path / "paces", name) for name in ("n0", "n1", "n2")]
    for _ in range(3):
        nodes[0].add("ready", 2.0)
    nodes[1].add("ready", 6.0)
    assert [node.seconds("ready") for node in nodes] == [3.0] * 3  # by how many each has seen
    assert nodes[2].seconds("up") == GUESSES["up"]


@pytest.mark.parametrize("text", ["", "[]", '{"ready": 3}', '{"ready": ["x", 1]}', "no json", '{"ready": [1, 0]}'])
def test_a_damaged_file_of_another_node_does_no_harm(tmp_path, text):
    (tmp_path / "n1").write_text(text)
    made = Paces(tmp_path, "n0")
    assert made.seconds("ready") == GUESSES["ready"]
    made.add("ready", 2.0)
    assert made.seconds("ready") == 2.0


def test_a_directory_that_cannot_be_written_leaves_a_node_with_its_own(tmp_path):
    (tmp_path / "file").touch()
    made = Paces(tmp_path / "file" / "paces", "n0")
    made.add("up", 5.0)
    assert made.seconds("up") == 5.0


def test_a_start_counts_until_its_first_batch_is_through_but_not_while_a_source_has_nothing_to_read():
    assert took_s(asked=100.0, ran=101.0, now=103.5, batch_s=2.0) == 3.5
    assert took_s(asked=100.0, ran=101.0, now=161.0, batch_s=2.0) == 3.0
