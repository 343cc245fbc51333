"""Peace over any network: costs and capacities against the printed graph, constraints, and nobody waits for good."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.network_graph import PrintedGraph, allowed
from support.peace_models import models

from holdfast.peace import Answers, NetworkModel, Peace, PeaceSettings
from holdfast.peace.chain import TRIES_MAX, Placing
from holdfast.peace.tree import Remaining, Tree

SEEDS = st.integers(0, 1 << 30)


def has_chain(graph: PrintedGraph, chain: list[str], replicas: int) -> bool:
    """By trying everything: can the chain be completed?"""
    level = len(chain) - 1
    if level == replicas:
        return True
    before = dict(graph.left)
    for target in graph.costs(chain, graph.model.replicas[level]):
        graph.augment(chain[-1], target)
        found = has_chain(graph, [*chain, target], replicas)
        graph.left = dict(before)
        if found:
            return True
    return False


@given(models(), SEEDS, st.lists(st.integers(0, 8), min_size=1, max_size=12))
@settings(max_examples=150)
def test_every_replica_goes_the_cheapest_way_and_none_is_missed(model, seed, writers):
    """Each hop costs what the general algorithm finds, and a chunk is left out only if no chain exists."""
    tree, names = Tree(model), list(model.servers)
    placing, graph = Placing(Remaining(tree), Random(seed)), PrintedGraph(model)
    for writer in (number % len(names) for number in writers):
        replicas = len(model.replicas)
        chain = placing.place(writer, replicas, TRIES_MAX)
        if chain is None:
            assert not has_chain(graph, [names[writer]], replicas)
            continue
        for level in range(replicas):
            so_far = [names[server] for server in chain[: level + 1]]
            costs = graph.costs(so_far, model.replicas[level])
            target = names[chain[level + 1]]
            assert costs[target] == tree.cost(chain[level], chain[level + 1])
            if level + 1 == replicas == 1:
                assert costs[target] == min(costs.values())
            graph.augment(so_far[-1], target)
        assert graph.least() >= 0


@given(models(), SEEDS, st.integers(0, 8), st.integers(1, 10))
@settings(max_examples=150)
def test_without_second_thoughts_each_choice_is_a_cheapest_one(model, seed, writer, chunks):
    """The paper's own loop: each time the cheapest server that meets the constraint, and can send on if it has to."""
    tree, names = Tree(model), list(model.servers)
    placing, graph = Placing(Remaining(tree), Random(seed)), PrintedGraph(model)
    for _ in range(chunks):
        chain = placing.place(writer % len(names), len(model.replicas))
        if chain is None:
            break
        for level, where in enumerate(model.replicas):
            so_far = [names[server] for server in chain[: level + 1]]
            is_last = level + 1 == len(model.replicas)
            costs = {n: c for n, c in graph.costs(so_far, where).items() if is_last or graph.can_send(n)}
            assert costs[names[chain[level + 1]]] == min(costs.values())
            graph.augment(so_far[-1], names[chain[level + 1]])


