"""A run under load is upgraded twice, each time with another number of shards; `verify` compares the whole history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.packets import TALKERS, Traffic
from support.planned import Command

from holdfast.cli.story import read_events

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_S = 300.0


def pipeline(base: Path, name: str, shards: int, more: Callable[[str], str] = lambda text: text) -> Path:
    text = TALKERS.replace("{base}", str(base)).replace('"maxFilesPerTrigger", 4', '"maxFilesPerTrigger", 40')
    file = base / name
    file.write_text(more(text.replace("shards=4", f"shards={shards}")))
    return file


def written(base: Path) -> int:
    return len(list((base / "out").glob("*.parquet")))


def goes_on(one: Command, base: Path, home: Path, before: int) -> None:
    """More rows reach the sink, and the state its new place in the store."""
    one.wait_until(lambda: written(base) > before + 2, "rows in the sink", SPARK_S)
    one.wait_until(lambda: any(e["event"] == "checkpoint" for e in read_events(home)), "checkpoints", SPARK_S)


def test_a_run_is_upgraded_twice_under_load_and_its_whole_history_is_right(
    tmp_path: Path, command: Callable[..., Command]
):
    homes = [tmp_path / "run", tmp_path / "run-2", tmp_path / "run-3"]
    (tmp_path / "in").mkdir()
    traffic = Traffic(tmp_path / "in", every_s=0.5)
    store = f"file://{tmp_path / 'store'}"
    file = pipeline(tmp_path, "netmon.py", 4)
    one = command("run", str(file), "--dir", str(homes[0]), "--nodes", "3", "--store", store, "--no-standby")
    goes_on(one, tmp_path, homes[0], 0)
    other = pipeline(tmp_path, "other.py", 4, lambda text: text.replace('"10 seconds"', '"20 seconds"'))
    code, said = command("upgrade", str(homes[0]), str(other)).end(limit_s=SPARK_S)
    assert code == 2
    assert "operator talkers cannot go on" in said
    assert "length of its windows" in said
    for number, shards in ((1, 6), (2, 3)):
        before = written(tmp_path)
        new = pipeline(tmp_path, f"netmon_{shards}.py", shards)
        two = command("upgrade", str(homes[number - 1]), str(new), "--name", f"to-{shards}")
        two.wait_for("upgraded within", SPARK_S)
        assert one.end(limit_s=SPARK_S)[0] == 0
        goes_on(two, tmp_path, homes[number], before)
        one = two
    code, said = command("run", str(homes[0])).end(limit_s=SPARK_S)
    assert code == 2
    assert "has gone on from a savepoint of this run" in said
    traffic.stop()
    code, said = command("stop", str(homes[2]), "--finish").end(limit_s=SPARK_S)
    assert code == 0, said
    assert one.end(limit_s=SPARK_S)[0] == 0
    code, said = command("verify", str(homes[2]), "--json").end(limit_s=SPARK_S)
    assert code == 0, said
