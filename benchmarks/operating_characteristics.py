"""How often the verdicts are wrong, what they can see, and whether every interval covers: simulated, seeded.

    python benchmarks/operating_characteristics.py --out reports/operating-characteristics

Item-level curves: each item has a latent score that drifts as an Ornstein-Uhlenbeck process through base and
checkpoints and is right while it lies below a threshold. Thresholds set the population's accuracy at every checkpoint
exactly, so with constant thresholds nothing changes but items flip; the drift rate is solved for the share of items
that differ between base and end. Flips and correlations between checkpoints are as seen on the embedded suite (for 8 %
at the end: 2.4 % at the first of ten checkpoints, where the suite had 2.4 %; correlation of the last two changes 0.84
where it had 0.88; of the fifth and last 0.59 where it had 0.53 to 0.67).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from driftlab.drift.bands import Curve, average_curve, paired_curve
from driftlab.drift.curves import Critical, prior_verdict, run_critical_values, since_base
from driftlab.drift.paired import SeedSummary, bootstrap_intervals, over_seeds, retention
from driftlab.drift.peaks import level_of, peak_set, target_verdict
from driftlab.drift.stats import Interval, average_difference, paired_difference, proportion_interval

SIZES, FLIPS, CHECKPOINTS, DIPS = (200, 500, 2000), (0.05, 0.10, 0.20), (10, 20), (0.02, 0.04, 0.08)
ACCURACY, TASKS = 0.65, 4
DRAWS = 4000
"""For critical values here; a run's report takes more. The level of a quantile then errs by 0.0034."""
NO_CHANGE = ("stable", "cannot say")
ANY = Critical(3.0, 3.0, 3.0)
"""For intervals that do not use it."""


def flip_share(accuracy: float, correlation: float) -> float:
    """Share of items whose verdict differs between two checkpoints whose latent scores correlate so."""
    threshold = stats.norm.ppf(accuracy)
    both = stats.multivariate_normal.cdf([threshold, threshold], cov=[[1, correlation], [correlation, 1]])
    return float(2 * (accuracy - both))


def step_correlation(flips: float, checkpoints: int, accuracy: float = ACCURACY) -> float:
    """Latent correlation of neighbouring checkpoints that gives ``flips`` between base and end."""
    solved = optimize.brentq(
        lambda log_time: flip_share(accuracy, np.exp(-checkpoints / np.exp(log_time))) - flips, -2, 12
    )
    return float(np.exp(-1 / np.exp(solved)))


def paths(
    generator: np.random.Generator, n: int, flips: float, accuracies: np.ndarray, shape: tuple[int, ...] = ()
) -> np.ndarray:
    """Right or wrong, shape [K + 1, *shape, n], with population accuracies [K + 1]."""
    checkpoints = len(accuracies) - 1
    kept = step_correlation(flips, checkpoints)
    thresholds = stats.norm.ppf(accuracies)
    latent = generator.standard_normal((*shape, n))
    found = np.empty((checkpoints + 1, *shape, n))
    found[0] = latent < thresholds[0]
    for t in range(1, checkpoints + 1):
        latent = kept * latent + np.sqrt(1 - kept**2) * generator.standard_normal((*shape, n))
        found[t] = latent < thresholds[t]
    return found


@cache
def labels(n: int) -> Any:
    """Every item its own cluster; an array, which need not be made anew for every run."""
    return np.array([str(index) for index in range(n)])


def triangle(checkpoints: int, depth: float) -> np.ndarray:
    """Accuracy change that falls to ``-depth`` half-way and is back at the end, shape [K + 1]."""
    middle = checkpoints // 2
    return -depth * np.interp(np.arange(checkpoints + 1), [0, middle, checkpoints], [0, 1, 0])


def ramp(checkpoints: int, depth: float) -> np.ndarray:
    """Accuracy change that falls evenly to ``-depth`` at the end."""
    return -depth * np.arange(checkpoints + 1) / checkpoints


