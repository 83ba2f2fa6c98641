"""Small stored runs of ES and GRPO whose differences are known by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.report.runs import RunData, read_run
from driftlab.run.records import Cost, Example, GradientStep, Iteration, Measurement, Update
from driftlab.run.store import SCHEMA, Manifest, RunStore

TARGET, PRIORS = "toy_target", ("toy_choice", "toy_rules")
TASKS = (TARGET, *PRIORS)
N = 40
TRAIN_ITEMS, MEMBERS = 5, 4

Right = Mapping[str, Mapping[int, Sequence[int]]]
"""By task and step: the numbers of the items that are right."""


def es_update(step: int, cost: Cost | None, seconds: Mapping[str, float] | None = None) -> Update:
    return Update(
        step=step, seeds=(1, 2, 3, 4), coefficients=(1.0, -1.0, 1.0, -1.0), population=MEMBERS, sigma=0.02, alpha=0.01,
        penalty="none", decay=0.0, rewards=(0.1, 0.2, 0.3, 0.4), step_norm=0.1, step_cosine=None, weights_hash="f0",
        prompt_tokens=100, generated_tokens=50, cost=cost,
        seconds={"rollout": 2.0, "reward": 0.5, "update": 1.0, "total": 4.0} if seconds is None else seconds,
    )  # fmt: skip


def gradient_step(step: int, cost: Cost | None) -> GradientStep:
    return GradientStep(
        step=step, rewards=(0.0, 1.0), step_norm=None, step_cosine=None, weights_hash=None, prompt_tokens=60,
        generated_tokens=30, seconds={"model": 3.0, "reward": 0.25, "total": 3.5}, generations=2, loss=0.1,
        gradient_norm=1.0, learning_rate=1e-5, beta=0.0, kl_estimate=None, cost=cost,
    )  # fmt: skip


def cost(rollouts: int, forward: float, backward: float, *, device: int | None = None) -> Cost:
    return Cost(
        rollouts=rollouts, forward_flops=forward, backward_flops=backward, process_peak_bytes=1000,
        device_peak_bytes=device, stored_bytes=10,
    )  # fmt: skip


def example(task: str, step: int, index: int, right: Sequence[int]) -> Example:
    return Example(
        step=step, task=task, item=f"{task}-{index:03d}", cluster=f"{task}-{index:03d}", correct=float(index in right),
        score=0.0, output_length=None, parsed=None, truncated=None, output=None,
    )  # fmt: skip


def measured(step: int, right: Right, norm: float, kl: Mapping[str, float]) -> tuple[list[Measurement], list[Example]]:
    rows = [
        Measurement(
            step=step, probe="weights", quantity="update_norm", group="all", value=norm, unit="l2", stderr=None, n=9
        )
    ]
    for task in TASKS:
        value, divergence = len(right[task][step]) / N, kl[task]
        known: dict[str, Any] = {"step": step, "group": task}
        rows += [
            Measurement(probe="lm_eval", quantity="accuracy", value=value, unit="fraction", stderr=None, n=N, **known),
            Measurement(
                probe="kl", quantity="kl_base_to_step", value=divergence, unit="nats/token", stderr=0.1 * divergence,
                n=16, **known,
            ),
        ]  # fmt: skip
    return rows, [example(task, step, i, right[task][step]) for task in TASKS for i in range(N)]


def store_run(
    folder: Path,
    arm: str,
    right: Right,
    *,
    seed: int = 0,
    trainer: str = "es",
    rollouts: int | None = 20,
    norm: float = 1.0,
    kl: Mapping[str, float] | None = None,
    spec: Mapping[str, Any] | None = None,
    model: str = "w0",
) -> RunData:
    """A stored run, read back. Norm and KL grow in proportion to the step, from 0 to ``norm`` and ``kl`` at the last.

    Args:
        rollouts: of an iteration; 100 forward and, for GRPO, 200 backward FLOPs each. None: no cost is stored.
    """
    steps = sorted(right[TARGET])
    last, grpo = steps[-1], trainer == "grpo"
    whole = {
        "name": "toy", "arm": arm, "seed": seed, "trainer": trainer, "model": {"source": "toy", "dtype": "float32"},
        "target": {"task": TARGET, "train_items": TRAIN_ITEMS},
        "es": None if grpo else {"sigma": 0.02, "alpha": 0.01, "population": MEMBERS},
        "grpo": {"beta": 0.0} if grpo else None,
        "anchor": {"penalty": "none", "lambda": 0.0},
        "control": "none",
        "probes": {"lm_eval": {"tasks": list(PRIORS), "items": N}, "kl": {"sequences": 16, "seed": 0}},
    }  # fmt: skip
    manifest = Manifest(
        schema=SCHEMA, run_id=f"{arm}-s{seed}", status="finished", error=None, digest="d", given={},
        spec=whole | dict(spec or {}), model={"weights_hash": model}, tasks={}, provenance={"commit": "0"},
    )  # fmt: skip
    store = RunStore.create(folder / f"{arm}-s{seed}", manifest, {}, {})
    for step in range(1, last + 1):
        spent = None if rollouts is None else cost(rollouts, 100.0 * rollouts, 200.0 * rollouts * grpo)
        done: Iteration = gradient_step(step, spent) if grpo else es_update(step, spent)
        store.append_update(done)
    for step in steps:
        share = step / last
        divergences = {task: share * (kl or dict.fromkeys(TASKS, 0.01))[task] for task in TASKS}
        store.add_measured(step, *measured(step, right, share * norm, divergences))
    return read_run(store.path)
