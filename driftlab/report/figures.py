"""The report's figures. Each function takes the frames and returns a Figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import norm_band, proportion_interval, t_quantile
from driftlab.report.frames import Frames
from driftlab.report.looks import GREY, Look, looks
from driftlab.report.pairing import accuracy_rows, each
from driftlab.report.plots import (
    Axes,
    Figure,
    bars,
    gaps,
    iteration_bar,
    key,
    legend,
    panels,
    percent,
    small_multiples,
    span,
    style,
    whole_steps,
)
from driftlab.report.verdict_tables import average_name, profiles
from driftlab.report.verdicts import AVERAGE


def target_figure(frames: Frames) -> Figure:
    """Training reward and target accuracy against iteration, the highest value of each run marked by a star."""
    with style():
        figure, (top, bottom) = panels(2, 1, 4.6, sharex=True)
        drawn = looks(frames)
        stored = accuracy_rows(frames.measurements)
        stored = stored[stored["group"] == frames.target]
        points = []
        for run, look in drawn.items():
            rewards = frames.updates[frames.updates["run"] == run]
            top.plot(rewards["step"], rewards["reward"], color=look.colour, linestyle=look.line, linewidth=1.1)
            for row in each(stored[(stored["run"] == run) & (stored["status"] == "ok")]):
                scored = row.n - row.n_failed
                ends = proportion_interval(round(row.value * scored, 6), scored)
                points.append((run, row.step, row.value, ends.low, ends.high))
            # Of several seeds the mean is looked at, and its peak stands in the table.
            for peak in each(frames.peaks[frames.peaks["run"] == run]) if not frames.repeated else ():
                reward = peak.quantity == "training reward"
                x = peak.step if reward else peak.step + look.shift * span(frames)
                (top if reward else bottom).plot(
                    x, peak.value, marker="*", markersize=11, color=look.colour, markeredgecolor="black", zorder=5
                )
        _curves(bottom, frames, drawn, points, stored, _accuracy_means(frames, frames.target))
        top.set_ylabel("training reward\n(mean over members)")
        bottom.set_ylabel("target accuracy (%)")
        bottom.set_xlabel("iteration")
        percent(bottom, "y")
        star = key(linestyle="", marker="*", markersize=10, color="white", markeredgecolor="black")
        legend(figure, frames, drawn, [] if frames.repeated else [(star, "highest value")])
        return figure


def difference_figure(frames: Frames) -> Figure:
    """Change of every prior task since the base, with the simultaneous band, the noise floor and the margin."""
    floors = frames.floors.set_index("task")["difference"].to_dict()

    def draw(axes: Axes, name: str, drawn: Mapping[str, Look]) -> None:
        task, profile = named[name]
        own = frames.bands[(frames.bands["task"] == task) & (frames.bands["profile"] == profile)]
        axes.axhline(0.0, color="black", linestyle=":", linewidth=1.1)
        for side in (-1, 1):
            axes.axhline(side * frames.margin, color=GREY, linestyle=(0, (1, 2)), linewidth=0.8)
        if task in floors:
            axes.axhspan(-floors[task], floors[task], color=GREY, alpha=0.3, linewidth=0)
        if frames.repeated:
            lines = [(r.run, r.step, r.change, math.nan, math.nan) for r in each(own)]
            means = frames.seeds[(frames.seeds["task"] == task) & (frames.seeds["profile"] == profile)]
            _curves(axes, frames, drawn, lines, own, means.rename(columns={"mean": "value"}))
        else:
            for run, look in drawn.items():
                rows = own[own["run"] == run]
                axes.fill_between(rows["step"], rows["low"], rows["high"], color=look.colour, alpha=0.15, linewidth=0)
                axes.plot(rows["step"], rows["change"], color=look.colour, marker=look.marker, linestyle=look.line)
        percent(axes, "y", clip=False)

    named = {task: (task, frames.profiles[task]) for task in frames.priors}
    named |= {average_name(frames, profile): (AVERAGE, profile) for profile in profiles(frames)}
    shown = {
        name: where
        for name, where in named.items()
        if ((frames.bands["task"] == where[0]) & (frames.bands["profile"] == where[1])).any()
    }
    extra = [
        (key(color=GREY, linestyle=(0, (1, 2)), linewidth=0.8), f"margin ±{100 * frames.margin:g} points"),
        (key(color=GREY, alpha=0.3, linewidth=6), "noise floor"),
    ]
    return small_multiples(frames, tuple(shown), draw, "change (points)", extra, share=False)


def prior_figure(frames: Frames) -> Figure:
    """Accuracy of every prior task against iteration, with the 95 % interval of the paired change and the base line."""
    stored = accuracy_rows(frames.measurements)
    rows = stored[stored["status"] == "ok"]
    changes = {(row.run, row.task, row.step): row for row in each(frames.differences)}

    def draw(axes: Axes, task: str, drawn: Mapping[str, Look]) -> None:
        table = rows[rows["group"] == task]
        for base in sorted(set(table.loc[table["step"] == 0, "value"])):
            axes.axhline(base, color="black", linestyle=":", linewidth=1.1)
        points = []
        for row in each(table):
            change = changes.get((row.run, task, row.step))
            shift = math.nan if change is None else row.value - change.difference
            low, high = (math.nan, math.nan) if change is None else (shift + change.low, shift + change.high)
            points.append((row.run, row.step, row.value, low, high))
        _curves(axes, frames, drawn, points, stored[stored["group"] == task], _accuracy_means(frames, task))
        percent(axes, "y")

    base = key(color="black", linestyle=":", linewidth=1.1)
    return small_multiples(frames, frames.priors, draw, "accuracy (%)", [(base, "base model")], share=False)


def _accuracy_means(frames: Frames, task: str) -> pd.DataFrame:
    """Accuracy of each arm, mean over its runs: that of the base, and its change with the seed table's interval."""
    rows = accuracy_rows(frames.measurements)
    base = rows[(rows["group"] == task) & (rows["step"] == 0) & (rows["status"] == "ok")].groupby("arm")["value"].mean()
    changes = frames.seeds[(frames.seeds["task"] == task) & frames.seeds["arm"].isin(base.index)]
    start = pd.DataFrame({"arm": base.index, "step": 0, "mean": 0.0})
    table = pd.concat([start, changes[["arm", "step", "mean", "low", "high"]]])
    level = table["arm"].map(base).astype(float)
    return pd.DataFrame(
        {"arm": table["arm"], "step": table["step"]}
        | {name: level + table[column] for name, column in (("value", "mean"), ("low", "low"), ("high", "high"))}
    )


