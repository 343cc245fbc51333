"""`holdfast checkpoint`: what is shown of a store, what is refused, and exit codes."""

from __future__ import annotations

import json

import pytest
from support.small_checkpoints import DEPLOYMENT, SHARD, Chain, aggregate, feed, now_ms, run
from test_cli_runs import call

from holdfast.checkpoint import Stand, claim, fit_of, publish, restore_operator, take
from holdfast.checkpoint.footprints import EntryJob, FootprintEntry
from holdfast.checkpoint.inspect import pin
from holdfast.model.footprint import Control
from holdfast.model.ids import Edge, dead_edge
from holdfast.model.parts import OutputPart
from holdfast.model.plan import to_core
from holdfast.store import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def chain(store):
    """Three checkpoints of one shard, the first of which is kept by name."""
    made = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=3, holder="n0#1")), aggregate())
    for i in range(3):
        feed(made.op, i, rows=1200 if i == 0 else 40)
        made.checkpoint(position=i)
    run(store, pin(SHARD, "monday", 1))
    return made


def test_the_list_says_what_each_one_takes_and_shares(store, chain, capsys, monkeypatch):
    code, out, _ = call(capsys, "checkpoint", "list", store.url, "--json")
    assert code == 0
    told = json.loads(out)
    first, second, third = told["checkpoints"]
    assert [one["number"] for one in told["checkpoints"]] == [1, 2, 3]
    assert (first["base"], second["base"], third["base"]) == (None, 1, 2)
    assert first["own_bytes"] > first["state_bytes"], "all pages and the manifest"
    assert first["shared_bytes"] == 0
    assert second["own_bytes"] < first["own_bytes"]
    assert second["shared_bytes"] > 0
    assert first["alone_bytes"] < first["own_bytes"], "others need most of it"
    assert first["pins"] == ["monday"]
    assert 0 <= first["age_s"] < 600
    assert told["shards"]["talkers-0"]["held_by"] == "n0#1"
    assert told["shards"]["talkers-0"]["bytes"] == sum(one.nbytes for one in store.list("checkpoint/"))
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, "checkpoint", "list", store.url)
    assert code == 0
    assert "kept as monday" in out


