"""Planted bugs in real-time stages: in positions, and in which rows of Spark's tasks are taken."""

from __future__ import annotations

import msgspec
from mutants import Patch, mutant

from holdfast.core.intake import Intake
from holdfast.core.stage import StageDriver


def _commits(change) -> list[Patch]:
    """Every commit says other positions: `change(last positions, positions)`."""
    right = StageDriver._on_batch

    def on_batch(self, event, now_ns, ready):
        last = self.last.positions if self.last else {}
        right(self, msgspec.structs.replace(event, positions=change(last, event.positions)), now_ns, ready)

    return [(StageDriver, "_on_batch", on_batch)]


@mutant
def a_commit_says_one_row_too_many() -> list[Patch]:
    return _commits(lambda last, positions: {name: at + (at > last.get(name, 0)) for name, at in positions.items()})


@mutant
def a_commit_says_one_row_too_few() -> list[Patch]:
    return _commits(lambda last, positions: {name: max(last.get(name, 0), at - 1) for name, at in positions.items()})


@mutant
def a_commit_says_the_positions_of_the_batch_before() -> list[Patch]:
    return _commits(lambda last, positions: {name: last.get(name, 0) for name in positions})


@mutant
def a_commit_forgets_a_partition_that_came_later() -> list[Patch]:
    def change(last, positions):
        return {name: at for name, at in positions.items() if name in last or not last}

    return _commits(change)


@mutant
def a_driver_begins_at_the_position_of_another_partition() -> list[Patch]:
    right = Intake.__init__

    def begin(self, positions):
        names = sorted(positions)
        right(self, {name: positions[other] for name, other in zip(names, names[1:] + names[:1], strict=True)})

    return [(Intake, "__init__", begin)]


@mutant
def a_long_batch_is_passed_over_while_rows_of_it_are_on_their_way() -> list[Patch]:
    def pass_over(self, batch, stands):
        for partition, at in stands.items():
            self.positions[partition] = max(self.positions.get(partition, 0), at)
        return True

    return [(Intake, "pass_over", pass_over)]


@mutant
def rows_of_a_long_batch_are_taken_before_the_one_before_has_ended() -> list[Patch]:
    return [(Intake, "_is_whole", staticmethod(lambda stream, streams: True))]


@mutant
def rows_of_a_task_that_ran_again_are_taken_again() -> list[Patch]:
    right = Intake._cut

    def cut(self, piece):
        return right(self, piece)._replace(known={})

    return [(Intake, "_cut", cut)]


@mutant
def a_piece_is_taken_for_one_row_longer_than_it_is() -> list[Patch]:
    right = Intake._cut

    def cut(self, piece):
        made = right(self, piece)
        for name, span in piece.spans.items():
            self.positions[name] = max(self.positions[name], span.end + 1)
        return made

    return [(Intake, "_cut", cut)]
