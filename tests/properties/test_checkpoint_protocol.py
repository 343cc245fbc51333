"""Two writers that both believe to be the primary, a restorer, a collector and a person, in any order of single steps.

Every plan stops after every operation, so Hypothesis decides what happens next: who goes on, who dies there, and what
becomes of an operation: done, refused, done without an answer, or done much later than it was given up. Whatever
the order, the newest checkpoint that somebody was promised can be restored, and says what it said when it was taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_state import DEPLOYMENT, FIT, SHARD, SmallState, new_pool

from holdfast.checkpoint import Tenure, claim, collect, publish, restore, settle, sweep
from holdfast.checkpoint import head as heads
from holdfast.checkpoint.inspect import delete, head_of, pin, survey, unpin, verify
from holdfast.checkpoint.keys import file_key, head_key, manifest_key
from holdfast.errors import (
    ConfigError,
    FencedError,
    HoldfastError,
    InvariantError,
    StoreFullError,
    StoreUnreachableError,
)
from holdfast.store import All, MemoryStore, PutNew, Steps, run_alone

FATES = ("done", "done", "done", "done", "done", "unanswered", "refused", "full", "late")


class Actor:
    """One plan after the other, step by step."""

    def __init__(self, world: Shared, name: str, epoch: int) -> None:
        self.world, self.name, self.epoch = world, name, epoch
        self.tenure: Tenure | None = None
        self.state = SmallState()
        self.kept = None
        self.plan: Steps[Any] | None = None
        self._then: Callable[[Any], None] = lambda result: None
        self._claims = 0
        self._waiting: list[Any] = []
        self._results: list[Any] = []
        self._step: Any = None
        self._failed: BaseException | None = None

    # --- what it does

    def begin(self, what: int, number: int) -> None:
        """Start another plan; before anything else it claims and restores, as a new primary does."""
        if self.tenure is None or self.tenure.fenced:
            self._claims += 1
            holder = f"{self.name}.{self.epoch}.{self._claims}"
            self.plan = self._take_over(holder)
            self._then = lambda result: None
            return
        if what % 5 == 0:
            self.plan, self._then = collect(self.tenure, keep=1 + number % 2), lambda result: None
        elif what % 5 == 1:
            self.plan, self._then = sweep(self.tenure), lambda result: None
        else:
            for i in range(1 + number % 3):
                self.state.write(number + i, self.world.fresh())
            if number % 4 == 0:
                self.state.drop(number)
            said = self.state.says()
            job = self.state.job(self.epoch, None if number % 7 == 0 else self.kept, cargo=b"rows" * (number % 2))
            self.world.taken[self.tenure.head.next if self.tenure.tried else self.tenure.head.reserved] = said
            self.plan = self._publish(job, said)
            self._then = lambda result: None

    def _take_over(self, holder: str) -> Steps[None]:
        self.tenure = None
        tenure = yield from claim(SHARD, DEPLOYMENT, epoch=self.epoch, holder=holder, restoring=True)
        newest = tenure.head.good
        found = yield from restore(tenure, new_pool, wanted=FIT, on_bad=self._bad)
        assert (found is None) == (not newest)
        if found is not None:
            assert found.entry.sequence == newest[0].sequence, "a checkpoint was passed over in a store that keeps all"
            self.state = SmallState(found.pool)
            assert self.state.says() == self.world.said[found.entry.sequence]
        else:
            self.state = SmallState()
        self.kept = found.kept if found else None
        self.tenure = tenure
        yield from settle(tenure)

    def _bad(self, entry: Any, error: HoldfastError) -> None:
        raise AssertionError(f"{self.name}: {entry.sequence} is bad: {error}")

    def _publish(self, job: Any, said: dict[int, int]) -> Steps[None]:
        assert self.tenure is not None
        tenure = self.tenure
        original = job.manifest

        def manifest(sequence: int) -> Any:
            self.world.said[sequence] = said  # nobody else may ever write under this one
            return original(sequence)

        job.manifest = manifest
        entry = yield from publish(tenure, job)
        self.kept = job.kept(entry.sequence)
        now = heads.decode(self.world.store.small[head_key(SHARD)][0], "head")
        if now.entry(entry.sequence) is not None:  # else somebody was quick to delete it
            self.world.promised = max(self.world.promised, entry.sequence)

    # --- how it does it

    def step(self, fate: str, pick: int) -> None:
        """One operation of its plan, with this fate. An `All` goes operation by operation, in any order."""
        if self.plan is None:
            return
        if not self._waiting and not self._advance():
            return
        operation = self._waiting.pop(pick % len(self._waiting))
        if isinstance(operation, PutNew):
            operation = replace(operation, chunks=[bytes(chunk) for chunk in operation.chunks])
        try:
            result = self.world.do(operation, fate)
        except HoldfastError as error:
            self._failed = error
            self._waiting.clear()  # the service gives up the others, too
            return
        self._results.append(result)

    def _advance(self) -> bool:
        """To the next operation; False: the plan has ended."""
        assert self.plan is not None
        results, self._results = self._results, []
        failed, self._failed = self._failed, None
        try:
            if failed is not None:
                step = self.plan.throw(failed)
            elif self._step is None:
                step = self.plan.send(None)
            else:
                step = self.plan.send(results if isinstance(self._step, All) else results[0])
        except StopIteration as end:
            self.plan, self._step = None, None
            self._then(end.value)
            return False
        except InvariantError:
            raise
        except (HoldfastError, ConfigError) as error:
            self.plan, self._step = None, None
            if isinstance(error, FencedError):
                self.world.fenced += 1
            elif "builds on is gone" in error.what:
                self.kept = None
            return False
        self._step = step
        self._waiting = list(step.operations) if isinstance(step, All) else [step]
        if isinstance(step, All) and not step.operations:
            return self._advance()
        return True

    def die(self) -> None:
        """Here and now. What it had asked for may still happen; the next of its name is another process."""
        if self.plan is not None:
            self.plan.close()
        self.__init__(self.world, self.name, self.epoch + 2)


class Shared:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.said: dict[int, dict[int, int]] = {}
        self.taken: dict[int, dict[int, int]] = {}
        self.promised = 0
        self.fenced = 0
        self._value = 0
        self.late: list[Any] = []

    def fresh(self) -> int:
        self._value += 1
        return self._value

    def do(self, operation: Any, fate: str) -> Any:
        if fate == "refused":
            raise StoreUnreachableError("the store does not answer")
        if fate == "full" and isinstance(operation, PutNew):
            raise StoreFullError("the store is full")
        if fate == "late":
            self.late.append(operation)
            raise StoreUnreachableError("the store does not answer")
        result = operation.do(self.store)
        if fate == "unanswered":
            raise StoreUnreachableError("the store does not answer")
        return result

    def arrive(self, pick: int) -> None:
        """Something that was given up long ago is done after all."""
        if self.late:
            with contextlib.suppress(HoldfastError):
                self.late.pop(pick % len(self.late)).do(self.store)

    def check(self) -> None:
        """Whatever the head names is there, every file of it."""
        found = self.store.small.get(head_key(SHARD))
        if found is None:
            return
        head = heads.decode(found[0], "head")
        for entry in head.entries:
            needed = [manifest_key(SHARD, entry.sequence), *(file_key(SHARD, name) for name in entry.files)]
            gone = [key for key in needed if key not in self.store.objects]
            assert not gone, f"checkpoint {entry.sequence} counts and lacks {gone}"
        assert max((e.sequence for e in head.entries), default=0) >= self.promised

    def _by_force(self) -> Steps[None]:
        """The newest one goes, on purpose; not during a restore, which would rightly call that damage."""
        head = yield from head_of(SHARD)
        if head.entries and not head.restoring:
            yield from delete(SHARD, (max(e.sequence for e in head.entries),), force=True)
            left = yield from head_of(SHARD)
            self.promised = max((e.sequence for e in left.entries), default=0)

    def person(self, what: int, number: int) -> None:
        """Somebody with a command, at once: a head is changed in one step anyway."""
        plans: list[Callable[[], Steps[Any]]] = [
            lambda: delete(SHARD, (number % 12,)),
            lambda: pin(SHARD, "mine", None),
            lambda: unpin(SHARD, "mine"),
            self._by_force,
        ]
        try:
            run_alone(self.store, plans[what % 4]())
        except InvariantError:
            raise
        except HoldfastError:
            pass


ACTIONS = st.tuples(
    st.sampled_from(["a", "a", "a", "b", "b", "b", "late", "person", "die"]),
    st.sampled_from(FATES),
    st.integers(0, 999),
)


@settings(max_examples=300)
@given(st.lists(ACTIONS, min_size=20, max_size=220))
def test_what_a_restore_needs_is_there_whoever_dies_where(actions):
    live_through(actions)


def live_through(actions: list[tuple[str, str, int]]) -> None:
    world = Shared()
    actors = {"a": Actor(world, "a", 2), "b": Actor(world, "b", 3)}
    for who, fate, number in actions:
        if who == "late":
            world.arrive(number)
        elif who == "person":
            world.person(number, number // 3)
        elif who == "die":
            actors["ab"[number % 2]].die()
        else:
            actor = actors[who]
            if actor.plan is None:
                actor.begin(number, number // 5)
            actor.step(fate, number)
        world.check()
    _the_end(world)


def schedule(random: Random) -> list[tuple[str, str, int]]:
    """The same, by a plain generator: many more of them in the same time."""
    calm = random.random()  # some go through trouble all the time, some hardly
    who = ["a", "b", "a", "b", "a", "b", "late", "person", "die"]
    return [
        (random.choice(who), "done" if random.random() < calm else random.choice(FATES), random.randrange(1000))
        for _ in range(random.randrange(40, 300))
    ]


@pytest.mark.slow
def test_five_hundred_long_schedules():
    for number in range(500):
        live_through(schedule(Random(number)))


@pytest.mark.long
def test_twenty_thousand_long_schedules():
    for number in range(500, 20_500):
        live_through(schedule(Random(number)))


def _the_end(world: Shared) -> None:
    """Everybody is gone, the store is well: a new primary finds the newest promise, and clears what was left."""
    last = Actor(world, "last", 1 << 20)
    last.begin(0, 0)
    while last.plan is not None:
        last.step("done", 0)
    assert last.tenure is not None
    newest = max((e.sequence for e in last.tenure.head.entries), default=0)
    assert newest >= world.promised
    run_alone(world.store, unpin(SHARD, "mine"))
    run_alone(world.store, sweep(last.tenure))
    found = run_alone(world.store, survey(SHARD))
    assert found.orphans(SHARD) == []
    for entry in found.heads[SHARD].entries:
        assert run_alone(world.store, verify(found.heads[SHARD], entry)).why == ""
    while world.late:
        world.arrive(0)
    world.check()


@settings(max_examples=60)
@given(st.integers(0, 60), st.sampled_from(["done", "unanswered", "late"]))
def test_a_writer_that_was_thought_dead_ends_at_its_next_change(cut, fate):
    """At every single operation of its publication another primary takes over: one of both manifests counts."""
    world = Shared()
    old, new = Actor(world, "a", 1), Actor(world, "b", 2)
    _finish(old, 0, 0)  # takes over
    _finish(old, 2, 1)  # publishes
    _finish(old, 2, 3)
    before = world.promised
    old.begin(2, 2)
    for _ in range(cut):
        old.step("done", 0)
    was_promised = world.promised
    _finish(new, 0, 0)
    _finish(new, 2, 5)
    _finish(new, 0, 0)  # collects
    while old.plan is not None:
        old.step(fate if fate != "late" else "done", 0)
        world.check()
    _finish(old, 0, 0)  # if it was not told yet: it would collect what its successor needs
    _finish(old, 1, 0)
    world.arrive(0)
    world.check()
    assert world.promised > was_promised >= before
    assert old.tenure is None or old.tenure.fenced or old.epoch > 2 or world.fenced
    _the_end(world)


def _finish(actor: Actor, what: int, number: int) -> None:
    if actor.plan is None:
        actor.begin(what, number)
    while actor.plan is not None:
        actor.step("done", 0)
