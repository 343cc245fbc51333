"""The coordinator's side: when a timestep ends, and that nobody who fails or dies stops the others."""

from __future__ import annotations

from random import Random

import pytest
from support.peace_models import flat_model

from holdfast.errors import ConfigError
from holdfast.peace import Answers, Denial, Peace, PeaceSettings, read_model

#: Every server sends and takes one chunk: a request of two chunks needs two timesteps.
NARROW = flat_model(2, 6, link=9, send=1, receive=1, replicas=("other rack",))
WIDE = flat_model(2, 6, link=99, send=99, receive=99, replicas=("other rack",))
LEFT = [f"SVR1.{n}" for n in range(1, 7)]


def peace_of(model=NARROW, **settings) -> Peace:
    return Peace(model, PeaceSettings(**settings), Random(1))


def granted(answers: Answers) -> list[tuple[str, int]]:
    """Who may start which chunk."""
    return [(one.writer, chunk.chunk) for one in answers.granted for chunk in one.chunks]


def five_writers(peace: Peace, chunks: int = 2) -> None:
    for writer in LEFT[:5]:
        assert granted(peace.on_write_wanted(writer, 0, chunks, 0)) == [(writer, 0)]


def test_a_timestep_ends_when_four_of_five_writes_are_over():
    peace = peace_of()
    five_writers(peace)
    for writer in LEFT[:3]:
        assert granted(peace.on_write_over(writer, 0, 0, 1)) == []
    last = granted(peace.on_write_over(LEFT[3], 0, 0, 1))
    assert peace.timestep == 2
    assert [writer for writer, _ in last] == LEFT[:5], "in the order in which they came"


@pytest.mark.parametrize(("share", "overs"), [(0.2, 1), (0.5, 3), (0.8, 4), (0.81, 5), (1.0, 5)])
def test_the_share_that_ends_a_timestep_can_be_set(share, overs):
    peace = peace_of(end_share=share)
    five_writers(peace)
    for count, writer in enumerate(LEFT[:overs], 1):
        assert peace.timestep == 1
        peace.on_write_over(writer, 0, 0, count)
    assert peace.timestep == 2


def test_who_comes_later_takes_what_is_left_and_the_timestep_does_not_wait_for_it():
    peace = peace_of(end_share=1.0)
    peace.on_write_wanted(LEFT[0], 0, 2, 0)
    peace.on_write_wanted(LEFT[1], 0, 1, 0)
    peace.on_write_over(LEFT[1], 0, 0, 1)
    assert granted(peace.on_write_wanted(LEFT[2], 0, 1, 2)) == [(LEFT[2], 0)]
    assert granted(peace.on_write_over(LEFT[0], 0, 0, 3)) == [(LEFT[0], 1)]


def test_who_cannot_start_now_is_told_how_much_is_ahead():
    peace = peace_of(flat_model(2, 2, link=1, send=1, receive=1, replicas=("other rack",)))
    peace.on_write_wanted("SVR1.1", 0, 5, 0)
    answers = peace.on_write_wanted("SVR1.2", 0, 1, 0)
    assert answers.granted == []
    assert [(p.writer, p.ahead) for p in answers.postponed] == [("SVR1.2", 4)]
    again = peace.on_write_wanted("SVR1.2", 0, 1, 0)
    assert [(p.writer, p.ahead) for p in again.postponed] == [("SVR1.2", 4)]


def test_a_dead_writer_does_not_stop_the_others():
    peace = peace_of(end_share=1.0)
    five_writers(peace)
    for writer in LEFT[:4]:
        peace.on_write_over(writer, 0, 0, 1)
    assert peace.timestep == 1
    next_ones = granted(peace.on_writer_gone(LEFT[4], 2))
    assert [writer for writer, _ in next_ones] == LEFT[:4]
    assert peace.on_write_over(LEFT[4], 0, 0, 3).granted == [], "from beyond"


def test_a_writer_that_died_unnoticed_holds_up_a_timestep_for_its_limit_and_no_longer():
    peace = peace_of(end_share=1.0, timestep_limit_ns=100, write_limit_ns=1000)
    five_writers(peace)
    for writer in LEFT[:4]:
        answers = peace.on_write_over(writer, 0, 0, 1)
    assert answers.wake_ns == 100
    assert granted(peace.on_tick(99)) == []
    answers = peace.on_tick(100)
    assert [writer for writer, _ in granted(answers)] == LEFT[:5]
    assert answers.denied == []


def test_a_silent_writer_gets_two_timesteps_worth_of_writes_and_no_more():
    peace = peace_of(timestep_limit_ns=100, write_limit_ns=10_000)
    peace.on_write_wanted(LEFT[0], 0, 9, 0)
    assert [granted(peace.on_tick(now)) for now in (100, 200, 300)] == [[(LEFT[0], 1)], [], []]
    assert granted(peace.on_write_over(LEFT[0], 0, 0, 301)) == [(LEFT[0], 2)]


