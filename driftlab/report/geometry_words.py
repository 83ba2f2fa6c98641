"""What the geometry of two solutions says in words, never more than its intervals do."""

from __future__ import annotations

import math

import pandas as pd

from driftlab.report.formats import points
from driftlab.report.geometry_frames import Geometry, records
from driftlab.report.geometry_tables import largest_drop, number, whole

SCOPE = (
    "These are two checkpoints of two runs and one random direction: other seeds can give other numbers, and no "
    "interval here covers that. Intervals of accuracies are over items."
)


def sentences(geometry: Geometry) -> list[str]:
    """One sentence or two for every part that was measured."""
    found = [_cosine(geometry)]
    if not geometry.path.empty:
        found += [_path(geometry), *_stored(geometry)]
    if not geometry.directions.empty:
        found.append(_directions(geometry))
    return found + _walks(geometry) + _growth(geometry) + [_sparsity(geometry)]


def _cosine(geometry: Geometry) -> str:
    row, (a, b) = whole(geometry.cosines), geometry.solutions
    if row["cosine"] is None:
        return f"The displacements of {a} and {b} have no angle: one of the two is 0."
    text = (
        f"The displacements of {a} and {b} have norms {number(row['norm_a'])} and {number(row['norm_b'])} and the "
        f"cosine {number(row['cosine'])} ({number(row['angle'], '.1f')}°). A random direction among {row['d']:,} "
        f"dimensions has a cosine of 0 ± {number(row['random_sd'])}, and of {number(row['random_abs'])} in absolute "
        f"value on average; this one is {number(abs(row['z']), '.1f')} standard deviations from 0 (two-sided p "
        f"{number(math.erfc(abs(row['z']) / math.sqrt(2)), '.2g')})."
    )
    if geometry.shared_seeds:
        text += (
            f" The two share {geometry.shared_seeds:,} noise seeds, so they are not independent of each other: a "
            "cosine beyond that of random directions may come from the noise alone."
        )
    return text


def _path(geometry: Geometry) -> str:
    inner = geometry.path[geometry.path["verdict"] != "end"]
    count, tasks = inner["s"].nunique(), len(geometry.tasks)
    unknown = inner[inner["verdict"] == "not measured"]
    below, above = (inner[inner["verdict"] == word] for word in ("below", "above"))
    text = f"Straight path, {count} interior points of {tasks} task{'s' * (tasks > 1)}: "
    if below.empty:
        text += "no point was found below the lower of its two ends beyond its interval"
        drop = largest_drop(inner)
        if drop is not None:
            text += f"; the intervals leave open a drop of up to {points(drop, sign=False)} points"
    else:
        text += f"below both ends beyond the intervals, a barrier: {_places(below)}"
    text += "."
    if not above.empty:
        text += f" Above both ends: {_places(above)}."
    if not unknown.empty:
        text += f" {len(unknown)} points of {', '.join(dict.fromkeys(unknown['task']))} could not be compared."
    return text + " The intervals hold for all points, tasks and both ends at once."


def _places(rows: pd.DataFrame) -> str:
    listed = rows.groupby("task", sort=False)["s"].apply(lambda s: ", ".join(f"{value:.3g}" for value in s))
    return "; ".join(f"{task} at s = {places}" for task, places in listed.items())


def _stored(geometry: Geometry) -> list[str]:
    ends = geometry.path[geometry.path["stored_differs"].notna()]
    if ends.empty:
        return []
    differing, n = int(ends["stored_differs"].sum()), int((ends["n"] - ends["n_failed"]).sum())
    if not differing:
        return [f"At the ends all {n:,} results are those that the runs stored."]
    return [f"At the ends {differing} of {n:,} results are not those that the runs stored."]


def _directions(geometry: Geometry) -> str:
    table, parts = geometry.directions, []
    for label in geometry.labels:
        for what, chosen in (
            ("the target", table["task"] == geometry.target),
            ("the prior tasks", table["task"] != geometry.target),
        ):
            own = table[chosen & (table["direction"] == label) & table["minus_random_low_corrected"].notna()]
            if len(own):
                counts = [_against_random(own[(own["distance"] > 0) == forward]) for forward in (True, False)]
                parts.append(f"{label}, {what}: forward {counts[0]}, backward {counts[1]}")
    if not parts:
        return "Along the displacements nothing could be compared with the random direction."
    return (
        "Against the random direction at the same signed distance, by intervals that hold for all such points at once: "
        f"{'; '.join(parts)}. A point that is neither is not thereby shown to be equal."
    )


def _against_random(rows: pd.DataFrame) -> str:
    below = int((rows["minus_random_high_corrected"].astype(float) < 0).sum())
    above = int((rows["minus_random_low_corrected"].astype(float) > 0).sum())
    return f"{below} below and {above} above of {len(rows)}"


def _walks(geometry: Geometry) -> list[str]:
    found = []
    for row in records(geometry.shares):
        if row["share"] is not None:
            sds = row["excess"] / row["predicted_sd"] if row["predicted_sd"] else None
            text = (
                f"{row['run']}: the random walk with the applied coefficients expects "
                f"{100 * row['share']:.2f} ± {100 * row['share_stderr']:.2f} % of the squared norm"
            )
            text += (
                "."
                if sds is None
                else f"; measured minus expected is {number(sds, '.1f')} standard deviations of that walk."
            )
            found.append(text)
        else:
            found.append(f"{row['run']}: no share of a random walk: {row['note']}.")
    return found


def _growth(geometry: Geometry) -> list[str]:
    found = []
    for row in records(geometry.growth[geometry.growth["level"] == "all"]):
        if row["d_eff_fraction"] is None:
            continue
        found.append(
            f"{row['run']}: the squared norm grows along a line with R² = {number(row['r_squared'], '.5f')} over "
            f"{row['n']} points, whose slope makes d_eff / d = {number(row['d_eff_fraction'])} ± "
            f"{number(row['d_eff_fraction_stderr'], '.2g')}."
        )
    return found


def _sparsity(geometry: Geometry) -> str:
    whole_model = geometry.sparsity[(geometry.sparsity["layer"] == "all") & (geometry.sparsity["part"] == "all")]
    parts = [
        f"{row['run']} {100 * row['sparsity']:.2f} % ({100 * row['zero_fraction']:.2f} % exactly 0)"
        for row in records(whole_model)
    ]
    return f"Changed by at most {geometry.settings['tau']:g}: {'; '.join(parts)} of all parameters."
