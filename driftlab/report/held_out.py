"""The training reward beside the reward on held-out items of the same kind, in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import HALF_COUNTS, Interval, t_quantile
from driftlab.report.formats import NOT_MEASURED, Table
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
    False: "bars below are 95 % intervals over items, two independent sets, of one comparison each",
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
        gaps = [_gap(own, step) for step in (0, last)]
        counts = " / ".join(f"{cell['n']:,}" for cell in cells if cell is not None)
        shown = [*(cell_text(one, _reward) for one in cells), *map(_gap_text, gaps)]
        growth = _growth(own, last)
        rows.append((run, str(last), counts, *shown, _gap_text(growth), _said(growth)))
    return Table(
        name="held-out",
        title="Reward of greedy answers on the training batch and on held-out items [95 % interval]",
        columns=(
            "run", "step", "items", "training", "held out", "gap at base", "gap", "change of the gap", "reading",
        ),
        rows=tuple(rows),
        data=stored.drop(columns="arm").reset_index(drop=True),
        source="`value` and `stderr` of rows with probe `held_out` in `measurements.jsonl`. The training batch is "
        "small and fixed: its own draw makes a gap before training, which stays in the later one. The change of the "
        "gap has lost it; it is paired by item where `reward_gap_change` is stored, else that of two gaps taken as "
        "independent. To the variance of each set half an item that earns more and half an item that earns less are "
        "added, as for paired accuracies, because a set all of whose items earn the same is not known without error; "
        "the t quantile is that of the smaller set.",
    )  # fmt: skip


def held_out_words(frames: Frames) -> list[str]:
    """A sentence for every arm whose gap an interval tells from 0: over seeds its growth, of one run the last gap."""
    found = []
    for arm, own in frames.runs.groupby("arm", sort=False):
        ends = list(own[["run", "last_step"]].itertuples(index=False, name=None))
        said = _over_seeds(frames, str(arm), ends) if len(ends) > 1 else _of_one(frames, *ends[0])
        found += [] if said is None else [said]
    return found


def _over_seeds(frames: Frames, arm: str, ends: Sequence[tuple[str, int]]) -> str | None:
    """Seeds share batch and held-out items, whose error their scatter does not show: the interval is not narrower."""
    stored = held_out_rows(frames)
    found = [_growth(stored[stored["run"] == run], last) for run, last in ends]
    growths = [one for one in found if one is not None]
    if len(growths) < 2:
        return None
    mean, half = (float(np.mean(x)) for x in zip(*((g.value, g.high - g.value) for g in growths), strict=True))
    summary = over_seeds([one.value for one in growths], Interval(mean - half, mean + half))
    if summary.low is None or summary.high is None or summary.low <= 0 <= summary.high:
        return None
    first, second = _order(summary.low > 0)
    size = _size(summary.mean, summary.low, summary.high, summary.low < 0)
    return f"{arm}: since the base the {first} reward outran the {second} reward by {size} over {summary.n} seeds."


def _of_one(frames: Frames, run: str, last: int) -> str | None:
    """The gap at the last step, and how much of it came since the base."""
    stored = held_out_rows(frames)
    mine = stored[stored["run"] == run]
    gap, growth = _gap(mine, last), _growth(mine, last)
    if gap is None or gap.low <= 0 <= gap.high:
        return None
    first, second = _order(gap.low > 0)
    text = f"{run}: at step {last} the {first} reward outruns the {second} reward by {_size(*gap, gap.low < 0)}"
    if growth is None:
        return f"{text}."
    if growth.low <= 0 <= growth.high:
        return f"{text}, but the change of this gap since the base, {_size(*growth)}, cannot be told from 0."
    return f"{text}; since the base this gap changed by {_size(*growth)}."


def _order(training_above: bool) -> tuple[str, str]:
    return ("training", "held-out") if training_above else ("held-out", "training")


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
                found = [_gap(own, step) for step in gap["step"]]
                low, high = ([np.nan if one is None else one[end] for one in found] for end in (1, 2))
                bars(bottom, frames, look, gap["step"], gap["value"], low, high)
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


class Gap(NamedTuple):
    """A difference of the two sets with the ends of its interval, in units of reward."""

    value: float
    low: float
    high: float


def _gap(own: pd.DataFrame, step: int, quantity: str = "reward_gap") -> Gap | None:
    """A gap, or its change, of one run at a step; None where it or its error does not exist."""
    row = _cell(own, step, quantity)
    sets = [_cell(own, step, f"{which}_reward") for which in ("training", "held_out")]
    sizes = [one["n"] for one in sets if one is not None]
    if row is None or row["status"] != "ok" or pd.isna(row["stderr"]) or len(sizes) != 2:
        return None
    error = np.sqrt(row["stderr"] ** 2 + sum(HALF_COUNTS / n**2 for n in sizes))
    half = float(t_quantile(min(sizes)) * error)
    return Gap(row["value"], row["value"] - half, row["value"] + half)


def _growth(own: pd.DataFrame, last: int) -> Gap | None:
    """Change of the gap from the base to the last step: paired where it is stored, else of two independent gaps."""
    paired, base, end = _gap(own, last, "reward_gap_change"), _gap(own, 0), _gap(own, last)
    if paired is not None or base is None or end is None or last == 0:
        return paired
    half = float(np.hypot(base.high - base.value, end.high - end.value))
    return Gap(end.value - base.value, end.value - base.value - half, end.value - base.value + half)


def _size(value: float, low: float, high: float, turned: bool = False) -> str:
    if turned:
        value, low, high = -value, -high, -low
    return f"{value:.3f} [{low:.3f}, {high:.3f}]".replace("-", "−")


def _gap_text(gap: Gap | None) -> str:
    return NOT_MEASURED if gap is None else _size(*gap)


def _reward(row: Mapping[str, Any]) -> str:
    if pd.isna(row["stderr"]):
        return f"{row['value']:.3f} [no interval]"
    half = t_quantile(row["n"]) * np.sqrt(row["stderr"] ** 2 + HALF_COUNTS / row["n"] ** 2)
    return _size(row["value"], row["value"] - half, row["value"] + half)


def _said(growth: Gap | None) -> str:
    """Of the change: the gap itself holds the luck of the batch's draw."""
    if growth is None or growth.low <= 0 <= growth.high:
        return "cannot say"
    return "training pulled ahead" if growth.low > 0 else "held out pulled ahead"
