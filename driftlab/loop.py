"""Train, store, measure on schedule, resume."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import RunError
from driftlab.es.step import Watch
from driftlab.models.checkpoints import State, rebuild
from driftlab.probes.base import Checkpoint
from driftlab.run import provenance
from driftlab.run.plan import PlannedRun
from driftlab.run.records import Example, Measurement, Update
from driftlab.run.spec import RunSpec
from driftlab.run.store import SCHEMA, Manifest, RunStore
from driftlab.session import Event, Listener, Session, prepare
from driftlab.trainers.controls import TRAINERS


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
    updates = [] if store is None else store.updates()
    measured = set() if store is None else set(store.example_steps())
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
        _train(session, store, updates, measured, listen)
    except KeyboardInterrupt:
        store.set_status("stopped", "interrupted")
        raise
    except Exception as error:
        store.set_status("failed", f"{type(error).__name__}: {error}")
        raise
    store.set_status("finished")
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


def _train(session: Session, store: RunStore, updates: list[Update], measured: set[int], listen: Listener) -> None:
    spec = session.spec
    watch = None if spec.probes.rounding is None else Watch(served=spec.model.dtype, sigma=spec.es.sigma)
    state = rebuild(store, session.base.weights, updates, len(updates), watch)
    trainer = TRAINERS[spec.control](spec, state, session.rollouts, session.target, session.items, session.prompts)
    scheduled = set(spec.measured_steps())
    for step in sorted(scheduled - measured):
        if step < state.step:
            # Its rows or examples were lost after the run had gone on.
            _measure(session, store, rebuild(store, session.base.weights, updates, step, watch), updates, listen)
    while True:
        _keyframe(spec, store, state)
        if state.step in scheduled - measured:
            _measure(session, store, state, updates, listen)
        if state.step == spec.es.iterations:
            return
        update = trainer.iterate()
        store.append_update(update)
        updates.append(update)
        listen(
            Event(
                kind="iteration",
                step=update.step,
                seconds=update.seconds["total"],
                reward=sum(update.rewards) / len(update.rewards) if update.rewards else None,
            )
        )


def _keyframe(spec: RunSpec, store: RunStore, state: State) -> None:
    every = spec.keyframes_every
    if every and state.step and state.step % every == 0 and state.step not in store.keyframe_steps():
        store.save_keyframe(state.step, state.weights)


def _measure(session: Session, store: RunStore, state: State, updates: Sequence[Update], listen: Listener) -> None:
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
    for probe in session.probes:
        listen(Event(kind="probing", detail=probe.name))
        found = probe.measure(checkpoint, session.engine)
        rows += found.measurements
        examples += found.examples
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
    manifest = store.manifest
    if manifest.model["weights_hash"] != session.base.weights_hash:
        raise RunError(f"{store.path} started from other base weights than {session.base.source} holds now")
    for task, fingerprint in session.task_hashes.items():
        if manifest.tasks.get(task) != fingerprint:
            raise RunError(f"{store.path} measured other items or prompts of {task} than its data gives now")


def _check_packages(store: RunStore, spec: RunSpec) -> None:
    """One run, one set of packages: a run continued with others would claim numbers that they did not make."""
    now = provenance.collect(device=spec.model.device, dtype=spec.model.dtype, threads=spec.threads)["packages"]
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
        provenance=provenance.collect(device=spec.model.device, dtype=spec.model.dtype, threads=spec.threads),
    )
