"""LIT-237, figure of the Frobenius norm: the ES curve from a walk, and what its float16 squares make of GRPO's norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from driftlab.drift.rounding import LAWS, VANISHING, consistent_norm, kept_share, read_norm
from driftlab.published.comparison import (
    Compared,
    Planned,
    Progress,
    Reproduction,
    Settings,
    beside,
    compared,
    data_of,
    emulate_all,
    most_room,
    norm_table,
    notable,
    number,
    percent,
)
from driftlab.published.data import Source, source, table
from driftlab.published.drawings import Drawn, Reading, reading_figure
from driftlab.published.variations import (
    INTRODUCTION,
    Change,
    choices_table,
    master,
    other_weights,
    restored,
    rule,
    varied,
)
from driftlab.report.formats import Table

RUN = "ES(30)"
NAMES = {"normal": "normal", "laplace": "Laplace", "student-t3": "Student's t(3)"}
_RMS = (1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3)

_CHANGES: dict[str, Change] = {
    "sum over members, added once": rule("accumulate"),
    "step in float32, rounded once": rule("single"),
    "10 members on the master itself": restored(10),
    "every member on the master itself": restored(30),
    "bfloat16 in place of float16": master("bfloat16"),
    **other_weights(),
}


def reproduce(settings: Settings, progress: Progress) -> Reproduction:
    """Ten ES norms (LIT-237, Fig. 3; the eleventh, step 0, is 0 by definition) and the reading of the GRPO norm.

    Raises:
        SpecError, DriftlabError: as ``Settings`` and ``driftlab.published.data``.
    """
    origin = source("lit237_trajectory")
    points = table("lit237_trajectory")
    last = int(points["iteration"].max())
    plan = {RUN: _planned(origin)}
    curves = emulate_all(plan | varied(plan, _CHANGES, last), settings, progress)
    rows = [
        beside(
            compared(RUN, curves[RUN], int(step), plan[RUN], settings),
            norm,
            origin.error["es_update_norm"],
            "digitised",
        )
        for step, norm in points[["iteration", "es_update_norm"]].itertuples(index=False, name=None)
        if step > 0
    ]
    once = math.sqrt(origin.protocol.parameters / origin.protocol.counted)
    choices = choices_table(rows[-1:], list(_CHANGES), curves, once)
    readings, shares = _reading_table(origin), _share_table()
    png, svg = _figure(origin, Drawn(run=RUN, curve=curves[RUN], rows=rows))
    return Reproduction(
        name="lit237-fig3",
        title="LIT-237, Frobenius norm: ES and GRPO on Qwen2.5-1.5B-Instruct",
        summary=(*_es_summary(rows, once), _grpo_summary(origin)),
        tables=(
            ("", norm_table("norms", "Update norm of ES", rows, "driftlab/published/lit237_trajectory.csv")),
            (INTRODUCTION, choices),
            (_READING_INTRO, readings),
            ("", shares),
        ),
        caption="Above: ES, the emulated line, exact arithmetic dashed, published with its reading error of ±0.5. "
        "Below: what a true GRPO norm reads when differences are squared in float16, by the law of the differences; "
        "dotted the published reading, shaded what two other papers measured for GRPO elsewhere.",
        png=png,
        svg=svg,
        choices=_choices(origin, settings),
        differences=_differences(rows),
        missing=(
            "GRPO's true norm: it needs the checkpoints or training. The table of consistent norms is a reading of the "
            "arithmetic, not a measurement.",
            "Accuracies, KL, sparsity.",
        ),
        sources=(origin.sentence, source("lit237_grpo_norm").sentence),
        values=pd.concat([data_of(rows), choices.data, readings.data, shares.data], ignore_index=True),
    )


_READING_INTRO = (
    "The authors' code takes differences in float16, squares them in float16 and sums the squares. The smallest "
    "positive float16 number is 2^−24; a square below half of it is 0, so every difference up to 2^−12.5 = "
    f"{VANISHING:.3g} drops out. Which true norm reads as published depends on how the differences are distributed; "
    "three laws of zero mean, from light to heavy tails, over all counted parameters. A reading of the arithmetic, "
    "not a re-measurement."
)


def _planned(origin: Source) -> Planned:
    walk = origin.protocol.walk(in_place_members=0)
    return Planned(walk=walk, d=origin.protocol.counted, at=tuple(range(25, walk.steps + 1, 25)))


def _reading_table(origin: Source) -> Table:
    """True norms that read as published, at every published step."""
    points, d = table("lit237_grpo_norm"), origin.protocol.counted
    points = points[points["update_norm"] > 0]
    rows, data = [], []
    for step, value in points[["iteration", "update_norm"]].itertuples(index=False, name=None):
        norms = [consistent_norm(law, value, d) for law in LAWS]
        rows.append((str(step), f"{value:g}", *(number(norm) for norm in norms)))
        data += [
            {"run": "GRPO", "step": step, "published": value, "law": law, "consistent_norm": norm}
            for law, norm in zip(LAWS, norms, strict=True)
        ]
    columns = ("step", "read in float16", *(NAMES[law] for law in LAWS))
    title = "GRPO: true norms that read as published, if the differences follow"
    return Table(name="readings", title=title, columns=columns, rows=tuple(rows), data=pd.DataFrame(data), source="")


def _share_table() -> Table:
    shares = [[kept_share(law, rms) for law in LAWS] for rms in _RMS]
    rows = tuple(
        (f"{rms:g}", *(f"{100 * share:.1f} %" for share in found)) for rms, found in zip(_RMS, shares, strict=True)
    )
    data = pd.DataFrame(
        [
            {"law": law, "rms": rms, "kept_share": share}
            for rms, found in zip(_RMS, shares, strict=True)
            for law, share in zip(LAWS, found, strict=True)
        ]
    )
    columns = ("root mean square", *(NAMES[law] for law in LAWS))
    title = "Share of a true norm that squaring in float16 keeps"
    return Table(name="shares", title=title, columns=columns, rows=rows, data=data, source="")


def _figure(origin: Source, drawn: Drawn) -> tuple[bytes, bytes]:
    d = origin.protocol.counted
    norms = np.geomspace(0.1, 10.0, 41).tolist()
    readings = [Reading(law=NAMES[law], norm=norms, reads=[read_norm(law, norm, d) for norm in norms]) for law in LAWS]
    return reading_figure(drawn, readings, _grpo_reading(), _elsewhere())


def _grpo_reading() -> float:
    return float(table("lit237_grpo_norm")["update_norm"].iloc[-1])


def _elsewhere() -> tuple[float, float]:
    """Smallest and largest GRPO norm that LIT-235 and LIT-238 measured, on other models and tasks."""
    fig6 = table("lit238_fig6_update_norm")
    found = [*table("lit235_table3_norm")["grpo_norm"], *fig6.loc[fig6["arm"] == "GRPO", "update_norm"]]
    return float(min(found)), float(max(found))


def _es_summary(rows: Sequence[Compared], once: float) -> tuple[str, ...]:
    ours = [row.difference or 0.0 for row in rows]
    exact = [row.exact_difference or 0.0 for row in rows]
    return (
        "ES: a walk without rewards, emulated in float16, gives the ten published norms after step 0 to between "
        f"{percent(min(ours))} and {percent(max(ours))}; exact arithmetic to between {percent(min(exact))} and "
        f"{percent(max(exact))}. Both count the tied embedding twice; counted once, all change by {percent(once - 1)}.",
    )


def _grpo_summary(origin: Source) -> str:
    reading = _grpo_reading()
    norms = [consistent_norm(law, reading, origin.protocol.counted) for law in LAWS]
    low, high = _elsewhere()
    return (
        f"GRPO: the published {reading:g} was squared in float16, which drops every difference up to {VANISHING:.3g}. "
        f"True norms from {number(min(norms))} to {number(max(norms))} read so, depending on how the differences are "
        f"distributed; other papers measured {low:.2f} to {high:.2f} for GRPO. ES's own norms lose at most "
        f"{_es_loss(origin)}, so the published ratio of about 1000 compares a norm with a part of one."
    )


def _es_loss(origin: Source) -> str:
    """Largest share that float16 squaring takes from the published ES norms, whose differences are normal."""
    points = table("lit237_trajectory")
    norms = points.loc[points["es_update_norm"] > 0, "es_update_norm"]
    lost = max(1.0 - kept_share("normal", norm / math.sqrt(origin.protocol.counted)) for norm in norms)
    return f"{100 * lost:.2g} %"


def _choices(origin: Source, settings: Settings) -> tuple[str, ...]:
    protocol = origin.protocol
    return (
        "Number format: float16, one member after the other added to the weights (`members`), as in the authors' code: "
        f"{protocol.population} roundings a step lengthen the walk.",
        "Restoring: the number of members perturbed on the master itself is not published; none here, and the table "
        "shows others.",
        f"Tied embedding counted twice: {protocol.parameters:,} + {protocol.counted - protocol.parameters:,} "
        "parameters, because a state dictionary lists it again as the output head.",
        f"Weights: independent normal numbers of standard deviation {settings.weight_std:g}, assumed.",
        f"GRPO's reading: {protocol.counted:,} differences with one and the same law. Real layers differ, and weights "
        "stored in half precision make the differences multiples of a weight's spacing.",
    )


def _differences(rows: Sequence[Compared]) -> tuple[str, ...]:
    found = []
    for row in notable(rows):
        assert row.published is not None
        start = (
            f"Step {row.step}: emulated {number(row.ours)}, published {number(row.published)} ± {row.error:g} "
            f"({percent(row.difference, row.difference_error)})."
        )
        if row.ours > row.published:
            found.append(f"{start} The walk is longer than the run; a signal could only lengthen the published norm.")
        else:
            found.append(f"{start} Signal and other rounding together: at most {most_room(row):.1f}.")
    return tuple(found) or ("None: every published ES norm is met to 3 %.",)
