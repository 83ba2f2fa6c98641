"""A pilot in words, and as a file that holds every number with its unit and interval."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from driftlab import __version__
from driftlab.drift.projection import Projection, Refusal
from driftlab.errors import DriftlabError
from driftlab.pilot.project import Pilot, Quantity

FORMAT = 1
"""Version of the file, under the key ``pilot``."""

NOTES = (
    "Intervals are of 95 %, by Student's t: of one iteration those of its mean, of totals those of a sum of iterations "
    "still to be run. Iterations count as independent draws from one law; answers that grow longer while the model "
    "learns, or another load on the machine, are outside them. No spread: all iterations of the pilot were alike. What "
    "was seen once has no interval.",
)
SCORE_NOTES = (
    "The reward of an iteration is that of its rollouts, drawn before its update. The step is where a straight line "
    "crosses the score, with Fieller's interval, which takes the errors around the line as independent, normal and of "
    "one size. Iterations of one run follow one path, those of ES on one batch too; where their errors are correlated "
    "the interval is too narrow: at 0.5 between neighbours, 95 % are 85 % of 5 iterations and 74 % of 20.",
    "Rewards approach a bound, and a short pilot does not show it: then the line is too early. The second interval "
    "allows every parabola that the pilot does not exclude, up to one pilot length beyond its end. The "
    "intervals of the totals follow the line.",
    "No line is drawn with fewer than 4 iterations, through a bend, with a slope not told from 0 at 97.5 %, nor "
    "further above its end than it rose in the pilot: one pilot length on, a bend too small to be seen counts 13 times "
    "as much as at the pilot's ends, two lengths on 37 times.",
    "Totals up to a score take step and iteration at 97.5 % each, so that both hold in 95 % (Bonferroni).",
)

_SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "s": (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)),
    "bytes": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
    "FLOP": (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)),
}


def shown(quantity: Quantity) -> tuple[str, str]:
    """Value and interval in the unit that suits the value's size."""
    factor, unit = (3600.0, "s") if quantity.unit == "h" else (1.0, quantity.unit)
    value = factor * quantity.value
    scales = _SCALES.get(unit, ((unit, 1.0),))
    name, scale = next((one for one in scales if abs(value) >= one[1]), scales[-1])
    if quantity.low is None or quantity.high is None:
        interval = "none, seen once"
    elif quantity.low == quantity.high:
        interval = "no spread"
    else:
        interval = f"[{_digits(factor * quantity.low / scale)}, {_digits(factor * quantity.high / scale)}]"
    return f"{_digits(value / scale)} {name}".rstrip(), interval


def sentences(pilot: Pilot) -> list[str]:
    """What the tables leave out: where the projection ends, what was not measured, what became of a score."""
    found = [f"Projected to step {pilot.goal.step}, {pilot.goal.words}, from {pilot.iterations} iterations."]
    if isinstance(pilot.rollout, str):
        found.append(f"Concurrency is not measured: {pilot.rollout}.")
    if isinstance(pilot.score, Refusal):
        found.append(f"No step is given for the score: {pilot.score.reason}.")
    elif isinstance(pilot.score, Projection):
        step, bent, slope, scatter = _score(pilot.score)
        end = "no end" if bent.high is None else f"{bent.high:.0f}"
        found.append(
            f"The score is reached at iteration {step.value:.0f} [{step.low:.0f}, {step.high:.0f}] if a straight line "
            f"through the {pilot.score.n} iterations goes on: {slope.value:.3g} per iteration [{slope.low:.3g}, "
            f"{slope.high:.3g}], scatter {scatter.value:.2g}. A bend that the pilot does not exclude would move it to "
            f"[{bent.low:.0f}, {end}]; the totals hold for the line."
        )
    return found


def document(pilots: Sequence[Pilot], name: str) -> dict[str, Any]:
    """Plain JSON types; ``name`` is the spec's."""
    scored = any(pilot.score is not None for pilot in pilots)
    return {
        "pilot": FORMAT,
        "driftlab": __version__,
        "spec": name,
        "arms": [_arm(pilot) for pilot in pilots],
        "notes": [*NOTES, *(SCORE_NOTES if scored else ())],
    }


def check_file(file: Path) -> None:
    """Raises DriftlabError when ``file`` cannot be written, or holds something that is no pilot's."""
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise DriftlabError(f"{file} cannot be written below {folder}; choose another file with --out")
    if not file.exists():
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or "pilot" not in found:
        raise DriftlabError(f"{file} exists and is no pilot's file; choose another file with --out")


def write(content: dict[str, Any], file: Path) -> None:
    """Beside it first, so that a file is never half there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.part-{os.getpid()}")
    try:
        fresh.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def _arm(pilot: Pilot) -> dict[str, Any]:
    missing = pilot.rollout if isinstance(pilot.rollout, str) else None
    score: dict[str, Any] | None = None
    if isinstance(pilot.score, Refusal):
        score = {"status": "refused", "note": pilot.score.reason, "quantities": []}
    elif isinstance(pilot.score, Projection):
        score = {"status": "ok", "note": None, "quantities": [asdict(one) for one in _score(pilot.score)]}
    rollout = [] if isinstance(pilot.rollout, str) else [asdict(one) for one in pilot.rollout]
    return {
        "arm": pilot.arm,
        "trainer": pilot.trainer,
        "iterations": pilot.iterations,
        "rewards": {"unit": "mean reward", "values": list(pilot.rewards)},
        "rollout": {"status": "ok" if missing is None else "skipped", "note": missing, "quantities": rollout},
        "iteration": [asdict(one) for one in pilot.iteration],
        "score": score,
        "projected": {"to": asdict(pilot.goal), "quantities": [asdict(one) for one in pilot.projected]},
    }


def _score(found: Projection) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    """Step by the line and by a parabola, slope and scatter; steps are the first whole ones."""

    def whole(name: str, low: float, high: float | None, note: str) -> Quantity:
        step, first = (float(max(1, math.ceil(end))) for end in (found.step, low))
        last = None if high is None else float(math.ceil(high))
        return Quantity(name=name, value=step, low=first, high=last, unit="iteration", n=found.n, note=note)

    open_end = "the pilot sets no upper end" if found.bent_high is None else ""
    return (
        whole("step", found.low, found.high, "if the line goes on straight"),
        whole("step, bent", found.bent_low, found.bent_high, "; ".join(filter(None, ("a bend allowed", open_end)))),
        Quantity(
            name="slope",
            value=found.slope,
            low=found.slope_low,
            high=found.slope_high,
            unit="mean reward per iteration",
            n=found.n,
        ),
        Quantity(name="scatter", value=found.scatter, low=None, high=None, unit="mean reward", n=found.n),
    )


def _digits(value: float) -> str:
    """Three digits, whole numbers in full."""
    if abs(value) >= 1000 or value == 0:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")
