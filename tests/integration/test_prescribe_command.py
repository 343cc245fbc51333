"""`holdfast prescribe` as a user meets it: through the program's own entry point."""

import json
import math

import pytest

from holdfast.cli.main import main

GOOD = [
    "prescribe", "--sla", "99.99%", "--window", "10min", "--checkpoint-size", "300MB", "--input-rate", "2MB/s",
    "--mtbf", "30d", "--replicas", "3",
]  # fmt: skip
NAMES = {"replay", "replay_missing", "aa_replay", "periodic", "aa_periodic", "on_demand", "hybrid", "cooperative"}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


@pytest.mark.parametrize("models", ["published", "exact"])
def test_json_lists_every_strategy_with_all_its_fields(capsys, models):
    code, out, _ = run(capsys, *GOOD, "--models", models, "--json")
    found = json.loads(out)
    assert code == 0
    assert {s["name"] for s in found["strategies"]} == NAMES
    for strategy in found["strategies"]:
        assert {"name", "copies", "rr", "cost", "checkpoint_interval", "feasible", "why"} <= set(strategy)
        assert strategy["feasible"] is True
        assert math.isfinite(strategy["rr"])


def test_published_replay_through_the_command_is_the_formula_of_the_paper(capsys):
    _, out, _ = run(capsys, *GOOD, "--models", "published", "--json")
    replay = next(s for s in json.loads(out)["strategies"] if s["name"] == "replay")
    assert replay["rr"] == pytest.approx((600 + 259.2) / 259.2)
    assert replay["cost"] == pytest.approx(1 + 2 * 600 / (6 * 2592000))
    assert replay["checkpoint_interval"] is None


def test_copies_interval_bound_and_durability_are_taken(capsys):
    code, out, _ = run(
        capsys, *GOOD, "--copies", "3", "--checkpoint-interval", "1h", "--rr-max", "50", "--durability", "99.999%",
        "--durability-span", "10y", "--json",
    )  # fmt: skip
    found = {s["name"]: s for s in json.loads(out)["strategies"]}
    assert code == 0
    assert found["aa_periodic"]["copies"] == 3
    assert found["aa_periodic"]["checkpoint_interval"] == pytest.approx(3600)
    assert not found["periodic"]["feasible"]
    assert found["periodic"]["rr"] is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--sla", "1"], ["--sla", "100%"], ["--sla", "-5%"], ["--sla", "nan"], ["--window", "0"], ["--window", "-5min"],
        ["--window", "5parsec"], ["--mtbf", "nan"], ["--mtbf", "inf"], ["--checkpoint-size", "0B"],
        ["--input-rate", "2MB"],
        ["--input-rate", "-2MB/s"], ["--replicas", "0"], ["--replicas", "2.5"], ["--replicas", "nan"],
        ["--copies", "0"],
        ["--copies", "eleven"], ["--rr-max", "0.5"], ["--rr-max", "nan"], ["--checkpoint-interval", "0s"],
        ["--durability", "99.999%"], ["--durability-span", "10y"], ["--models", "guessed"], ["--shards", "0"],
        ["--price-cpu", "-1"], ["--price-cpu", "much"], ["--what-if", "window"], ["--what-if", "mood=good"],
        ["--file", "/no/such/file"], ["--from", "/no/such/file"], ["--bogus"], ["--sla"], ["--out", "x.csv"],
        ["--sweep", "x.csv"], ["--checkpoint-spread", "100%"], ["--plot", "/no/such/place/x.png"],
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_and_exit_code_2(capsys, flags):
    code, out, err = run(capsys, *GOOD, *flags)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) > 20


def test_what_is_missing_is_named(capsys):
    code, _, err = run(capsys, "prescribe", "--sla", "99%", "--window", "1min")
    assert code == 2
    assert "--input-rate" in err
    assert "--mtbf" in err