def _curves(
    axes: Axes,
    frames: Frames,
    drawn: Mapping[str, Look],
    points: Sequence[tuple[str, int, float, float, float]],
    stored: pd.DataFrame,
    means: pd.DataFrame,
) -> None:
    """One line with error bars per run; where an arm has several, thin lines and their mean with its interval.

    Args:
        points: (run, step, value, low, high).
        stored: rows with run, step and status, to mark what failed; without a status nothing did.
        means: arm, step, value, low, high; drawn where an arm has several runs.
    """
    table = pd.DataFrame(points, columns=["run", "step", "value", "low", "high"]).sort_values("step", kind="stable")
    for run, look in drawn.items():
        own = table[table["run"] == run]
        if frames.repeated:
            axes.plot(own["step"], own["value"], color=look.colour, linewidth=0.7, alpha=0.5)
        else:
            bars(axes, frames, look, own["step"], own["value"], own["low"], own["high"])
        if "status" in stored:
            gaps(axes, frames, run, look, stored)
    if frames.repeated:
        first = frames.runs.drop_duplicates("arm").set_index("arm")["run"]
        for arm, own in means.sort_values("step", kind="stable").groupby("arm", sort=False):
            bars(axes, frames, drawn[first[arm]], own["step"], own["value"], own["low"], own["high"])


