"""Figures of the reproductions: emulated, exact and published norms, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftlab.drift.emulator import WalkCurve
from driftlab.published.comparison import NOTABLE, Compared
from driftlab.report import plots
from driftlab.report.looks import COLOURS, GREY, MARKERS


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One run of a norm figure: its emulated curve, and the rows of its published points."""

    run: str
    curve: WalkCurve
    rows: Sequence[Compared]


def norm_figure(runs: Sequence[Drawn], *, exact_below: bool) -> tuple[bytes, bytes]:
    """PNG and SVG: norm against iteration, and below it the difference from what was published, in percent.

    Args:
        exact_below: draw the difference of exact arithmetic too, open markers; leave it out where it would dwarf the
            other.
    """
    with plots.style():
        figure, (above, below) = plots.panels(2, 1, 5.4, sharex=True)
        for index, run in enumerate(runs):
            colour, marker = COLOURS[index], MARKERS[index]
            steps = [0, *run.curve.steps]
            above.plot(steps, [0.0, *run.curve.norm], color=colour)
            law = [value for value in run.curve.law if value is not None]
            if len(law) == len(run.curve.law):
                above.plot(steps, [0.0, *law], color=colour, linestyle=(0, (4, 2)), linewidth=0.9)
            rows = [row for row in run.rows if row.published is not None and row.published > 0.0]
            x = [row.step for row in rows]
            above.errorbar(
                x, [row.published or 0.0 for row in rows], yerr=[row.error for row in rows],
                color=colour, marker=marker, linestyle="", capsize=1.5, elinewidth=0.9,
            )  # fmt: skip
            shift = 4.0 * (index - (len(runs) - 1) / 2)
            below.errorbar(
                [step + shift for step in x], [100 * (row.difference or 0.0) for row in rows],
                yerr=[100 * (row.difference_error or 0.0) for row in rows],
                color=colour, marker=marker, linestyle="", capsize=1.5, elinewidth=0.9,
            )  # fmt: skip
            if exact_below:
                off = [100 * (row.exact_difference or 0.0) for row in rows]
                below.plot(x, off, color=colour, marker=marker, markerfacecolor="white", linestyle="")
        above.set_ylabel("update norm")
        above.set_ylim(bottom=0.0)
        below.axhline(0.0, color=GREY, linewidth=0.9)
        for edge in (-100 * NOTABLE, 100 * NOTABLE):
            below.axhline(edge, color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
        below.set_ylabel("off by, %")
        below.set_xlabel("iteration")
        entries = [
            (plots.key(color=COLOURS[index], marker=MARKERS[index], linestyle=""), run.run)
            for index, run in enumerate(runs)
        ]
        entries += [
            (plots.key(color=GREY), "emulated"),
            (plots.key(color=GREY, linestyle=(0, (4, 2)), linewidth=0.9), "exact arithmetic"),
            (plots.key(color=GREY, marker="o", linestyle=""), "published"),
        ]
        if exact_below:
            entries.append((plots.key(color=GREY, marker="o", markerfacecolor="white", linestyle=""), "exact, off by"))
        handles, labels = zip(*entries, strict=True)
        figure.legend(list(handles), list(labels), loc="outside lower center", ncols=2)
        return plots.save(figure)


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One penalty of the lambda figure; all sequences in the order of ``lam``, ascending."""

    penalty: str
    lam: Sequence[float]
    emulated: Sequence[float]
    exact: Sequence[float]
    target: Sequence[float]
    prior: Sequence[float]
    published: Sequence[tuple[float, float]]


def response_figure(responses: Sequence[Response], without: tuple[float, float, float]) -> tuple[bytes, bytes]:
    """PNG and SVG: above the norm against lambda, below the published accuracies at the same lambda.

    Args:
        without: emulated norm, target accuracy and prior average at lambda 0, drawn as level lines.
    """
    with plots.style():
        figure, cells = plots.panels(2, len(responses), 4.6)
        norms, accuracies = cells[: len(responses)], cells[len(responses) :]
        for response, above, below in zip(responses, norms, accuracies, strict=True):
            above.axhline(without[0], color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
            above.plot(response.lam, response.emulated, color=COLOURS[0], marker=MARKERS[0])
            above.plot(response.lam, response.exact, color=COLOURS[0], linestyle=(0, (4, 2)), linewidth=0.9)
            above.plot(*zip(*response.published, strict=True), color=GREY, marker="x", markersize=7, linestyle="")
            below.axhline(without[1], color=COLOURS[1], linewidth=0.9, linestyle=(0, (1, 1)))
            below.axhline(without[2], color=COLOURS[2], linewidth=0.9, linestyle=(0, (1, 1)))
            below.plot(response.lam, response.target, color=COLOURS[1], marker=MARKERS[1])
            below.plot(response.lam, response.prior, color=COLOURS[2], marker=MARKERS[2])
            above.set_title(response.penalty.upper(), loc="left")
            below.set_xlabel("lambda")
            above.set_ylim(0.0, 1.1 * without[0])
            below.set_ylim(40.0, 70.0)
            for axes in (above, below):
                axes.set_xscale("log")
        norms[0].set_ylabel("update norm")
        accuracies[0].set_ylabel("accuracy, %")
        entries = (
            (plots.key(color=COLOURS[0], marker=MARKERS[0]), "norm, emulated"),
            (plots.key(color=COLOURS[0], linestyle=(0, (4, 2)), linewidth=0.9), "norm, exact arithmetic"),
            (plots.key(color=COLOURS[1], marker=MARKERS[1]), "target, published"),
            (plots.key(color=COLOURS[2], marker=MARKERS[2]), "prior average, published"),
            (plots.key(color=GREY, marker="x", markersize=7, linestyle=""), "norm, published"),
            (plots.key(color=GREY, linestyle=(0, (1, 1)), linewidth=0.9), "lambda 0"),
        )
        handles, labels = zip(*entries, strict=True)
        figure.legend(list(handles), list(labels), loc="outside lower center", ncols=2)
        return plots.save(figure)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a law of the differences makes of true norms, ascending, when squared in float16."""

    law: str
    norm: Sequence[float]
    reads: Sequence[float]


def reading_figure(
    run: Drawn, readings: Sequence[Reading], read: float, others: tuple[float, float]
) -> tuple[bytes, bytes]:
    """PNG and SVG: above the ES norm against iteration, below the float16 reading against the true norm.

    Args:
        read: the published float16 reading.
        others: range of GRPO norms that other papers measured.
    """
    with plots.style():
        figure, (above, below) = plots.panels(2, 1, 5.6)
        rows = [row for row in run.rows if row.published]
        above.plot([0, *run.curve.steps], [0.0, *run.curve.norm], color=COLOURS[0])
        law = [0.0, *(value or 0.0 for value in run.curve.law)]
        above.plot([0, *run.curve.steps], law, color=COLOURS[0], linestyle=(0, (4, 2)), linewidth=0.9)
        above.errorbar(
            [row.step for row in rows], [row.published or 0.0 for row in rows], yerr=[row.error for row in rows],
            color=GREY, marker=MARKERS[0], linestyle="", capsize=1.5, elinewidth=0.9,
        )  # fmt: skip
        above.set_ylim(bottom=0.0)
        above.set_xlabel("iteration")
        above.set_ylabel("ES update norm")
        below.axvspan(*others, color="#e6e6e6")
        below.axhline(read, color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
        for index, reading in enumerate(readings, start=1):
            below.plot(reading.norm, reading.reads, color=COLOURS[index])
        below.plot(readings[0].norm, readings[0].norm, color=GREY, linewidth=0.9)
        below.set_xscale("log")
        below.set_yscale("log")
        below.set_ylim(0.01, 10.0)
        below.set_xlabel("true GRPO norm")
        below.set_ylabel("read in float16")
        entries = [
            (plots.key(color=COLOURS[0]), "ES, emulated"),
            (plots.key(color=COLOURS[0], linestyle=(0, (4, 2)), linewidth=0.9), "ES, exact arithmetic"),
            (plots.key(color=GREY, marker=MARKERS[0], linestyle=""), "ES, published"),
            *((plots.key(color=COLOURS[i]), reading.law) for i, reading in enumerate(readings, start=1)),
            (plots.key(color=GREY, linestyle=(0, (1, 1)), linewidth=0.9), f"published: {read:g}"),
            (plots.key(color=GREY, linewidth=0.9), "read as it is"),
            (plots.key(color="#e6e6e6", linewidth=6), "measured elsewhere"),
        ]
        handles, labels = zip(*entries, strict=True)
        figure.legend(list(handles), list(labels), loc="outside lower center", ncols=2)
        return plots.save(figure)
