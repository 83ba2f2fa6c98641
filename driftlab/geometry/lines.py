"""Accuracy along lines in weight space: from one solution to the other, and from the base in either direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from driftlab.drift import geometry as maths
from driftlab.drift.stats import proportion_interval
from driftlab.es.noise import private_generator
from driftlab.geometry.runs import Side
from driftlab.geometry.scoring import Answers, Scorer, Weights, by_item, change, compared

Tell = Callable[[float], None]
LEVEL = 0.95
RANDOM = "random"
"""Name of the random direction."""
FRACTIONS = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Default distances from the base, as multiples of either displacement's norm."""


def path_table(sides: Sequence[Side], ends: Sequence[Weights], scorer: Scorer, points: int, tell: Tell) -> pd.DataFrame:
    """Rows per task and point of the straight path (1 - s) A + s B, both ends included, paired with both ends.

    Each change has its own 95 % interval and one corrected (Bonferroni) for every interior point, task and end. A
    point is ``below`` or ``above`` both ends where both corrected intervals say so; else it is ``not told apart``. At
    the ends ``stored_differs`` counts items whose result is not the one that the run stored.
    """
    places = np.linspace(0.0, 1.0, points).tolist()
    arrays = [_arrays(weights) for weights in ends]
    found: list[dict[str, Answers]] = []
    for number, s in enumerate(places):
        found.append(scorer.at(_tensors(maths.straight(arrays[0], arrays[1], s))))
        tell((number + 1) / points)
    level = _corrected(2 * (points - 2) * len(scorer.tasks))
    rows = []
    for task in scorer.tasks:
        first, last = found[0][task], found[-1][task]
        for s, at in zip(places, found, strict=True):
            interior = 0.0 < s < 1.0
            row: dict[str, Any] = {"task": task, "s": s, **_accuracy(at[task])}
            pairs = [(change(end, at[task], LEVEL), change(end, at[task], level)) for end in (first, last)]
            for end, (plain, corrected) in zip("ab", pairs, strict=True):
                row |= compared(f"minus_{end}", plain, corrected if interior else None)
            row["verdict"] = _against_both([pair[1] for pair in pairs]) if interior else "end"
            row["stored_differs"] = None if interior else _unlike_stored(sides[0 if s == 0.0 else 1], task, at[task])
            rows.append(row)
    return pd.DataFrame(rows)


def _against_both(found: Sequence[Any]) -> str:
    if any(one is None or one.low is None for one in found):
        return "not measured"
    if all(one.high < 0 for one in found):
        return "below"
    return "above" if all(one.low > 0 for one in found) else "not told apart"


def _unlike_stored(side: Side, task: str, answers: Answers) -> int | None:
    """Items of ``answers`` whose result is not the stored one; None where the run did not measure this step."""
    stored = by_item(side.stored(task))
    if not stored or not answers.items:
        return None
    return sum(item not in stored or stored[item].correct != one.correct for item, one in answers.items.items())


def direction_table(
    labels: Sequence[str],
    base: Weights,
    ends: Sequence[Weights],
    norms: Sequence[float],
    scorer: Scorer,
    distances: Sequence[float],
    seed: int,
    tell: Tell,
) -> pd.DataFrame:
    """Rows per task, direction, sign and distance from the base: theta_0 + sign r u, u a unit vector.

    Directions are the displacements of the two solutions, where they are not 0, and ``random``, Gaussian noise of
    generators keyed by ``seed`` and tensor name. Each point is paired with the base, and with the random direction at
    the same signed distance; the latter's intervals also come corrected (Bonferroni) for all such comparisons.
    """
    start = _arrays(base)
    noise = {
        name: private_generator(f"geometry direction:{seed}:{name}").standard_normal(values.shape, dtype=np.float32)
        for name, values in start.items()
    }
    length = float(np.sqrt(sum(float(np.square(v, dtype=np.float64).sum()) for v in noise.values())))
    toward = {label: _arrays(end) for label, end, norm in zip(labels, ends, norms, strict=True) if norm > 0}
    scale = dict(zip(labels, norms, strict=True))
    signed = [sign * r for r in distances for sign in (1, -1)]
    origin, total = scorer.at(base), len(signed) * (1 + len(toward))
    found: dict[tuple[str, float], dict[str, Answers]] = {}
    for at in signed:
        points = {RANDOM: maths.shifted(start, noise, at / length)} if distances else {}
        for label in (RANDOM, *toward):
            point = points.get(label) or maths.straight(start, toward[label], at / scale[label])
            found[label, at] = scorer.at(_tensors(point))
            tell(len(found) / total)
    level = _corrected(len(toward) * len(signed) * len(scorer.tasks))
    rows = []
    for task in scorer.tasks:
        rows.append({"task": task, "direction": "base", "distance": 0.0, **_accuracy(origin[task])})
        for (label, at), answers in found.items():
            row: dict[str, Any] = {"task": task, "direction": label, "distance": at, **_accuracy(answers[task])}
            row |= _once("minus_base", change(origin[task], answers[task], LEVEL))
            if label != RANDOM:
                other = found[RANDOM, at][task]
                pair = [change(other, answers[task], one) for one in (LEVEL, level)]
                row |= compared("minus_random", pair[0], pair[1])
            rows.append(row)
    return pd.DataFrame(rows)


def default_distances(norms: Sequence[float]) -> tuple[float, ...]:
    """``FRACTIONS`` of either norm, ascending, each once; none where nothing moved."""
    return tuple(sorted({fraction * norm for norm in norms if norm > 0 for fraction in FRACTIONS}))


def _once(prefix: str, found: Any) -> dict[str, Any]:
    return {key: value for key, value in compared(prefix, found, None).items() if not key.endswith("_corrected")}


def _accuracy(answers: Answers) -> dict[str, Any]:
    """Accuracy as a fraction with Wilson's interval; items that share a cluster make it wider than it says."""
    value, scored = answers.accuracy, len(answers.items)
    ends = None if value is None else proportion_interval(value * scored, scored)
    return {
        "accuracy": value,
        "accuracy_low": None if ends is None else ends.low,
        "accuracy_high": None if ends is None else ends.high,
        "n": answers.asked,
        "n_failed": answers.asked - scored,
        "status": "failed" if value is None else "ok",
        "note": answers.note,
    }


def _corrected(comparisons: int) -> float:
    return 1.0 - (1.0 - LEVEL) / max(comparisons, 1)


def _arrays(weights: Weights) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}
