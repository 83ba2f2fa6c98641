"""LIT-238, Figure 5: how far the weights move at each lambda, beside the published accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from driftlab.es.anchor import Penalty
from driftlab.es.precision import PRECISE_BITS
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
    notable,
    number,
    percent,
)
from driftlab.published.data import Source, source, table
from driftlab.published.drawings import Response, response_figure
from driftlab.published.lit238 import LAST, Arm, restored_members, walk_of
from driftlab.report.formats import Table

PENALTIES = ("l1", "l2")
_INTRODUCTION = (
    "Left: the emulated norm as a share of that without an anchor. Target and priors: the published accuracies of the "
    "paper's own runs, one for each line."
)
INERT = 0.01
"""A run whose norm is within this share of that without an anchor counts as one without an effective anchor."""


def reproduce(settings: Settings, progress: Progress) -> Reproduction:
    """The norm at step 500 at every lambda of LIT-238, Fig. 5, emulated in float16 and in exact arithmetic.

    Norms were published at lambda 0, L1 0.01 and L2 10 only (Fig. 6).

    Raises:
        SpecError, DriftlabError: as ``Settings`` and ``driftlab.published.data``.
    """
    origin = source("lit238_fig5_lambda")
    points = table("lit238_fig5_lambda")
    plan = {
        _label(p, lam): _planned(origin, p, lam) for p, lam in zip(points["penalty"], points["lambda"], strict=True)
    }
    curves = emulate_all(plan, settings, progress)
    rows = _with_norms([compared(name, curves[name], LAST, planned, settings) for name, planned in plan.items()])
    png, svg = _figure(points, rows)
    return Reproduction(
        name="lit238-fig5",
        title="LIT-238, Figure 5: response of the norm to lambda",
        summary=(_range_sentence(rows), _threshold_sentence(origin, points), _inert_sentence(points, rows)),
        tables=((_INTRODUCTION, _table(points, rows)),),
        caption="Above: emulated norm at step 500, exact arithmetic dashed, crosses the two published norms. Below: "
        "published accuracies of single runs at the same lambda (reading error ±0.15). Dotted: lambda 0.",
        png=png,
        svg=svg,
        choices=_choices(origin, settings),
        differences=tuple(
            f"{row.run}: emulated {number(row.ours)}, published {number(row.published or 0.0)} "
            f"({percent(row.difference, row.difference_error)}). The norm depends on the weight scale, which is chosen."
            for row in notable(rows)
        )
        or ("None: the three published norms are met to 3 %.",),
        missing=(
            "The accuracies: they need the model and training. They are the published ones, one run each.",
            "Norms were published for lambda 0, L1 0.01 and L2 10 only; all others are predictions of the emulation.",
        ),
        sources=(origin.sentence, source("lit238_fig6_update_norm").sentence),
        values=_values(points, rows),
    )


def _label(penalty: str, lam: float) -> str:
    return "no anchor" if penalty == "none" else f"{penalty.upper()} {lam:g}"


def _planned(origin: Source, penalty: Penalty, lam: float) -> Planned:
    arm = Arm(label=_label(penalty, lam), population=origin.protocol.population, penalty=penalty, lam=lam)
    return replace(walk_of(origin, arm), at=(LAST,))


def _with_norms(rows: Sequence[Compared]) -> list[Compared]:
    """The rows with the three norms of Figure 6 beside them."""
    known = table("lit238_fig6_update_norm")
    known = known[(known["arm"] == "ES") & (known["population"] == 30)]
    norms = {
        _label(penalty, lam): norm
        for penalty, lam, norm in known[["anchor", "lambda", "update_norm"]].itertuples(index=False, name=None)
    }
    return [beside(row, norms[row.run], 0.0, "exact") if row.run in norms else row for row in rows]


def _table(points: pd.DataFrame, rows: Sequence[Compared]) -> Table:
    free = rows[0].ours
    shown = tuple(
        (
            row.run,
            f"{number(row.ours)} ± {row.stderr:.2g}",
            f"{100 * row.ours / free:.0f}",
            "no law" if row.exact is None else number(row.exact),
            "–" if row.published is None else number(row.published),
            "under 41" if math.isnan(target) else f"{target:.1f}",
            f"{prior:.1f}",
        )
        for row, target, prior in zip(rows, points["target_accuracy"], points["prior_average"], strict=True)
    )
    columns = ("anchor", "emulated", "left, %", "exact", "published", "target, %", "priors, %")
    title = "Norm at step 500, beside the published accuracies"
    return Table(name="response", title=title, columns=columns, rows=shown, data=_values(points, rows), source="")


def _values(points: pd.DataFrame, rows: Sequence[Compared]) -> pd.DataFrame:
    frame = data_of(rows)
    frame["published_target_accuracy"] = points["target_accuracy"].to_numpy()
    frame["published_prior_average"] = points["prior_average"].to_numpy()
    return frame


def _figure(points: pd.DataFrame, rows: Sequence[Compared]) -> tuple[bytes, bytes]:
    responses = []
    for penalty in PENALTIES:
        chosen = [index for index, name in enumerate(points["penalty"]) if name == penalty]
        own = points.iloc[chosen]
        lam = own["lambda"].tolist()
        responses.append(
            Response(
                penalty=penalty,
                lam=lam,
                emulated=[rows[index].ours for index in chosen],
                exact=[math.nan if (law := rows[index].exact) is None else law for index in chosen],
                target=own["target_accuracy"].tolist(),
                prior=own["prior_average"].tolist(),
                published=[
                    (value, norm)
                    for value, index in zip(lam, chosen, strict=True)
                    if (norm := rows[index].published) is not None
                ],
            )
        )
    without = points.iloc[0]
    return response_figure(responses, (rows[0].ours, without["target_accuracy"], without["prior_average"]))


def _range_sentence(rows: Sequence[Compared]) -> str:
    known = [row for row in rows if row.published is not None]
    listed = ", ".join(f"{row.run} {percent(row.difference, row.difference_error)}" for row in known)
    return f"Of {len(rows)} norms {len(known)} were published; the emulated ones are off by: {listed}."


def _threshold_sentence(origin: Source, points: pd.DataFrame) -> str:
    """Where rounding hides the decay altogether, and where it lets go (half the spacing of float16)."""
    alpha, bits = origin.protocol.alpha, PRECISE_BITS["float16"]
    nothing = 2.0 ** -(bits + 1) / alpha
    # Numbers from 2^-6 on, 0.0156, are 2^-(6 + bits - 1) apart.
    released = 2.0 ** -(6 + bits) / alpha
    l1 = points[points["penalty"] == "l1"].set_index("lambda")["target_accuracy"]
    below, above = l1[l1.index < released], l1[l1.index > released]
    return (
        f"In float16 a factor 1 − αλ above 1 − 2^−{bits + 1}, that is L2 below {nothing:.2g}, rounds every difference "
        "back to itself: L2 0.05, 0.1 and 0.3 did nothing. L1 takes αλ from a difference; for weights from 2^−6 = "
        f"0.0156 on that is half of the spacing at lambda {released:.3g}. The published target falls between "
        f"{below.index[-1]:g} ({below.iloc[-1]:.1f} %) and {above.index[0]:g} ({above.iloc[0]:.1f} %). That the two "
        "coincide is an inference; no model was run."
    )


def _inert_sentence(points: pd.DataFrame, rows: Sequence[Compared]) -> str:
    free = rows[0].ours
    inert = [index for index, row in enumerate(rows) if index and row.ours > (1 - INERT) * free]
    strong = [index for index, row in enumerate(rows) if row.run in ("L2 5", "L2 7", "L2 10", "L2 15", "L2 20")]
    low, high = _span(points, inert)
    strong_low, strong_high = _span(points, strong)
    names = ", ".join(rows[index].run for index in inert)
    return (
        f"The {len(inert)} runs whose emulated norm is within {100 * INERT:g} % of no anchor ({names}) ended at prior "
        f"averages of {low:.1f} to {high:.1f} %: the spread of what is, but for rounding, one method. L2 5 to 20 ended "
        f"at {strong_low:.1f} to {strong_high:.1f} %."
    )


def _span(points: pd.DataFrame, chosen: Sequence[int]) -> tuple[float, float]:
    values = points["prior_average"].iloc[list(chosen)]
    return float(values.min()), float(values.max())


def _choices(origin: Source, settings: Settings) -> tuple[str, ...]:
    protocol = origin.protocol
    return (
        "As in `driftlab reproduce lit238-fig6`, which tells what each choice does: float16 with every operation "
        f"rounded, {restored_members(protocol.population)} of {protocol.population} "
        f"members restored by subtraction, tied embedding counted twice ({protocol.counted:,} parameters).",
        f"Weights: independent normal numbers of standard deviation {settings.weight_std:g}, chosen and not known; "
        "every norm with an effective anchor depends on it.",
    )
