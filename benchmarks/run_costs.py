"""Where an ES iteration's time goes, and how many bytes it leaves.

    python benchmarks/run_costs.py reports/nano-awd reports/smol-countdown

Reads stored runs: the wall seconds recorded with every update, and the size of updates.jsonl. Shares are ratios within
one run, so they can be compared between machines; seconds cannot.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from driftlab.run.store import find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    print("| run | parameters | members | seconds per iteration | rollouts | rewards | update | bytes per iteration |")
    print("|:---|---:|---:|---:|---:|---:|---:|---:|")
    for store in (store for folder in arguments.folders for store in find_runs(folder)):
        updates = store.updates()
        seconds = {part: np.array([u.seconds[part] for u in updates]) for part in updates[0].seconds}
        # Medians: a machine that was suspended during one iteration says nothing about the others.
        shares = [f"{np.median(seconds[part] / seconds['total']):.1%}" for part in ("rollout", "reward", "update")]
        size = (store.path / "updates.jsonl").stat().st_size / len(updates)
        cells = [
            store.manifest.run_id.rsplit("-", 1)[0],
            f"{store.manifest.model['n_parameters']:,}",
            str(updates[0].population),
            f"{np.median(seconds['total']):.2f}",
            *shares,
            f"{size:,.0f}",
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
