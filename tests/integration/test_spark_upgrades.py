"""A run under load is upgraded twice, each time with another number of shards; `verify` compares the whole history. And
one whose sources are not equally far."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.packets import TALKERS, Traffic, write_json
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


class Uneven(Traffic):
    """The same packets twice: once now, and once some seconds of event time later."""

    def __init__(self, ahead: Path, behind: Path, seconds: int) -> None:
        self.behind, self.seconds = behind, seconds
        super().__init__(ahead, every_s=0.5)

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            write_json(self.directory, self.number)
            if self.number >= self.seconds:
                write_json(self.behind, self.number - self.seconds)
            self.number += 1


#: A join of two sources, windows over it from shard to shard, and a chain of the first source alone.
UNEVEN = """
import holdfast as hf

pipeline = hf.Pipeline("uneven")


def read(name):
    return pipeline.read(
        lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
        .option("maxFilesPerTrigger", 40).json("{base}/" + name),
        event_time="ts", watermark="2 seconds", name=name)


def files(name):
    return lambda df: df.writeStream.format("parquet").option("path", "{base}/" + name)


clicks, views = read("clicks"), read("views")
pairs = clicks.filter("bytes < 60").map(lambda df: df.selectExpr("ts", "src", "bytes as little")).join(
    views.filter("bytes > 1440").map(lambda df: df.selectExpr("ts", "src", "bytes as much")),
    on="src", within="1 second", shards={shards}, name="pairs")
counted = pairs.window("5 seconds").by("src").agg(rows=hf.count(), shards={shards}, name="counted")
talkers = clicks.window("5 seconds").by("src").agg(packets=hf.count(), shards=2, name="talkers")
pairs.write(files("pairs"), name="pairs_out")
counted.write(files("counted"), name="counted_out")
talkers.write(files("talkers"), name="talkers_out")
"""


@pytest.mark.long
def test_two_sources_of_which_one_is_always_behind_come_to_a_clean_point(
    tmp_path: Path, command: Callable[..., Command]
):
    """Rows of the one that is ahead waited for the other one, which paused as well: no clean point ever came."""
    homes, outs = [tmp_path / "run", tmp_path / "run-2"], ("pairs", "counted", "talkers")
    (tmp_path / "clicks").mkdir()
    (tmp_path / "views").mkdir()
    traffic = Uneven(tmp_path / "clicks", tmp_path / "views", 40)  # more than a batch has on a busy machine

    def files() -> dict[str, int]:
        return {name: len(list((tmp_path / name).glob("*.parquet"))) for name in outs}

    def uneven(shards: int) -> str:
        file = tmp_path / f"uneven_{shards}.py"
        file.write_text(UNEVEN.replace("{base}", str(tmp_path)).replace("{shards}", str(shards)))
        return str(file)

    def go_on(one: Command, before: dict[str, int]) -> None:
        more = lambda: all(now > before[name] + 1 for name, now in files().items())  # noqa: E731
        one.wait_until(more, "rows in every sink", 2 * SPARK_S)

    store = f"file://{tmp_path / 'store'}"
    one = command("run", uneven(2), "--dir", str(homes[0]), "--nodes", "3", "--store", store, "--no-standby")
    go_on(one, files())
    code, said = command("savepoint", "under-load", str(homes[0])).end(limit_s=SPARK_S)
    assert code == 0, said
    assert "to come to" in said, "nothing waited: this shows nothing"
    go_on(one, files())
    before = files()
    two = command("upgrade", str(homes[0]), uneven(3))
    two.wait_for("upgraded within", SPARK_S)
    assert one.end(limit_s=SPARK_S)[0] == 0
    go_on(two, before)
    code, said = command("stop", str(homes[1]), "--checkpoint").end(limit_s=SPARK_S)
    assert code == 0, said
    assert two.end(limit_s=SPARK_S)[0] == 0
    before = files()
    three = command("run", str(homes[1]))
    go_on(three, before)
    traffic.stop()
    code, said = command("stop", str(homes[1]), "--finish").end(limit_s=SPARK_S)
    assert code == 0, said
    assert three.end(limit_s=SPARK_S)[0] == 0
    code, said = command("verify", str(homes[1]), "--json").end(limit_s=SPARK_S)
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
