"""Train, store, measure on schedule, resume."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftlab.errors import RunError
from driftlab.es.step import Watch
from driftlab.models.checkpoints import State, check_base, rebuild, weights_at
from driftlab.probes.base import Checkpoint
from driftlab.run import provenance
from driftlab.run.plan import PlannedRun
from driftlab.run.records import CoverageItem, Example, Iteration, Measurement
from driftlab.run.spec import RunSpec
from driftlab.run.store import SCHEMA, Manifest, RunStore
from driftlab.session import Event, Listener, Session, check_tasks, prepare
from driftlab.trainers.base import Trainer, reset_peaks
from driftlab.trainers.controls import TRAINERS
from driftlab.trainers.folders import FolderTrainer
from driftlab.trainers.grpo import GrpoTrainer
from driftlab.trainers.policy import latest_state


def run(planned: PlannedRun, path: Path, *, resume: bool, listen: Listener) -> RunStore:
    """Run, or with ``resume`` go on with, the run in ``path``.

    Raises:
        RunError: ``path`` exists without ``resume``, or holds another run.
        DriftlabError: model, data or tasks are missing; nothing has been written then.
    """
    spec = planned.spec
    store = _existing(path, spec, resume)
    if store is not None and store.manifest.status == "finished":
        return store
    updates: list[Iteration] = [] if store is None else store.updates()
    listen(Event(kind="loading", step=len(updates), detail=spec.model.source))
    session = prepare(spec, None if store is None else store.references(), listen)
    if store is None:
        store = RunStore.create(path, _manifest(planned, session), session.references, session.item_texts)
    else:
        _check_same(store, session)
        _check_packages(store, spec)
        store.trim()
        store.set_status("started")
    try:
        _train(session, store, updates, listen)
    except KeyboardInterrupt:
        store.set_status("stopped", "interrupted")
        raise
    except Exception as error:
        store.set_status("failed", f"{type(error).__name__}: {error}")
        raise
    store.set_status("finished")
    # Three times the weights and more, needed by nobody any more.
    shutil.rmtree(store.trainer_folder, ignore_errors=True)
    return store


def unfinished(plan: Sequence[PlannedRun], group: Path, *, resume: bool) -> list[PlannedRun]:
    """The runs of ``plan`` still to be run in ``group``; a plan any of whose runs could not start is refused whole.

    Raises:
        RunError: a run exists without ``resume``, or was started with another spec.
    """
    stores = [_existing(group / planned.folder, planned.spec, resume) for planned in plan]
    return [
        planned
        for planned, store in zip(plan, stores, strict=True)
        if store is None or store.manifest.status != "finished"
    ]


def _train(session: Session, store: RunStore, updates: list[Iteration], listen: Listener) -> None:
    trainer = _trainer(session, store, updates)
    left = set(session.schedule).difference(store.example_steps())
    for step in sorted(left):
        if step < trainer.state.step:
            # Its rows or examples were lost after the run had gone on.
            _measure(session, store, _state_at(session, store, updates, step), updates, listen)

    def arrive() -> None:
        if trainer.state.step in left:
            _measure(session, store, trainer.state, updates, listen)

    def record(update: Iteration) -> None:
        stored = store.save_keyframe(update.step, trainer.state.weights) if _kept(session, update.step) else 0
        if update.cost is not None:
            update = replace(update, cost=replace(update.cost, stored_bytes=stored))
        store.append_update(update)
        updates.append(update)
        reward = sum(update.rewards) / len(update.rewards) if update.rewards else None
        listen(Event(kind="iteration", step=update.step, seconds=update.seconds["total"], reward=reward))

    arrive()
    reset_peaks(session.spec.model.device)
    trainer.train(record, arrive)


def _trainer(session: Session, store: RunStore, updates: list[Iteration]) -> Trainer:
    """The trainer of the run at the last step that it can go on from; what lies beyond is dropped."""
    spec, base = session.spec, session.base
    if spec.trainer == "folders":
        return FolderTrainer(spec, _state_at(session, store, updates, max(store.example_steps(), default=0)))
    if spec.trainer == "grpo":
        found = latest_state(store.trainer_folder, len(updates))
        last = 0 if found is None else found[0]
        store.trim(last)
        del updates[last:]
        kept = last == 0 or last in store.keyframe_steps()
        # TRL has its own copy of the weights; ours follow at the next scheduled step.
        state = _state_at(session, store, updates, last) if kept else State(last, base.weights, {})
        batch = (session.target, session.items, session.prompts, session.engine.end_tokens(), session.shape)
        return GrpoTrainer(spec, state, base, *batch, store.trainer_folder, session.schedule)
    assert session.rollouts is not None
    state = _state_at(session, store, updates, len(updates))
    parts = (session.rollouts, session.target, session.items, session.prompts, session.shape)
    return TRAINERS[spec.control](spec, state, *parts)


def _state_at(session: Session, store: RunStore, updates: Sequence[Iteration], step: int) -> State:
    spec, base = session.spec, session.base.weights
    if spec.trainer == "es":
        watch = None if spec.probes.rounding is None else Watch(served=spec.model.dtype, sigma=spec.evolution.sigma)
        return rebuild(store, base, updates, step, watch)
    return State(step, base, weights_at(store, base, step))


def _kept(session: Session, step: int) -> bool:
    """Whether the weights of a step are stored: what cannot be replayed, where it is measured; keyframes as asked."""
    if session.spec.trainer == "grpo":
        return step in session.schedule
    every = session.spec.keyframes_every
    return every is not None and step % every == 0


def _measure(session: Session, store: RunStore, state: State, updates: Sequence[Iteration], listen: Listener) -> None:
    started = time.perf_counter()
    session.engine.write(state.weights)
    checkpoint = Checkpoint(
        step=state.step,
        weights=state.weights,
        base=state.base,
        updates=tuple(updates[: state.step]),
        survival=state.survival,
    )
    rows: list[Measurement] = []
    examples: list[Example] = []
    coverage: list[CoverageItem] = []
    for probe in session.probes:
        listen(Event(kind="probing", detail=probe.name))
        found = probe.measure(checkpoint, session.engine)
        rows += found.measurements
        examples += found.examples
        coverage += found.coverage
    store.add_coverage(state.step, coverage)
    store.add_measured(state.step, rows, examples)
    listen(Event(kind="measured", step=state.step, seconds=time.perf_counter() - started))


def _existing(path: Path, spec: RunSpec, resume: bool) -> RunStore | None:
    if not path.exists():
        return None
    if not resume:
        raise RunError(f"{path} already exists; continue it with --resume, or choose another folder with --out")
    store = RunStore.open(path)
    if store.manifest.digest != spec.digest():
        changed = _differences(dict(store.manifest.spec), spec.as_dict())
        raise RunError(
            f"{path} was started with another spec ({'; '.join(changed)}): resume it as it was, or choose another --out"
        )
    return store


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``key: old, now new`` for every leaf that differs, the data folder aside."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after, name = old.get(key), new.get(key), prefix + key
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += _differences(before, after, f"{name}.")
        elif before != after and name != "data":
            found.append(f"{name}: {before}, now {after}")
    return found


def _check_same(store: RunStore, session: Session) -> None:
    check_base(store, session.base)
    check_tasks(store, session.task_hashes)


def _check_packages(store: RunStore, spec: RunSpec) -> None:
    """One run, one set of packages: a run continued with others would claim numbers that they did not make."""
    now = _provenance(spec)["packages"]
    for name, version in store.manifest.provenance["packages"].items():
        if now.get(name) != version:
            raise RunError(
                f"{store.path} was started with {name} {version} and would go on with {now.get(name)}: "
                f"install {name} {version}, or start a new run with another --out"
            )


def _manifest(planned: PlannedRun, session: Session) -> Manifest:
    spec = planned.spec
    return Manifest(
        schema=SCHEMA,
        run_id=f"{spec.name}/{planned.folder}-{spec.digest()[:8]}",
        status="started",
        error=None,
        digest=spec.digest(),
        given=dict(planned.given),
        spec=spec.as_dict(),
        model=session.base.described(),
        tasks=dict(session.task_hashes),
        provenance=_provenance(spec),
    )


def _provenance(spec: RunSpec) -> dict[str, Any]:
    return provenance.collect(
        device=spec.model.device, dtype=spec.model.dtype, threads=spec.threads, trainer=spec.trainer
    )
