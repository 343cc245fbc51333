"""What a standby's JVM does while it waits: every kind of query works, no two are alike, and it ends when it has to."""

from __future__ import annotations

import pytest

from holdfast.spark import practice
from holdfast.spark.practice import KINDS, Practice

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_every_kind_of_query_works(spark, kind):
    kind(practice._rows(spark), 3)


def test_each_has_its_turn_until_it_has_been_enough(spark, monkeypatch):
    asked: list[tuple[int, int]] = []
    kinds = tuple(lambda rows, k, number=number: asked.append((number, k)) for number in range(len(KINDS)))
    monkeypatch.setattr(practice, "KINDS", kinds)
    monkeypatch.setattr(practice, "QUERIES", 8)
    once = Practice(spark)
    once.run(lambda: False, lambda: False)
    assert asked == [(number % len(KINDS), number) for number in range(8)]
    once.run(lambda: False, lambda: False)  # another stage of the same JVM
    assert once.done == 8


def test_it_ends_when_a_stage_has_something_better_to_do(spark, monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(practice, "KINDS", (lambda rows, k: told.append(k),))
    once = Practice(spark)
    once.run(lambda: len(told) == 2, lambda: False)
    assert told == [0, 1]


def test_it_stands_still_while_a_stage_starts_that_somebody_waits_for(spark, monkeypatch):
    done: list[int] = []
    looks = iter([True, True, False, False])
    monkeypatch.setattr(practice, "KINDS", (lambda rows, k: done.append(k),))
    monkeypatch.setattr(practice, "LOOK_S", 0.01)
    seen: list[int] = []
    once = Practice(spark)
    once.run(lambda: len(done) == 1, lambda: seen.append(len(done)) or next(looks))
    assert seen == [0, 0, 0]
    assert done == [0]


def test_an_error_ends_it_and_nobody_else(spark, monkeypatch):
    def fail(rows, k):
        raise RuntimeError("the JVM has ended")

    monkeypatch.setattr(practice, "KINDS", (fail,))
    once = Practice(spark)
    once.run(lambda: False, lambda: False)
    assert once.done == 1
