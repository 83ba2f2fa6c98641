"""LIT-238, Figure 6: the update norms of five ES runs, from a walk without rewards in the paper's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from driftlab.drift.emulator import WalkCurve
from driftlab.drift.theory import CoordinateMoments, norm_sd
from driftlab.models.plan import KNOWN_CONFIGS
from driftlab.published.comparison import (
    NOTABLE,
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
    room,
)
from driftlab.published.data import Source, source, table
from driftlab.published.drawings import Drawn, norm_figure
from driftlab.published.lit238 import ARMS, ENGINES, LAST, Arm, restored_members, walk_of
from driftlab.published.variations import (
    INTRODUCTION,
    UNRESTORED,
    Change,
    choices_table,
    master,
    other_weights,
    place,
    restored,
    rule,
    varied,
    wanted_std,
)
from driftlab.report.formats import Table


def reproduce(settings: Settings, progress: Progress) -> Reproduction:
    """Five norms at step 500 and their curves (LIT-238, Fig. 6), emulated in float16 and in exact arithmetic.

    Raises:
        SpecError, DriftlabError: as ``Settings`` and ``driftlab.published.data``.
    """
    origin = source("lit238_fig6_update_norm")
    plan = {arm.label: walk_of(origin, arm) for arm in ARMS}
    small = {arm.label: plan[arm.label] for arm in ARMS if arm.population == 30}
    large = {arm.label: plan[arm.label] for arm in ARMS if arm.population > 30}
    others = varied(small, _CHANGES, LAST) | varied(large, {UNRESTORED: restored(0)}, LAST, thinned=False)
    curves = emulate_all(plan | others, settings, progress)
    final = [_final(arm, plan, curves, settings) for arm in ARMS]
    along = [row for arm in ARMS for row in _along(arm, plan, curves, settings)]
    drawn = [
        Drawn(run=row.run, curve=curves[row.run], rows=[*(r for r in along if r.run == row.run and r.step < LAST), row])
        for row in final
    ]
    png, svg = norm_figure(drawn, exact_below=False)
    once = math.sqrt(origin.protocol.parameters / origin.protocol.counted)
    choices = choices_table(final, list(_CHANGES), curves, once)
    cite = "driftlab/published/lit238_fig6_update_norm.csv"
    return Reproduction(
        name="lit238-fig6",
        title="LIT-238, Figure 6: update norms of ES on Qwen2.5-3B-Instruct",
        summary=_summary(final, curves, settings),
        tables=(
            ("", norm_table("norms", "Update norm at step 500", final, cite)),
            ("", norm_table("curve", "Along the curve", along, "driftlab/published/lit238_fig6_curve.csv")),
            (INTRODUCTION, choices),
            (_ROOM_INTRO, _room_table(final, curves)),
        ),
        caption="Above: lines are emulated, dashed lines exact arithmetic, markers published (bars: reading error "
        "±0.5; step 500 was printed). Below: emulated minus published; bars join Monte-Carlo and reading error.",
        png=png,
        svg=svg,
        choices=_choices(origin, settings, final),
        differences=_differences(final, along),
        missing=(
            f"GRPO's norm ({_published('GRPO', None):.3f}): it needs training; a walk without rewards says nothing "
            "about it.",
            "What the reward adds to the direction of the walk, and everything measured with the weights: accuracy, "
            "KL.",
        ),
        sources=(origin.sentence, source("lit238_fig6_curve").sentence),
        values=pd.concat([data_of(final), data_of(along), choices.data], ignore_index=True),
    )


def _published(arm: str, population: int | None, penalty: str = "none") -> float:
    rows = table("lit238_fig6_update_norm")
    chosen = rows[(rows["arm"] == arm) & (rows["anchor"] == penalty)]
    if population is not None:
        chosen = chosen[chosen["population"] == population]
    return float(chosen["update_norm"].iloc[0])


def _final(arm: Arm, plan: Mapping[str, Planned], curves: Mapping[str, WalkCurve], settings: Settings) -> Compared:
    row = compared(arm.label, curves[arm.label], LAST, plan[arm.label], settings)
    return beside(row, _published("ES", arm.population, arm.penalty), 0.0, "exact")


def _along(
    arm: Arm, plan: Mapping[str, Planned], curves: Mapping[str, WalkCurve], settings: Settings
) -> list[Compared]:
    points = table("lit238_fig6_curve")
    own = points[(points["population"] == arm.population) & (points["anchor"] == arm.penalty)]
    error = source("lit238_fig6_curve").error["update_norm"]
    return [
        beside(compared(arm.label, curves[arm.label], int(step), plan[arm.label], settings), value, error, how)
        for step, value, how in own[["iteration", "update_norm", "how"]].itertuples(index=False, name=None)
    ]


_CHANGES: dict[str, Change] = {
    "bfloat16 in place of float16": master("bfloat16"),
    "members added one by one": rule("members"),
    "step in float32, rounded once": rule("single"),
    UNRESTORED: restored(0),
    **other_weights(),
}
_ROOM_INTRO = (
    "What a displacement at right angles to the walk would have to measure to fill the gap to the published norm: at "
    "most so much is signal and rounding that is not emulated. Norms alone cannot separate the two. In brackets two "
    "Monte-Carlo errors to either side."
)


def _room_table(final: list[Compared], curves: Mapping[str, WalkCurve]) -> Table:
    rows, data = [], []
    for row, arm in zip(final, ARMS, strict=True):
        if arm.penalty != "none":
            continue
        assert row.published is not None
        assert row.exact is not None
        unrestored = curves[place(UNRESTORED, row.run)]
        walks = ((row.ours, row.stderr), (unrestored.norm[-1], unrestored.stderr[-1]))
        exact, share = room(row.published, row.exact), 1.0 - (row.exact / row.published) ** 2
        cells = []
        for norm, stderr in walks:
            low, middle, high = (room(row.published, norm + 2.0 * side * stderr) for side in (1, 0, -1))
            cells.append(f"{middle:.1f} [{low:.1f}, {high:.1f}]")
        rows.append((row.run, f"{exact:.1f} ({100 * share:.1f} %)", cells[1], cells[0]))
        data.append({"run": row.run, "step": LAST, "room_beyond_exact": exact, "room_share": share})
    columns = (
        "run",
        "beyond exact (share of the square)",
        f"beyond the walk with {UNRESTORED}",
        "beyond the emulated walk",
    )
    title = "Room for a signal, runs without an anchor"
    return Table(name="room", title=title, columns=columns, rows=tuple(rows), data=pd.DataFrame(data), source="")


def _summary(final: list[Compared], curves: Mapping[str, WalkCurve], settings: Settings) -> tuple[str, ...]:
    off = [row.difference or 0.0 for row in final]
    gone = [row for row in final if abs(row.exact_difference or 0.0) > NOTABLE]
    exact = "; ".join(
        f"{row.run} {number(row.exact or 0.0)}, published {number(row.published or 0.0)} "
        f"({percent(row.exact_difference)})"
        for row in gone
    )
    wants = [
        f"{row.run} wants {std:.4f}"
        for row in final
        if "+" in row.run and (std := wanted_std(row, settings.weight_std, curves)) is not None
    ]
    found = (
        f"A walk without rewards, emulated in the paper's arithmetic, gives the five published norms at step {LAST} to "
        f"between {percent(min(off))} and {percent(max(off))}. One number behind it is chosen, by default so as to "
        f"meet the two norms with an anchor: the standard deviation of the weights, here {settings.weight_std:g}. So "
        "these two are one test, not two" + (f" ({'; '.join(wants)})." if wants else "."),
        f"Exact arithmetic misses {len(gone)} of the five by more than {100 * NOTABLE:g} %: {exact}. "
        "With an anchor the difference is decay that float16 rounds away.",
    )
    wide = final[-1]
    bare = curves[place(UNRESTORED, wide.run)].norm[-1]
    return (
        *found,
        f"{wide.run}: members restored by subtraction lengthen the walk from {number(bare)} to {number(wide.ours)}, "
        f"published {number(wide.published or 0.0)}.",
    )


def _choices(origin: Source, settings: Settings, final: list[Compared]) -> tuple[str, ...]:
    protocol = origin.protocol
    layers = int(KNOWN_CONFIGS[protocol.model]["num_hidden_layers"])
    plain = final[0]
    second = plain.ours**2 / protocol.counted
    # Tensors of equal shape share their noise: every layer repeats the first, as if there were fewer coordinates.
    spread = norm_sd(CoordinateMoments(second=second, fourth=3.0 * second**2), protocol.counted) * math.sqrt(layers)
    members = ", ".join(f"{restored_members(n)} of {n}" for n in (30, 128, 256))
    return (
        "Number format: float16 for weights, noise, sum over members, step and decay, each operation rounded "
        "(`accumulate`), as in the authors' code.",
        f"Restoring: {ENGINES} engines share the members and the first one holds the master, so {members} members are "
        "added to the master itself and subtracted again in float16.",
        f"Tied embedding counted twice: {protocol.parameters:,} + {protocol.counted - protocol.parameters:,} "
        "parameters, because a state dictionary lists it again as the output head. Counted once, every norm "
        f"changes by {percent(math.sqrt(protocol.parameters / protocol.counted) - 1)}.",
        f"Weights: independent normal numbers of standard deviation {settings.weight_std:g}. This is the one number "
        "that is not known: it sets how coarse float16 is at a weight, and the two norms with an anchor depend on it "
        "(table). Real weights differ from layer to layer and have heavier tails.",
        "Rewards: standardised chance, the same for every arm. Noise independent for every weight; the authors' code "
        "gives tensors of equal shape the same noise, which leaves the expected norm as it is and lets that of one run "
        f"scatter by about {spread:.2g}: chance explains no difference seen here.",
    )


def _differences(final: list[Compared], along: list[Compared]) -> tuple[str, ...]:
    found = [
        f"{row.run}, step {row.step}: emulated {number(row.ours)}, published {number(row.published or 0.0)} "
        f"({percent(row.difference, row.difference_error)}). {_reason(row)}"
        for row in notable([*final, *along])
    ]
    found += [
        f"{row.run}, step {row.step}, exact arithmetic: {number(row.exact or 0.0)}, published "
        f"{number(row.published or 0.0)} ({percent(row.exact_difference)}). {_exact_reason(row)}"
        for row in final
        if abs(row.exact_difference or 0.0) > NOTABLE
    ]
    return tuple(found) or (f"None: every published norm is met to {100 * NOTABLE:g} %.",)


def _reason(row: Compared) -> str:
    if row.published is None or row.ours > row.published:
        return "The emulated walk goes further than the run did: nothing in a signal shortens it; see the weight scale."
    if "+" in row.run:
        return "The norm depends on the weight scale, which is chosen; within it a signal cannot be told from rounding."
    reading = f" (reading error ±{row.error:g})" if row.error else ""
    return (
        f"Signal and rounding that is not emulated, at right angles to the walk, together at most "
        f"{most_room(row):.1f}{reading}."
    )


def _exact_reason(row: Compared) -> str:
    assert row.published is not None
    assert row.exact is not None
    if "+" in row.run:
        return (
            "Rounding: where the decay of a weight is below half of float16's spacing there, a decay that is rounded "
            "by itself does nothing. Rounded together with the step it would not be lost (table: step in float32, "
            "rounded once): the noise carries it across."
        )
    return f"Signal and rounding together, at right angles to the walk: at most {room(row.published, row.exact):.1f}."
