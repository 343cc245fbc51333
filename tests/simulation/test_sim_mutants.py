"""The checker works: every planted bug is found, within a bounded number of schedules. Run with -s for the counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTANTS, load, planted

from holdfast.sim.scenario import parse_scenario
from holdfast.sim.simulation import Simulation
from holdfast.sim.special import eventual, growing, real_time
from holdfast.sim.swarm import (
    SWARM,
    assigned,
    choking,
    chopped,
    doubled,
    fragile,
    heavy,
    lasting_cut,
    paired,
    poisoned,
    replaying,
    rough,
    skewed,
    standing_in,
    stored,
    swarm_setup,
    switching,
)

load()
#: Bugs that only some faults bring out are looked for among those; the rest among all.
FOCUS: dict[str, tuple[str, ...]] = {
    "no_fence_at_the_consumer": ("stall", "cut", "loss"),
    "ledger_does_not_fence_old_drivers": ("stall-stage",),
    "two_votes_in_one_term": ("loss", "cut", "stall"),
    "reader_acknowledges_on_receipt": ("crash-reader", "stall-reader"),
    "messages_leave_before_the_disk_has_synced": ("crash",),
    "queue_without_a_bound": ("stall-reader", "disk-full"),
    "joining_seat_is_promoted": ("crash", "cut", "stall"),
    "a_joining_image_gets_chunks_but_no_deltas": ("crash",),
    "a_chunk_is_lost": ("crash",),
    "captures_in_flight_go_out_again_under_a_place_that_is_over": ("crash", "cut"),
    "image_pasted_out_of_order": ("stall", "crash", "slow"),
    "an_image_in_its_scan_counts_as_complete": ("crash",),
    "a_late_try_takes_the_place_of_a_newer_one": ("stall-stage", "reorder"),
    "fetch_of_a_fenced_sink_is_served": ("stall-reader",),
    "fetch_is_served_by_a_backup": ("stall", "drain", "crash"),
    "a_promoted_copy_does_not_write_what_it_found": ("crash",),
    "an_older_checkpoint_replaces_a_newer_one": ("stall", "cut"),
    "an_empty_start_begins_after_a_batch_that_it_holds": ("crash",),
}
#: Bugs in what brings state to other nodes: looked for where there is much of it.
HEAVY = {name for name, make in MUTANTS.items() if make.__module__ in ("mutants_of_images", "mutants_of_tasks")}
#: Bugs in switches between modes: looked for where there are many.
SWITCHING = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_modes"}
#: Bugs in measuring load: looked for where it is uneven.
SKEWED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_load"}
#: Bugs in gaps: looked for where there are operators that nobody backs up.
FRAGILE = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_gaps"}
#: Bugs in what a disk does: looked for where much is spilled, and disks answer badly.
ROUGH = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_tickets"}
#: Bugs in blocks and in output that comes to images: looked for where blocks are small.
CHOPPED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_blocks"}
#: Bugs in dead letters: looked for where there are some, and disks answer badly.
POISONED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_letters"}
#: Bugs in skips: looked for where operators cannot take some batches.
CHOKING = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_skips"}
#: Bugs in what the stable store keeps: looked for where there is one, and everything is killed at once.
STORED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_store"}
#: Bugs in footprints and their log: looked for where operators leave some, and everything is killed at once.
EVENTUAL = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_eventual"}
#: Bugs in links that are cut: looked for where one stays cut, and output must go on.
LINKS = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_links"}
#: Bugs in the vote of the store: looked for in clusters of two.
PAIRED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_witness"}
#: Bugs in stand-ins: looked for where nodes are late, of every kind of operator.
STANDING_IN = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_stand_ins"}
#: Bugs in copies that run at once: looked for where there are some, of every kind of operator.
DOUBLED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_twins"}
#: Bugs in mode replay: looked for where all operators are in it.
REPLAYING = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_replays"}
#: Bugs in who backs up what: looked for where an assignor says so, and nodes have several shards.
ASSIGNED = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_assign"}
#: Bugs in positions: looked for where stages are real-time.
REAL_TIME = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_real_time"}
#: Bugs in who is a member: looked for where nodes come that no file names, and leave.
GROWING = {name for name, make in MUTANTS.items() if make.__module__ == "mutants_of_members"}
#: Bugs that only a scripted schedule brings out: the scenario that does.
SCRIPTED = {
    "fetch_gives_what_there_is_and_does_not_wait": "task_fetches_during_a_fail_over",
    "a_held_capture_is_dropped_at_a_promotion": "promoted_between_held_and_pasted",
    "a_stand_in_stays_what_it_became_when_its_primary_is_back": "primary_is_late_and_comes_back",
    "a_stand_in_speaks_at_an_epoch_of_its_own": "primary_is_late_and_comes_back",
    "a_copy_that_falls_back_is_waited_for": "copy_that_lags_joins_anew",
    "a_twin_lets_go_of_dead_letters_that_nobody_has_written": "dead_letters_of_two_copies",
    "one_of_two_passes_over_lost_input": "lost_input_of_one_of_two",
}
#: Bugs that few schedules bring out: one that does, of those that `holdfast sim` runs.
SEEDED = {"dead_letters_in_files_are_not_looked_for": 16_001_372}
SCENARIOS = Path(__file__).parents[1] / "scenarios"
SCHEDULES_MAX = 400
#: Bugs that take more schedules than there is time for in `make test`, since the swarm has more kinds of faults.
HARD = (
    "a_new_primary_takes_where_it_stands_for_stored",
    "captures_in_flight_go_out_again_under_a_place_that_is_over",
    "image_pasted_out_of_order",
)


def schedules_until_found(name: str, limit: int = SCHEDULES_MAX) -> tuple[int, str]:
    with planted(name):
        if name in SCRIPTED:
            script = (SCENARIOS / f"{SCRIPTED[name]}.txt").read_text().partition("\n--- trace\n")[0]
            outcome = Simulation(parse_scenario(script)).run()
            return int(bool(outcome.violation)), outcome.rule
        if name in SEEDED:
            outcome = Simulation(swarm_setup(SEEDED[name])).run()
            return int(bool(outcome.violation)), outcome.rule
        for seed in range(limit):
            setup = swarm_setup(seed, kinds=FOCUS.get(name, SWARM))
            setup = heavy(setup) if name in HEAVY else switching(setup) if name in SWITCHING else setup
            setup = skewed(setup) if name in SKEWED else fragile(setup) if name in FRAGILE else setup
            setup = rough(setup) if name in ROUGH | POISONED else chopped(setup) if name in CHOPPED else setup
            setup = poisoned(setup) if name in POISONED else choking(setup) if name in CHOKING else setup
            setup = stored(setup) if name in STORED else lasting_cut(seed) if name in LINKS else setup
            setup = paired(seed) if name in PAIRED else growing(seed) if name in GROWING else setup
            setup = eventual(setup if seed % 3 else fragile(setup)) if name in EVENTUAL else setup
            setup = assigned(swarm_setup(seed, nodes=3 + seed % 2, shards=9)) if name in ASSIGNED else setup
            setup = real_time(setup) if name in REAL_TIME else setup
            if name in STANDING_IN:
                setup = standing_in(fragile(setup) if seed % 3 == 1 else choking(setup) if seed % 3 == 2 else setup)
            if name in DOUBLED:
                setup = doubled((lambda x: x, fragile, choking, lambda x: rough(poisoned(x)))[seed % 4](setup))
            if name in REPLAYING:
                setup = replaying((lambda x: x, choking, lambda x: rough(poisoned(x)))[seed % 3](setup))
            outcome = Simulation(setup).run()
            if outcome.violation:
                return seed + 1, outcome.rule
    return 0, ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in HARD else ()) for name in sorted(MUTANTS)]
)
def test_planted_bug_is_found(name):
    limit = 5 * SCHEDULES_MAX if name in HARD else SCHEDULES_MAX
    count, rule = schedules_until_found(name, limit)
    print(f"{name}: {count} schedules, {rule}")
    assert count, f"not found in {limit} schedules"


def test_there_are_enough_planted_bugs():
    assert len(MUTANTS) >= 35
