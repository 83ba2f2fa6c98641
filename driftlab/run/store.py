"""The run directory. Only this module opens its files.

``run.json`` is written beside and renamed; ``*.jsonl`` files get one fact a line, flushed. A measured step is complete
when its ``examples`` file exists, which is written last; rows of an incomplete step are dropped on resume.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from driftlab.errors import RunError
from driftlab.run.lines import Record, compressed, line, parse
from driftlab.run.records import CoverageItem, Example, GradientStep, Iteration, Measurement, Update

SCHEMA = 4
# The first release that reads a schema; every schema ever written stays listed.
READERS = {1: "0.1", 2: "0.2", 3: "0.3", 4: "0.4"}
_ITEMS = "items.json.gz"

ItemTexts = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By task and item: ``question``, the item's own prompt, and ``right``, its right answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """``run.json``: what was asked, with which code, how it ended. ``status``: started|finished|failed|stopped."""

    schema: int
    run_id: str
    status: str
    error: str | None
    digest: str
    given: Mapping[str, Any]
    spec: Mapping[str, Any]
    model: Mapping[str, Any]
    tasks: Mapping[str, Any]
    provenance: Mapping[str, Any]


class RunStore:
    """One run directory."""

    def __init__(self, path: Path, manifest: Manifest, notices: list[str]) -> None:
        self.path = path
        self.manifest = manifest
        self.notices = notices
        """What was repaired while reading, in words."""

    @classmethod
    def create(cls, path: Path, manifest: Manifest, references: Mapping[str, Any], items: ItemTexts) -> RunStore:
        """A new run with its reference texts and its items' texts; both are written once and never again.

        The directory appears whole, so a kill leaves none or one to resume.

        Raises:
            RunError: ``path`` exists.
        """
        if path.exists():
            raise RunError(f"{path} already exists; continue it with --resume, or choose another folder with --out")
        partial = path.with_name(f".{path.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made ({error.strerror}); choose another folder with --out") from None
        store = cls(partial, manifest, [])
        store._write_manifest()
        _replace(partial / "references.json", json.dumps(references, separators=(",", ":")).encode())
        _replace(partial / _ITEMS, compressed(json.dumps(items, ensure_ascii=False, separators=(",", ":"))))
        partial.rename(path)
        return cls(path, manifest, [])

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """An existing run.

        Raises:
            RunError: no run there, unreadable ``run.json``, or an unknown schema version.
        """
        file = path / "run.json"
        if not file.is_file():
            raise RunError(f"no run in {path}: {file} is missing; 'driftlab ls' lists the runs of a folder")
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{file} is not valid JSON ({error}); restore it from a copy") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema not in READERS:
            raise RunError(
                f"{file} has schema {schema!r}; this driftlab reads schema {', '.join(map(str, READERS))}: "
                f"install the driftlab that wrote it (it is named under provenance.driftlab)"
            )
        try:
            return cls(path, Manifest(**document), [])
        except TypeError as error:
            raise RunError(f"{file} does not hold the fields of schema {schema}: {error}") from None

    def set_status(self, status: str, error: str | None = None) -> None:
        self.manifest = replace(self.manifest, status=status, error=error)
        self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(asdict(self.manifest), indent=1, ensure_ascii=False) + "\n"
        _replace(self.path / "run.json", text.encode())

    # Updates and measurements: append, flush, one fact a line.

    def append_update(self, update: Iteration) -> None:
        _append(self.path / "updates.jsonl", [update])

    def updates(self) -> list[Iteration]:
        """What every iteration left: ``Update`` for ES, ``GradientStep`` for GRPO."""
        kind = GradientStep if self.manifest.spec.get("trainer") == "grpo" else Update
        updates: list[Any] = self._read(self.path / "updates.jsonl", kind)
        for number, update in enumerate(updates, start=1):
            if update.step != number:
                raise RunError(f"{self.path / 'updates.jsonl'} line {number} holds step {update.step}, not {number}")
        return updates

    def add_measured(self, step: int, measurements: Iterable[Measurement], examples: Iterable[Example]) -> None:
        """Rows first, then the examples file, whose presence says that the step is complete."""
        _append(self.path / "measurements.jsonl", measurements)
        lines = "".join(line(example) for example in examples)
        (self.path / "examples").mkdir(exist_ok=True)
        _replace(self._examples_file(step), compressed(lines))

    def measurements(self) -> list[Measurement]:
        """Rows of complete steps."""
        complete = set(self.example_steps())
        rows = self._read(self.path / "measurements.jsonl", Measurement)
        return [row for row in rows if row.step in complete]

    def example_steps(self) -> list[int]:
        """Completely measured steps, ascending."""
        return _steps(self.path / "examples")

    def examples(self, step: int) -> list[Example]:
        file = self._examples_file(step)
        lines = _decompressed(file).split(b"\n")[:-1]
        return [parse(text, Example, file, number) for number, text in enumerate(lines, start=1)]

    def add_coverage(self, step: int, problems: Iterable[CoverageItem]) -> None:
        """Before ``add_measured``; replaces what an interrupted measurement left. Without problems there is no file."""
        text = "".join(line(problem) for problem in problems)
        if text:
            (self.path / "coverage").mkdir(exist_ok=True)
            _replace(self._coverage_file(step), compressed(text))

    def coverage(self, step: int) -> list[CoverageItem]:
        """What was sampled at a completely measured step; nothing where it was not asked for."""
        file = self._coverage_file(step)
        lines = _decompressed(file).split(b"\n")[:-1] if file.is_file() else []
        return [parse(text, CoverageItem, file, number) for number, text in enumerate(lines, start=1)]

    def _coverage_file(self, step: int) -> Path:
        return self.path / "coverage" / f"step-{step:06d}.jsonl.gz"

    def _examples_file(self, step: int) -> Path:
        return self.path / "examples" / f"step-{step:06d}.jsonl.gz"

    def trim(self, last: int | None = None) -> None:
        """Before appending again: cut torn last lines and rows of incompletely measured steps from the files.

        ``last`` also cuts what comes after that step, where a trainer can only go on from an earlier one.
        """
        folders = () if last is None else ("examples", "coverage", "weights")
        for file in (file for folder in folders for file in (self.path / folder).glob("step-*")):
            if _step(file) > (last or 0):
                file.unlink()
        dropped = 0 if last is None else len(self.updates()) - last
        if dropped > 0:
            self.notices.append(f"{self.path}: goes on from step {last}, {dropped} later updates are made again")
        for file, records in (
            (self.path / "updates.jsonl", self.updates()[:last]),
            (self.path / "measurements.jsonl", self.measurements()),
        ):
            if file.exists():
                text = "".join(line(record) for record in records).encode()
                if text != file.read_bytes():
                    _replace(file, text)

    # Keyframes and reference texts.

    def save_keyframe(self, step: int, weights: Mapping[str, Any]) -> int:
        """Store whole weights; gives the bytes written."""
        from safetensors.torch import save

        data = save(dict(weights))
        (self.path / "weights").mkdir(exist_ok=True)
        _replace(self.path / "weights" / f"step-{step:06d}.safetensors", data)
        return len(data)

    def keyframe_steps(self) -> list[int]:
        return _steps(self.path / "weights")

    def keyframe(self, step: int) -> dict[str, Any]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        file = self.path / "weights" / f"step-{step:06d}.safetensors"
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            replayed = self.manifest.spec.get("trainer", "es") == "es"
            remedy = "delete it: the updates rebuild it" if replayed else "restore it from a copy"
            raise RunError(f"{file} cannot be read ({error}); {remedy}") from None

    @property
    def trainer_folder(self) -> Path:
        """Where a trainer of another library keeps what it needs to go on."""
        return self.path / "trainer"

    def references(self) -> dict[str, Any]:
        """Token ids of the KL probe's continuations; empty when it was not asked for."""
        file = self.path / "references.json"
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{file} cannot be read ({error}); restore it from a copy") from None
        return found

    def items(self) -> ItemTexts:
        """Texts of the measured items; empty when lm-eval's tasks were not asked for, and for a run of schema 1."""
        if self.manifest.schema == 1:
            return {}
        file = self.path / _ITEMS
        try:
            found: ItemTexts = json.loads(_decompressed(file))
        except ValueError as error:
            raise RunError(f"{file} is not valid JSON ({error}); restore it from a copy") from None
        return found

    def _read(self, file: Path, kind: type[Record]) -> list[Record]:
        if not file.exists():
            return []
        data = file.read_bytes()
        lines = data.split(b"\n")
        torn = lines.pop()
        if torn:
            # A line without its newline was being written when the process ended.
            self.notices.append(f"{file}: dropped a torn last line ({len(torn)} bytes)")
        return [parse(text, kind, file, number) for number, text in enumerate(lines, start=1)]