def test_one_checkpoint_is_shown_with_its_positions_and_files(store, chain, capsys):
    code, out, _ = call(capsys, "checkpoint", "show", store.url, "talkers-0", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["number"] == 3
    assert told["positions"] == {"packets>talkers-0": 2}
    assert told["operator"] == "talkers"
    assert told["files"][0]["pages_used"] <= told["files"][0]["pages"]
    assert sum(one["pages_used"] for one in told["files"]) == told["pages"]
    code, out, _ = call(capsys, "checkpoint", "show", store.url, "talkers-0", "1")
    assert code == 0
    assert "positions:\n  packets>talkers-0: 0\n" in out


def test_verify_reads_everything_and_says_what_is_damaged(store, chain, capsys, tmp_path):
    code, out, _ = call(capsys, "checkpoint", "verify", store.url)
    assert code == 0
    assert out.count("whole") == 3
    file = tmp_path / "store" / "checkpoint" / "talkers-0-3" / "pages-0"
    raw = bytearray(file.read_bytes())
    raw[5000] ^= 1
    file.write_bytes(raw)
    code, out, _ = call(capsys, "checkpoint", "verify", store.url, "--json")
    assert code == 1
    verdicts = {one["number"]: one for one in json.loads(out)["checkpoints"]}
    assert [verdicts[n]["damaged"] for n in (1, 2, 3)] == [False, False, True]
    assert "has a damaged page" in verdicts[3]["verdict"]
    code, out, _ = call(capsys, "checkpoint", "verify", store.url, "--shard", "talkers-0", "--number", "2")
    assert (code, "talkers-0 2: whole" in out) == (0, True)


def test_deleting_frees_what_nobody_else_needs(store, chain, capsys):
    before = sum(one.nbytes for one in store.list("checkpoint/"))
    code, out, _ = call(capsys, "checkpoint", "delete", store.url, "talkers-0", "2", "--json")
    assert code == 0
    freed = json.loads(out)["freed_bytes"]
    assert 0 < freed == before - sum(one.nbytes for one in store.list("checkpoint/"))
    assert call(capsys, "checkpoint", "verify", store.url)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("delete", "STORE", "talkers-0", "1"), "is kept as 'monday' · --force"),
        (("delete", "STORE", "talkers-0", "2", "3", "9"), "has no checkpoint 9"),
        (("delete", "STORE", "nobody-0", "1"), "no checkpoints of 'nobody-0'"),
        (("show", "STORE", "talkers-0", "77"), "talkers-0 has no checkpoint 77 · There are: 1, 2, 3."),
        (("show", "STORE", "nobody-0"), "no checkpoints of 'nobody-0'"),
        (("list", "STORE", "--shard", "nobody-0"), "no checkpoints of 'nobody-0'"),
        (("verify", "STORE", "--number", "1"), "--number needs --shard"),
        (("verify", "STORE", "--shard", "talkers-0", "--number", "9"), "has no checkpoint 9"),
        (("list", "ftp://host/x"), "no store is known for ftp://"),
        (("list", "s3://a:topsecret@b/x"), "has a password"),
        (("list", "STORE", "--setting", "nothing"), "a --setting is not KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(store, chain, capsys, words, said):
    before = store.list("")
    code, _, err = call(capsys, "checkpoint", *(store.url if word == "STORE" else word for word in words))
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert "topsecret" not in err
    assert store.list("") == before


def test_an_empty_store_has_an_empty_list(store, capsys, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    code, out, _ = call(capsys, "checkpoint", "list", store.url, "--json")
    assert (code, json.loads(out)["checkpoints"]) == (0, [])
    assert call(capsys, "checkpoint", "verify", store.url)[:2] == (0, f"there are no checkpoints in {store.url}\n")
    assert call(capsys, "checkpoint", "list", store.url)[:2] == (0, "There are no checkpoints.\n")


def test_a_damaged_head_does_not_hide_the_other_shards(store, chain, capsys, tmp_path):
    versions = sorted((tmp_path / "store" / "head" / "talkers-0").iterdir())
    versions[-1].write_bytes(b"garbage")
    code, out, _ = call(capsys, "checkpoint", "list", store.url, "--json")
    assert code == 1
    assert "damaged" in json.loads(out)["unreadable"]["talkers-0"]
    assert call(capsys, "checkpoint", "verify", store.url)[0] == 1


@pytest.mark.parametrize("words", [(), ("list",), ("show",), ("verify",), ("delete",)])
def test_help_teaches_by_example(words, capsys):
    code, out, _ = call(capsys, "checkpoint", *words, "--help")
    assert code == 0
    assert "holdfast checkpoint" in out
    assert "Examples:" in out


def _back(capsys, store, number: int) -> tuple[int, str, str]:
    return call(capsys, "checkpoint", "restore", store.url, "talkers-0", str(number))


def test_a_shard_goes_back_to_an_older_checkpoint_and_the_next_restore_takes_it(store, capsys):
    made = from_a_stage(store)
    code, _, err = _back(capsys, store, 2)
    assert (code, "Batches of packets after 1 are not in its log any more" in err) == (2, True)
    store.put(f"log/{DEPLOYMENT}/packets/0/2-1-1", [b"as a stage has left it"])
    assert _back(capsys, store, 2)[0] == 0
    tenure = run(store, claim(SHARD, DEPLOYMENT, epoch=4, holder="n1#1", restoring=True))
    fresh = aggregate()
    assert run(store, restore_operator(tenure, fresh, fit_of(fresh, DEPLOYMENT))).entry.sequence == 2
    assert _back(capsys, store, 3)[0] == 2, "it was set aside, and says why"
    code, out, _ = _back(capsys, store, 2)
    assert (code, "already" in out) == (2, False), "the shard is being restored"
    assert made.op is not None


def test_it_goes_back_only_where_all_that_came_since_can_be_had_again(store, capsys):
    made = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=3, holder="n0#1")), aggregate())
    for i in range(2):
        feed(made.op, i)
        made.checkpoint(position=i)  # of an edge that is of no stage: it has no batches
    before = store.list("")
    code, _, err = _back(capsys, store, 1)
    assert code == 2
    assert "rows of packets>talkers-0 again that the shard before it does not keep" in err
    assert store.list("") == before