def test_a_write_that_is_never_over_ends_its_request_and_frees_its_place():
    peace = peace_of(write_limit_ns=1000)
    assert peace.on_write_wanted(LEFT[0], 0, 3, 0).wake_ns == 1000
    assert peace.on_tick(999).denied == []
    answers = peace.on_tick(1000)
    assert [(d.writer, d.reason) for d in answers.denied] == [(LEFT[0], Denial.TOO_LATE)]
    assert peace.underway == {}
    assert answers.wake_ns == 0
    assert granted(peace.on_write_wanted(LEFT[0], 1, 1, 1000)) == [(LEFT[0], 0)], "it may ask anew"


def test_a_chunk_that_could_not_be_written_is_granted_again_before_the_others_of_its_request():
    peace = peace_of(retries_max=2)
    peace.on_write_wanted(LEFT[0], 0, 3, 0)
    assert granted(peace.on_write_over(LEFT[0], 0, 0, 1, written=False)) == [(LEFT[0], 0)]
    assert granted(peace.on_write_over(LEFT[0], 0, 0, 2, written=False)) == [(LEFT[0], 0)]
    answers = peace.on_write_over(LEFT[0], 0, 0, 3, written=False)
    assert [(d.writer, d.reason) for d in answers.denied] == [(LEFT[0], Denial.TOO_OFTEN)]
    assert (peace.queue, peace.waiting) == ({}, 0)


def test_a_request_that_was_sent_twice_gets_the_same_grant_twice():
    peace = peace_of()
    first = peace.on_write_wanted(LEFT[0], 0, 2, 0)
    assert peace.on_write_wanted(LEFT[0], 0, 2, 5).granted == first.granted
    assert len(peace.underway) == 1


def test_a_request_that_comes_again_when_it_is_over_is_not_served_again():
    peace = peace_of()
    peace.on_write_wanted(LEFT[0], 4, 1, 0)
    peace.on_write_over(LEFT[0], 4, 0, 1)
    assert [d.reason for d in peace.on_write_wanted(LEFT[0], 4, 1, 2).denied] == [Denial.PAST]
    assert [d.reason for d in peace.on_write_wanted(LEFT[0], 3, 1, 2).denied] == [Denial.PAST]
    assert granted(peace.on_write_wanted(LEFT[0], 5, 1, 2)) == [(LEFT[0], 0)]


def test_an_end_that_is_told_twice_counts_once():
    peace = peace_of(end_share=1.0)
    five_writers(peace)
    for _ in range(5):
        assert granted(peace.on_write_over(LEFT[0], 0, 0, 1)) == []
    assert peace.timestep == 1


def test_what_is_withdrawn_leaves_the_queue_and_keeps_its_place_until_it_is_over():
    peace = peace_of()
    peace.on_write_wanted(LEFT[0], 0, 9, 0)
    peace.on_withdrawn(LEFT[0], 0, 1)
    assert (peace.queue, peace.waiting) == ({}, 0)
    assert len(peace.underway) == 1
    peace.on_write_over(LEFT[0], 0, 0, 2)
    assert peace.underway == {}


def test_what_cannot_be_asked_for_is_denied_with_its_reason():
    peace = peace_of(chunks_max=10, requests_max=1)

    def reason(*args, **more) -> list[Denial]:
        return [denied.reason for denied in peace.on_write_wanted(*args, now_ns=0, **more).denied]

    assert reason("nobody", 0, 1) == [Denial.UNKNOWN_WRITER]
    assert reason(LEFT[0], 0, 0) == [Denial.BAD_NUMBERS]
    assert reason(LEFT[0], 0, 11) == [Denial.BAD_NUMBERS]
    assert reason(LEFT[0], 0, 1, replicas=2) == [Denial.BAD_NUMBERS], "the model has a place for one"
    assert reason(LEFT[0], 0, 1, replicas=-1) == [Denial.BAD_NUMBERS]
    assert reason(LEFT[0], 0, 10) == []
    assert reason(LEFT[1], 0, 1) == [Denial.QUEUE_FULL]


def test_a_request_for_which_no_chain_exists_is_denied_at_once():
    peace = peace_of(flat_model(1, 3, link=1, replicas=("same rack", "other rack")))
    assert [d.reason for d in peace.on_write_wanted("SVR1.1", 0, 1, 0).denied] == [Denial.NO_CHAIN]
    assert granted(peace.on_write_wanted("SVR1.1", 0, 1, 0, replicas=1)) == [("SVR1.1", 0)]


def test_a_server_that_is_gone_gets_nothing_until_it_is_back():
    peace = peace_of(WIDE)
    for server in range(2, 7):
        peace.on_server_gone(f"SVR2.{server}", 0)
    answers = peace.on_write_wanted("SVR1.1", 0, 50, 0)
    assert {chunk.chain for one in answers.granted for chunk in one.chunks} == {("SVR2.1",)}
    gone = peace.on_server_gone("SVR2.1", 1)
    assert gone.denied == [], "everything that it asked for is under way"
    assert [d.reason for d in peace.on_write_wanted("SVR1.2", 0, 1, 2).denied] == [Denial.NO_CHAIN]
    peace.on_server_back("SVR2.4", 3)
    assert granted(peace.on_write_wanted("SVR1.2", 1, 1, 4)) == [], "from the next timestep on"
    for chunk in range(50):
        answers = peace.on_write_over("SVR1.1", 0, chunk, 5)
        if answers.granted:
            break
    assert answers.granted[0].chunks[0].chain == ("SVR2.4",)


