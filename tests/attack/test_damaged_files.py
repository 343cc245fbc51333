"""Files of a node that somebody has cut, emptied, removed, changed or replaced: a clear error, or no harm at all.

Never a stack trace, never a node that goes on without what it had promised. The journal holds lives, votes, the record
and the ledgers' pages, so it is cut at each of its records' boundaries and inside each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.nodes import PATHS, free_ports
from support.plans import layered_plan

from holdfast.errors import DAMAGED, DamagedJournalError, HoldfastError, exit_code
from holdfast.model.found import ledger_entry, life_entry, read, record_entry, vote_entry
from holdfast.model.ids import Name, asset_id
from holdfast.model.parts import LedgerPage
from holdfast.model.plan import digest
from holdfast.model.record import first_record
from holdfast.runtime.disk.journal import _HEAD, _MARK, Journal
from holdfast.runtime.net.security import make_secret

PLAN = layered_plan(shards=1, tops=0)
NAMES = (Name("n0"), Name("n1"))


def lived(home: Path) -> Path:
    """A journal of two lives: each a life, a vote, the record and a page of a ledger."""
    record = first_record(PLAN.topology, NAMES)
    ledger = asset_id(next(iter(PLAN.topology.ledgers)))
    for life in (1, 2):
        journal = Journal(home / "journal")
        assert read(journal.content).life == life - 1
        journal.write([life_entry(life)])
        journal.write([vote_entry(life, Name("n1")), record_entry(record)])
        journal.write([ledger_entry(ledger, 1, LedgerPage(PLAN.query, life, None))])
        journal.close()
    return home / "journal"


def frames(raw: bytes) -> list[int]:
    """Where each frame begins, and where the last one ends."""
    found, at = [], 4
    while at < len(raw):
        found.append(at)
        at += _HEAD.size + _HEAD.unpack_from(raw, at)[1]
    return [*found, at]


def opened(path: Path) -> int:
    """0: it opens and knows of both lives; else the exit code that its node would end with."""
    before = path.read_bytes() if path.is_file() else None
    try:
        journal = Journal(path)
    except HoldfastError as error:
        code = exit_code(error)
        assert (path.read_bytes() if path.is_file() else None) == before, "a damaged journal is left as it is"
        return code
    journal.close()
    assert read(journal.content).life == 2
    return 0


def test_a_journal_that_is_cut_anywhere_before_its_last_life_is_found_out(tmp_path):
    path = lived(tmp_path)
    raw = path.read_bytes()
    at = frames(raw)
    life_safe = at[4]  # the second life's own frame ends here
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        assert opened(path) == (0 if cut >= life_safe else DAMAGED), cut


def test_a_journal_with_any_byte_changed_is_found_out_or_loses_its_very_last_write(tmp_path):
    path = lived(tmp_path)
    raw = path.read_bytes()
    last = frames(raw)[-2]
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 0x41
        path.write_bytes(changed)
        assert opened(path) in ((0, DAMAGED) if at >= last else (DAMAGED, 1 if at < 4 else DAMAGED)), at


@pytest.mark.parametrize(
    "hurt",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"HFJ2"),
        lambda path: path.write_bytes(os.urandom(2_000)),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("nowhere")),
    ],
    ids=["removed", "emptied", "only its first bytes", "noise", "a directory", "a link to nowhere"],
)
def test_a_journal_that_is_not_there_any_more_is_found_out(hurt: Callable[[Path], object], tmp_path):
    path = lived(tmp_path)
    hurt(path)
    assert opened(path) == DAMAGED


def test_a_frame_that_is_whole_but_no_list_of_entries_is_found_out(tmp_path):
    path = lived(tmp_path)
    body = msgspec.msgpack.encode({"life": 3})
    path.write_bytes(path.read_bytes() + _HEAD.pack(_MARK, len(body), checksum(body)) + body)
    assert opened(path) == DAMAGED


@pytest.mark.parametrize(
    "entry",
    [
        ["ledger/s0", 7],
        ["ledger/s0", [1, ["q"]]],
        ["ledger/s0", [1, ["q", -1, None]]],
        ["ledger/s0", [1, ["q", 1, {"query": "q", "batch": "x"}]]],
        ["vote", ["x", None]],
        ["record", None],
        ["nothing", 1],
    ],
    ids=repr,
)
def test_a_frame_that_is_whole_but_holds_an_entry_that_cannot_be_is_found_out(entry, tmp_path):
    """A page of a ledger, say, that somebody has written: its checksum fits."""
    path = lived(tmp_path)
    body = msgspec.msgpack.encode([entry])
    path.write_bytes(path.read_bytes() + _HEAD.pack(_MARK, len(body), checksum(body)) + body)
    with pytest.raises(HoldfastError) as error:
        Journal(path)
    assert str(path) in error.value.detail
    assert error.value.hint


def checksum(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


def test_the_file_of_lives_alone_does_no_harm(tmp_path):
    path = lived(tmp_path)
    lives = tmp_path / "lives"
    assert lives.read_text() == "2"
    for hurt in (b"", b"x", b"1"):
        lives.write_bytes(hurt)
        assert opened(path) == 0
    lives.unlink()
    assert opened(path) == 0
    lives.mkdir()
    assert opened(path) == 2


def test_a_first_start_that_died_before_its_life_was_safe_is_a_first_start_again(tmp_path):
    Journal(tmp_path / "journal").close()
    again = Journal(tmp_path / "journal")
    assert again.content == {}
    again.write([life_entry(1)])
    again.close()
    (tmp_path / "journal").unlink()
    with pytest.raises(DamagedJournalError, match="lost its journal"):
        Journal(tmp_path / "journal")


# --- a node's other files: each ends it with one line


def edited(path: Path) -> None:
    plan = json.loads(path.read_bytes())
    plan["operators"][0]["settings"]["size_us"] = 7_000_000
    path.write_text(json.dumps(plan))


def reordered(path: Path) -> None:
    """The same plan, written down by somebody else."""
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_bytes()).items())), indent=3))


def directory(path: Path) -> None:
    if path.exists():
        path.unlink()
    path.mkdir()


HURT: list[tuple[str, str, Callable[[Path], object], int, str]] = [
    ("plan.json", "cut", lambda p: p.write_bytes(p.read_bytes()[:100]), 2, "the plan cannot be read"),
    ("plan.json", "emptied", lambda p: p.write_bytes(b""), 2, "the plan cannot be read"),
    ("plan.json", "noise", lambda p: p.write_bytes(b"\xff\0\xfe"), 2, "the plan cannot be read"),
    ("plan.json", "of other things", lambda p: p.write_text("[1, 2]"), 2, "the plan cannot be read"),
    ("plan.json", "a directory", directory, 2, "the plan cannot be read"),
    ("plan.json", "edited", edited, 2, "is not the one that it has run before"),
    ("secret", "removed", lambda p: p.unlink(), 2, "cannot read the cluster secret"),
    ("secret", "emptied", lambda p: p.write_bytes(b""), 2, "secret"),
    ("secret", "a directory", directory, 2, "cannot read the cluster secret"),
    ("secret", "cut", lambda p: p.write_bytes(p.read_bytes()[:5]), 2, "secret"),
    ("secret", "noise", lambda p: p.write_bytes(b"\xff\0\xfe"), 2, "secret"),
    ("secret", "open to all", lambda p: p.chmod(0o644), 2, "secret"),
    ("nodes/n0/query", "removed", lambda p: p.unlink(), 2, "which plan it has run"),
    ("nodes/n0/query", "emptied", lambda p: p.write_bytes(b""), 2, "which plan it has run"),
    ("nodes/n0/query", "cut after its name", lambda p: p.write_text(PLAN.query), 2, "which plan it has run"),
    (
        "nodes/n0/query",
        "cut in its digest",
        lambda p: p.write_text(p.read_text()[:-4]),
        2,
        "is not the one that it has",
    ),
    ("nodes/n0/query", "cut in its name", lambda p: p.write_text(PLAN.query[:1]), 2, "another deployment"),
    ("nodes/n0/query", "noise", lambda p: p.write_bytes(b"\xff\xfe"), 2, "cannot read which plan"),
    ("nodes/n0/query", "a directory", directory, 2, "cannot read which plan"),
    ("nodes/n0/query", "of another", lambda p: p.write_text("other 0123"), 2, "another deployment"),
    ("nodes/n0/journal", "removed", lambda p: p.unlink(), DAMAGED, "lost its journal"),
    ("nodes/n0/journal", "a directory", directory, DAMAGED, "lost its journal"),
    ("nodes/n0/lives", "a directory", directory, 2, "cannot be read"),
    ("nodes/n0/lock", "a directory", directory, 2, "cannot be written"),
    ("nodes/n0/events.jsonl", "a directory", directory, 2, "cannot be written"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how", "hurt", "code", "says"), HURT, ids=[f"{n} {how}" for n, how, *_ in HURT])
def test_a_node_with_a_broken_file_ends_with_one_line(name, how, hurt, code, says, tmp_path):
    home = tmp_path / "run"
    node = home / "nodes" / "n0"
    node.mkdir(parents=True)
    (home / "plan.json").write_bytes(msgspec.json.encode(PLAN))
    make_secret(home / "secret")
    lived(node)
    (node / "query").write_text(f"{PLAN.query} {digest(PLAN)}")
    hurt(home / name)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "holdfast.runtime.node", "--dir", str(home), "--name", "n0"]
    command += ["--peer", f"n0=grpc://127.0.0.1:{port}", "--set", "metrics_port=-1"]
    env = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_plan_that_says_the_same_in_another_order_is_the_same(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(PLAN))
    reordered(path)
    from holdfast.runtime.config import read_plan

    assert digest(read_plan(path)) == digest(PLAN)
    edited(path)
    assert digest(read_plan(path)) != digest(PLAN)