def run_curves(generator: np.random.Generator, n: int, flips: float, shift: np.ndarray) -> list[Curve]:
    """Four prior tasks; the first one follows ``shift``, the others keep their accuracy."""
    checkpoints = len(shift) - 1
    scores = paths(generator, n, flips, np.full(checkpoints + 1, ACCURACY), (TASKS - 1,))
    planted = paths(generator, n, flips, ACCURACY + shift)
    return [paired_curve(table, labels(n)) for table in (planted, *np.moveaxis(scores, 1, 0))]


def verdicts(curves: list[Curve], checkpoints: int, seed: int) -> list[str]:
    """Words of the four tasks and of their average."""
    critical = run_critical_values(curves, averaged=range(TASKS), seed=seed, draws=DRAWS)
    judged = (*curves, average_curve(curves))
    return [prior_verdict(curve, range(1, checkpoints + 1), critical).word for curve in judged]


def null_cell(n: int, flips: float, checkpoints: int, runs: int, seed: int) -> dict[str, float]:
    """Runs in which nothing changes: how often something is said to have changed."""
    generator = np.random.default_rng([seed, n, round(1000 * flips), checkpoints])
    false = uncorrected = stable = covered = flat_false = 0.0
    quantile = stats.t.ppf(0.975, n - 1)
    steps = list(range(1, checkpoints + 1))
    for run in range(runs):
        curves = run_curves(generator, n, flips, np.zeros(checkpoints + 1))
        critical = run_critical_values(curves, averaged=range(TASKS), seed=run, draws=DRAWS)
        judged = (*curves, average_curve(curves))
        words = [prior_verdict(curve, steps, critical).word for curve in judged]
        false += any(word not in NO_CHANGE for word in words)
        stable += np.mean([word == "stable" for word in words[:TASKS]])
        bands = [since_base(curve, critical) for curve in judged]
        covered += all(((one.low <= 0) & (one.high >= 0)).all() for one in bands)
        uncorrected += any((np.abs(one.estimate) > quantile * one.stderr).any() for one in bands)
        word = target_verdict(level_of(curves[0], steps), seed=run).word
        flat_false += word != "cannot say"
    return {
        "false verdict, % of runs": 100 * false / runs,
        "some uncorrected interval excludes 0, % of runs": 100 * uncorrected / runs,
        "whole band covers, %": 100 * covered / runs,
        "called stable, % of tasks": 100 * stable / runs,
        "flat target called anything, %": 100 * flat_false / runs,
    }


def power_cell(n: int, flips: float, checkpoints: int, runs: int, seed: int) -> dict[str, float]:
    """One of four tasks changes: how often that is seen, and called by its name."""
    found: dict[str, float] = {}
    for depth in DIPS:
        generator = np.random.default_rng([seed, n, round(1000 * flips), checkpoints, round(1000 * depth)])
        dips = [
            verdicts(run_curves(generator, n, flips, triangle(checkpoints, depth)), checkpoints, run)[0]
            for run in range(runs)
        ]
        falls = [
            verdicts(run_curves(generator, n, flips, ramp(checkpoints, depth)), checkpoints, run)[0]
            for run in range(runs)
        ]
        name = f"{100 * depth:g} points"
        found[f"dip of {name}: dipped and recovered, %"] = 100 * np.mean([w == "dipped and recovered" for w in dips])
        found[f"dip of {name}: called stable, %"] = 100 * np.mean([w == "stable" for w in dips])
        found[f"decline of {name}: declined, %"] = 100 * np.mean([w == "declined" for w in falls])
        found[f"decline of {name}: called stable, %"] = 100 * np.mean([w == "stable" for w in falls])
    return found


def rise(checkpoints: int, decay: float) -> np.ndarray:
    """Target accuracy from 0.3: up to 0.6 at two thirds of the run, then down by ``decay``; level where it is 0."""
    return np.interp(np.arange(checkpoints + 1), [0, round(2 * checkpoints / 3), checkpoints], [0.3, 0.6, 0.6 - decay])


