"""Draw what the models say. Matplotlib is loaded only when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import ConfigError

from .recommend import known, prescribe
from .scenario import Scenario

DOWN = (0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


def lines(
    path: str | Path,
    panels: Sequence[tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
    *,
    x_label: str,
    title: str,
    log_x: bool = True,
    marks: Sequence[float] = (),
) -> None:
    """One PNG with a panel of labelled lines for each entry; both axes logarithmic unless told."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("plots need matplotlib", hint="Install holdfast[bench].") from None
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.6 * len(panels), 4.2), squeeze=False)
    for axis, (y_label, series) in zip(axes[0], panels, strict=True):
        for style, (label, (xs, ys)) in enumerate(series.items()):
            axis.plot(xs, ys, label=label, marker="os^vD*Px"[style % 8], markersize=4, linewidth=1.3)
        for mark in marks:
            axis.axhline(mark, color="grey", linewidth=0.8, linestyle=":")
        if log_x:
            axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None
    finally:
        pyplot.close(figure)


def plot_over_sla(scenario: Scenario, path: str | Path, choices: Mapping[str, object]) -> None:
    """Cost_F and RR_F of every strategy over the SLA, everything else as in the scenario."""
    cost: dict[str, tuple[list[float], list[float]]] = {}
    reserve: dict[str, tuple[list[float], list[float]]] = {}
    for down in DOWN:
        for strategy in prescribe(scenario.but(sla=1.0 - down), **choices).strategies:  # type: ignore[arg-type]
            if strategy.feasible:
                for series, value in ((cost, known(strategy.cost)), (reserve, known(strategy.rr))):
                    xs, ys = series.setdefault(strategy.name, ([], []))
                    xs.append(down)
                    ys.append(value)
    lines(path, [("Cost_F", cost), ("RR_F", reserve)], x_label="1 - SLA", title="All strategies over the SLA")
