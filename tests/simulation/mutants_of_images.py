"""Planted bugs in what brings state to other nodes: guards, rounds, scans in chunks, captures in pieces, tasks."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import host
from holdfast.core.arriving import Arriving
from holdfast.core.copy import Copy
from holdfast.core.protect import images
from holdfast.core.protect.images import Images
from holdfast.core.roles import Condition
from holdfast.core.runner import Runner
from holdfast.sim.operators import END, WindowChunk, WindowState, WindowSum


@mutant
def a_guard_is_left_out_of_the_minimum() -> list[Patch]:
    """What was consumed is acknowledged, although the images do not hold it yet."""
    return [(Runner, "safe", lambda self: self.copy.positions())]


@mutant
def a_joining_image_gates_too_late() -> list[Patch]:
    """Once it is the backup, and not from the round on that completes it."""
    take, retarget = Images.take, Images.retarget

    def late_take(self, now_ns, ready):
        take(self, now_ns, ready)
        self.gates.pop(self.place.joining, None)

    def late_retarget(self, place):
        retarget(self, place)
        if place.backup and place.backup not in self.unfit:
            self.gates[place.backup] = None

    return [(Images, "take", late_take), (Images, "retarget", late_retarget)]


@mutant
def an_image_in_its_scan_counts_as_complete() -> list[Patch]:
    """After its first chunk."""
    right = Images.on_pasted

    def on_pasted(self, seat, message, now_ns, ready):
        right(self, seat, message, now_ns, ready)
        if self.scans.get(seat, 0) > 0:
            self.made[seat] = None

    return [(Images, "on_pasted", on_pasted)]


@mutant
def a_chunk_is_lost() -> list[Patch]:
    """It is left out, but the cursor moves on."""
    right = WindowSum.chunk

    def chunk(self, cursor, bytes_max):
        found, after = right(self, cursor, bytes_max)
        if cursor > 0:
            found = WindowChunk(found.number, found.start, found.end, found.watermark, {})
        return found, after

    return [(WindowSum, "chunk", chunk)]


@mutant
def a_joining_image_gets_chunks_but_no_deltas() -> list[Patch]:
    right = WindowSum.paste

    def paste(self, piece):
        if isinstance(piece, WindowState) and self.scanned != END:
            piece = WindowState(piece.base, piece.number, piece.watermark, {})
        right(self, piece)

    return [(WindowSum, "paste", paste)]


@mutant
def a_task_runs_one_piece_twice_and_the_next_not_at_all() -> list[Patch]:
    right = Copy.paste_piece

    def paste_piece(self):
        left = self.pasting.left
        if len(left) > 2:  # the last is what makes the image stand
            left[-2] = left[-1]
        return right(self)

    return [(Copy, "paste_piece", paste_piece)]


@mutant
def held_is_said_before_all_pieces_are_there() -> list[Patch]:
    return [(Arriving, "capture", lambda self: self.head)]


@mutant
def a_held_capture_is_dropped_at_a_promotion() -> list[Patch]:
    right = host.Host._promote

    def promote(self, shard, place, now_ns, ready):
        copy = self.copies[shard]
        if copy.pasting is not None:
            copy.pasting, copy.condition = None, Condition.COMPLETE
        right(self, shard, place, now_ns, ready)

    return [(host.Host, "_promote", promote)]


@mutant
def captures_in_flight_go_out_again_under_a_place_that_is_over() -> list[Patch]:
    return [(images, "_under", lambda message, since: message)]


@mutant
def a_backup_that_does_not_fit_holds_nothing_back() -> list[Patch]:
    """The record still names it. (That one does not fit is part of the fault: nothing else makes it happen.)"""
    right = Copy.fits

    def fits(self, capture):
        return right(self, capture) and (capture.scan >= 0 or capture.round % 5 != 3)

    return [(Copy, "fits", fits), (Images, "safe", lambda self: self.safe_at if self.gates else None)]
