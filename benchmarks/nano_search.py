"""Choose sigma, then lambda, for the demo by target reward alone.

    python benchmarks/nano_search.py --out reports/nano-search

Stage 1: plain ES for each sigma (alpha = sigma / 2). The score is the mean training reward of the last ten iterations,
averaged over the seeds; the sigma with the highest score wins, the smaller one on a tie within one standard error.
Stage 2: AWD L2 for each alpha*lambda at that sigma (LIT-238 uses 0.005). Coming down from above, as LIT-238 advises,
the largest alpha*lambda that keeps nine tenths of plain ES's gain in reward wins. Prior tasks are not looked at: the
runs measure none. Seeds here (100, 101) are not the demo's (0).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from driftlab import loop
from driftlab.run.parts import ProbesSpec
from driftlab.run.plan import PlannedRun, load_plan

SIGMAS = (0.005, 0.01, 0.02, 0.04)
DECAYS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
SEEDS = (100, 101)
LAST = 10


def rewards(sigma: float, decay: float, seed: int, iterations: int, folder: Path) -> np.ndarray:
    """Mean training reward of every iteration of one run."""
    overrides = [f"es.sigma={sigma}", f"es.iterations={iterations}", f"seed={seed}", f"measure.every={iterations}"]
    if decay:
        overrides.append(f'anchor={{penalty="l2", lambda={decay / (sigma / 2)}}}')
    (planned,) = load_plan("nano-awd", overrides, ["ES"])
    planned = PlannedRun(given=planned.given, spec=planned.spec.model_copy(update={"probes": ProbesSpec()}))
    store = loop.run(planned, folder / f"{sigma}-{decay}-{seed}", resume=False, listen=lambda event: None)
    return np.array([np.mean(update.rewards) for update in store.updates()])


def score(sigma: float, decay: float, iterations: int, folder: Path) -> dict[str, float]:
    """Mean and standard error over seeds of the last iterations' reward, and the mean peak."""
    curves = [rewards(sigma, decay, seed, iterations, folder) for seed in SEEDS]
    ends = np.array([curve[-LAST:].mean() for curve in curves])
    row = {
        "sigma": sigma,
        "alpha_lambda": decay,
        "reward_last10": ends.mean(),
        "stderr": ends.std(ddof=1) / np.sqrt(len(SEEDS)),
        "reward_first": np.mean([curve[0] for curve in curves]),
        "reward_peak": np.mean([curve.max() for curve in curves]),
        "peak_step": np.mean([curve.argmax() + 1 for curve in curves]),
    }
    print({key: round(float(value), 4) for key, value in row.items()}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = [score(sigma, 0.0, arguments.iterations, folder) for sigma in SIGMAS]
        best = max(plain, key=lambda row: row["reward_last10"])
        chosen = next(row for row in plain if row["reward_last10"] >= best["reward_last10"] - best["stderr"])
        anchored = [score(chosen["sigma"], decay, arguments.iterations, folder) for decay in DECAYS]
    gain = chosen["reward_last10"] - chosen["reward_first"]
    kept = [row for row in anchored if row["reward_last10"] - row["reward_first"] >= 0.9 * gain]
    arguments.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(plain + anchored).to_csv(arguments.out / "search.csv", index=False, float_format="%.6g")
    print(f"sigma {chosen['sigma']}", f"alpha*lambda {kept[0]['alpha_lambda']}" if kept else "no decay is harmless")


if __name__ == "__main__":
    main()
