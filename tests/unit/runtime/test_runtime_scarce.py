"""What a node says when the system gives it no more."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pyarrow as pa

from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.scarce import LOOK_NS, Descriptors, last_words


def told(log: EventLog) -> list[str]:
    return [event["text"] for event in log.since(0) if event["event"] == "descriptors"]


def test_descriptors_are_told_when_few_are_left_and_not_before(tmp_path: Path, monkeypatch):
    log = EventLog(tmp_path / "events.jsonl", "n0")
    look = Descriptors("n0", log)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000, 1_000))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 800)
    look.look(LOOK_NS)
    assert told(log) == []
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 951)
    look.look(LOOK_NS + 1)  # too soon for another look
    assert told(log) == []
    look.look(2 * LOOK_NS)
    (text,) = told(log)
    assert text.startswith("950 of 1,000 descriptors of n0 are open")


def test_none_left_for_a_look_is_none_left(tmp_path: Path, monkeypatch):
    def none(path: str) -> list[str]:
        raise OSError(24, "Too many open files")

    log = EventLog(tmp_path / "events.jsonl", "n0")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000, 1_000))
    monkeypatch.setattr(os, "listdir", none)
    Descriptors("n0", log).look(LOOK_NS)
    assert told(log)[0].startswith("1,000 of 1,000 descriptors")


def test_a_node_without_memory_does_not_speak_of_an_invariant():
    for error in (MemoryError(), pa.ArrowMemoryError("malloc"), OSError(errno.ENOMEM, "Cannot allocate memory")):
        text, code = last_words("n0", error, 70)
        assert "no more memory" in text
        assert code == 1
    assert last_words("n0", ValueError("x"), 70) == ("n0 has broken an invariant and stops: x", 70)
