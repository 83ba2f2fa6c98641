"""The page and the figure of the simulated operating characteristics, from the tables that the simulation wrote.

python benchmarks/operating_characteristics_page.py reports/operating-characteristics
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import jinja2
import pandas as pd
from matplotlib.figure import Figure

CELL = ["items", "flips", "checkpoints"]
COLOURS = {200: "#E69F00", 500: "#0072B2", 2000: "#009E73"}


def _markdown(table: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---:|" * len(table.columns)]
    for row in table.itertuples(index=False):
        lines.append("| " + " | ".join(f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    shown = table.copy()
    shown["flips"] = (100 * shown["flips"]).map("{:g} %".format)
    return shown.rename(columns={"flips": "flips at the end"})


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    numbers = [column for column in table if column not in (*CELL, "runs")]
    return table.assign(**{column: table[column].round(1) for column in numbers})


def figure(power: pd.DataFrame) -> Figure:
    """Share of planted dips and declines found against their size, one line per number of items."""
    drawn = Figure(figsize=(7.5, 5.2), layout="constrained")
    kinds = (("dip of {}: dipped and recovered, %", "dipped and recovered"), ("decline of {}: declined, %", "declined"))
    axes = drawn.subplots(2, 3, sharex=True, sharey=True)
    for row, (name, title) in zip(axes, kinds, strict=True):
        for cell, flips in zip(row, sorted(power["flips"].unique()), strict=True):
            for items, colour in COLOURS.items():
                for checkpoints, line in ((10, "-"), (20, "--")):
                    own = power[
                        (power["items"] == items) & (power["flips"] == flips) & (power["checkpoints"] == checkpoints)
                    ].iloc[0]
                    sizes = (2, 4, 8)
                    found = [own[name.format(f"{size} points")] for size in sizes]
                    label = f"n = {items}, {checkpoints} checkpoints"
                    cell.plot(sizes, found, line, marker="o", markersize=3, color=colour, label=label)
            cell.set_title(f"{title}, {100 * flips:g} % flips", fontsize=8, loc="left")
            cell.axhline(80, color="#999999", linewidth=0.6)
            cell.grid(color="#e6e6e6", linewidth=0.6)
    axes[1][1].set_xlabel("planted change (points)")
    axes[0][0].set_ylabel("found (%)")
    axes[1][0].set_ylabel("found (%)")
    handles, names = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return drawn


def page(tables: dict[str, pd.DataFrame]) -> str:
    null, peak, coverage = (tables[name] for name in ("null", "peak", "coverage"))
    intervals = coverage.drop(columns=[*CELL, "runs"])
    outside = [
        f"{name} ({coverage.loc[i, 'items']} items, {100 * coverage.loc[i, 'flips']:g} % flips): {value:.1f} %"
        for name in intervals
        if not name.startswith("over three seeds")
        for i, value in intervals[name].items()
        if abs(value - 95) > 1
    ]
    falling = [column for column in peak if column.endswith("interval holds the peak, %") and "down" in column]
    template = jinja2.Template(
        Path(__file__).with_suffix(".md.j2").read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined
    )
    return template.render(
        wrong=null["false verdict, % of runs"],
        uncorrected=null["some uncorrected interval excludes 0, % of runs"],
        whole=null["whole band covers, %"],
        null_error=100 * math.sqrt(0.05 * 0.95 / int(null["runs"].iloc[0])),
        coverage_error=100 * math.sqrt(0.05 * 0.95 / int(coverage["runs"].iloc[0])),
        outside="; ".join(outside) or "none",
        falling=min(peak[column].min() for column in falling),
        flat=peak["then level: interval holds the peak, %"],
        naive=peak["then level: bootstrapped argmax holds it, %"],
        tables={name: _markdown(_cells(_rounded(table))) for name, table in tables.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in ("null", "power", "peak", "coverage")}
    figure(tables["power"]).savefig(folder / "power.png", dpi=160, metadata={"Software": None})
    (folder / "README.md").write_text(page(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
