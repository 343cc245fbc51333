"""One chunk onto its chain: constraints, ties, dead ends, and nothing left behind."""

from __future__ import annotations

from collections import Counter
from random import Random

from support.peace_models import flat_model

from holdfast.peace import read_model
from holdfast.peace.chain import TRIES_MAX, Placing
from holdfast.peace.tree import Remaining, Tree


def placing(model, seed: int = 1) -> Placing:
    return Placing(Remaining(Tree(model)), Random(seed))


def left_of(remaining: Remaining) -> tuple[list[int], ...]:
    lists = [sorted(servers) for lists in (remaining.takers, remaining.relays) for servers in lists.of]
    return remaining.send, remaining.receive, remaining.up, remaining.down, lists


def test_every_equally_near_server_is_chosen_now_and_then():
    model = flat_model(4, 3, link=2, replicas=("other rack",))
    chosen = Counter(placing(model, seed).place(0, 1)[1] for seed in range(600))
    assert sorted(chosen) == list(range(3, 12))
    assert max(chosen.values()) < 2 * min(chosen.values())


def test_the_same_seed_gives_the_same_chains():
    model = flat_model(3, 4, link=3)
    first, second = placing(model, 7), placing(model, 7)
    assert [first.place(w, 3) for w in range(6)] == [second.place(w, 3) for w in range(6)]


def test_anywhere_means_the_nearest_server_that_has_room():
    model = flat_model(2, 2, link=9, receive=1, replicas=("anywhere",))
    one = placing(model)
    assert one.place(0, 1) == [0, 1]
    assert one.place(0, 1)[1] in (2, 3)


def test_two_racks_on_one_switch_are_equally_near():
    text = """
    replicas = ["anywhere"]
    [switches.s]
    [racks]
    a = { switch = "s", send = 1, receive = 1 }
    b = { switch = "s", send = 1, receive = 1 }
    [servers]
    n0 = { rack = "a" }
    n1 = { rack = "a" }
    n2 = { rack = "b" }
    """
    model = read_model(text)
    assert {placing(model, seed).place(0, 1)[1] for seed in range(40)} == {1, 2}


def test_a_chain_that_cannot_be_completed_leaves_nothing_behind():
    """Lines 21 to 23: the first replica fits, the second does not."""
    model = flat_model(2, 2, link=0, replicas=("same rack", "other rack"))
    one = placing(model)
    before = left_of(Remaining(Tree(model)))
    assert one.place(0, 2) is None
    assert left_of(one.remaining) == before
    assert one.place(0, 1) == [0, 1]


def test_what_is_undone_is_as_if_it_had_never_been():
    model = flat_model(3, 3, link=2, send=1, receive=1)
    one = placing(model)
    before = left_of(Remaining(Tree(model)))
    one.undo(one.place(0, 3))
    assert left_of(one.remaining) == before


def test_a_replica_that_must_be_passed_on_goes_to_a_server_that_can_send():
    text = """
    replicas = ["same rack", "same rack"]
    [switches.s]
    [racks.r]
    switch = "s"
    receive = 1
    [servers]
    writer = { rack = "r", send = 1 }
    mute = { rack = "r", send = 0 }
    relay = { rack = "r", send = 1 }
    """
    for seed in range(20):
        assert placing(read_model(text), seed).place(0, 2) == [0, 2, 1]


DEAD_END = """
replicas = ["other rack", "same rack"]
[switches.s]
[racks]
one = { switch = "s", send = 1, receive = 1 }
alone = { switch = "s", send = 1, receive = 1 }
pair = { switch = "s", send = 1, receive = 1 }
[servers]
writer = { rack = "one" }
alone = { rack = "alone" }
left = { rack = "pair" }
right = { rack = "pair" }
"""


def test_second_thoughts_find_the_way_around_a_dead_end():
    """A rack with one server cannot have a second replica: the paper's loop gives up there, half of the time."""
    model = read_model(DEAD_END)
    greedy = [placing(model, seed).place(0, 2) for seed in range(40)]
    assert None in greedy
    assert any(greedy)
    assert all(placing(model, seed).place(0, 2, TRIES_MAX) for seed in range(40))


def test_the_writer_s_own_disk_costs_no_network():
    model = flat_model(2, 2, link=1, send=1, receive=1, replicas=("same node", "other rack"))
    one = placing(model)
    first = one.place(0, 2)
    assert first[:2] == [0, 0]
    assert one.tree.cost(0, 0) == 0
    assert one.remaining.receive[0] == 0
    assert one.remaining.send[1] == 1, "nobody else has sent"
    assert one.place(0, 2) is None, "the disk is taken"


def test_a_store_that_places_by_itself_is_the_only_target():
    text = """
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
    [store]
    switch = "core"
    receive = 9
    """
    one = placing(read_model(text))
    chains = [one.place(writer, 1) for writer in (0, 0, 0, 1, 1)]
    assert chains == [[0, 2], [0, 2], None, [1, 2], None], "two for a server's port, three for the uplink"
