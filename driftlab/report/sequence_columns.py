"""What the columns of a sequence's tables mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def _interval(what: str) -> str:
    return f"end of the 95 % interval of {what}: over items with one seed, over seeds and no narrower with several"


def _ends(name: str, meaning: str) -> dict[str, str]:
    return {name: meaning, f"{name}_low": f"lower {_interval(name)}", f"{name}_high": f"upper {_interval(name)}"}


ABOUT: Mapping[str, str] = {
    "matrix": "accuracy of every task at every checkpoint",
    "transfer": "what the stages did to the targets",
    "norms": "how far the weights went, seed by seed",
    "angles": "angles between the displacements of the stages",
    "per_seed": "accuracies seed by seed",
    "repeats": "the same weights scored twice",
}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "matrix": {
        "checkpoint": "0 is the base, i the end of stage i",
        "task": "lm-eval task",
        "target_of_stage": "stage that trained on it; empty for a prior task",
        **_ends("accuracy", "fraction of items right, mean over seeds"),
        **_ends("since_base", "paired change since the base, same items, fraction"),
        **_ends("over_stage", "paired change since the checkpoint before, same items, fraction"),
        "n": "items in every seed",
        "n_clusters": "independent groups of items",
        "status": "ok or not measured",
        "note": "why a number does not exist",
    },
    "per_seed": {
        "seed": "of the sequence",
        "checkpoint": "0 is the base, i the end of stage i",
        "task": "lm-eval task",
        "accuracy": "fraction of items right",
        "n": "items scored",
    },
    "transfer": {
        "stage": "that trained on the task; empty for the mean over tasks",
        "task": "lm-eval task, or mean",
        **_ends("learned", "R[j, j] - R[j-1, j]: change over the task's own stage, fraction"),
        **_ends("forward", "R[j-1, j] - R[0, j]: change before its own stage; none for the first target"),
        **_ends("backward", "R[K, j] - R[j, j]: change after its own stage; none for the last target; mean: BWT"),
        "forgetting": "largest R[i, j] over stages 1 <= i < K, minus R[K, j], fraction; biased upwards by noise",
        "best_stages": "the stage i of that largest accuracy, seed by seed",
    },
    "norms": {
        "seed": "of the sequence",
        "stage": "stage at whose end the norm is taken",
        "task": "target of the stage",
        "iterations": "of the stage",
        "norm": "L2 norm of theta after the stage minus theta of the original base, float64",
        "predicted": "that of a random walk with the coefficients and anchors applied in all stages up to here",
        "predicted_sd": "its standard deviation over the noise",
        "ratio": "norm / predicted",
        "alpha_form": "sqrt(sum of alpha^2 d T / N over the stages): z-scored rewards, no anchor",
        "increment": "L2 norm of theta after the stage minus theta before it",
        "increment_predicted": "random walk of this stage alone",
        "parameters": "d, a tied tensor once",
        "note": "why there is no prediction",
    },
    "angles": {
        "seed": "of the sequence",
        "first": "a stage",
        "second": "a later stage",
        "cosine": "of the displacements of the two stages; empty where one did not move",
        "angle": "in degrees",
        "random_sd": "1 / sqrt(d): standard deviation of a random direction's cosine, whose mean is 0",
        "z": "cosine / random_sd",
    },
    "repeats": {
        "seed": "of the sequence",
        "stage": "at whose end, and at the start of the next, the same weights were scored",
        "results": "items scored both times, all tasks",
        "differing": "of them, those that came out otherwise",
    },
}


_TEXTS = frozenset(("task", "status", "note", "best_stages"))
_MEASURES = ("accuracy", "since_base", "over_stage", "learned", "forward", "backward")
_NUMBERS = frozenset(f"{name}{end}" for name in _MEASURES for end in ("", "_low", "_high"))
_NUMBERS |= {"forgetting", "norm", "predicted", "predicted_sd", "ratio", "alpha_form", "increment"}
_NUMBERS |= {"increment_predicted", "cosine", "angle", "random_sd", "z"}


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows with exactly the columns of ``COLUMNS[name]``; what a row lacks is missing."""
    found = pd.DataFrame(rows, columns=list(COLUMNS[name]))
    kinds = {column: "float64" if column in _NUMBERS else "Int64" for column in found if column not in _TEXTS}
    return found.astype(kinds)
