"""kill -9 of a process that writes footprints: the next one goes on from the log, and nothing is different."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.batches import rows
from support.eventual import EDGE, Oracle, contents_of, made
from support.eventual_program import all_steps

from holdfast.runtime.disk.eventual import recover
from holdfast.runtime.disk.log_reader import LogReader
from holdfast.runtime.net.rows import batches_of

KILLS = 3


@pytest.mark.parametrize("kind", ["sliding", "count"])
def test_a_process_that_is_killed_again_and_again_leaves_the_log_of_one_that_never_was(tmp_path: Path, kind: str):
    steps = all_steps()
    oracle = Oracle(kind, steps[:1_500])
    rng = random.Random(3)
    said, durable = 0, 0
    for _ in range(KILLS):
        command = [sys.executable, "-m", "support.eventual_program", str(tmp_path), kind]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None
        lives = rng.randrange(20, 300)
        for _, line in zip(range(lives), process.stdout, strict=False):
            said, durable = int(line.split()[0]), int(line.split()[1])
        process.kill()
        process.wait()
        process.stdout.close()
        operator = made(kind)
        found = recover(operator, tmp_path, EDGE, lambda a, b: steps[a - 1 : b])
        assert found.position >= durable  # what it said is on disk is there
        assert found.step <= 1_500
        assert contents_of(operator) == oracle.contents[found.step]
        reader = LogReader(tmp_path / EDGE, all_of_it=True)
        given = [row for block in reader.blocks() for part in batches_of(block.rows) for row in rows(part)]
        reader.close()
        assert given == [row for result in oracle.results[: found.step] for row in result]
    assert said > 20
