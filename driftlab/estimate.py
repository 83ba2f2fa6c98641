"""What a run would take, from its spec and the model's configuration alone: nothing is loaded or downloaded."""

from __future__ import annotations

from collections.abc import Mapping

from driftlab.models.folders import steps_in
from driftlab.models.plan import ModelPlan, plan_model
from driftlab.run.spec import Control, RunSpec

# Measured on a stored run: seeds, coefficients and rewards of one member in updates.jsonl, as JSON text.
_BYTES_PER_MEMBER = 37
_BYTES_PER_UPDATE = 420

_CONTROLS: Mapping[Control, str] = {
    "none": "none, rewards steer the updates",
    "shuffled-reward": "shuffled-reward: a random walk of ES's own step sizes",
    "random-direction": "random-direction: a straight line of the random walk's length",
    "base": "base: no update, the base model measured again",
}


def describe(spec: RunSpec) -> list[tuple[str, str]]:
    """(name, value) lines for ``--dry-run``.

    Raises:
        DriftlabError: the model's configuration cannot be had.
    """
    model, lm_eval, kl = plan_model(spec.model.source), spec.probes.lm_eval, spec.probes.kl
    download = model.download_bytes
    lines = [
        (
            "base model",
            f"{spec.model.source} ({model.model_type}), served in {spec.model.dtype} on {spec.model.device}",
        ),
        ("parameters", f"{model.n_parameters:,} (tied tensors once)"),
        ("to download", "not known" if download is None else _size(download)),
        (
            "target",
            f"{spec.target.task}, {spec.target.train_items} prompts, at most {spec.target.max_new_tokens} tokens",
        ),
        *(_of_es(spec, model) if spec.trainer == "es" else _of_grpo(spec, model) if spec.grpo else _of_folders(spec)),
    ]
    if lm_eval is not None:
        lines.append(("prior tasks", f"{', '.join(lm_eval.tasks)}; at most {lm_eval.items} items each"))
    if spec.probes.floor is not None:
        own = "all items" if spec.probes.floor.items is None else f"at most {spec.probes.floor.items} items each"
        lines.append(("noise floor", f"the base scored 2 or 3 more times at step 0, {own}"))
    coverage, held_out = spec.probes.coverage, spec.probes.held_out
    if coverage is not None:
        where = "first and last step" if coverage.at is None else f"steps {', '.join(map(str, coverage.at))}"
        most = coverage.items if lm_eval is None else min(coverage.items, lm_eval.items)
        lines.append(("sampled answers", f"{coverage.samples} to each of at most {most} problems a task, at {where}"))
    if held_out is not None:
        lines.append(("held-out items", f"{held_out.items}, and the training batch, answered at every measured step"))
    if kl is not None:
        lines.append(("reference texts", f"{kl.sequences} of at most {kl.max_new_tokens} tokens for each task"))
    return lines


def _of_es(spec: RunSpec, model: ModelPlan) -> list[tuple[str, str]]:
    es = spec.evolution
    members = es.population if spec.rolls_out else 0
    rollouts = members * es.iterations * spec.target.train_items
    keyframes = 0 if spec.keyframes_every is None else es.iterations // spec.keyframes_every
    stored = es.iterations * (_BYTES_PER_UPDATE + _BYTES_PER_MEMBER * members)
    return [
        ("control", _CONTROLS[spec.control]),
        ("members", f"{members} per iteration" + (" (mirrored pairs)" if members and es.mirrored else "")),
        ("iterations", f"{es.iterations}, sigma {es.sigma:g}, alpha {es.step_scale:g}"),
        ("anchor", f"{spec.anchor.penalty}, lambda {spec.anchor.lam:g}, alpha*lambda {spec.decay:g}"),
        ("master", _master(spec)),
        *_rollouts(spec, rollouts),
        ("host memory", f"{_size(model.host_bytes)} for master and base in float32, as much again while updating"),
        _measured(spec),
        ("updates on disk", f"{_size(stored)}, {_size(keyframes * model.bytes_in('float32'))} of keyframes"),
    ]


def _of_grpo(spec: RunSpec, model: ModelPlan) -> list[tuple[str, str]]:
    grpo, weights = spec.grpo, model.bytes_in("float32")
    assert grpo is not None
    lora = grpo.lora
    trained = "all weights" if lora is None else f"adapters of rank {lora.rank} on {', '.join(lora.modules)}"
    copies = 4 if lora is None else 1
    reference = 1 if grpo.beta > 0 and lora is None else 0
    # One state while the next is written, and the base as a folder for the reference model.
    beside = 2 * (copies - 1) + reference
    kept = len(spec.measured_steps()) - 1
    return [
        ("trainer", f"GRPO, {trained}, beta {grpo.beta:g}, learning rate {grpo.learning_rate:g}"),
        ("iterations", f"{grpo.iterations}, each {grpo.prompts} prompts x {grpo.generations} answers"),
        *_rollouts(spec, grpo.iterations * grpo.rollouts),
        (
            "memory",
            f"{_size((copies + reference + 2) * weights)} for weights, gradients, optimiser and base in float32",
        ),
        _measured(spec),
        (
            "weights on disk",
            f"{_size(kept * weights)} of measured steps, {_size(beside * weights)} to go on from until finished",
        ),
    ]


def _of_folders(spec: RunSpec) -> list[tuple[str, str]]:
    assert spec.folders is not None
    steps = steps_in(spec.folders.path)
    return [("trainer", f"none, {len(steps)} checkpoints in {spec.folders.path}: {', '.join(map(str, steps))}")]


def _rollouts(spec: RunSpec, rollouts: int) -> list[tuple[str, str]]:
    return [
        ("rollouts", f"{rollouts:,}"),
        ("generated tokens", f"at most {rollouts * spec.target.max_new_tokens:,}"),
    ]


def _measured(spec: RunSpec) -> tuple[str, str]:
    points = spec.measured_steps()
    return "measured at", f"{len(points)} steps: {', '.join(map(str, points))}"


def _master(spec: RunSpec) -> str:
    kept = spec.precision.resolved
    in_place = f", {kept.in_place_members} members added and subtracted in place" if kept.in_place_members else ""
    return kept.master if kept.master == "float32" else f"{kept.master} (held as float32), {kept.update}{in_place}"


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
