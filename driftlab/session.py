"""Everything a run needs, loaded and checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftlab.engines.population import Rollouts, SequentialRollouts, StackedRollouts, refuse_unstackable
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import RunError, SpecError
from driftlab.models.base import DTYPES, BaseModel, load_base
from driftlab.models.checkpoints import in_format
from driftlab.models.flops import Shape, shape_of
from driftlab.models.folders import steps_in
from driftlab.probes.base import Probe
from driftlab.probes.coverage import CoverageProbe
from driftlab.probes.floor import FloorProbe
from driftlab.probes.held_out import HeldOutProbe, held_out_items
from driftlab.probes.kl import KlProbe
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.probes.rounding import RoundingProbe
from driftlab.probes.weights import WeightsProbe
from driftlab.run.parts import KlProbeSpec
from driftlab.run.spec import RunSpec
from driftlab.run.store import ItemTexts, RunStore
from driftlab.tasks.base import Item, Target
from driftlab.tasks.targets import target as find_target
from driftlab.trainers.policy import check_installed, check_modules


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What just happened, for whoever shows progress.

    ``kind``: ``loading``, ``iteration`` (with ``reward``), ``probing`` (with ``detail``), ``measured``. ``step`` is
    None where the event does not move it.
    """

    kind: str
    step: int | None = None
    seconds: float = 0.0
    detail: str = ""
    reward: float | None = None


Listener = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Everything a run needs, loaded and checked, before anything is written.

    ``items`` and ``prompts`` are those of the training batch, ``item_texts`` those that the lm_eval probe measures.
    ``rollouts`` is None where training is not by a population. ``schedule`` holds the steps to be measured.
    """

    spec: RunSpec
    base: BaseModel
    engine: TransformersEngine
    rollouts: Rollouts | None
    shape: Shape
    schedule: tuple[int, ...]
    target: Target
    items: tuple[Item, ...]
    prompts: tuple[tuple[int, ...], ...]
    probes: tuple[Probe, ...]
    task_hashes: Mapping[str, str]
    references: Mapping[str, Any]
    item_texts: ItemTexts


def prepare(spec: RunSpec, references: Mapping[str, Any] | None, listen: Listener) -> Session:
    """Load the model, draw the training batch, build the probes' requests and reference texts."""
    torch.set_num_threads(spec.threads)
    if spec.grpo is not None:
        check_installed(spec.grpo)
    schedule = (0, *steps_in(spec.folders.path)) if spec.folders is not None else spec.measured_steps()
    target = find_target(spec.target.task)
    items = target.train_items(count=spec.target.train_items, seed=spec.target.data_seed, data=spec.data)
    base = load_base(
        spec.model.source, dtype=DTYPES[spec.model.dtype], device=spec.model.device, revision=spec.model.revision
    )
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=spec.target.batch_size)
    if spec.grpo is not None and spec.grpo.lora is not None:
        check_modules(base.model, spec.grpo.lora)
    # Reference texts and step 0 come from the base in the master's format.
    engine.write(in_format(base.weights, spec.precision.resolved.master))
    harness = lm_eval_probe(spec, target, engine, listen)
    prompts = tuple(engine.encode(item.prompt, chat=spec.model.chat) for item in items)
    floor = _floor_probe(spec, harness, listen)
    coverage = _coverage_probe(spec, harness, engine, schedule, listen)
    held_out = _held_out_probe(spec, target, harness, engine, items, prompts)
    kl = _kl_probe(spec, target, engine, harness, prompts, references, listen)
    found: tuple[Probe | None, ...] = (harness, floor, coverage, held_out, kl)
    return Session(
        spec=spec,
        base=base,
        engine=engine,
        rollouts=_rollouts(spec, engine) if spec.trainer == "es" else None,
        shape=shape_of(base.model),
        schedule=tuple(dict.fromkeys(schedule)),
        target=target,
        items=items,
        prompts=prompts,
        probes=(*_weight_probes(spec), *(probe for probe in found if probe is not None)),
        task_hashes={} if harness is None else {t: harness.settings_hash(t) for t in measured_tasks(spec, target)},
        references={} if kl is None else kl.references,
        item_texts={} if harness is None else harness.item_texts(),
    )


def _rollouts(spec: RunSpec, engine: TransformersEngine) -> Rollouts:
    es = spec.evolution
    if es.rollouts == "stacked":
        refuse_unstackable(engine.model.config)
    kind = StackedRollouts if es.rollouts == "stacked" else SequentialRollouts
    return kind(
        engine=engine,
        scheme=es.noise,
        max_new_tokens=spec.target.max_new_tokens,
        threads=spec.threads,
        precision=spec.precision.resolved,
    )


def _weight_probes(spec: RunSpec) -> list[Probe]:
    probes: list[Probe] = []
    if spec.probes.weights is not None:
        probes.append(WeightsProbe(tau=spec.probes.weights.tau, tied_twice=spec.probes.weights.tied_twice))
    if spec.probes.rounding is not None and spec.trainer == "es":
        probes.append(RoundingProbe(served=spec.model.dtype, master=spec.precision.master))
    return probes