def norm_figure(frames: Frames) -> Figure:
    """Update norm against iteration with the random-walk law: its 95 % band, the alpha form and the sigma form."""
    with style():
        figure, (axes,) = panels(1, 1, 3.6)
        drawn = looks(frames)
        curves: set[tuple[str, tuple[tuple[float, float], ...]]] = set()
        forms = (("predicted_norm_alpha", (0, (1, 1.2)), 1.1), ("predicted_norm_sigma", (0, (6, 2)), 0.9))
        for run, look in drawn.items():
            measured = _weights(frames, run, "update_norm")
            law = _weights(frames, run, "predicted_norm")
            band = np.array([norm_band(v, sd) for v, sd in zip(law["value"], law["stderr"], strict=True)])
            axes.fill_between(law["step"], *band.reshape(-1, 2).T, color=look.colour, alpha=0.25, linewidth=0)
            axes.plot(law["step"], law["value"], color=look.colour, linestyle="-", linewidth=1.0)
            axes.plot(measured["step"], measured["value"], color=look.colour, marker=look.marker, linestyle="")
            for quantity, line, width in forms:
                form = _weights(frames, run, quantity)
                curve = tuple(zip(form["step"], form["value"].round(9), strict=True))
                # Arms with the same alpha, sigma and N have the same curve: draw it once.
                if curve and (quantity, curve) not in curves:
                    axes.plot(form["step"], form["value"], color="black", linestyle=line, linewidth=width, zorder=4)
                    curves.add((quantity, curve))
        axes.set_xlabel("iteration")
        axes.set_ylabel(r"update norm $\|\theta_t-\theta_0\|_2$")
        axes.set_ylim(bottom=0)
        whole_steps(axes, 6)
        labels = (r"$\alpha$ form, $\alpha\sqrt{dT/N}$", r"literal $\sigma$ form, $\sigma\sqrt{dT/N}$")
        extra: list[tuple[Any, str]] = [
            (key(color="black", linestyle=line, linewidth=width), label)
            for (_, line, width), label in zip(forms, labels, strict=True)
        ]
        solid = key(color=GREY, linewidth=1.0)
        dots = key(color=GREY, marker="o", linestyle="")
        extra = [(dots, "measured"), (solid, "random walk, as applied"), *extra]
        legend(figure, frames, drawn, extra)
        return figure


def kl_figure(frames: Frames) -> Figure:
    """Token-weighted KL(base || step) of every text set against iteration, with 95 % intervals over sequences."""
    rows = frames.rows("kl_base_to_step", probe="kl")
    stored = frames.rows("kl_base_to_step", probe="kl", ok=False)

    def draw(axes: Axes, group: str, drawn: Mapping[str, Look]) -> None:
        points = []
        for row in each(rows[rows["group"] == group]):
            half = row.stderr * t_quantile(row.n)
            points.append((row.run, row.step, row.value, row.value - half, row.value + half))
        table = rows[rows["group"] == group]
        means = []
        for (arm, step), part in table.groupby(["arm", "step"], sort=False):
            found = over_seeds(part["value"].tolist())
            low, high = (math.nan if end is None else end for end in (found.low, found.high))
            means.append((arm, step, found.mean, low, high))
        shown = pd.DataFrame(means, columns=["arm", "step", "value", "low", "high"])
        _curves(axes, frames, drawn, points, stored[stored["group"] == group], shown)

    groups = tuple(dict.fromkeys(rows["group"]))
    return small_multiples(frames, groups, draw, "KL(base ‖ step)\n(nats/token)", [], share=True)


def path_figure(frames: Frames) -> Figure:
    """Target accuracy against the average prior accuracy, each run's path coloured by iteration (LIT-238 Fig. 1).

    One panel per profile.
    """
    with style():
        shown = profiles(frames)
        figure, cells = panels(max(1, len(shown)), 1, 4.0 * max(1, len(shown)))
        drawn = looks(frames)
        steps = frames.prior_averages["step"]
        for axes, profile in zip(cells, shown, strict=True):
            table = frames.prior_averages[frames.prior_averages["profile"] == profile]
            for base in sorted(set(table.loc[table["step"] == 0, "prior_average"])):
                axes.axvline(base, color="black", linestyle=":", linewidth=1.1)
            norm, colours = iteration_bar(figure, axes, int(steps.max()) if len(steps) else 1)
            for run, look in drawn.items():
                own = table[table["run"] == run].sort_values("step", kind="stable")
                x, y = own["prior_average"], own["target_accuracy"]
                axes.plot(x, y, color=look.colour, linestyle=look.line, linewidth=1.0, zorder=2)
                axes.scatter(
                    x,
                    y,
                    c=own["step"],
                    cmap=colours,
                    norm=norm,
                    marker=look.marker,
                    s=42,
                    edgecolors=look.colour,
                    zorder=3,
                )
            axes.margins(0.08)
            axes.set_xlabel(f"accuracy, {average_name(frames, profile)} (%)")
            axes.set_ylabel("target accuracy (%)")
            percent(axes, "x")
            percent(axes, "y")
        legend(figure, frames, drawn, [(key(color="black", linestyle=":"), "base model")])
        return figure


def _weights(frames: Frames, run: str, quantity: str) -> pd.DataFrame:
    rows = frames.rows(quantity, probe="weights")
    return rows[(rows["run"] == run) & (rows["group"] == "all")].sort_values("step", kind="stable")
