"""Network models for tests of Peace: by hand, at random, and the paper's."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.peace import NetworkModel, read_model


def figure_5(capacity: int = 1, replicas: tuple[str, ...] = ("same rack", "other rack")) -> NetworkModel:
    """Two switches with two servers each."""
    return flat_model(2, 2, link=capacity, send=capacity, receive=capacity, replicas=replicas, star=False)


def flat_model(
    racks: int,
    servers: int,
    *,
    link: int,
    send: int = 2,
    receive: int = 2,
    replicas: tuple[str, ...] = ("same rack", "same rack", "other rack"),
    star: bool = True,
) -> NetworkModel:
    """So many racks of so many servers, each: SVR1.1, SVR1.2, ... `star`: around a switch of their own."""
    lines = ["replicas = [" + ", ".join(f'"{where}"' for where in replicas) + "]"]
    above = "core" if star else "SW1"
    lines += ["[switches.core]"] if star else []
    for rack in range(1, racks + 1):
        is_root = not star and rack == 1
        lines += [f"[switches.SW{rack}]"]
        lines += [] if is_root else [f'uplink = "{above}"', f"up = {link}", f"down = {link}"]
        lines += [f"[racks.R{rack}]", f'switch = "SW{rack}"', f"send = {send}", f"receive = {receive}"]
    lines += ["[servers]"]
    lines += [f'"SVR{r}.{s}" = {{ rack = "R{r}" }}' for r in range(1, racks + 1) for s in range(1, servers + 1)]
    return read_model("\n".join(lines))


@st.composite
def models(draw: st.DrawFn, *, capacity_min: int = 0) -> NetworkModel:
    """Any tree of up to 4 switches, up to 4 racks (some on one switch), up to 9 servers, small capacities."""
    capacity = st.integers(capacity_min, 3)
    switches = draw(st.integers(1, 4))
    lines = ["[switches.s0]"]
    for number in range(1, switches):
        lines += [f"[switches.s{number}]", f'uplink = "s{draw(st.integers(0, number - 1))}"']
        lines += [f"up = {draw(capacity)}", f"down = {draw(capacity)}"]
    racks = draw(st.integers(1, 4))
    for number in range(racks):
        lines += [f"[racks.r{number}]", f'switch = "s{draw(st.integers(0, switches - 1))}"']
    lines += ["[servers]"]
    for number in range(draw(st.integers(2, 9))):
        rack, send, receive = draw(st.integers(0, racks - 1)), draw(capacity), draw(capacity)
        lines += [f'n{number} = {{ rack = "r{rack}", send = {send}, receive = {receive} }}']
    places = st.sampled_from(["same rack", "other rack", "anywhere"])
    replicas = draw(st.lists(places, min_size=1, max_size=3))
    return read_model(f"replicas = {replicas}\n" + "\n".join(lines))