class DrivenPeace:
    """Drives a machine with random events and looks at every grant."""

    def __init__(self, model: NetworkModel, seed: int, end_share: float) -> None:
        self.model = model
        self.random = Random(seed)
        self.peace = Peace(
            model, PeaceSettings(end_share=end_share, write_limit_ns=1000, timestep_limit_ns=300), self.random
        )
        self.now = 0
        self.next = Counter()
        self.asked: dict[tuple[str, int], tuple[int, int]] = {}
        self.gone: set[tuple[str, int]] = set()
        self.written: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self.running: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self.graphs: dict[int, PrintedGraph] = {}
        self.granted_at: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    def hear(self, answers: Answers) -> None:
        for denied in answers.denied:
            self.gone.add((denied.writer, denied.request))
        for granted in answers.granted:
            graph = self.graphs.setdefault(granted.timestep, PrintedGraph(self.model))
            key = (granted.writer, granted.request)
            for one in granted.chunks:
                self._check_chain([granted.writer, *one.chain], self.asked[key][1])
                graph.augment_chain([granted.writer, *one.chain])
                assert graph.least() >= 0, "a timestep carries more than it can"
                assert (*key, one.chunk) not in self.running, "granted twice"
                self.running[*key, one.chunk] = one.chain
                self.granted_at[key].append(granted.timestep)
        taken = Counter(server for chain in self.running.values() for server in chain)
        for server, chunks in taken.items():
            assert chunks <= (self.model.servers[server].receive or 0), "a disk takes more than it can"

    def _check_chain(self, chain: list[str], replicas: int) -> None:
        assert len(chain) == replicas + 1, "a part of a chain"
        assert len(set(chain)) == len(chain)
        for level in range(replicas):
            assert chain[level + 1] in allowed(self.model, chain[: level + 1], self.model.replicas[level])

    # --- events

    def want(self, writer: str, chunks: int, replicas: int) -> None:
        number = self.next[writer]
        self.next[writer] += 1
        self.asked[writer, number] = (chunks, replicas)
        self.hear(self.peace.on_write_wanted(writer, number, chunks, self.now, replicas))

    def end(self, pick: int, *, written: bool) -> None:
        if self.running:
            key = sorted(self.running)[pick % len(self.running)]
            del self.running[key]
            if written:
                self.written[key[:2]].add(key[2])
            self.hear(self.peace.on_write_over(*key, self.now, written=written))

    def die(self, writer: str) -> None:
        self.running = {key: chain for key, chain in self.running.items() if key[0] != writer}
        self.gone.update(key for key in self.asked if key[0] == writer)
        self.next[writer] += 1  # a new life goes on counting
        self.hear(self.peace.on_writer_gone(writer, self.now))

    def wait(self, ns: int) -> None:
        self.now += ns
        late = [key for key, underway in self.peace.underway.items() if underway.until_ns <= self.now]
        for key in late:
            self.running.pop(key, None)
        self.hear(self.peace.on_tick(self.now))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 8), st.integers(1, 5), st.integers(1, 3)),
        st.tuples(st.just("over"), st.integers(0, 50)),
        st.tuples(st.just("fail"), st.integers(0, 50)),
        st.tuples(st.just("die"), st.integers(0, 8)),
        st.tuples(st.just("wait"), st.integers(1, 500)),
        st.tuples(st.just("away"), st.integers(0, 8)),
        st.tuples(st.just("back"), st.integers(0, 8)),
    ),
    max_size=40,
)


def play(network: DrivenPeace, events: list[tuple]) -> None:
    names = list(network.model.servers)
    for kind, *args in events:
        match kind:
            case "want":
                replicas = min(args[2], len(network.model.replicas))
                network.want(names[args[0] % len(names)], args[1], replicas)
            case "over":
                network.end(args[0], written=True)
            case "fail":
                network.end(args[0], written=False)
            case "die":
                network.die(names[args[0] % len(names)])
            case "wait":
                network.wait(args[0])
            case "away":
                network.hear(network.peace.on_server_gone(names[args[0] % len(names)], network.now))
            case "back":
                network.hear(network.peace.on_server_back(names[args[0] % len(names)], network.now))


@given(models(), SEEDS, EVENTS, st.sampled_from([0.3, 0.8, 1.0]))
@settings(max_examples=200)
def test_no_capacity_is_exceeded_and_every_request_is_served_in_the_end(model, seed, events, end_share):
    """Whatever happens; and once nothing fails any more, every request that was neither denied nor died is written."""
    network = DrivenPeace(model, seed, end_share)
    play(network, events)
    left = sum(chunks for chunks, _ in network.asked.values())
    for _ in range(left + 1):
        network.end(network.random.randrange(50), written=True)
    assert network.running == {}
    assert network.peace.queue == {}
    assert network.peace.underway == {}
    assert network.peace.waiting == 0
    for key, (chunks, _) in network.asked.items():
        if key not in network.gone:
            assert network.written[key] == set(range(chunks))


@given(models(capacity_min=1), SEEDS, st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), max_size=12))
@settings(max_examples=100)
def test_first_come_first_served(model, seed, asked):
    """An older request of a writer is granted before a later one, and the oldest of all gets something each time."""
    network = DrivenPeace(model, seed, 1.0)
    names = list(model.servers)
    for writer, chunks in asked:
        network.want(names[writer % len(names)], chunks, len(model.replicas))
    waiting = [key for key in network.asked if key not in network.gone]
    while network.running:
        oldest = next((key for key in waiting if len(network.granted_at[key]) < network.asked[key][0]), None)
        timestep, had = network.peace.timestep, len(network.granted_at[oldest]) if oldest else 0
        while network.running and network.peace.timestep == timestep:
            network.end(0, written=True)
        if oldest is not None:
            assert network.peace.timestep == timestep + 1
            assert len(network.granted_at[oldest]) > had, "the oldest got nothing in an empty network"
    for writer in names:
        mine = [network.granted_at[key] for key in waiting if key[0] == writer]
        for older, later in itertools.pairwise(mine):
            assert max(older) <= min(later)
