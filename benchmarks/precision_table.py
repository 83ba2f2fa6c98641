"""What each way of keeping half-precision weights makes of the random walk of LIT-238, with and without its anchors.

    python benchmarks/precision_table.py --out reports/precision

Emulates the reward-free walk (N = 30, sigma = 1e-3, alpha = 5e-4, T = 500, weights normal with deviation 0.023, the
parameters of Qwen2.5-3B once each) for every format, rule and penalty, and asks what of the last step and of its decay
arrived. About five minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from rich.progress import track

from driftlab.drift.emulator import Walk, emulate, gaussian_weights
from driftlab.es.noise import private_generator
from driftlab.es.precision import Precision, Rule, rounded
from driftlab.es.shaping import z_scores
from driftlab.es.step import Step, Watch, move
from driftlab.es.survival import Survival
from driftlab.es.update import in_place_members
from driftlab.report.formats import Table, to_csv, to_markdown
from driftlab.report.plots import panels, save, style

ALPHA, SIGMA, POPULATION, STEPS, STD, D = 5e-4, 1e-3, 30, 500, 0.023, 3_085_938_688
PENALTIES = {"none": ("none", 0.0), "L1, λ = 0.01": ("l1", 0.01), "L2, λ = 10": ("l2", 10.0)}
# One of eight engines holds the master and evaluates every eighth member on it (LIT-238's code).
ENGINES = 8
COLOURS = {"none": "#0072B2", "L1, λ = 0.01": "#009E73", "L2, λ = 10": "#D55E00"}


def precisions() -> list[Precision]:
    found = [Precision()]
    for dtype in ("float16", "bfloat16"):
        for update in get_args(Rule):
            published = update in ("accumulate", "members")
            found.append(
                Precision(master=dtype, update=update, in_place_members=-(-POPULATION // ENGINES) if published else 0)
            )
    return found


def last_step(walk: Walk, base: np.ndarray, seed: int) -> Survival:
    """Survival of the last of ``walk.steps`` steps in the master's format."""
    generator = private_generator(f"precision table|{seed}")
    start = rounded(base, walk.precision.master)
    theta, residual = start, None
    for number in range(1, walk.steps + 1):
        seeds = tuple(range(walk.population))
        step = Step(
            seeds=seeds,
            coefficients=z_scores(generator.standard_normal(walk.population).tolist()),
            population=walk.population,
            alpha=walk.alpha,
            penalty=walk.penalty,
            decay=walk.alpha * walk.lam,
            scheme="keyed",
            precision=walk.precision,
            in_place=in_place_members(seeds, walk.sigma, mirrored=False, precision=walk.precision),
        )
        noises = list(generator.standard_normal((walk.population, base.size), dtype=np.float32))
        watch = Watch(served=walk.precision.master, sigma=walk.sigma) if number == walk.steps else None
        moved = move(theta, start, residual, noises, step, generator, watch)
        theta, residual = moved.theta, moved.residual
    return moved.survival["served"]


def measure(coordinates: int, seed: int) -> pd.DataFrame:
    base, rows = gaussian_weights(STD, coordinates, seed), []
    cases = [(kept, name) for kept in precisions() for name in PENALTIES]
    for kept, name in track(cases, description="walks"):
        penalty, lam = PENALTIES[name]
        walk = Walk(
            population=POPULATION, alpha=ALPHA, sigma=SIGMA, steps=STEPS, penalty=penalty, lam=lam, precision=kept
        )
        found = emulate(walk, base=base, d=D, at=(STEPS,), seed=seed, threads=1)
        survival = last_step(walk, base[:8192], seed)
        rows.append(
            {
                "format": kept.master,
                "update": kept.update,
                "in_place_members": kept.in_place_members,
                "penalty": name,
                "norm": found.norm[0],
                "stderr": found.stderr[0],
                "law": found.law[0],
                "ratio": found.norm[0] / found.law[0],
                "update_survival": survival.update.ratio,
                "update_survival_cosine": survival.update.cosine,
                "update_unmoved": survival.update.unmoved,
                "decay_survival": survival.decay.ratio,
                "decay_survival_cosine": survival.decay.cosine,
                "decay_unmoved": survival.decay.unmoved,
                "dead_zone": survival.half_spacing / survival.n,
                "restore_residue": (survival.residue / survival.noise) ** 0.5,
            }
        )
    return pd.DataFrame(rows)


