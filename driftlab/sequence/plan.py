"""Training on several target tasks one after the other (LIT-235): which stages there are, and what was asked before."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from driftlab.errors import RunError, SpecError
from driftlab.es.noise import private_generator
from driftlab.report.formats import flat
from driftlab.run.plan import PlannedRun, load_plan, refuse_several_arms, resolve
from driftlab.tasks.targets import target

SCHEMA = 1
_SET_HERE = ("target.task", "target.max_new_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage(PlannedRun):
    """One stage: stage ``number`` (1 is the first) trains on ``task``."""

    number: int
    task: str

    @property
    def folder(self) -> str:
        """For example ``2-embedded_twohop_written``."""
        return f"{self.number}-{self.task}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """One sequence of one arm with one seed.

    Attributes:
        path: its folder, with ``sequence.json``, a run per stage, and the folder ``after-K`` of each stage's end.
        asked: the run that the spec describes, before a stage was made of it.
        targets: target tasks in the order in which they are trained on.
        stages: one per target.
    """

    path: Path
    asked: PlannedRun
    targets: tuple[str, ...]
    stages: tuple[Stage, ...]

    def after(self, number: int) -> Path:
        """Hugging Face folder of the weights after a stage."""
        return self.path / f"after-{number}"

    @property
    def request(self) -> dict[str, Any]:
        """What ``sequence.json`` holds; the digest covers the targets and everything that can move a number."""
        return {
            "schema": SCHEMA,
            "targets": list(self.targets),
            "digest": self.asked.spec.digest(),
            "stages": [{"folder": stage.folder, "seed": stage.spec.seed} for stage in self.stages],
            "spec": self.asked.spec.as_dict(),
        }


def plan_sequences(
    source: str, targets: str, overrides: Sequence[str], arm: str | None, seeds: Sequence[int], out: Path
) -> list[Chain]:
    """One sequence per seed of one arm of a spec, in ``out / NAME / sequence``.

    Every stage has the settings of the spec but for its target and its base, and measures the evaluation tasks of all
    targets and all prior tasks. It answers within the limit that its target's evaluation task states: with another one
    the task would be measured in its own stage otherwise than in the others. Noise and prompts of later stages are
    drawn with seeds derived from the run's own; the first stage is the spec's own run.

    Args:
        source: a preset's name or a TOML file.
        targets: names with commas between them, in order.
        overrides: ``KEY=VALUE``, for every stage.
        arm: of the spec; None where it has only one.
        seeds: one sequence each; none for the spec's own seed.

    Raises:
        SpecError: targets that cannot be a sequence, an arm that is not named, or a stage that cannot be run.
    """
    names = _targets(targets)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in _SET_HERE:
            raise SpecError(f"--set {key}=... is what the sequence itself sets for every stage: leave it out")
    plan = load_plan(source, overrides, [] if arm is None else [arm], seeds)
    refuse_several_arms(plan, source, "trained")
    spec = plan[0].spec
    if spec.trainer == "folders":
        raise SpecError(
            f"arm {spec.arm!r} of {source} reads checkpoints that somebody else trained: name one that trains"
        )
    if spec.probes.lm_eval is None:
        raise SpecError(f"{source} has no probes.lm_eval, but a sequence is told by accuracies: add it")
    return [_chain(one, names, out / spec.name / "sequence", source) for one in plan]


def _targets(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise SpecError(f"--targets is {text!r}, but it must be names with commas between them")
    for name in names:
        target(name)
        if names.count(name) > 1:
            raise SpecError(f"--targets names {name} more than once in {text!r}: every target is one stage")
    if len(names) < 2:
        raise SpecError(f"--targets names {text!r} alone, but a sequence has two or more: 'driftlab run' trains on one")
    return names


def _chain(planned: PlannedRun, targets: tuple[str, ...], group: Path, source: str) -> Chain:
    path = group / planned.folder
    own = [target(name).lm_eval_task for name in targets]
    settings = planned.spec.probes.lm_eval
    assert settings is not None
    tasks = list(dict.fromkeys([*own, *settings.tasks]))
    stages = []
    for number, name in enumerate(targets, start=1):
        given = dict(planned.given)
        given["seed"] = stage_seed(planned.spec.seed, number)
        given["target"] = {**given["target"], "task": name, "max_new_tokens": answer_limit(target(name).lm_eval_task)}
        probes = given["probes"]
        given["probes"] = {**probes, "lm_eval": {**probes["lm_eval"], "tasks": tasks}}
        if number > 1:
            given["model"] = {**given["model"], "source": str(path / f"after-{number - 1}"), "revision": None}
        stages.append(Stage(given=given, spec=resolve(given, source), number=number, task=name))
    return Chain(path=path, asked=planned, targets=targets, stages=tuple(stages))


def stage_seed(seed: int, number: int) -> int:
    """Run seed of a stage: the sequence's own for the first; with one seed for all they would share their noise."""
    return seed if number == 1 else int(private_generator(f"sequence|{seed}|{number}").integers(2**31))


def answer_limit(task: str) -> int:
    """Tokens that the definition of one of driftlab's own lm-eval tasks lets an answer have."""
    text = (resources.files("driftlab") / "tasks" / "lm_eval" / f"{task}.yaml").read_text(encoding="utf-8")
    found = re.search(r"\bmax_gen_toks: *(\d+)", text)
    if found is None:
        included = re.search(r"^include: *(\S+)\.yaml", text, re.MULTILINE)
        if included is None:
            raise SpecError(f"lm-eval task {task!r} states no max_gen_toks, so its target cannot be part of a sequence")
        return answer_limit(included.group(1))
    return int(found.group(1))


def refuse_other(chains: Sequence[Chain], *, resume: bool) -> None:
    """Before anything is written.

    Raises:
        RunError: a sequence exists without ``resume``, was started with another request, or cannot be read.
    """
    for chain in chains:
        if not chain.path.exists() or (chain.path.is_dir() and not any(chain.path.iterdir())):
            continue
        if not resume:
            raise RunError(f"{chain.path} already exists; continue it with --resume, or choose another --out")
        file = chain.path / "sequence.json"
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            digest, before = stored["digest"], {"targets": ",".join(stored["targets"])} | flat(stored["spec"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} cannot be read ({type(error).__name__}): restore it from a copy") from None
        now = {"targets": ",".join(chain.targets)} | flat(chain.asked.spec.as_dict())
        if digest != chain.asked.spec.digest() or before["targets"] != now["targets"]:
            keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
            changed = "; ".join(f"{key}: {before.get(key)}, now {now.get(key)}" for key in keys if key != "data")
            raise RunError(
                f"{chain.path} was started with another request ({changed or 'its digest differs'}): "
                "resume it as it was, or choose another --out"
            )
