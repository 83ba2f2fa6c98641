"""A run of other code as a run of ours: its settings, updates and accuracies, and what its weights say if replayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import MissingDataError, RunError, SpecError
from driftlab.models.base import DTYPES, BaseModel, load_base
from driftlab.models.foreign import ForeignAccuracy, ForeignArgs, ForeignRun, read_foreign
from driftlab.models.foreign_replay import Layout, StepsInARow, replay, replay_notes, shared_noise_factor
from driftlab.models.hashing import weights_hash
from driftlab.models.plan import plan_model
from driftlab.probes.base import Checkpoint, Probe
from driftlab.probes.kl import KlProbe
from driftlab.probes.rows import Rows
from driftlab.probes.weights import Change, WeightsProbe, add_predictions
from driftlab.report.scores import GENERATIVE
from driftlab.run import provenance
from driftlab.run.records import Measurement, Update
from driftlab.run.spec import spec_digest
from driftlab.run.store import SCHEMA, Manifest, RunStore

TEXT_SET = "free text"
"""Group of the KL rows: continuations of nothing but the token that begins a text."""
_TEXT_TOKENS = 128
_THEIR_SEED = 42  # es-awd's own, where none or 0 was given


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """What the weights said.

    ``facts``: by step, the hash of the weights, norm and cosine of the step. ``rows``: by measured step.
    """

    model: Mapping[str, Any]
    notes: Sequence[str]
    references: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[int, Sequence[Measurement]] = field(default_factory=dict)


def import_foreign(
    path: Path,
    out_dir: Path,
    *,
    name: str,
    arm: str | None = None,
    model: str | None = None,
    layout: Layout | None = None,
    device: str = "cpu",
    steps: Sequence[int] | None = None,
    kl_texts: int = 0,
) -> RunStore:
    """Write ``out_dir/name``, a finished run of ours, from an es-awd run directory; nothing is written unless all is.

    Accuracies have no items, so a report judges them by unpaired errors (``report.unpaired``). What a reader must know
    is in ``import_notes`` of the run's provenance.

    Args:
        path: the es-awd run.
        arm: what reports call it; default by its anchor.
        model: base model for size and replay (folder, ``.gguf`` file, hub id); default the name in its ``args.json``.
        layout: replay the weights in this layout, and measure them; None leaves them alone.
        device: where to replay.
        steps: replay these only; default every step with an accuracy, and the last. Hash, norm and cosine of an update
            are filled in for these steps alone.
        kl_texts: with a replay, texts drawn from the base for the KL at the same steps; 0 for no KL.

    Raises:
        RunError: the run is not as it should be, the place is taken, or steps or texts are given without a layout.
        DriftlabError: the model to replay cannot be had.
    """
    foreign = read_foreign(path)
    to = out_dir / name
    if to.exists():
        raise RunError(f"{to} already exists; choose another folder with --out")
    if layout is None and (steps or kl_texts):
        raise RunError("steps and KL texts are measured on replayed weights: add --replay hf or --replay fused")
    given = set(steps or ())
    if given - set(range(foreign.args.iterations + 1)):
        raise RunError(f"{path} has steps 0 to {foreign.args.iterations}, not {', '.join(map(str, sorted(given)))}")
    measured = {0, foreign.args.iterations, *given, *(row.step for rows in foreign.accuracies.values() for row in rows)}
    source = model or foreign.args.model_name
    if layout is None:
        rebuilt = _sized(source)
    else:
        rebuilt = _rebuilt(foreign, source, layout, device, {0, *given} if given else measured, kl_texts)
    manifest = _manifest(foreign, rebuilt, _spec(foreign, name, arm, source, layout, device, measured))
    why = "the weights were not rebuilt: replay the run" if layout is None else "this step was not asked for"
    store = RunStore.create(to, manifest, rebuilt.references, {})
    updates = _updates(foreign, rebuilt.facts)
    for update in updates:
        store.append_update(update)
    for step in sorted(measured):
        weights = rebuilt.rows.get(step) or _law_rows(step, updates[:step], rebuilt.model["n_parameters"], why)
        store.add_measured(step, [*_accuracy_rows(foreign, step), *weights], [])
    store.set_status("finished")
    return store


def _manifest(foreign: ForeignRun, rebuilt: _Rebuilt, spec: Mapping[str, Any]) -> Manifest:
    args, digest = foreign.args, spec_digest(dict(spec))
    device = spec["imported"]["device"] or "not replayed"
    made = provenance.collect(device=device, dtype=args.precision, threads=torch.get_num_threads())
    return Manifest(
        schema=SCHEMA,
        run_id=f"{spec['name']}-{digest[:8]}",
        status="started",
        error=None,
        digest=digest,
        given=args.model_dump(by_alias=True),
        spec=spec,
        model=rebuilt.model,
        tasks={dataset: _stated(rows) for dataset, rows in foreign.accuracies.items()},
        provenance=made | {"import_notes": [*rebuilt.notes, *_notes(foreign, spec["model"]["source"])]},
    )


def _updates(foreign: ForeignRun, facts: Mapping[int, Mapping[str, Any]]) -> list[Update]:
    """Our records; what was not replayed is None, and rewards, tokens and times were never written down."""
    args = foreign.args
    unknown: dict[str, Any] = {"step_norm": None, "step_cosine": None, "weights_hash": None}
    return [
        Update(
            step=update.step,
            seeds=update.seeds,
            coefficients=update.coefficients,
            population=args.population,
            sigma=args.sigma,
            alpha=args.alpha,
            penalty=args.penalty,
            decay=args.decay,
            rewards=(),
            prompt_tokens=0,
            generated_tokens=0,
            seconds={},
            **unknown | dict(facts.get(update.step, {})),
        )
        for update in foreign.updates
    ]


def _accuracy_rows(foreign: ForeignRun, step: int) -> list[Measurement]:
    found = [(dataset, row) for dataset, rows in foreign.accuracies.items() for row in rows if row.step == step]
    return [
        Measurement(
            step=step,
            probe="lm_eval",
            quantity="accuracy",
            group=dataset,
            value=row.value,
            unit="fraction",
            stderr=None if row.value is None else math.sqrt(row.value * (1 - row.value) / row.n),
            n=row.n,
            status="failed" if row.value is None else "ok",
            note="num_examples is 0: nothing was asked" if row.value is None else None,
        )
        for dataset, row in found
    ]


def _law_rows(step: int, updates: Sequence[Update], d: int | None, why: str) -> list[Measurement]:
    """The random-walk norms without weights to hold them against; ``d`` parameters, None where nobody knows."""
    rows = Rows(step, WeightsProbe.name)
    rows.add("update_norm", None, "l2", d or 0, note=why)
    if d is None:
        for quantity in ("predicted_norm", "predicted_norm_alpha", "predicted_norm_sigma", "predicted_norm_anchored"):
            rows.add(quantity, None, "l2", 0, note="the number of parameters is not known: name the model with --model")
    else:
        add_predictions(rows, Checkpoint(step=step, weights={}, base={}, updates=updates), Change(n=d))
    # Shared noise widens the scatter by a factor that takes the tensors' shapes; the norm itself is as predicted.
    kept = [row for row in rows.rows if row.quantity != "random_walk_ratio"]
    return [replace(row, stderr=None) if row.quantity == "predicted_norm" else row for row in kept]


def _sized(source: str) -> _Rebuilt:
    """Nothing but the size of the model, where it can be had."""
    try:
        d, notes = plan_model(source).n_parameters, []
    except (MissingDataError, SpecError) as error:
        d, notes = None, [f"no random-walk law, because the size of the model is not known: {error}"]
    return _Rebuilt({"source_kind": None, "weights_hash": None, "n_parameters": d}, notes)


def _rebuilt(
    foreign: ForeignRun, source: str, layout: Layout, device: str, measured: Iterable[int], kl_texts: int
) -> _Rebuilt:
    base = load_base(source, dtype=DTYPES[foreign.args.precision], device=device)
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=16)
    kl = _kl_probe(base, kl_texts) if kl_texts else None
    probes: list[Probe] = [WeightsProbe(tied_twice=True), *([kl] if kl is not None else [])]
    for probe in probes:
        probe.prepare(engine)
    wanted, start = sorted(set(measured)), dict[str, torch.Tensor]()
    # A step's norm takes the weights before it, its cosine those before these too.
    needed = {at for step in wanted for at in (step - 2, step - 1, step) if at >= 0}
    facts: dict[int, dict[str, Any]] = {}
    rows: dict[int, list[Measurement]] = {}
    factor, walk = shared_noise_factor(base.weights, layout), StepsInARow()
    for step, weights in replay(foreign, base.weights, layout=layout, device=device, steps=needed):
        start = start or weights  # step 0 comes first
        norm, cosine = walk.follow(step, weights)
        if step not in wanted:
            continue
        if step > 0:
            facts[step] = {"weights_hash": weights_hash(weights), "step_norm": norm, "step_cosine": cosine}
        engine.write(weights)
        updates = _updates(foreign, facts)[:step]
        checkpoint = Checkpoint(step=step, weights=weights, base=start, updates=updates)
        found = [row for probe in probes for row in probe.measure(checkpoint, engine).measurements]
        rows[step] = [_widened(row, factor) for row in found]
    notes = replay_notes(base.weights, layout=layout, device=device)
    return _Rebuilt(base.described(), notes, {} if kl is None else kl.references, facts, rows)


def _widened(row: Measurement, factor: float) -> Measurement:
    if row.quantity != "predicted_norm" or row.stderr is None:
        return row
    note = f"{row.note}; tensors of equal shape share noise, which widens the scatter {factor:.3g} times"
    return replace(row, stderr=row.stderr * factor, note=note)


def _kl_probe(base: BaseModel, texts: int) -> KlProbe:
    config = base.model.config
    first = base.tokenizer.bos_token_id
    for other in (config.bos_token_id, base.tokenizer.eos_token_id):
        first = other if first is None else first
    length = min(_TEXT_TOKENS, config.max_position_embeddings - 1)
    return KlProbe({TEXT_SET: [(int(first),)] * texts}, max_new_tokens=length, seed=0)


def _stated(rows: Sequence[ForeignAccuracy]) -> dict[str, Any]:
    """What a report must know of a task without items, and what two runs must share to stand beside each other."""
    return {"paired": False, "profile": GENERATIVE, "asked_by": "es-awd", "items": sorted({row.n for row in rows})}


def _notes(foreign: ForeignRun, source: str) -> list[str]:
    args, notes = foreign.args, []
    if source != args.model_name:
        notes.append(f"the run was trained from {args.model_name}, and {source} was taken for it")
    if not foreign.accuracies:
        notes.append("no accuracies were found: nothing was evaluated")
    if not args.seed:
        notes.append(f"es-awd takes seed {_THEIR_SEED} for global seed 0 or none")
    notes.append("es-awd seeds noise with global seed + iteration: seeds g and g + 1 share theirs, one iteration apart")
    if foreign.unread:
        notes.append(f"not read, because measured in another way than here: {', '.join(foreign.unread)}")
    return notes


def _spec(
    foreign: ForeignRun, name: str, arm: str | None, source: str, layout: Layout | None, device: str, at: Iterable[int]
) -> dict[str, Any]:
    """Settings under the names of our specs, as far as they are known; ``imported`` holds those that are theirs."""
    args = foreign.args
    priors = [dataset for dataset in foreign.accuracies if dataset != args.task]
    return {
        "name": name,
        "arm": arm or _arm(args),
        "seed": args.seed or _THEIR_SEED,
        "control": "none",
        "model": {"source": source, "dtype": args.precision},
        "target": {"task": args.task, "measured_as": args.task},
        "es": {
            "population": args.population,
            "iterations": args.iterations,
            "sigma": args.sigma,
            "alpha": args.alpha,
            "mirrored": args.mirrored,
            "noise": "es-awd",
        },
        "anchor": {"penalty": args.penalty, "lambda": args.lam},
        "measure": {"at": sorted(at)},
        "probes": {"lm_eval": {"tasks": priors}},
        "imported": {
            "format": "es-awd",
            "model": args.model_name,
            "engines": args.engines,
            "eval_interval": args.eval_interval,
            "caching": args.caching,
            "layout": layout,
            "device": None if layout is None else device,
        },
    }


def _arm(args: ForeignArgs) -> str:
    return "ES" if args.penalty == "none" else f"ES+AWD-{args.penalty.upper()}"
