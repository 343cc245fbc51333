"""A network model: what is read from its file, and one clear line for every mistake in it."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError, one_line
from holdfast.peace import Where, read_model

GOOD = """
replicas = ["same rack", "other rack"]

[switches.core]
[switches.a]
uplink = "core"
up = 4
down = 5

[racks.r1]
switch = "core"
send = 2
receive = 3
[racks.r2]
switch = "a"

[servers]
n1 = { rack = "r1" }
n2 = { rack = "r1", send = 7 }
n3 = { rack = "r2", send = 1, receive = 0 }
"""

STORE = GOOD.replace('replicas = ["same rack", "other rack"]', "") + '[store]\nswitch = "core"\nreceive = 6\n'


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_model(text, "net.toml")
    told = one_line(error.value)
    assert "\n" not in told
    assert "net.toml" in told
    return told


def test_a_server_has_its_rack_s_capacities_where_it_says_nothing_else():
    model = read_model(GOOD)
    assert [(s.send, s.receive) for s in model.servers.values()] == [(2, 3), (7, 3), (1, 0)]
    assert model.replicas == (Where.SAME_RACK, Where.OTHER_RACK)
    assert model.store is None


def test_servers_take_nothing_where_the_store_places_by_itself():
    model = read_model(STORE)
    assert [s.receive for s in model.servers.values()] == [0, 0, 0]
    assert model.store is not None


MISTAKES = {
    "loop": (GOOD.replace("[switches.core]", '[switches.core]\nuplink = "a"\nup = 1\ndown = 1'), "loop", "core -> a"),
    "itself": (GOOD.replace('uplink = "core"', 'uplink = "a"'), "form a loop", "a -> a"),
    "two roots": (GOOD.replace('uplink = "core"\nup = 4\ndown = 5', ""), "not connected", "'core', 'a'"),
    "unknown rack": (GOOD.replace('rack = "r2", s', 'rack = "r9", s'), "server 'n3' names an unknown rack", "'r9'"),
    "unknown switch": (GOOD.replace('switch = "a"', 'switch = "b"'), "rack 'r2' names an unknown switch", "'b'"),
    "unknown uplink": (GOOD.replace('uplink = "core"', 'uplink = "b"'), "switch 'a' names an unknown switch", "'b'"),
    "no capacity of a link": (GOOD.replace("down = 5", ""), "switch 'a' has no capacity 'down'", "chunks"),
    "no capacity of a server": (GOOD.replace(", receive = 0", ""), "server 'n3' has no capacity 'receive'", "chunks"),
    "capacity without a link": (GOOD.replace("[switches.core]", "[switches.core]\nup = 1"), "no uplink", "core"),
    "negative link": (GOOD.replace("up = 4", "up = -4"), "switch 'a': up is -4", "from 0"),
    "negative rack": (GOOD.replace("receive = 3", "receive = -1"), "rack 'r1': receive is -1", "from 0"),
    "negative server": (GOOD.replace("send = 7", "send = -7"), "server 'n2': send is -7", "from 0"),
    "huge": (GOOD.replace("send = 7", "send = 9_000_000_000"), "server 'n2': send is 9000000000", "to 1000000"),
    "half a chunk": (GOOD.replace("send = 7", "send = 1.5"), "server 'n2' cannot be used", "float"),
    "misspelt": (GOOD.replace("send = 7", "sends = 7"), "server 'n2' cannot be used", "sends"),
    "unknown table": (GOOD + "[links.x]\n", "unknown entry 'links'", "switches"),
    "no servers": (GOOD.partition("[servers]")[0], "no servers", "[servers.NAME]"),
    "no rack in it": (GOOD.replace('rack = "r1" }', "}"), "server 'n1' cannot be used", "rack"),
    "not a table": (GOOD.replace('n1 = { rack = "r1" }', "n1 = 3"), "server 'n1' cannot be used", "object"),
    "unknown place": (GOOD.replace('"other rack"', '"far away"'), "cannot be read", "far away"),
    "no replicas": (GOOD.replace('replicas = ["same rack", "other rack"]', ""), "replicas must be a list", "same rack"),
    "no replica": (GOOD.replace('["same rack", "other rack"]', "[]"), "replicas must be a list", "same rack"),
    "local too late": (GOOD.replace('"other rack"]', '"same node"]'), "only the first replica", "same node"),
    "not TOML": (GOOD + "[[\n", "not valid TOML", "line"),
    "twice": (GOOD + "[switches.a]\n", "not valid TOML", "line"),
    "store and replicas": (GOOD + '[store]\nswitch = "core"\nreceive = 6\n', "takes no replicas", "Leave out"),
    "store nowhere": (STORE.replace('[store]\nswitch = "core"', '[store]\nswitch = "x"'), "the store names an", "'x'"),
    "store without capacity": (STORE.replace("receive = 6", ""), "the store has no capacity", "chunks"),
    "odd name": (GOOD.replace("n1 =", '"a\\nb" ='), "cannot be named", "server"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_model_is_one_clear_line(mistake):
    text, what, detail = MISTAKES[mistake]
    assert text not in (GOOD, STORE), "the mistake was not made"
    told = refused(text)
    assert what in told
    assert detail in told
