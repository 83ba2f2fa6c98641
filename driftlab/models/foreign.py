"""A run directory of kschweig/es-awd, the code of LIT-238's authors, read and checked; no weights are touched here.

What is read: ``args.json``, ``iteration_updates/iteration_NNNNNN.json`` and accuracies in ``<dataset>.jsonl``. Their KL
and weight-change files (``<dataset>_kl.jsonl``, ``weight_change.jsonl``) are left alone: that KL was measured on a
model whose noise was drawn in another layout than training's, and that norm counts a tied embedding twice.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftlab.errors import RunError

Precision = Literal["float16", "bfloat16", "float32"]
Penalty = Literal["none", "l1", "l2"]
Task = Literal["countdown", "gsm8k", "proofwriter"]

DATASETS = ("countdown", "gsm8k", "proofwriter", "hellaswag", "piqa", "arc_challenge", "mmlu_pro")
_COPY = "restore it from a copy"
_TOGETHER = "put together what belongs to one run"


_Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Stored(BaseModel):
    """A JSON object of theirs; keys that bear on nothing here are passed over, and no text is taken for a number."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())


class ForeignArgs(_Stored):
    """What ``args.json`` says, as it took effect.

    Attributes:
        model_name: hub id or folder of the base model.
        task: dataset trained on.
        sigma, alpha: scale of the perturbation, and step scale (1/sigma absorbed).
        population: members N; twice the number of seeds when ``mirrored``.
        engines: model copies that evaluated members; the first one held the master weights.
        iterations: updates applied.
        seed: global seed; None where none was given.
        precision: dtype of weights, noise and every sum.
        penalty, lam: anchored weight decay and its lambda; ``none`` and 0 where there is no penalty or lambda is 0.
        eval_interval: iterations between evaluations; 0 for the last one only.
        caching: whether noise was kept by shape, which moves no number.
    """

    model_name: Annotated[str, Field(min_length=1)]
    task: Task
    sigma: _Scale
    alpha: _Scale
    population: Annotated[int, Field(ge=2, alias="population_size")]
    mirrored: Annotated[bool, Field(alias="mirror_sampling")]
    engines: Annotated[int, Field(ge=1, alias="num_engines")]
    iterations: Annotated[int, Field(ge=1, alias="num_iterations")]
    seed: Annotated[int | None, Field(ge=0, alias="global_seed")]
    precision: Precision
    penalty: Annotated[Penalty, Field(alias="weight_decay_type")]
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False, alias="weight_decay_lambda")]
    eval_interval: Annotated[int, Field(ge=0)]
    caching: bool

    @property
    def decay(self) -> float:
        """alpha times lambda: what one application of the anchor takes."""
        return self.alpha * self.lam


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignUpdate:
    """One iteration: seeds, and the coefficient of each as applied (mirrored: z of plus minus z of minus)."""

    step: int
    seeds: tuple[int, ...]
    coefficients: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignAccuracy:
    """Accuracy of one dataset at one step, a fraction of ``n`` items; None where ``n`` is 0: nothing was asked."""

    step: int
    value: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignRun:
    """One run directory.

    Attributes:
        path: where it lies.
        args: its settings.
        updates: steps 1 to ``args.iterations``, all of them.
        accuracies: by dataset, ascending steps; datasets that were not evaluated are absent.
        unread: names of the ``.jsonl`` files that were left alone.
    """

    path: Path
    args: ForeignArgs
    updates: tuple[ForeignUpdate, ...]
    accuracies: Mapping[str, tuple[ForeignAccuracy, ...]]
    unread: tuple[str, ...]


def read_foreign(path: Path) -> ForeignRun:
    """Read and check a run directory of es-awd.

    Raises:
        RunError: a file is missing, unreadable or contradicts another; a number is missing, not finite or impossible.
    """
    file = path / "args.json"
    if not file.is_file():
        raise RunError(f"no es-awd run in {path}: {file} is missing; give the folder that holds args.json")
    args = _args(file)
    updates = _updates(path / "iteration_updates", args)
    files = {dataset: found for dataset in DATASETS if (found := _dataset_file(path, dataset)) is not None}
    accuracies = {dataset: _accuracies(found, args) for dataset, found in files.items()}
    _check_final_weights(path / "final_model_weights.pt", args)
    unread = tuple(sorted(other.name for other in path.glob("*.jsonl") if other not in files.values()))
    return ForeignRun(path=path, args=args, updates=updates, accuracies=accuracies, unread=unread)


class _Iteration(_Stored):
    iteration: Annotated[int, Field(ge=1)]
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]]
    update_coefficients: list[Annotated[float, Field(allow_inf_nan=False)]]
    precision: str | None = None


class _Row(_Stored):
    step: Annotated[int, Field(ge=0)]
    num_examples: Annotated[int, Field(ge=0)]
    accuracy: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
    precision: str | None = None


Stored = TypeVar("Stored", bound=_Stored)


def _parsed(kind: type[Stored], text: str, where: str) -> Stored:
    """The JSON object in ``text``; its first fault becomes one sentence."""
    try:
        return kind.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise RunError(f"{where} lacks {key}; {_COPY}, or add what the run was started with") from None
        if not key:
            raise RunError(f"{where} holds no JSON object; {_COPY}") from None
        needed = first["msg"].removeprefix("Input ")
        raise RunError(f"{where}: {key} is {first['input']!r}, but {needed}; {_COPY}") from None
    except ValueError as error:
        raise RunError(f"{where} is not valid JSON ({error}); {_COPY}") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be read ({error}); {_COPY}") from None