def test_the_table_names_all_strategies_and_gives_the_reason_in_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, *GOOD, "--price-network", "3")
    assert code == 0
    assert all(name in out for name in NAMES)
    assert "wins" in out
    assert "money" in out


@pytest.mark.parametrize("prices", [[], ["--price-network", "3"]])
def test_at_80_columns_nothing_is_cut_and_the_first_row_is_the_winner(capsys, monkeypatch, prices):
    monkeypatch.setenv("COLUMNS", "80")
    _, wide, _ = run(capsys, *GOOD, *prices, "--json")
    _, out, _ = run(capsys, *GOOD, *prices)
    found = json.loads(wide)
    assert "…" not in out
    assert all(len(line) <= 80 for line in out.splitlines())
    rows = [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in NAMES]
    assert rows[0] == found["winner"] == found["strategies"][0]["name"]
    assert rows[: len(NAMES)] == [s["name"] for s in found["strategies"]]
    words = " ".join(out.split())
    assert all(s["why"].split()[-1] in words for s in found["strategies"])


def test_parameters_come_from_a_file_and_flags_overrule_it(capsys, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text('sla = "99.9%"\nwindow = "1min"\ncheckpoint-size = "1MB"\ninput_rate = "1MB/s"\nmtbf = "1d"\n')
    _, out, _ = run(capsys, "prescribe", "--file", str(path), "--window", "2min", "--json")
    assert json.loads(out)["scenario"]["window"] == 120
    assert json.loads(out)["scenario"]["sla"] == 0.999


def test_parameters_come_from_a_measured_run(capsys, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(
        json.dumps(
            {
                "window": 60,
                "input_bytes": 6e7,
                "input_seconds": 60,
                "checkpoint_sizes": [9e5, 1.1e6],
                "failures": 0,
                "nodes": 3,
                "observed": "10d",
            }
        )
    )
    code, out, _ = run(capsys, "prescribe", "--sla", "99%", "--from", str(path), "--json")
    scenario = json.loads(out)["scenario"]
    assert code == 0
    assert scenario["mtbf"] == 30 * 86400
    assert scenario["checkpoint_spread"] == pytest.approx(3**0.5 * 0.1)


def test_what_if_is_ranked_beside_what_is(capsys):
    _, out, _ = run(capsys, *GOOD, "--rr-max", "4", "--what-if", "window=1d", "--json")
    found = json.loads(out)
    assert found["winner"] == "replay"
    assert found["what_if"]["winner"] != "replay"


@pytest.mark.slow
def test_sensitivity_says_what_would_change_the_choice(capsys):
    _, out, _ = run(capsys, *GOOD, "--rr-max", "4", "--sensitivity", "--json")
    lines = json.loads(out)["sensitivity"]
    assert any(line.startswith("window above") for line in lines)


@pytest.mark.slow
def test_a_plot_is_a_png(capsys, tmp_path):
    code, _, _ = run(capsys, *GOOD, "--models", "published", "--plot", str(tmp_path / "p.png"))
    assert code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "flags",
    [
        ["--shards", "4"], ["--price-network", "1"], ["--price-memory", "1"], ["--allow-missing"], ["--sensitivity"],
        ["--operator", "talkers"], ["--json"], ["--what-if", "window=1h"], ["--plot", "x.png"], ["--file", "x.json"],
    ],
)  # fmt: skip
def test_a_sweep_refuses_what_it_would_not_heed(capsys, flags):
    code, out, err = run(capsys, "prescribe", "--sweep", "x.csv", *flags)
    assert (code, out) == (2, "")
    assert f"--sweep does not take {flags[0]}" in err


@pytest.mark.parametrize("flags", [[], ["--from", "measured.json"]])
def test_an_operator_can_only_be_chosen_of_a_run(capsys, flags):
    code, out, err = run(capsys, *GOOD, *flags, "--operator", "talkers")
    assert (code, out) == (2, "")
    assert "--operator belongs to --from RUN" in err
