"""The training reward beside the reward on held-out items of the same kind, in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import t_quantile
from driftlab.report.formats import Table
from driftlab.report.frames import Frames
from driftlab.report.looks import looks
from driftlab.report.pairing import each
from driftlab.report.plots import Axes, Figure, bars, key, legend, panels, style, whole_steps
from driftlab.report.tables import cell_text

NAME, TITLE = "held-out", "h. Training reward and held-out reward"
CAPTION = (
    "Reward of the checkpoint's own greedy answers, above on the training batch (broken lines) and on items of the "
    "same kind that training never sees (full lines), below their difference; {bars}. A gap that grows is a batch "
    "that is learned by heart, or a reward that is gamed on it."
)
_BARS = {
    False: "bars below are 95 % intervals over items, two independent sets",
    True: "thin lines are seeds, thick lines their mean",
}


def held_out_rows(frames: Frames) -> pd.DataFrame:
    """Rows of the held-out probe, whatever their status."""
    return frames.measurements[frames.measurements["probe"] == "held_out"]


def held_out_table(frames: Frames) -> Table | None:
    """Rewards at base and final step and their gap; None where no run asked."""
    stored = held_out_rows(frames)
    if stored.empty:
        return None
    rows = []
    for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
        own = stored[stored["run"] == run]
        if own.empty:
            continue
        cells = [_cell(own, last, f"{which}_reward") for which in ("training", "held_out")]
        gaps = [_cell(own, step, "reward_gap") for step in (0, last)]
        counts = " / ".join(f"{cell['n']:,}" for cell in cells if cell is not None)
        rows.append((run, str(last), counts, *(cell_text(one, _reward) for one in (*cells, *gaps)), _said(gaps[1])))
    return Table(
        name="held-out",
        title="Reward of greedy answers on the training batch and on held-out items [95 % interval]",
        columns=("run", "step", "items", "training", "held out", "gap at base", "gap", "reading"),
        rows=tuple(rows),
        data=stored.drop(columns="arm").reset_index(drop=True),
        source="`value` and `stderr` of rows with probe `held_out` in `measurements.jsonl`. The training batch is "
        "small and fixed: its own draw makes a gap before training, which stays in the later one.",
    )


def held_out_words(frames: Frames) -> list[str]:
    """One sentence for every arm whose gap grew beyond its interval over seeds; nothing for the others."""
    stored, found = held_out_rows(frames), []
    for arm, own in frames.runs.groupby("arm", sort=False):
        growths = []
        for run, last in own[["run", "last_step"]].itertuples(index=False, name=None):
            mine = stored[stored["run"] == run]
            base, end = (_cell(mine, step, "reward_gap") for step in (0, last))
            if base is not None and end is not None and base["status"] == end["status"] == "ok":
                growths.append(end["value"] - base["value"])
        summary = over_seeds(growths) if len(growths) > 1 else None
        if summary is not None and summary.low is not None and summary.low > 0:
            found.append(
                f"{arm}: the training reward outran the held-out reward by {summary.mean:.3f} "
                f"[{summary.low:.3f}, {summary.high:.3f}] over {summary.n} seeds."
            )
    return found


def held_out_figure(frames: Frames) -> Figure:
    """Both rewards against iteration, and the gap below."""
    stored = held_out_rows(frames)
    stored = stored[stored["status"] == "ok"]
    with style():
        figure, (top, bottom) = panels(2, 1, 4.6, sharex=True)
        drawn = looks(frames)
        for run, look in drawn.items():
            own = stored[stored["run"] == run].sort_values("step")
            wide = 0.6 if frames.repeated else 1.3
            for quantity, line in (("held_out_reward", "-"), ("training_reward", (0, (4, 2)))):
                curve = own[own["quantity"] == quantity]
                top.plot(curve["step"], curve["value"], color=look.colour, linestyle=line, linewidth=wide)
            gap = own[own["quantity"] == "reward_gap"]
            if frames.repeated:
                bottom.plot(gap["step"], gap["value"], color=look.colour, linewidth=wide, alpha=0.7)
            elif len(gap):
                half = gap["stderr"].to_numpy() * np.array([t_quantile(n) for n in gap["n"]])
                bars(bottom, frames, look, gap["step"], gap["value"], gap["value"] - half, gap["value"] + half)
        if frames.repeated:
            _means(top, bottom, frames, stored)
        bottom.axhline(0.0, color="black", linestyle=":", linewidth=1.0)
        top.set_ylabel("reward")
        bottom.set_ylabel("training − held out")
        bottom.set_xlabel("iteration")
        whole_steps(bottom, 8)
        entries = [
            (key(color="black", linestyle=(0, (4, 2))), "training batch"),
            (key(color="black"), "held out"),
        ]
        legend(figure, frames, drawn, entries)
        return figure


def _means(top: Axes, bottom: Axes, frames: Frames, stored: pd.DataFrame) -> None:
    colours = {frames.runs.set_index("run")["arm"][run]: look.colour for run, look in looks(frames).items()}
    places = {"held_out_reward": (top, "-"), "training_reward": (top, (0, (4, 2))), "reward_gap": (bottom, "-")}
    for arm, colour in colours.items():
        for quantity, (axes, line) in places.items():
            own = stored[(stored["arm"] == arm) & (stored["quantity"] == quantity)]
            curve = own.groupby("step")["value"].mean()
            axes.plot(curve.index, curve.to_numpy(), color=colour, linestyle=line, linewidth=1.8)


def caption(frames: Frames) -> str:
    return CAPTION.format(bars=_BARS[frames.repeated])


def _cell(own: pd.DataFrame, step: int, quantity: str) -> dict[str, Any] | None:
    chosen = own[(own["step"] == step) & (own["quantity"] == quantity)]
    return next((row._asdict() for row in each(chosen)), None)


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    half = row["stderr"] * t_quantile(row["n"])
    return row["value"] - half, row["value"] + half


def _reward(row: Mapping[str, Any]) -> str:
    if pd.isna(row["stderr"]):
        return f"{row['value']:.3f} [no interval]"
    low, high = _ends(row)
    return f"{row['value']:.3f} [{low:.3f}, {high:.3f}]".replace("-", "−")


def _said(gap: Mapping[str, Any] | None) -> str:
    if gap is None or gap["status"] != "ok" or pd.isna(gap["stderr"]):
        return "cannot say"
    low, high = _ends(gap)
    return "training above held out" if low > 0 else "held out above training" if high < 0 else "cannot say"
