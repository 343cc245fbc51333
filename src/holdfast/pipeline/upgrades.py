"""What of an old pipeline goes on in a new one: operators, stages and sinks matched by their names. Pure: two plans in.

    goes on    the operator is what it was: its state fits as it is, or cut anew by key for another number of shards
    widened    the same with aggregates more or fewer: what was counted goes on, what is new has a default
    new        was not there: starts empty, if that is allowed
    dropped    is not there any more: its state stays behind, if that is allowed

Steps without state (maps, filters, writers, watermarks, triggers) may change in any way: nothing of them is in a state.
Everything else is one error that names the operator and the difference, and nothing has happened by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model.ids import Asset
from holdfast.model.plan import OperatorPlan, Plan, StagePlan
from holdfast.operators.build import build, rows_schema

#: Settings of an operator that do not shape its state, nor what it means.
_FREE = frozenset({"overflow"})


@dataclass(frozen=True)
class Matching:
    """What becomes of everything, by name."""

    #: Operators that go on, and how many shards each had.
    goes_on: dict[str, int] = field(default_factory=dict)
    #: Those of them whose aggregates have changed: aggregates that are new in it.
    widened: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    #: Stages (sinks among them) that go on from where they were.
    stages: tuple[Asset, ...] = ()
    new_stages: tuple[Asset, ...] = ()
    dropped_stages: tuple[Asset, ...] = ()

    def texts(self, new: Plan) -> Iterator[str]:
        """For people, one line for each operator and sink."""
        for name, shards in sorted(self.goes_on.items()):
            now = new.operator(name).shards
            cut = f", cut anew from {shards} shards into {now}" if now != shards else ""
            more = f"; {', '.join(self.widened[name])} begin with their defaults" if self.widened.get(name) else ""
            yield f"{name} goes on with its state{cut}{more}"
        yield from (f"{name} is new and starts empty" for name in self.new)
        yield from (f"{name} is dropped, with its state" for name in self.dropped)
        yield from (f"sink {name} is new: it gets what comes from now on" for name in self._sinks(new))
        yield from (f"{name} is dropped" for name in self.dropped_stages)

    def _sinks(self, new: Plan) -> list[Asset]:
        return [name for name in self.new_stages if new.stage(name).kind == "sink"]


def match(
    old: Plan,
    new: Plan,
    *,
    allow_new: bool = False,
    drop: bool = False,
    defaults: Mapping[tuple[str, str], str] | None = None,
) -> Matching:
    """What goes on, or the first thing that cannot. `defaults`: (operator, aggregate) -> its value in open windows."""
    before = {one.name: one for one in old.operators}
    after = {one.name: one for one in new.operators}
    kept = [name for name in after if name in before]
    if not kept:
        raise ConfigError(
            "the two pipelines have no operator in common",
            detail=f"The savepoint has {_names(before)}; the new pipeline has {_names(after)}.",
            hint='Operators are matched by name: give them the names they had, .agg(..., name="talkers").',
        )
    fresh = tuple(name for name in after if name not in before)
    gone = tuple(name for name in before if name not in after)
    if fresh and not allow_new:
        raise ConfigError(
            f"operator {fresh[0]} is not in the savepoint",
            detail=f"The savepoint has {_names(before)}.",
            hint="--allow-new lets it start empty. If it was renamed, give it the name it had.",
        )
    if gone and not drop:
        raise ConfigError(
            f"operator {gone[0]} of the savepoint is not in the new pipeline",
            detail=f"The new pipeline has {_names(after)}.",
            hint="--drop leaves its state behind. If it was renamed, give it the name it had.",
        )
    widened: dict[str, tuple[str, ...]] = {}
    given = set(defaults or ())
    for name in kept:
        added = _compare(before[name], after[name], {agg for op, agg in given if op == name}, drop)
        if added is not None:
            widened[name] = added
    for op, agg in sorted(given):
        if agg not in widened.get(op, ()):
            raise ConfigError(f"--default {op}.{agg}: this aggregate is not new in {op}")
    return Matching(
        goes_on={name: before[name].shards for name in kept},
        widened=widened,
        new=fresh,
        dropped=gone,
        **_stages(old, new, allow_new, drop),
    )


def _names(found: Mapping[str, object]) -> str:
    return ", ".join(found) or "none"


# --- one operator


def _compare(old: OperatorPlan, new: OperatorPlan, defaults: set[str], drop: bool) -> tuple[str, ...] | None:
    """None: the state fits as it is; else the aggregates that are new."""
    name = old.name
    if old.kind != new.kind:
        raise _differs(name, f"it was of kind {old.kind}, now it is of kind {new.kind}")
    sources = [[(one.source, one.side) for one in plan.inputs] for plan in (old, new)]
    if sources[0] != sources[1]:
        was, now = (", ".join(source for source, _ in each) for each in sources)
        raise _differs(name, f"it was fed by {was}, now by {now}")
    settings = [{k: v for k, v in plan.settings.items() if k not in _FREE} for plan in (old, new)]
    for key in sorted({*settings[0], *settings[1]} - {"aggs"}):
        if settings[0].get(key) != settings[1].get(key):
            was, now = (each.get(key, "not there") for each in settings)
            raise _differs(name, f"{_WORDS.get(key, key)} was {was}, now it is {now}")
    if old.kind == "join":
        _compare_columns(name, old, new, None)
    else:
        _compare_columns(name, old, new, set(old.settings["by"]))
        added = _compare_aggregates(old, new, defaults, drop)
        if added is not None:
            return added
    if build(old).fingerprint != build(new).fingerprint:
        raise _differs(name, "a schema, a window, a key or an aggregate is another")
    return None


_WORDS = {
    "size_us": "the length of its windows (us)",
    "step_us": "the step of its windows (us)",
    "size": "the length of its windows (rows)",
    "step": "the step of its windows (rows)",
    "by": "its key",
    "on": "its key",
    "within": "its interval (us)",
    "same_window": "its window (us)",
    "how": "its kind of join",
    "where": "its condition",
}


def _compare_columns(name: str, old: OperatorPlan, new: OperatorPlan, only: set[str] | None) -> None:
    """Columns that are in the state, by name and type; None: all, in their order."""
    for one, other in zip(old.inputs, new.inputs, strict=True):
        was, now = rows_schema(one), rows_schema(other)
        if only is None and was.names != now.names:
            raise _differs(name, f"its rows had the columns {', '.join(was.names)}, now {', '.join(now.names)}")
        for column in only if only is not None else was.names:
            if was.field(column).type != now.field(column).type:
                raise _differs(
                    name, f"column {column} was {was.field(column).type}, now it is {now.field(column).type}"
                )


def _compare_aggregates(old: OperatorPlan, new: OperatorPlan, defaults: set[str], drop: bool) -> tuple[str, ...] | None:
    name, was, now = old.name, old.settings["aggs"], new.settings["aggs"]
    results = [_results(plan) for plan in (old, new)]
    for agg in (agg for agg in was if agg in now):
        if list(was[agg]) != list(now[agg]):
            raise _differs(name, f"aggregate {agg} was {_agg(was[agg])}, now it is {_agg(now[agg])}")
        if results[0][agg] != results[1][agg]:
            raise _differs(name, f"aggregate {agg} was of type {results[0][agg]}, now it is of type {results[1][agg]}")
    added = tuple(agg for agg in now if agg not in was)
    for agg in added:
        if agg not in defaults:
            raise ConfigError(
                f"operator {name}: aggregate {agg} is new and has no default",
                detail="Windows that are open have rows that it has not seen.",
                hint=f"--default {name}.{agg}=VALUE says what it is for those; null: as if there had been none.",
            )
    gone = [agg for agg in was if agg not in now]
    if gone and not drop:
        raise ConfigError(
            f"operator {name}: aggregate {gone[0]} of the savepoint is not in the new pipeline",
            hint="--drop leaves it behind.",
        )
    return added if added or gone or list(was) != list(now) else None


def _results(plan: OperatorPlan) -> dict[str, pa.DataType]:
    schema = build(plan).output_schema
    return {agg: schema.field(agg).type for agg in plan.settings["aggs"]}


def _agg(given: list) -> str:
    function, column, ignore = given
    return f"{function}({column or ''}{', ignoring nulls' if ignore else ''})"


def _differs(name: str, how: str) -> ConfigError:
    return ConfigError(
        f"operator {name} cannot go on with its state",
        detail=f"In the savepoint {how}.",
        hint="Give it another name, with --allow-new --drop, and it starts empty; or leave it as it was.",
    )


# --- stages


def _stages(old: Plan, new: Plan, allow_new: bool, drop: bool) -> dict[str, tuple[Asset, ...]]:
    before = {stage.id: stage for stage in old.stages}
    after = {stage.id: stage for stage in new.stages}
    kept = tuple(id for id in after if id in before)
    for id in kept:
        _compare_stages(before[id], after[id])
    fresh = tuple(id for id in after if id not in before)
    gone = tuple(id for id in before if id not in after)
    for id in fresh:
        if after[id].kind == "source" and not allow_new:
            raise ConfigError(
                f"source {id} is not in the savepoint",
                detail=f"The savepoint has {_names({k: v for k, v in before.items() if v.kind == 'source'})}.",
                hint="--allow-new reads it from its beginning.",
            )
    for id in gone:
        if before[id].kind in ("source", "sink") and not drop:
            raise ConfigError(
                f"{before[id].kind} {id} of the savepoint is not in the new pipeline",
                detail=f"The new pipeline has {_names({k: v for k, v in after.items() if v.kind == before[id].kind})}.",
                hint="--drop leaves it behind.",
            )
    return {"stages": kept, "new_stages": fresh, "dropped_stages": gone}


def _compare_stages(old: StagePlan, new: StagePlan) -> None:
    if old.kind != new.kind:
        raise ConfigError(f"{new.id} was a {old.kind}, now it is a {new.kind}", hint="Give it another name.")
    if old.kind == "port":
        raise ConfigError(f"{new.id} is a port", detail="What another program has handed over cannot be moved yet.")
    if old.reads != new.reads:
        raise ConfigError(
            f"{new.kind} {new.id} reads other operators",
            detail=f"In the savepoint it reads {', '.join(old.reads)}, now {', '.join(new.reads)}.",
            hint="Give it another name, and --drop the old one.",
        )
