"""A run under load is upgraded twice, each time with another number of shards; `verify` compares the whole history."""

from __future__ import annotations

import json
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


#: Every kind of operator, a stage between two of them, and chains that share a source.
MIXED = """
import holdfast as hf

pipeline = hf.Pipeline("mixed")


def read(name):
    return pipeline.read(
        lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
        .option("maxFilesPerTrigger", 40).json("{base}/in"),
        event_time="ts", watermark="2 seconds", name=name)


def files(name):
    return lambda df: df.writeStream.format("parquet").option("path", "{base}/" + name)


packets, others = read("packets"), read("others")
large = packets.filter("bytes > 700")
talkers = packets.window("10 seconds").by("src").agg({more}packets=hf.count(), shards={a}, name="talkers")
seen = large.window("5 seconds").by("src").agg(rows=hf.count(), bytes=hf.sum("bytes"), shards={b}, name="seen")
again = seen.map(lambda df: df.selectExpr("window_start", "window_end", "substr(src, 1, 2) as part", "rows")).window(
    "10 seconds").by("part").agg(rows=hf.sum("rows"), shards={a}, name="again")
pairs = packets.filter("bytes < 30").map(lambda df: df.selectExpr("ts", "src", "bytes as little")).join(
    others.filter("bytes > 1470").map(lambda df: df.selectExpr("ts", "src", "bytes as much")),
    on="src", within="2 seconds", shards={b}, name="pairs")
talkers.write(files("talkers"), name="talkers_out")
again.write(files("again"), name="again_out")
pairs.write(files("pairs"), name="pairs_out")
"""
DROPPED = """
packets.window(rows=50).by("src").agg(total=hf.sum("bytes"), shards=2, name="counted").write(
    files("counted"), name="counted_out")
"""
NEW = """
packets.filter("bytes < 100").window("5 seconds").by("src").agg(rows=hf.count(), shards=2, name="small").write(
    files("small"), name="small_out")
"""


@pytest.mark.long
def test_an_upgrade_with_every_kind_of_operator_and_of_change(tmp_path: Path, command: Callable[..., Command]):
    """Cut anew up and down, an aggregate more, an operator less and one more on a chain of its own."""
    homes = [tmp_path / "run", tmp_path / "run-2"]
    (tmp_path / "in").mkdir()
    traffic = Traffic(tmp_path / "in", every_s=0.5)

    def written(name: str) -> int:
        return len(list((tmp_path / name).glob("*.parquet")))

    def file(name: str, more: str, a: int, b: int, rest: str) -> str:
        text = MIXED.replace("{more}", more).replace("{a}", str(a)).replace("{b}", str(b)) + rest
        (tmp_path / name).write_text(text.replace("{base}", str(tmp_path)))
        return str(tmp_path / name)

    arguments = ["--store", f"file://{tmp_path / 'store'}", "--no-standby"]
    first = file("mixed.py", "", 4, 2, DROPPED)
    one = command("run", first, "--dir", str(homes[0]), "--nodes", "3", *arguments)
    outs = ("talkers", "again", "pairs")
    one.wait_until(lambda: all(written(name) > 1 for name in (*outs, "counted")), "rows in every sink", 3 * SPARK_S)
    second = file("mixed2.py", 'biggest=hf.max("bytes"), ', 3, 5, NEW)
    changes = ["--default", "talkers.biggest=null", "--drop"]
    code, said = command("upgrade", str(homes[0]), second, *changes).end(limit_s=SPARK_S)
    assert code == 2
    assert "small" in said
    before = {name: written(name) for name in outs}
    two = command("upgrade", str(homes[0]), second, *changes, "--allow-new")
    two.wait_for("upgraded within", 3 * SPARK_S)
    assert one.end(limit_s=SPARK_S)[0] == 0
    go_on = lambda: written("small") > 0 and all(written(name) > before[name] for name in outs)  # noqa: E731
    two.wait_until(go_on, "rows in every sink", 3 * SPARK_S)
    traffic.stop()
    code, said = command("stop", str(homes[1]), "--finish").end(limit_s=2 * SPARK_S)
    assert code == 0, said
    assert two.end(limit_s=SPARK_S)[0] == 0
    _, said = command("verify", str(homes[1]), "--json").end(limit_s=2 * SPARK_S)
    verdict = json.loads(said[said.index("{") :])
    told = {sink["sink"]: sink for sink in verdict["sinks"]}
    assert "changed" in told["talkers_out"]["not_compared"]
    assert "was new" in told["small_out"]["not_compared"]
    for name in ("again_out", "pairs_out"):  # over the whole history
        assert not told[name]["not_compared"], verdict["text"]
        compared = told[name]["comparison"]
        assert compared["rows_found"] > 0
        assert not any(compared[what] for what in ("missing", "doubled", "wrong", "unexpected")), verdict["text"]
    assert not any(stage["strange"] for stage in verdict["stages"]), verdict["text"]
