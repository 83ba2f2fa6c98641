"""Seconds that a report's statistics take for one run of 20 checkpoints, 7 tasks and 2000 items a task.

    python benchmarks/statistics_cost.py

Synthetic answers that flip as a random walk's do; everything from stored records to finished tables is timed, drawing
and reading files are not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.operating_characteristics import ACCURACY, paths
from driftlab.report.contents import all_tables
from driftlab.report.frames import build_frames
from driftlab.report.runs import RunData
from driftlab.run.records import Example, Measurement
from driftlab.run.store import SCHEMA, Manifest

TARGET = "target"


def synthetic(checkpoints: int, tasks: int, items: int) -> RunData:
    """One run: ``tasks`` tasks, the target among them, measured at the base and ``checkpoints`` steps."""
    generator = np.random.default_rng(0)
    names = [TARGET, *(f"prior_{i}" for i in range(1, tasks))]
    scores = paths(generator, items, 0.1, np.full(checkpoints + 1, ACCURACY), (tasks,))
    rows, examples = [], []
    for step in range(checkpoints + 1):
        for task, answers in zip(names, scores[step], strict=True):
            rows.append(
                Measurement(
                    step=25 * step, probe="lm_eval", quantity="accuracy", group=task, value=float(answers.mean()),
                    unit="fraction", stderr=None, n=items,
                )
            )  # fmt: skip
            for index, right in enumerate(answers):
                examples.append(
                    Example(
                        step=25 * step, task=task, item=f"{task}-{index}", cluster=f"{task}-{index // 2}",
                        correct=float(right), score=float(right) - 0.5, output_length=None, parsed=None,
                        truncated=None, output=None,
                    )
                )  # fmt: skip
    spec = {
        "name": "synthetic", "arm": "ES", "seed": 0, "model": {"dtype": "float32"}, "target": {"task": TARGET},
        "probes": {"lm_eval": {"tasks": names[1:]}},
    }  # fmt: skip
    manifest = Manifest(
        schema=SCHEMA, run_id="synthetic", status="finished", error=None, digest="", given={}, spec=spec,
        model={"weights_hash": ""}, tasks={}, provenance={},
    )  # fmt: skip
    return RunData(path=Path(), manifest=manifest, updates=(), measurements=rows, examples=examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=7)
    parser.add_argument("--items", type=int, default=2000)
    options = parser.parse_args()
    run = synthetic(options.checkpoints, options.tasks, options.items)
    started = time.perf_counter()
    frames = build_frames([run])
    tables = all_tables(frames)
    print(f"{len(run.examples):,} answers, {len(tables)} tables: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