def peak_cell(n: int, flips: float, checkpoints: int, runs: int, seed: int) -> dict[str, float]:
    """A target that peaks at two thirds of the run: does its interval hold the peak, and is the decay seen."""
    found: dict[str, float] = {}
    steps, truth = list(range(1, checkpoints + 1)), round(2 * checkpoints / 3)
    for decay in (0.0, 0.04, 0.08):
        generator = np.random.default_rng([seed, n, round(1000 * flips), checkpoints, round(1000 * decay), 1])
        held = naive = decays = 0.0
        for run in range(runs):
            scores = paths(generator, n, flips, rise(checkpoints, decay))
            level = level_of(paired_curve(scores, labels(n)), steps)
            kept = peak_set(level, seed=run)
            held += kept[0] <= truth <= kept[-1]
            counts = generator.multinomial(n, np.full(n, 1 / n), size=200)
            peaks = np.argmax(counts @ scores.T, axis=1)
            low, high = np.quantile(peaks, [0.025, 0.975])
            naive += low <= truth <= high
            decays += target_verdict(level, seed=run).word == "peaked and decays"
        name = f"then {100 * decay:g} points down" if decay else "then level"
        found[f"{name}: interval holds the peak, %"] = 100 * held / runs
        found[f"{name}: bootstrapped argmax holds it, %"] = 100 * naive / runs
        found[f"{name}: peaked and decays, %"] = 100 * decays / runs
    return found


def coverage_cell(n: int, flips: float, checkpoints: int, runs: int, seed: int) -> dict[str, float]:
    """Coverage of each 95 % interval, half of the runs without a change and half with a loss of 4 points at the end."""
    hits: dict[str, list[bool]] = {}
    chance, size = 0.25, 5

    def note(name: str, low: float | None, high: float | None, truth: float) -> None:
        if low is not None and high is not None:
            hits.setdefault(name, []).append(low <= truth <= high)

    for run in range(runs):
        generator = np.random.default_rng([seed, n, round(1000 * flips), run])
        loss = 0.04 * (run % 2)
        both = paths(generator, n, flips, np.array([ACCURACY, ACCURACY - loss]))
        base, tuned, ids = both[0], both[1], labels(n)
        pair = paired_difference(base, tuned, ids)
        note("paired difference (t)", pair.low, pair.high, -loss)
        if run % 4 < 2:  # half of the runs: it takes longest
            boot = bootstrap_intervals((tuned - base)[:, None], ids, seed=run, draws=500)[0]
            note("paired difference (bootstrap)", boot.low, boot.high, -loss)
        kept = retention(base, tuned, chance, ids)
        if kept is not None:
            note("retention (Fieller)", kept.low, kept.high, (ACCURACY - loss - chance) / (ACCURACY - chance))
        wilson = proportion_interval(base.sum(), n)
        note("accuracy (Wilson)", wilson.low, wilson.high, ACCURACY)
        for name, table, groups, strata in _grouped(generator, n, flips, loss, size):
            result = paired_difference(table[0], table[1], groups, strata)
            note(f"paired difference, {name}", result.low, result.high, -loss)
        others = [paths(generator, n, flips, np.array([ACCURACY, ACCURACY])) for _ in range(TASKS - 1)]
        average = average_difference([pair, *(paired_difference(one[0], one[1], ids) for one in others)])
        note("average of four tasks", average.low, average.high, -loss / TASKS)
        if run % 4 >= 2:
            scores = paths(generator, n, flips, ACCURACY + ramp(checkpoints, loss))
            judged = prior_verdict(paired_curve(scores, ids), list(range(1, checkpoints + 1)), ANY).average
            note("time-averaged drift", judged.low, judged.high, -loss / 2)
        for name, spread in (("alike", 0.0), ("that differ by 2 points", 0.02)):
            found = _three_seeds(generator, n, flips, loss, spread)
            note(f"over three seeds {name}", found.low, found.high, -loss)
    return {name: 100 * float(np.mean(held)) for name, held in hits.items()}