def test_a_waiting_request_is_denied_when_the_last_server_for_it_goes():
    peace = peace_of(flat_model(2, 1, link=1, send=1, receive=1, replicas=("other rack",)))
    peace.on_write_wanted("SVR1.1", 0, 2, 0)
    assert [d.reason for d in peace.on_server_gone("SVR2.1", 1).denied] == [Denial.NO_CHAIN]


def test_a_disk_that_is_slow_is_not_given_more_at_every_opening():
    """Writes that are left over keep their places on disks, and only there."""
    peace = peace_of(end_share=0.5)
    five_writers(peace, chunks=9)
    slow = LEFT[4]
    taken = {chunk: underway.chain for chunk, underway in peace.underway.items()}[slow, 0, 0][1]
    for now in range(1, 9):
        for key in [key for key in peace.underway if key[0] != slow]:
            peace.on_write_over(*key, now)
        used = [underway.chain[1] for underway in peace.underway.values()]
        assert used.count(taken) == 1
    assert peace.timestep > 5


def test_the_oldest_request_gets_an_empty_network_when_it_was_passed_over_too_often():
    """It needs all three disks of a rack at once, and at every opening somebody else still holds one of them."""
    text = """
    replicas = ["other rack", "same rack", "same rack"]
    [switches.s]
    [racks]
    writers = { switch = "s", send = 9, receive = 0 }
    disks = { switch = "s", send = 9, receive = 1 }
    [servers]
    all = { rack = "writers" }
    one = { rack = "writers" }
    a = { rack = "disks" }
    b = { rack = "disks" }
    c = { rack = "disks" }
    """
    peace = Peace(read_model(text), PeaceSettings(end_share=0.5, passed_over_max=3), Random(1))
    peace.on_write_wanted("one", 0, 3, 0, replicas=1)
    peace.on_write_wanted("all", 0, 1, 0, replicas=3)
    peace.on_write_wanted("one", 1, 500, 0, replicas=1)
    for now in range(1, 100):
        if any(key[0] == "all" for key in peace.underway):
            break
        assert peace.underway
        # first what is left over from before, then one write of the timestep, which ends it with another under way
        oldest = min(peace.underway, key=lambda key: peace.underway[key].timestep)
        peace.on_write_over(*oldest, now)
    assert any(key[0] == "all" for key in peace.underway), "it waits for good"
    assert peace.timestep > 3, "it was passed over before, or this shows nothing"


BEHIND_A_LINK = """
[switches.core]
[switches.a]
uplink = "core"
up = 3
down = 3
[racks]
r = { switch = "a", send = 2 }
[servers]
n1 = { rack = "r" }
n2 = { rack = "r" }
n3 = { rack = "r" }
[store]
switch = "core"
receive = 9
"""


def test_where_the_store_places_by_itself_chains_are_empty_and_the_oldest_goes_on_as_soon_as_there_is_room():
    peace = Peace(read_model(BEHIND_A_LINK), PeaceSettings(), Random(1))
    first = peace.on_write_wanted("n1", 0, 4, 0)
    assert [chunk.chain for chunk in first.granted[0].chunks] == [(), ()]
    assert granted(peace.on_write_wanted("n2", 0, 4, 0)) == [("n2", 0)], "what is left of the link's three"
    assert granted(peace.on_write_wanted("n3", 0, 4, 0)) == []
    assert granted(peace.on_write_over("n2", 0, 0, 1)) == [("n2", 1)], "n1 can send no more than two"
    assert granted(peace.on_write_over("n1", 0, 0, 1)) == [("n1", 2)]
    assert granted(peace.on_writer_gone("n1", 1)) == [("n2", 2), ("n3", 0)]


@pytest.mark.parametrize(("capacity", "most"), [("send = 2", 1), ("up = 3", 1), ("receive = 9", 1)])
def test_no_more_is_under_way_to_such_a_store_than_ports_links_and_the_store_can_take(capacity, most):
    """Each capacity alone, set to one: at most one write of a writer, or in all."""
    peace = Peace(read_model(BEHIND_A_LINK.replace(capacity, f"{capacity.split()[0]} = 1")), PeaceSettings(), Random(1))
    for writer in ("n1", "n2", "n3"):
        peace.on_write_wanted(writer, 0, 5, 0)
    ended = 0
    while peace.underway:
        writers = [key[0] for key in peace.underway]
        counted = max(map(writers.count, writers)) if "send" in capacity else len(writers)
        assert counted <= most
        peace.on_write_over(*next(iter(peace.underway)), 1)
        ended += 1
    assert ended == 15


@pytest.mark.parametrize(
    "wrong",
    [{"end_share": 0.0}, {"end_share": 1.1}, {"write_limit_ns": 0}, {"retries_max": -1}, {"passed_over_max": 0}],
)
def test_a_setting_that_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PeaceSettings(**wrong)
