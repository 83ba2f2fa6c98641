"""Two stored runs that geometry can compare, and their weights along the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from driftlab.errors import RunError
from driftlab.models.checkpoints import State, es_updates, step_of, weights_at
from driftlab.report.runs import RunData, read_run, run_labels
from driftlab.run.records import Example, Update
from driftlab.run.spec import RunSpec
from driftlab.run.store import RunStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two solutions.

    Attributes:
        label: what a reader calls it, its step included; the other side has another.
        step: of the solution.
        updates: the ES updates that lead to it; None where the trainer is another.
    """

    label: str
    store: RunStore
    data: RunData
    spec: RunSpec
    step: int
    updates: Sequence[Update] | None

    @property
    def measured(self) -> list[int]:
        """Steps that were measured up to the solution, and the base."""
        return sorted({0, *(step for step in self.store.example_steps() if step <= self.step)})

    def stored(self, task: str) -> list[Example]:
        """What the run itself stored of the items of ``task`` at the solution; empty where it measured nothing."""
        return [one for one in self.data.examples if one.step == self.step and one.task == task]


def two_sides(a: Path, b: Path, step_a: int | None, step_b: int | None) -> tuple[Side, Side]:
    """The solutions at ``step_a`` of run ``a`` and ``step_b`` of run ``b``; None for the last step.

    Raises:
        RunError: a run that cannot be read or whose weights cannot be had, no such step, twice the same checkpoint, or
            runs that differ in base weights, number formats, tasks or items.
    """
    data = [read_run(path) for path in (a, b)]
    labels = run_labels(data)
    if a.resolve() == b.resolve():
        labels = [str(one.manifest.spec["arm"]) for one in data]
    found = [_side(one, label, step) for one, label, step in zip(data, labels, (step_a, step_b), strict=True)]
    if found[0].store.path.resolve() == found[1].store.path.resolve() and found[0].step == found[1].step:
        raise RunError(f"{a} at step {found[0].step} was given twice; name two runs, or two steps of one run")
    _refuse_unlike(*found)
    return found[0], found[1]


def _side(data: RunData, label: str, step: int | None) -> Side:
    store = RunStore.open(data.path)
    if "imported" in store.manifest.spec:
        raise RunError(f"{data.path} is a run of other code without weights of its own; give a run of driftlab")
    spec = RunSpec.model_validate(store.manifest.spec)
    updates = es_updates(data.updates) if spec.trainer == "es" else None
    # What is not replayed is kept at measured steps.
    last = max(store.example_steps(), default=0) if updates is None else len(updates)
    at = last if step is None else step
    if not 0 <= at <= last:
        raise RunError(f"{data.path} has steps 0 to {last}, not {at}")
    own = None if updates is None else updates[:at]
    return Side(label=f"{label}, step {at}", store=store, data=data, spec=spec, step=at, updates=own)


def _refuse_unlike(a: Side, b: Side) -> None:
    for what, first, second in (
        ("base weights", a.store.manifest.model["weights_hash"], b.store.manifest.model["weights_hash"]),
        ("served number format", a.spec.model.dtype, b.spec.model.dtype),
        ("number format of the master weights", a.spec.precision.master, b.spec.precision.master),
    ):
        if first != second:
            raise RunError(
                f"two solutions must share the {what}, but {a.store.path} has {first} and {b.store.path} has {second}; "
                "compare runs that do"
            )
    tasks = (a.store.manifest.tasks, b.store.manifest.tasks)
    for one, other, mine, its in ((a, b, *tasks), (b, a, *reversed(tasks))):
        alone = sorted(mine.keys() - its.keys())
        if alone:
            raise RunError(
                f"two solutions must share the measured tasks, but {', '.join(alone)} is in {one.store.path} only, not "
                f"in {other.store.path}; measure both with the same tasks"
            )
    unlike = [task for task in tasks[0] if tasks[0][task] != tasks[1][task]]
    if unlike:
        raise RunError(
            f"two solutions must share items and prompts, but those of {', '.join(unlike)} differ between "
            f"{a.store.path} and {b.store.path}; measure both with the same probes.lm_eval settings and data"
        )


def weights_along(
    side: Side, base: Mapping[str, torch.Tensor], steps: Sequence[int]
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Master weights at ``steps``, ascending; a yielded dictionary is the caller's.

    Raises:
        RunError: the weights of a step were not kept, or are not those that were trained.
    """
    if side.updates is None:
        for step in steps:
            yield step, weights_at(side.store, base, step)
        return
    # One pass: a replay of its own for every step would repeat the first ones for each.
    state = State.at_base(base, side.spec.precision.resolved)
    for step in steps:
        for update in side.updates[state.step : step]:
            state.advance(step_of(update, side.spec), side.spec.threads)
        if step > 0 and state.hash() != side.updates[step - 1].weights_hash:
            # A stored keyframe may still lead there; if none does, this says which run and what to do about it.
            yield step, weights_at(side.store, base, step)
        else:
            yield step, {name: tensor.clone() for name, tensor in state.weights.items()}