def _three_seeds(generator: np.random.Generator, n: int, flips: float, loss: float, spread: float) -> SeedSummary:
    """Three seeds measured on the same items: one base, and each seed's own drift and own loss around the mean one."""
    kept = step_correlation(flips, 1)
    latent = generator.standard_normal(n)
    base = (latent < stats.norm.ppf(ACCURACY)).astype(float)
    tuned = []
    for own in loss + spread * generator.standard_normal(3):
        moved = kept * latent + np.sqrt(1 - kept**2) * generator.standard_normal(n)
        tuned.append((moved < stats.norm.ppf(ACCURACY - own)).astype(float))
    pair = paired_difference(base, np.mean(tuned, axis=0), labels(n))
    assert pair.low is not None
    assert pair.high is not None
    return over_seeds([float((one - base).mean()) for one in tuned], Interval(pair.low, pair.high))


def _grouped(
    generator: np.random.Generator, n: int, flips: float, loss: float, size: int
) -> Iterator[tuple[str, np.ndarray, list[str], list[str] | None]]:
    """Items whose latent scores move together in groups of ``size``; and items of ten strata with unlike accuracies."""
    kept = step_correlation(flips, 1)
    thresholds = stats.norm.ppf([ACCURACY, ACCURACY - loss])[:, None]

    def latent() -> np.ndarray:
        shared = np.repeat(generator.standard_normal(n // size), size)
        return np.sqrt(0.5) * shared + np.sqrt(0.5) * generator.standard_normal(n)

    before = latent()
    after = kept * before + np.sqrt(1 - kept**2) * latent()
    groups = [str(index // size) for index in range(n)]
    yield "clusters of 5", (np.stack([before, after]) < thresholds).astype(float), groups, None

    # Each stratum loses its own amount, fixed: the loss averaged over the strata is the truth.
    strata = np.arange(n) % 10
    own = ACCURACY + np.linspace(-0.2, 0.2, 10)
    lost = loss * np.linspace(0, 2, 10)
    start = stats.norm.ppf(own)[strata]
    end = stats.norm.ppf(own - lost)[strata]
    first = generator.standard_normal(n)
    second = kept * first + np.sqrt(1 - kept**2) * generator.standard_normal(n)
    yield "ten strata", np.stack([first < start, second < end]).astype(float), labels(n), [str(s) for s in strata]


PARTS: dict[str, Callable[[int, float, int, int, int], dict[str, float]]] = {
    "null": null_cell,
    "power": power_cell,
    "peak": peak_cell,
    "coverage": coverage_cell,
}
RUNS = {"null": 1000, "power": 200, "peak": 200, "coverage": 4000}


def _cell(job: tuple[str, int, float, int, int, int]) -> dict[str, float | int]:
    part, n, flips, checkpoints, runs, seed = job
    started = time.perf_counter()
    found = PARTS[part](n, flips, checkpoints, runs, seed)
    print(f"{part} n={n} flips={flips:g} K={checkpoints}: {time.perf_counter() - started:.0f} s", flush=True)
    return {"items": n, "flips": flips, "checkpoints": checkpoints, "runs": runs, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in PARTS if options.part == "all" else [options.part]:
            lengths = (CHECKPOINTS[0],) if part == "coverage" else CHECKPOINTS
            jobs = [(part, n, f, k, RUNS[part], options.seed) for n in SIZES for f in FLIPS for k in lengths]
            table = pd.DataFrame(list(pool.map(_cell, jobs)))
            table.to_csv(options.out / f"{part}.csv", index=False, float_format="%.6g", lineterminator="\n")
            print(table.to_string(), flush=True)


if __name__ == "__main__":
    main()