def test_watermarks_are_shown_as_times(store, capsys):
    """A number of the core, which counts from another beginning, said nothing to a person."""
    made = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=3, holder="n0#1")), aggregate())
    feed(made.op, 0)
    edge = Edge("packets>talkers-0")
    given = Stand(epoch=3, positions={edge: 1}, watermarks={edge: to_core(1_795_116_186_577_208)}, batches={edge: 1})
    run(store, publish(made.tenure, take(made.op, SHARD, given, fit_of(made.op, DEPLOYMENT), now_ms=now_ms)))
    _, out, _ = call(capsys, "checkpoint", "show", store.url, SHARD)
    assert "packets>talkers-0: 2026-11-19 19:23:06" in out
    assert "set_aside: no" in out


def from_a_stage(store) -> Chain:
    """Three checkpoints of a shard whose only input is a stage's."""
    made = Chain(store, run(store, claim(SHARD, DEPLOYMENT, epoch=3, holder="n0#1")), aggregate())
    edge = Edge("packets>talkers-0")
    for i in range(3):
        feed(made.op, i, rows=1200 if i == 0 else 40)
        given = Stand(epoch=3, positions={edge: i}, watermarks={edge: 10 * i}, batches={edge: i})
        job = take(made.op, SHARD, given, fit_of(made.op, DEPLOYMENT), now_ms=now_ms, base=made.kept)
        made.kept = job.kept(run(store, publish(made.tenure, job)).sequence)
    return made


def footprints(store) -> None:
    """Entries 4 and 5 of the same shard: of each window something, and no page."""
    made = from_a_stage(store)
    edge, needs = Edge("packets>talkers-0"), ()
    for i in (5, 7):
        entry = FootprintEntry(Control(i, i, 0, 0, i, 0, 0), b"", b"")
        given = Stand(epoch=3, positions={edge: i}, batches={edge: i})
        fit = fit_of(made.op, DEPLOYMENT)
        job = EntryJob(SHARD, entry, fit, given, needs=needs, log_from={edge: i - 2}, now_ms=now_ms)
        run(store, publish(made.tenure, job))
        assert job.own is not None
        needs = (job.own,)


def test_entries_of_footprints_are_checked_like_pages(store, capsys, tmp_path):
    footprints(store)
    code, out, _ = call(capsys, "checkpoint", "verify", store.url)
    assert (code, "talkers-0 5: whole" in out) == (0, True), out
    assert call(capsys, "checkpoint", "show", store.url, "talkers-0", "5")[0] == 0
    key = next(one.key for one in store.list("") if one.key.endswith("5/part-entry"))
    (tmp_path / "store" / key).write_bytes(b"garbage")
    code, out, _ = call(capsys, "checkpoint", "verify", store.url)
    assert (code, "talkers-0 4: whole" in out, "talkers-0 5: whole" in out) == (1, True, False)


def test_it_does_not_go_back_to_footprints_whose_input_is_not_in_the_log_any_more(store, capsys):
    """They need what was taken after the oldest of them: a restart would find neither that nor a newer state."""
    footprints(store)
    store.put(f"log/{DEPLOYMENT}/packets/0/5-1-1", [b"that before it was let go of"])
    code, _, err = _back(capsys, store, 4)
    assert (code, "Batches of packets after 3 are not in its log any more" in err) == (2, True)
    store.put(f"log/{DEPLOYMENT}/packets/0/4-1-1", [b"it is needed"])
    assert _back(capsys, store, 4)[0] == 0


def test_it_does_not_go_back_over_rows_that_were_set_aside_nor_over_a_gap(store, capsys):
    made = from_a_stage(store)
    edge, dead = Edge("packets>talkers-0"), dead_edge(SHARD)
    for i, more in enumerate(
        (
            {"outputs": {dead: OutputPart(5, 5, 5, (), {})}},
            {"outputs": {dead: OutputPart(5, 5, 5, (), {})}, "gap": (9, 9)},
        )
    ):
        given = Stand(epoch=3, positions={edge: 3 + i}, batches={edge: 3 + i}, **more)
        job = take(made.op, SHARD, given, fit_of(made.op, DEPLOYMENT), now_ms=now_ms)
        run(store, publish(made.tenure, job))
    store.put(f"log/{DEPLOYMENT}/packets/0/1-1-1", [b"as a stage has left it"])
    assert "Rows were set aside since" in _back(capsys, store, 3)[2]
    assert "A gap has come since" in _back(capsys, store, 4)[2]


@pytest.mark.parametrize("command", ["drain", "leave"])
def test_help_says_that_shards_in_mode_replay_pause(command, capsys):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert "without a pause" not in " ".join(out.split())
    assert "mode replay" in " ".join(out.split())
