"""The geometry of two solutions as tidy tables: every number with its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Geometry:
    """What was measured of two solutions A and B of one base model.

    Attributes:
        runs: A and B, described: ``label``, ``run_id``, ``arm``, ``seed``, ``trainer``, ``step``, ...
        settings: what was asked, defaults filled in.
        target: lm-eval name of the target task of A.
        tasks: measured tasks; empty where neither run measures any.
        shared_seeds: noise seeds that both were made with.
        missing: what could not be measured as a whole, and why.
        cosines, path, directions, kl, shares, norms, growth, sparsity: tidy tables; ``COLUMNS`` says what their
            columns mean. A table of which nothing was measured is empty.
    """

    runs: tuple[Mapping[str, Any], Mapping[str, Any]]
    settings: Mapping[str, Any]
    target: str
    tasks: tuple[str, ...]
    shared_seeds: int
    missing: tuple[tuple[str, str], ...]
    cosines: pd.DataFrame
    path: pd.DataFrame
    directions: pd.DataFrame
    kl: pd.DataFrame
    shares: pd.DataFrame
    norms: pd.DataFrame
    growth: pd.DataFrame
    sparsity: pd.DataFrame

    @property
    def labels(self) -> tuple[str, str]:
        return str(self.runs[0]["label"]), str(self.runs[1]["label"])

    @property
    def solutions(self) -> tuple[str, str]:
        """The labels with the letters that columns and axes use."""
        return f"A ({self.labels[0]})", f"B ({self.labels[1]})"


_PART = {
    "level": "all (the whole model), group (a layer group) or tensor",
    "name": "all, the layer group, or the tensor's canonical name; a tied tensor counts once",
    "d": "parameters",
}
_STATUS = {"status": "ok, skipped or failed; a number that does not exist is empty", "note": "why, or what to know"}
_ACCURACY = {
    "accuracy": "fraction of items right",
    "accuracy_low": "lower end of Wilson's 95 % interval",
    "accuracy_high": "upper end of Wilson's 95 % interval",
    "n": "items asked",
    "n_failed": "items without a finite score, which count as neither right nor wrong",
    **_STATUS,
}


def _paired(prefix: str, against: str, corrected: str) -> dict[str, str]:
    found = {
        prefix: f"accuracy minus that {against}, same items, fraction",
        f"{prefix}_stderr": "its standard error, clustered as the items are",
        f"{prefix}_low": "lower end of its 95 % interval, of this one comparison",
        f"{prefix}_high": "upper end of its 95 % interval, of this one comparison",
    }
    if corrected:
        found[f"{prefix}_low_corrected"] = f"lower end of its interval that holds with 95 % for {corrected} at once"
        found[f"{prefix}_high_corrected"] = f"upper end of its interval that holds with 95 % for {corrected} at once"
    return found


ABOUT: Mapping[str, str] = {
    "cosines": "Angle between the displacements of A and B from their base, in float64, beside random directions. The "
    "expectation for random directions holds whenever one of the two is one, whatever the other is.",
    "path": "Accuracy on the straight path (1 - s) A + s B, paired with both ends on the same items.",
    "directions": "Accuracy at base + distance * unit direction, for the displacement of A, of B, and one random one.",
    "kl": "KL(after || before) between consecutive stages of a run, whole vocabulary at each token, on texts that the "
    "later model wrote from prompts of each task.",
    "shares": "Squared norm of each displacement beside the random walk with the applied coefficients and anchor, and "
    "the part of it that steps add by agreeing with each other.",
    "norms": "Squared norm of the displacement at every measured step.",
    "growth": "Least-squares line through the squared norm against the step, and the effective dimension of LIT-235.",
    "sparsity": "Share of parameters changed by at most tau, and exactly unchanged, by layer and part.",
}
"""What each table holds."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "cosines": {
        **_PART,
        "norm_a": "L2 norm of the displacement of A",
        "norm_b": "L2 norm of the displacement of B",
        "cosine": "cosine between them",
        "angle": "angle between them, degrees",
        "random_mean": "expected cosine with a random direction",
        "random_sd": "standard deviation of the cosine with a random direction, 1/sqrt(d)",
        "random_abs": "expected absolute cosine with a random direction, Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))",
        "z": "cosine * sqrt(d); standard normal for a random direction and large d",
        **_STATUS,
    },
    "path": {
        "task": "lm-eval task",
        "s": "place on the path, 0 at A and 1 at B",
        **_ACCURACY,
        **_paired("minus_a", "of A", "all interior points, tasks and both ends"),
        **_paired("minus_b", "of B", "all interior points, tasks and both ends"),
        "verdict": "below or above: than both ends, by both corrected intervals; else not told apart; end at an end",
        "stored_differs": "at an end: items whose result is not the one stored in the run; empty where it stored none",
    },
    "directions": {
        "task": "lm-eval task",
        "direction": "label of the solution whose displacement it is, random, or base for the base itself",
        "distance": "signed L2 distance from the base",
        **_ACCURACY,
        **_paired("minus_base", "of the base", ""),
        **_paired("minus_random", "at the random direction's point of the same signed distance", "all of them"),
    },
    "kl": {
        "run": "label of the run",
        "before": "earlier step",
        "after": "later step, whose model wrote the texts",
        "task": "lm-eval task whose prompts begin the texts",
        "kl": "KL(after || before), nats per token",
        "kl_stderr": "standard error over texts",
        "n": "texts",
        "n_failed": "texts whose logits are not finite",
        **_STATUS,
    },
    "shares": {
        "run": "label of the run",
        "step": "updates applied",
        "d": "parameters",
        "squared_norm": "measured squared norm of the displacement",
        "predicted": "its expectation under the random walk",
        "predicted_sd": "its standard deviation under the random walk",
        "share": "predicted over squared_norm; above 1 where the walk expects more than was measured",
        "share_stderr": "predicted_sd carried over to the share",
        "excess": "squared_norm minus predicted, with the error predicted_sd: signal, rounding and chance",
        "cross_terms": "squared_norm minus the sum of squared step norms, 2 sum_(t<u) step_t . step_u",
        "cross_share": "cross_terms over squared_norm",
        "cross_walk_sd": "standard deviation of cross_terms under the random walk, whose mean is 0; no anchor only",
        **_STATUS,
    },
    "norms": {
        "run": "label of the run",
        "step": "updates applied",
        **_PART,
        "squared_norm": "squared norm of the displacement",
    },
    "growth": {
        "run": "label of the run",
        **_PART,
        "n": "points, the base at step 0 among them",
        "slope": "of the line, squared norm per step",
        "slope_stderr": "its standard deviation under the random walk, whose points share their past",
        "intercept": "of the line",
        "r_squared": "share of the spread of the squared norms that the line explains",
        "d_eff_fraction": "effective over whole dimension, slope * N / (alpha^2 d) (LIT-235)",
        "d_eff_fraction_stderr": "its standard deviation under the random walk",
        "d_eff_fraction_applied": "slope / (mean variance that an update gave to a coordinate * d)",
        "d_eff_fraction_applied_stderr": "its standard deviation under the random walk",
        **_STATUS,
    },
    "sparsity": {
        "run": "label of the run",
        "layer": "number of the layer, none outside layers, all for the whole model",
        "part": "Q, K, V, QKV (fused), O, MLP, norm, embedding, head, other, or all",
        "tensors": "tensors in it",
        "n": "parameters in it",
        "sparsity": "fraction of parameters changed by at most tau",
        "sparsity_tensor_mean": "unweighted mean of that fraction over tensors, as LIT-237 draws its average",
        "zero_fraction": "fraction of parameters exactly unchanged",
        "zero_fraction_tensor_mean": "unweighted mean of that fraction over tensors",
    },
}
"""Meaning and unit of every column, by table."""


def tidy(geometry: Geometry) -> dict[str, pd.DataFrame]:
    """Every table by name, its columns in the order of ``COLUMNS``."""
    return {name: getattr(geometry, name).reindex(columns=list(columns)) for name, columns in COLUMNS.items()}


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries, with None where there is no value."""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows
