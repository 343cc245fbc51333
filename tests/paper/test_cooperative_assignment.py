"""cooperative-ha §6, figures 5 and 6: the shipped assignor on the paper's two cases, by hand.

Units are alike, as in figure 5: 10 ms of expected recovery each, and the same work for every image.
"""

from __future__ import annotations

from holdfast.core.assign import Assignment, UnitShare, dynamic
from holdfast.core.recovery import HaSegment
from holdfast.model.config import MS

S1, S2, S3, S4, S5 = NODES = ["S1", "S2", "S3", "S4", "S5"]


def units(segments: dict[tuple[str, str], int], each_ns: int = 10 * MS) -> list[UnitShare]:
    """So many units of each segment."""
    return [
        UnitShare(f"{primary}{backup}-{i}", HaSegment(primary, backup), each_ns, MS)
        for (primary, backup), count in segments.items()
        for i in range(count)
    ]


def test_figure_5a_the_worst_point_of_failure_gives_units_of_its_longest_segment_to_its_shortest():
    """S1 backs up too much of S2, and S3 could take some: R of (S2, S3) is 10 ms, less than what S1 or S3 cost."""
    placed = units({(S2, S1): 4, (S2, S3): 1, (S1, S3): 2, (S3, S1): 2})
    seen = Assignment(placed, NODES[:3])
    assert (seen.worst(), seen.query_ns(S2), seen.is_unbalanced(S2)) == (S2, 40 * MS, True)
    moves = dynamic(placed, NODES[:3])
    assert [(move.source, move.target) for move in moves] == [(S1, S3)]  # 30 and 20 ms: one more would turn it round
    assert moves[0].unit.startswith("S2S1")


def test_figure_5b_who_keeps_too_many_images_is_relieved_by_the_one_that_has_most_of_them_there():
    """All segments of S2 are alike; S2 keeps images of S1 and, more of them, of S5. S4 is best."""
    long = {(S2, other): 5 for other in (S1, S3, S4, S5)}
    placed = units({**long, (S1, S2): 3, (S5, S2): 4, (S3, S5): 3, (S4, S3): 1})
    seen = Assignment(placed, NODES)
    assert (seen.worst(), seen.best(), seen.is_unbalanced(S2)) == (S2, S4, False)
    moves = dynamic(placed, NODES)
    assert {move.unit[:4] for move in moves} == {"S5S2"}
    assert [(move.source, move.target) for move in moves] == [(S2, S4)] * 2  # four here and none there: two and two


def test_figure_6_line_7_moves_at_most_the_share_by_which_one_segment_is_longer():
    """Of three units 60 ms long, 45 of them in one whose image costs most of the work: it does not go as a whole."""
    segment = HaSegment(S2, S1)
    placed = [
        UnitShare("a", segment, 45 * MS, 90 * MS),
        UnitShare("b", segment, 10 * MS, 5 * MS),
        UnitShare("c", segment, 5 * MS, 5 * MS),
        *units({(S2, S3): 3, (S1, S3): 4, (S3, S1): 4}),
    ]
    # delta h = (60 - 30) / 60 of 100 ms/s: 50. "a" costs 90; "b" and "c" cost 5 each
    assert [move.unit for move in dynamic(placed, NODES[:3])] == ["b", "c"]


def test_an_epoch_in_which_the_worst_segments_are_alike_moves_nothing():
    """A cycle of equal segments: by line 7 alone nothing moves either, since the difference is nothing."""
    placed = units({(S1, S2): 3, (S1, S3): 3, (S2, S1): 3, (S2, S3): 3, (S3, S1): 3, (S3, S2): 3})
    assert dynamic(placed, NODES[:3]) == []