def _args(file: Path) -> ForeignArgs:
    said = _parsed(ForeignArgs, _text(file), str(file))
    if said.mirrored and said.population % 2:
        raise RunError(
            f"{file}: population_size is {said.population} with mirror_sampling, but mirrored members come in pairs; "
            f"{_COPY}"
        )
    if said.penalty == "l2" and said.decay >= 1:
        raise RunError(
            f"{file}: alpha is {said.alpha:g} and weight_decay_lambda {said.lam:g}, so alpha*lambda is "
            f"{said.decay:g}, but l2 decay needs it below 1; {_COPY}"
        )
    anchored = said.penalty != "none" and said.lam > 0
    return said if anchored else said.model_copy(update={"penalty": "none", "lam": 0.0})


def _updates(folder: Path, args: ForeignArgs) -> tuple[ForeignUpdate, ...]:
    if not folder.is_dir():
        raise RunError(f"{folder} is missing, so the run's updates are not known; {_COPY}")
    found = {
        update.step: update for file in sorted(folder.glob("iteration_*.json")) for update in [_update(file, args)]
    }
    missing = [step for step in range(1, args.iterations + 1) if step not in found]
    if missing:
        last = max(found, default=0)
        hint = f", or set num_iterations to {last} in args.json if the run ended there" if 0 < last < missing[0] else ""
        said, them = ("s {} are", "them") if len(missing) > 1 else (" {} is", "it")
        raise RunError(f"{folder}: iteration{said.format(_listed(missing))} missing; restore {them} from a copy{hint}")
    return tuple(found[step] for step in sorted(found))


def _update(file: Path, args: ForeignArgs) -> ForeignUpdate:
    said = _parsed(_Iteration, _text(file), str(file))
    if file.name != f"iteration_{said.iteration:06d}.json":
        raise RunError(f"{file} holds iteration {said.iteration}, which its name does not say; {_COPY}")
    if said.iteration > args.iterations:
        raise RunError(f"{file} goes beyond the {args.iterations} iterations of args.json; {_TOGETHER}")
    _check_precision(file.name, said.precision, args)
    expected = args.population // 2 if args.mirrored else args.population
    if len(said.seeds) != expected:
        kind = "mirrored population" if args.mirrored else "population"
        raise RunError(
            f"{file} holds {len(said.seeds)} seeds, but a {kind} of {args.population} has {expected}; {_TOGETHER}"
        )
    if len(said.update_coefficients) != expected:
        raise RunError(
            f"{file} holds {len(said.update_coefficients)} update_coefficients for {expected} seeds; {_COPY}"
        )
    return ForeignUpdate(
        step=said.iteration, seeds=tuple(said.seeds), coefficients=tuple(map(float, said.update_coefficients))
    )


def _check_precision(where: str, stated: str | None, args: ForeignArgs) -> None:
    if stated is not None and stated != args.precision:
        raise RunError(f"mixed precisions: {where} is in {stated}, and args.json says {args.precision}; {_TOGETHER}")


def _listed(numbers: Sequence[int]) -> str:
    """``3, 5 and 7 to 9`` for 3, 5, 7, 8, 9."""
    parts = [str(low) if low == high else f"{low} to {high}" for low, high in _spans(numbers)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number > high + 1:
            yield low, high
            low = number
        high = number
    yield low, high


def _dataset_file(path: Path, dataset: str) -> Path | None:
    """Their evaluation names the file after the dataset as it was asked for, ``mmlu_pro`` or ``mmlu-pro``."""
    spellings = dict.fromkeys((dataset, dataset.replace("_", "-")))
    found = [file for name in spellings if (file := path / f"{name}.jsonl").is_file()]
    if len(found) > 1:
        raise RunError(f"{found[0]} and {found[1].name} are of one dataset; keep the one that belongs to the run")
    return found[0] if found else None


def _accuracies(file: Path, args: ForeignArgs) -> tuple[ForeignAccuracy, ...]:
    found: dict[int, ForeignAccuracy] = {}
    for number, line in enumerate(_text(file).removesuffix("\n").split("\n"), start=1):
        where = f"{file} line {number}"
        row = _parsed(_Row, line, where)
        _check_precision(where, row.precision, args)
        if row.step in found:
            raise RunError(f"{where} holds step {row.step} a second time; keep the line that belongs to the run")
        if row.step > args.iterations:
            raise RunError(f"{where} holds step {row.step}, beyond the {args.iterations} of args.json; {_TOGETHER}")
        value = row.accuracy / 100 if row.num_examples else None
        found[row.step] = ForeignAccuracy(step=row.step, value=value, n=row.num_examples)
    return tuple(found[step] for step in sorted(found))


_STORAGES = {b"Half": "float16", b"BFloat16": "bfloat16", b"Float": "float32"}


def _check_final_weights(file: Path, args: ForeignArgs) -> None:
    """The dtypes that the final weights name must include the run's. The file is searched for names, never loaded."""
    if not file.is_file():
        return
    try:
        with zipfile.ZipFile(file) as archive:
            index = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            stated = re.findall(rb"torch\n(\w+)Storage\n", archive.read(index))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise RunError(f"{file} cannot be read ({error or 'no tensors in it'}); {_COPY} or remove it") from None
    known = [_STORAGES[name] for name in stated if name in _STORAGES]
    if args.precision not in known:
        _check_precision(file.name, ", ".join(dict.fromkeys(known)) or "no known dtype", args)
