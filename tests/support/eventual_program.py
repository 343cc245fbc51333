"""A process that goes on with an operator from its log, steps as fast as it can, and says what is on disk.

python -m support.eventual_program DIRECTORY KIND
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from holdfast.core.eventual import Targets
from holdfast.runtime.disk.eventual import InputStep, Policy, go_on
from support.eventual import EDGE, Plan, made, steps_of

#: More than a process gets through before it is killed.
STEPS = 3_000


def all_steps() -> list[InputStep]:
    rng = random.Random(7)
    plan: Plan = []
    for number in range(STEPS):
        given = [(rng.randrange(30), rng.randrange(6), rng.randrange(9), rng.randrange(6)) for _ in range(5)]
        plan.append((given, 5 if number % 3 == 0 else 0, 0))
    return steps_of(plan)


def main(path: Path, kind: str) -> None:
    steps = all_steps()
    live, found = go_on(made(kind), path, EDGE, lambda a, b: steps[a - 1 : b], Policy(Targets(60, 200)), threads=True)
    print(found.step, live.log.durable, flush=True)
    while live.steps < len(steps):
        live.step(steps[live.steps])
        print(live.steps, live.log.durable, flush=True)
    live.log.flush()
    print("all", live.log.durable, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