def lm_eval_probe(spec: RunSpec, target: Target, engine: TransformersEngine, listen: Listener) -> LmEvalProbe | None:
    settings = spec.probes.lm_eval
    if settings is None:
        return None
    probe = LmEvalProbe(
        measured_tasks(spec, target),
        items=settings.items,
        seed=settings.seed,
        batch_size=settings.batch_size,
        data=spec.data,
        chat=spec.model.chat,
        # Other generated tasks keep their own limit: the target's would cut their answers off.
        max_gen_toks={target.lm_eval_task: spec.target.max_new_tokens},
        progress=lambda task: listen(Event(kind="probing", detail=f"{task} done")),
    )
    probe.prepare(engine)
    return probe


def _floor_probe(spec: RunSpec, harness: LmEvalProbe | None, listen: Listener) -> FloorProbe | None:
    """Its items and orders are drawn with the seed that drew the items of ``harness``."""
    settings, scored = spec.probes.floor, spec.probes.lm_eval
    if settings is None or scored is None or harness is None:
        return None
    return FloorProbe(
        harness,
        items=settings.items,
        seed=scored.seed,
        progress=lambda task: listen(Event(kind="probing", detail=f"noise floor of {task} done")),
    )


def _coverage_probe(
    spec: RunSpec, harness: LmEvalProbe | None, engine: TransformersEngine, schedule: Sequence[int], listen: Listener
) -> CoverageProbe | None:
    """Steps that are not measured are refused: their answers would be missing without a word."""
    settings = spec.probes.coverage
    if settings is None or harness is None:
        return None
    at = (min(schedule), max(schedule)) if settings.at is None else settings.at
    late = [step for step in at if step not in schedule]
    if late:
        raise SpecError(
            f"probes.coverage.at names step {late[0]}, but the measured steps are {', '.join(map(str, schedule))}: "
            "name some of them, or add it to measure.at"
        )
    probe = CoverageProbe(
        harness,
        tasks=settings.tasks,
        items=settings.items,
        samples=settings.samples,
        k=settings.levels,
        temperature=settings.temperature,
        seed=settings.seed,
        at=at,
        progress=lambda task: listen(Event(kind="probing", detail=f"sampled answers of {task} done")),
    )
    probe.prepare(engine)
    return probe


def _held_out_probe(
    spec: RunSpec,
    target: Target,
    harness: LmEvalProbe | None,
    engine: TransformersEngine,
    batch: Sequence[Item],
    prompts: Sequence[tuple[int, ...]],
) -> HeldOutProbe | None:
    """What training never sees can only be told where the training is our own."""
    settings, own = spec.probes.held_out, spec.target
    if settings is None:
        return None
    if spec.trainer == "folders":
        raise SpecError(
            "probes.held_out sets the training batch apart, but what checkpoints in folders were trained on is not "
            "known: leave it out"
        )
    try:
        drawn = target.train_items(count=len(batch) + settings.items, seed=own.data_seed, data=spec.data)
    except SpecError as error:
        raise SpecError(
            f"probes.held_out.items is {settings.items} beside a training batch of {len(batch)}, but {error}: "
            "lower one of them"
        ) from error
    evaluated = [] if harness is None else [one.doc for one in harness.prepared[target.lm_eval_task].questions]
    held_out = held_out_items(drawn, batch, settings.items, target.name, evaluated)
    asked = (*prompts, *(engine.encode(item.prompt, chat=spec.model.chat) for item in held_out))
    probe = HeldOutProbe(target, batch, held_out, asked, max_new_tokens=own.max_new_tokens)
    probe.prepare(engine)
    return probe


def _kl_probe(
    spec: RunSpec,
    target: Target,
    engine: TransformersEngine,
    harness: LmEvalProbe | None,
    prompts: Sequence[tuple[int, ...]],
    references: Mapping[str, Any] | None,
    listen: Listener,
) -> KlProbe | None:
    """Texts start from evaluation prompts of every measured task; from training prompts when none is measured."""
    settings = spec.probes.kl
    if settings is None:
        return None
    texts: dict[str, Sequence[tuple[int, ...]]] = {target.name: prompts[: settings.sequences]}
    if harness is not None:
        texts = reference_prompts(harness, measured_tasks(spec, target), settings, engine)
    probe = KlProbe(texts, max_new_tokens=settings.max_new_tokens, seed=settings.seed, references=references)
    listen(Event(kind="probing", detail="drawing reference texts"))
    probe.prepare(engine)
    return probe


def reference_prompts(
    harness: LmEvalProbe, tasks: Sequence[str], settings: KlProbeSpec, engine: TransformersEngine
) -> dict[str, Sequence[tuple[int, ...]]]:
    """Token ids that reference texts start from, by task: its own evaluation prompts."""
    return {
        task: [engine.encode(text, chat=False) for text in harness.contexts(task, settings.sequences, settings.seed)]
        for task in tasks
    }


def check_tasks(store: RunStore, hashes: Mapping[str, str]) -> None:
    """Raises RunError where a task has other items or prompts now than the run measured."""
    for task, fingerprint in hashes.items():
        if store.manifest.tasks.get(task) != fingerprint:
            raise RunError(f"{store.path} measured other items or prompts of {task} than its data gives now")


def measured_tasks(spec: RunSpec, target: Target) -> tuple[str, ...]:
    """The target's own evaluation task first, then the priors."""
    priors = () if spec.probes.lm_eval is None else spec.probes.lm_eval.tasks
    return tuple(dict.fromkeys((target.lm_eval_task, *priors)))
