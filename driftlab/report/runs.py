"""Runs as a report reads them: stored records to tables, and whether runs can stand in one report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from driftlab.errors import DriftlabError
from driftlab.report.formats import flat
from driftlab.run.records import CoverageItem, Example, Iteration, Measurement, Update
from driftlab.run.store import Manifest, RunStore
from driftlab.tasks.targets import TARGETS


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """Everything a report uses of one run.

    ``notices`` says in words what was repaired while reading; ``items`` holds the items' texts by task and item;
    ``coverage`` is empty where no answers were sampled.
    """

    path: Path
    manifest: Manifest
    updates: Sequence[Iteration]
    measurements: Sequence[Measurement]
    examples: Sequence[Example]
    notices: Sequence[str] = ()
    items: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    coverage: Sequence[CoverageItem] = ()


def read_run(path: Path) -> RunData:
    """Read a stored run. Raises RunError when it cannot be read."""
    store = RunStore.open(path)
    examples = [example for step in store.example_steps() for example in store.examples(step)]
    return RunData(
        path=path,
        manifest=store.manifest,
        updates=store.updates(),
        measurements=store.measurements(),
        examples=examples,
        notices=tuple(store.notices),
        items=store.items(),
        coverage=[problem for step in store.example_steps() for problem in store.coverage(step)],
    )


def distinct_arms(runs: Sequence[RunData]) -> list[RunData]:
    """Runs whose arm and seed tell them apart: runs of one arm are its training seeds, and nothing else.

    Where runs of one arm differ in more than their seed, or share it, the run's name becomes part of the arm.

    Raises:
        DriftlabError: runs of one arm, name and seed, or of one arm and name with unlike settings.
    """
    clashing = _clashing(runs)
    if not clashing:
        return list(runs)
    named = []
    for run in runs:
        spec = dict(run.manifest.spec)
        if spec["arm"] in clashing:
            spec["arm"] = f"{spec['arm']} ({spec['name']})"
        named.append(replace(run, manifest=replace(run.manifest, spec=spec)))
    left = _clashing(named)
    if left:
        apart = [run.manifest for run in named if run.manifest.spec["arm"] in left]
        ids = ", ".join(manifest.run_id for manifest in apart)
        flats = [flat(manifest.spec) for manifest in apart]
        keys = sorted(key for key in flats[0] if len({other.get(key) for other in flats}) > 1)
        unlike = ", ".join(key for key in keys if key not in _NOT_SETTINGS) or "nothing: they share a seed"
        raise DriftlabError(
            f"runs of one arm must be its training seeds, but {ids} differ in {unlike}; report them apart"
        )
    return named


def _clashing(runs: Sequence[RunData]) -> set[str]:
    """Arms whose runs share a seed or differ in more than the seed."""
    found = set()
    for arm in dict.fromkeys(run.manifest.spec["arm"] for run in runs):
        specs = [run.manifest.spec for run in runs if run.manifest.spec["arm"] == arm]
        settings = {
            json.dumps({key: spec[key] for key in spec if key not in _NOT_SETTINGS}, sort_keys=True, default=str)
            for spec in specs
        }
        if len(settings) > 1 or len({spec["seed"] for spec in specs}) < len(specs):
            found.add(arm)
    return found


_NOT_SETTINGS = ("seed", "data", "threads", "name")
"""What may differ between the seeds of one arm."""


def check_together(runs: Sequence[RunData]) -> None:
    """Raises DriftlabError where runs cannot stand in one report, naming what they do not share."""
    if not runs:
        raise DriftlabError("a report needs at least one run")
    for run in runs:
        if not run.measurements:
            raise DriftlabError(
                f"run {run.manifest.run_id} holds no measurement (status {run.manifest.status}); "
                "finish it with --resume, or leave it out"
            )
    for what, read in (
        ("target task", lambda manifest: target_task(manifest)),
        # A run of other code that was not replayed knows the name of its base only.
        ("base model", lambda manifest: manifest.model["weights_hash"] or manifest.spec["model"]["source"]),
        ("served dtype", lambda manifest: manifest.spec["model"]["dtype"]),
    ):
        seen = {read(run.manifest): run.manifest.run_id for run in reversed(runs)}
        if len(seen) > 1:
            listed = ", ".join(f"{run_id} has {value}" for value, run_id in sorted(seen.items()))
            raise DriftlabError(f"runs in one report must share the {what}: {listed}; report them apart")
    _check_items(runs)


def _check_items(runs: Sequence[RunData]) -> None:
    """Every task that two runs share must have asked the same: paired comparisons rest on it."""
    first = runs[0]
    for run in runs[1:]:
        for task in sorted(set(first.manifest.tasks) & set(run.manifest.tasks)):
            if first.manifest.tasks[task] == run.manifest.tasks[task]:
                continue
            here, there = ({e.item for e in one.examples if e.task == task} for one in (first, run))
            only = sorted(here ^ there)
            what = (
                f"{len(only)} items are in one of them only, for example {only[0]}"
                if only
                else "the items are the same, their prompts or answer limits are not"
                if here
                else "the items or how they were asked differ"
            )
            raise DriftlabError(
                f"runs in one report must share the items and prompts of {task}, but in {first.manifest.run_id} and "
                f"{run.manifest.run_id} {what}; report them apart"
            )


def target_task(manifest: Manifest) -> str:
    """lm-eval name of the task trained on; a target of somebody else's is taken to be named as its lm-eval task."""
    if "measured_as" in manifest.spec["target"]:
        return str(manifest.spec["target"]["measured_as"])
    name = str(manifest.spec["target"]["task"])
    return TARGETS[name].lm_eval_task if name in TARGETS else name


def run_labels(runs: Sequence[RunData]) -> list[str]:
    """What a reader calls each run: its arm; with the seed, then the name or a number, where arms repeat."""
    specs = [run.manifest.spec for run in runs]
    labels = [str(spec["arm"]) for spec in specs]
    for detail in ("seed", "name"):
        counts = Counter(labels)
        labels = [
            label if counts[label] == 1 else f"{label}, {detail} {spec[detail]}"
            for label, spec in zip(labels, specs, strict=True)
        ]
    counts = Counter(labels)
    return [label if counts[label] == 1 else f"{label}, run {i}" for i, label in enumerate(labels, start=1)]


def record_table(pairs: Sequence[tuple[str, RunData]], name: str, kind: type[Any]) -> pd.DataFrame:
    columns = [field.name for field in fields(kind)]
    records = [
        (label, run.manifest.spec["arm"], *(getattr(record, column) for column in columns))
        for label, run in pairs
        for record in getattr(run, name)
    ]
    table = pd.DataFrame(records, columns=["run", "arm", *columns])
    numbers = [column for column in ("value", "stderr", "score", "correct") if column in table]
    return table.astype(dict.fromkeys(numbers, "float64"))


def update_table(pairs: Sequence[tuple[str, RunData]]) -> pd.DataFrame:
    rows = [
        {
            "run": label,
            "arm": run.manifest.spec["arm"],
            "step": update.step,
            "reward": float(np.mean(update.rewards)) if update.rewards else float("nan"),
            "reward_low": min(update.rewards, default=float("nan")),
            "reward_high": max(update.rewards, default=float("nan")),
            "members": len(update.rewards),
            **_of_es(update),
            "step_norm": float("nan") if update.step_norm is None else update.step_norm,
            "step_cosine": float("nan") if update.step_cosine is None else update.step_cosine,
            "seconds": update.seconds.get("total", float("nan")),
            "note": update.note,
        }
        for label, run in pairs
        for update in run.updates
    ]
    columns = "run arm step reward reward_low reward_high members population sigma alpha penalty decay step_norm"
    return pd.DataFrame(rows, columns=[*columns.split(), "step_cosine", "seconds", "note"])


def _of_es(update: Iteration) -> dict[str, Any]:
    """The columns that only ES has; nothing for another trainer."""
    names = ("population", "sigma", "alpha", "penalty", "decay")
    return {name: getattr(update, name) for name in names} if isinstance(update, Update) else {}


def run_row(label: str, run: RunData) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "run": label,
        "arm": manifest.spec["arm"],
        "control": manifest.spec.get("control", "none"),  # runs of schema 1 have no controls
        "settings": json.dumps([manifest.spec.get(key) for key in ("es", "anchor", "grpo")], sort_keys=True),
        "run_id": manifest.run_id,
        "name": manifest.spec["name"],
        "seed": manifest.spec["seed"],
        "status": manifest.status,
        "error": manifest.error,
        "last_step": max(row.step for row in run.measurements),
        "updates": len(run.updates),
        "notices": tuple(run.notices),
        "import_notes": tuple(manifest.provenance.get("import_notes", ())),
    }


def prior_tasks(runs: Sequence[RunData], measurements: pd.DataFrame, target: str) -> tuple[str, ...]:
    """Tasks other than the target: as the specs list them, then any other that was measured."""
    listed = [task for run in runs for task in ((run.manifest.spec["probes"].get("lm_eval") or {}).get("tasks") or ())]
    measured = sorted(set(measurements.loc[measurements["probe"] == "lm_eval", "group"]))
    return tuple(task for task in dict.fromkeys([*listed, *measured]) if task != target)


def item_texts(runs: Sequence[RunData]) -> dict[str, Mapping[str, Any]]:
    """Items' texts by task; runs in one report have the same items."""
    return {task: items for run in reversed(runs) for task, items in run.items.items()}
