"""Choose GRPO's learning rates for the comparison with ES by training reward alone.

    python benchmarks/nano_grpo_search.py --out reports/nano-grpo-search

For each learning rate, GRPO (beta 0) on all weights and on adapters, as in the preset nano-es-grpo. The score is the
mean training reward of the last ten iterations, averaged over the seeds; the highest score wins, the smaller learning
rate on a tie within one standard error, as benchmarks/nano_search.py chose sigma. Runs are 40 iterations long, not 100
as in the comparison, and measure no task. Seeds here (100, 101) are not those of the comparison (0, 1, 2).
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

RATES = {"GRPO": (1e-4, 3e-4, 1e-3), "GRPO-LoRA": (3e-4, 1e-3, 3e-3)}
SEEDS = (100, 101)
LAST = 10


def rewards(arm: str, rate: float, seed: int, iterations: int, folder: Path) -> np.ndarray:
    """Mean training reward of every iteration of one run."""
    overrides = [f"grpo.learning_rate={rate}", f"grpo.iterations={iterations}", f"seed={seed}"]
    (planned,) = load_plan("nano-es-grpo", [*overrides, f"measure.every={iterations}"], [arm])
    planned = PlannedRun(given=planned.given, spec=planned.spec.model_copy(update={"probes": ProbesSpec()}))
    store = loop.run(planned, folder / f"{arm}-{rate}-{seed}", resume=False, listen=lambda event: None)
    return np.array([np.mean(update.rewards) for update in store.updates()])


def score(arm: str, rate: float, iterations: int, folder: Path) -> dict[str, float | str]:
    """Mean and standard error over seeds of the last iterations' reward, and the mean peak."""
    curves = [rewards(arm, rate, seed, iterations, folder) for seed in SEEDS]
    ends = np.array([curve[-LAST:].mean() for curve in curves])
    row: dict[str, float | str] = {
        "arm": arm,
        "learning_rate": rate,
        "reward_last10": ends.mean(),
        "stderr": ends.std(ddof=1) / np.sqrt(len(SEEDS)),
        "reward_first": float(np.mean([curve[0] for curve in curves])),
        "reward_peak": float(np.mean([curve.max() for curve in curves])),
        "peak_step": float(np.mean([curve.argmax() + 1 for curve in curves])),
    }
    print({key: value if isinstance(value, str) else round(float(value), 4) for key, value in row.items()}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [score(arm, rate, options.iterations, Path(folder)) for arm, rates in RATES.items() for rate in rates]
    table = pd.DataFrame(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "learning-rate.csv", index=False)
    for arm, own in table.groupby("arm", sort=False):
        best = own.loc[own["reward_last10"].idxmax()]
        tied = own[own["reward_last10"] >= best["reward_last10"] - best["stderr"]]
        print(f"{arm}: learning rate {tied['learning_rate'].min():g}")


if __name__ == "__main__":
    main()