def find_runs(folder: Path) -> list[RunStore]:
    """Every run below ``folder``, by path."""
    return [RunStore.open(file.parent) for file in sorted(folder.rglob("run.json"))]


def _step(file: Path) -> int:
    """7 for ``step-000007.jsonl.gz``."""
    return int(file.name.removeprefix("step-").split(".")[0])


def _steps(folder: Path) -> list[int]:
    return sorted(_step(file) for file in folder.glob("step-*"))


def in_order(stores: Iterable[RunStore]) -> list[RunStore]:
    """Unanchored ES, anchored ES, other trainers, controls: an arm keeps its colour however its report is asked for."""

    def place(store: RunStore) -> tuple[bool, bool, bool, str, int, str]:
        spec = store.manifest.spec
        # Runs stored before there were controls or other trainers do not name one.
        control, other = spec.get("control", "none") != "none", spec.get("trainer", "es") != "es"
        return control, other, spec["anchor"]["penalty"] != "none", spec["arm"], spec["seed"], str(store.path)

    return sorted(stores, key=place)


def _decompressed(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RunError(f"{file} cannot be read ({error}); restore it from a copy") from None


def _append(file: Path, records: Iterable[Iteration | Measurement]) -> None:
    with file.open("ab") as stream:
        stream.write("".join(line(record) for record in records).encode())
        stream.flush()
        os.fsync(stream.fileno())


def _replace(file: Path, data: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never a part."""
    temporary = file.with_name(f".{file.name}.part")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
