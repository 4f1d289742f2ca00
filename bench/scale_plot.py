"""The curves of bench/scale.py as a PNG: a panel per quantity and dimension, with the fitted law and the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from power_law import PowerLaw
from scale_points import formulas, measured

from foretell.session.plots import import_figure

PANELS = {"step": "training step, s", "reading": "reading the batch, s", "memory": "memory of the process, MB"}
UNITS = {"step": 1.0, "reading": 1.0, "memory": 1e6}


def write_plot(path: Path, dimensions: dict[str, dict[str, Any]], names: dict[str, str]) -> None:
    """Draw a row of panels per quantity and a column per dimension, all axes logarithmic."""
    figure = import_figure(path)(figsize=(3.2 * len(dimensions), 8), dpi=110, layout="constrained")
    grid = figure.subplots(len(PANELS), len(dimensions), sharey="row", squeeze=False)
    for row, quantity in zip(grid, PANELS, strict=True):
        for axes, (name, dimension) in zip(row, dimensions.items(), strict=True):
            draw_panel(axes, quantity, dimension)
            axes.set_xlabel(names[name])
        row[0].set_ylabel(PANELS[quantity])
    figure.savefig(path, format="png")


def draw_panel(axes: Any, quantity: str, dimension: dict[str, Any]) -> None:
    """Measured points and their law; the bounds of the plan, or the operations at the rate of the largest size."""
    points, laws, unit = dimension["points"], dimension["laws"][quantity], UNITS[quantity]
    values, figures = [point["value"] for point in points], [measured(point, quantity) / unit for point in points]
    law = PowerLaw(**laws["measured"])
    axes.plot(values, figures, "o", color="C0", ms=5)
    axes.plot(values, [law.at(value) / unit for value in values], "-", color="C0", label=f"fit {law.exponent:.2f}")
    columns = list(zip(*(formulas(point, quantity) for point in points), strict=True))
    if quantity == "memory":
        low, high = ([value / unit for value in column] for column in columns)
        axes.fill_between(values, low, high, color="C1", alpha=0.25, label="plan")
    else:
        operations, exponent = columns[0], laws["formula"][0]["exponent"]
        scaled = [figures[-1] * value / operations[-1] for value in operations]
        axes.plot(values, scaled, "--", color="C1", label=f"formula {exponent:.2f}")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(values, [f"{value:,}" for value in values], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
