"""How runs look in every figure: one colour and marker per arm, one line style per run of that arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.report.frames import Frames

# Okabe and Ito's palette without black (kept for the base) and yellow (too faint on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
GREY = "#555555"
WIDTH = 4.2
STYLE: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.hspace": 0.06,
    # Element ids in SVG come from this salt instead of a random one.
    "svg.hashsalt": "driftlab",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one run is drawn everywhere."""

    colour: str
    marker: str
    line: Any
    shift: float
    """Sideways shift as a share of the axis, so that error bars of different runs do not hide each other."""


def looks(frames: Frames) -> dict[str, Look]:
    """Colour and marker by arm, line style by run within the arm. Raises DriftlabError for more than six arms."""
    arms = list(dict.fromkeys(frames.runs["arm"]))
    if len(arms) > len(COLOURS):
        raise DriftlabError(f"a report draws at most {len(COLOURS)} arms, got {len(arms)}; report them in groups")
    seen = dict.fromkeys(arms, 0)
    found = {}
    # Where an arm has several runs only its mean has error bars.
    slots = arms if frames.repeated else list(frames.runs["run"])
    for run, arm in zip(frames.runs["run"], frames.runs["arm"], strict=True):
        index = arms.index(arm)
        place = slots.index(arm if frames.repeated else run) - (len(slots) - 1) / 2
        found[run] = Look(COLOURS[index], MARKERS[index], LINES[seen[arm] % len(LINES)], 0.006 * place)
        seen[arm] += 1
    return found