def tables(data: pd.DataFrame) -> list[Table]:
    def text(value: float | None, form: str) -> str:
        return "–" if value is None or np.isnan(value) else format(value, form).replace("-", "−")

    keys = ["format", "update"]
    norms, arrived = [], []
    for (form, update), part in data.groupby(keys, sort=False):
        by = part.set_index("penalty")
        norms.append((form, update, *(f"{by.norm[p]:.2f} ± {by.stderr[p]:.2f} ({by.ratio[p]:.3f})" for p in PENALTIES)))
        row = by.loc["L2, λ = 10"]
        arrived.append(
            (
                form,
                update,
                text(by.update_survival["none"], ".3f"),
                text(by.update_survival_cosine["none"], ".4f"),
                text(100 * by.update_unmoved["none"], ".1f"),
                text(row.decay_survival, ".2f"),
                text(row.decay_survival_cosine, ".3f"),
                text(100 * row.decay_unmoved, ".1f"),
                text(100 * by.decay_unmoved["L1, λ = 0.01"], ".1f"),
                text(row.dead_zone, ".1e"),
                text(100 * row.restore_residue, ".2g"),
            )
        )
    source = "emulated; precision.csv"
    return [
        Table(
            name="norms",
            title="Norm after 500 steps ± Monte-Carlo standard error (ratio to exact arithmetic)",
            columns=("format", "update", *PENALTIES),
            rows=tuple(norms),
            data=data,
            source=source,
        ),
        Table(
            name="survival",
            title="What arrived of the last step",
            columns=(
                "format",
                "update",
                "step: applied / intended",
                "cosine",
                "unmoved (%)",
                "L2 decay: applied / intended",
                "cosine",
                "unmoved (%)",
                "L1 decay: unmoved (%)",
                "half spacing, mean",
                "restore residue (% of σ)",
            ),
            rows=tuple(arrived),
            data=data,
            source=source,
        ),
    ]


def draw(data: pd.DataFrame) -> tuple[bytes, bytes]:
    with style():
        figure, (axes,) = panels(1, 1, 4.2)
        labels = list(dict.fromkeys(zip(data["format"], data["update"], strict=True)))
        for offset, name in zip((-0.22, 0.0, 0.22), PENALTIES, strict=True):
            own = data[data["penalty"] == name]
            y = [labels.index(key) + offset for key in zip(own["format"], own["update"], strict=True)]
            axes.errorbar(
                own["ratio"],
                y,
                xerr=2 * own["stderr"] / own["law"],
                fmt="o",
                color=COLOURS[name],
                label=name,
                markersize=4,
            )
        axes.axvline(1.0, color="black", linestyle=":", linewidth=1.1)
        axes.set_yticks(range(len(labels)), [f"{form}, {update}" for form, update in labels])
        axes.invert_yaxis()
        axes.set_xlabel("norm / norm in exact arithmetic")
        axes.legend(title="anchor", loc="lower right")
        return save(figure)


PAGE = """# What half precision makes of the random walk

`python benchmarks/precision_table.py --out reports/precision`

The setting of LIT-238 without a reward: N = {population}, σ = {sigma:g}, α = {alpha:g}, T = {steps}, weights drawn
from a normal law with standard deviation {std:g}, d = {d:,} (every parameter once), {coordinates:,} emulated
coordinates, seed {seed}. The rules `accumulate` and `members` are those of published code, with {in_place} members per
iteration added to the master and subtracted again; the others keep members elsewhere.

![Norm beside that of exact arithmetic](ratios.png)

{norms}

{survival}

The step columns are those of the walk without an anchor. Applied / intended compares norms: a rounded change can be
longer than what was meant, when the few coordinates that move go a whole unit; the cosine tells. Under error feedback
a step applies what earlier ones left over.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coordinates", type=int, default=32_768)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = measure(given.coordinates, given.seed)
    norms, survival = tables(data)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "precision.csv").write_text(to_csv(norms), encoding="utf-8")
    (given.out / "ratios.png").write_bytes(draw(data)[0])
    page = PAGE.format(
        population=POPULATION,
        sigma=SIGMA,
        alpha=ALPHA,
        steps=STEPS,
        std=STD,
        d=D,
        coordinates=given.coordinates,
        seed=given.seed,
        in_place=-(-POPULATION // ENGINES),
        norms=f"**{norms.title}**\n\n{to_markdown(norms)}",
        survival=f"**{survival.title}**\n\n{to_markdown(survival)}",
    )
    (given.out / "README.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
