"""From a preset or TOML file and ``--set`` overrides to the runs it asks for, one per arm and seed."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from driftlab.errors import SpecError
from driftlab.run.spec import RunSpec, Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of a plan: the spec as the user gave it (file and overrides), and as resolved."""

    given: Mapping[str, Any]
    spec: RunSpec

    @property
    def folder(self) -> str:
        """Folder name of arm and seed, for example ``es-awd-l2-s0``."""
        return re.sub(r"[^a-z0-9]+", "-", self.spec.arm.lower()).strip("-") + f"-s{self.spec.seed}"


def presets() -> list[str]:
    """Names of the presets shipped with the package."""
    folder = resources.files("driftlab") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_plan(
    source: str, overrides: Sequence[str] = (), arms: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[PlannedRun]:
    """Read preset ``source`` or the TOML file of that name; apply ``key.path=value`` overrides.

    A file may hold a table ``[arms."NAME"]`` per arm, whose entries override the rest; without one there is one run.
    ``arms`` keeps only the named arms. With ``seeds`` every arm becomes one run per seed, in place of the file's seed,
    seed by seed and the arms within: a set that is interrupted leaves runs that can be compared.

    Raises:
        SpecError: unknown preset, key or arm (with the nearest valid one), a seed named twice, or a value that cannot
            be run.
    """
    if seeds and any("seed" in _parse_override(override) for override in overrides):
        raise SpecError("--seeds and --set seed=... both name the seed: give one of them")
    document = _read(source)
    if not isinstance(document.get("arms", {}), dict):
        raise SpecError(f"arms in {source} must be tables such as [arms.ES], got {document['arms']!r}")
    tables: dict[str, Any] = document.pop("arms", {}) or {document.get("arm", "ES"): {}}
    flat = [arm for arm, table in tables.items() if not isinstance(table, dict)]
    if flat:
        raise SpecError(f"arm {flat[0]!r} in {source} must be a table such as [arms.ES], got {tables[flat[0]]!r}")
    unknown = [arm for arm in arms if arm not in tables]
    if unknown:
        raise SpecError(f"unknown arm {unknown[0]!r} in {source}; {_nearest(unknown[0], tables)}")
    chosen = [arm for arm in tables if not arms or arm in arms]
    planned = []
    for own, arm in product([{"seed": seed} for seed in seeds] or [{}], chosen):
        given = _merge(document, {"arm": arm, **tables[arm], **own})
        for override in overrides:
            given = _merge(given, _parse_override(override))
        if given.get("data") is None and default_data() is not None:
            given = {**given, "data": default_data()}
        planned.append(PlannedRun(given=given, spec=resolve(given, source)))
    _refuse_unused(overrides, planned, source)
    folders = [one.folder for one in planned]
    twice = [folder for folder in folders if folders.count(folder) > 1]
    if twice:
        raise SpecError(f"two runs of {source} would write to the same folder {twice[0]!r}; give the arms other names")
    return planned


def default_data() -> str | None:
    """The folder of benchmark files that the environment names."""
    return os.environ.get("DRIFTLAB_DATA") or None


def refuse_several_arms(plan: Sequence[PlannedRun], source: str, done: str) -> None:
    """Raises SpecError where a plan of one arm has several; ``done`` says what is done to it."""
    arms = list(dict.fromkeys(one.spec.arm for one in plan))
    if len(arms) > 1:
        raise SpecError(f"{source} has the arms {', '.join(map(repr, arms))}, and one is {done}: name it with --arm")


def _refuse_unused(overrides: Sequence[str], planned: Sequence[PlannedRun], source: str) -> None:
    """An override of a trainer's table that no arm has would do nothing, without a word."""
    trainers = {one.spec.trainer for one in planned}
    for override in overrides:
        table = override.partition("=")[0].strip().split(".")[0]
        if table in get_args(Trainer) and table not in trainers:
            raise SpecError(f"--set {override} changes nothing: no arm chosen of {source} has trainer {table}")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Run seeds from a list such as ``0,1,2``.

    Raises:
        SpecError: an entry that is empty, negative or no whole number, or a seed that stands there twice.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,18}", part):
            raise SpecError(
                f"--seeds takes whole numbers of at most 18 digits, such as 0,1,2, got {part!r} in {text!r}"
            )
    seeds = tuple(map(int, parts))
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise SpecError(f"--seeds names seed {twice[0]} more than once in {text!r}: every seed is one run of an arm")
    return seeds


def resolve(given: Mapping[str, Any], source: str) -> RunSpec:
    """Validate; the first problem becomes one sentence."""
    try:
        return RunSpec.model_validate(dict(given))
    except ValidationError as error:
        # An unknown key is often a missing one misspelt: say that first.
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        path = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
        if first["type"] == "extra_forbidden":
            raise SpecError(f"unknown key {path!r} in {source}; {_nearest(path, _keys(RunSpec))}") from None
        if first["type"] == "missing":
            raise SpecError(f"{source} lacks {path!r}, which a run needs; set it with --set {path}=...") from None
        if first["type"] == "value_error":
            raise SpecError(f"{first['msg'].removeprefix('Value error, ')} (in {source})") from None
        raise SpecError(f"{path} in {source} is {first['input']!r}: {first['msg'].lower()}") from None


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if source in presets():
        text = (resources.files("driftlab") / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    elif path.suffix == ".toml" and path.is_file():
        text = _text(path)
    else:
        raise SpecError(f"no preset or .toml file named {source!r}; {_nearest(source, presets())}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{source} is not valid TOML: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text (byte {error.start} is wrong): save it as UTF-8") from None


def _parse_override(text: str) -> dict[str, Any]:
    """``es.population=128`` to a nested dict; the value is TOML, or a bare string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set takes key=value, got {text!r}; for example --set es.population=128")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of every key a spec may hold."""
    names = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        names.append(key)
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, BaseModel):
                names += _keys(option, f"{key}.")
    return names


def _nearest(name: str, valid: Iterable[str]) -> str:
    options = list(valid)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(sorted(options))}"
