"""`holdfast bad`: what was set aside, by operator and reason, and a limit that can be raised."""

from __future__ import annotations

import json

import msgspec
import pytest
from support.collected import collector, operator, with_times
from support.plans import layered_plan
from test_cli_runs import a_run, call

from holdfast.model.plan import FOREVER_US, NEVER_US, StagePlan
from holdfast.spark.aside import AsideFiles


@pytest.fixture
def home(tmp_path):
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan()))
    table = with_times(FOREVER_US, NEVER_US)
    made = collector(operator()).split(table, NEVER_US, lambda: table)
    aside = AsideFiles(tmp_path, StagePlan(id="s0", kind="source"), 1)
    for batch in (3, 4):
        aside.write(batch, None, made.bad, None)
        aside.settle(batch, late=False, bad=True)
    return a_run(tmp_path)


def test_rows_that_were_set_aside_are_shown_by_operator_and_reason(home, capsys):
    code, out, _ = call(capsys, "bad", str(home), "--json")
    assert code == 0
    row = {"operator": "w", "reason": "the event time is not in the years 1 to 9999", "rows": 4, "batch": "3"}
    assert json.loads(out) == {"s0": {"bad_rows_max": 1_000, "rows": [row]}}
    assert "years 1 to 9999" in call(capsys, "bad", str(home))[1].replace("\n", " ")


def test_the_limit_of_a_stage_can_be_raised(home, capsys):
    code, out, _ = call(capsys, "bad", str(home), "--stage", "s0", "--max", "5000", "--json")
    assert code == 0
    assert json.loads(out)["s0"]["bad_rows_max"] == 5_000
    assert (home / "bad" / "s0.max").read_text() == "5000\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max", "5"], "--max needs --stage"),
        (["--stage", "r0", "--max", "5"], "no stage 'r0' hands rows over"),
        (["--stage", "s0", "--max", "-1"], "--max"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(home, capsys, flags, said):
    code, _, err = call(capsys, "bad", str(home), *flags)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (home / "bad" / "s0.max").exists()
