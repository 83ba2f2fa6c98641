"""Rows of a dataset as plain dictionaries, from a data folder or the Hugging Face hub."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import DriftlabError, MissingDataError, SpecError


def rows(
    dataset: str, split: str, fields: Sequence[str], *, config: str | None = None, folder: Path | None
) -> list[dict[str, Any]]:
    """All rows of a split, in the order of the file.

    Args:
        dataset: name on the hub.
        split: for example ``test``.
        fields: what each row must have.
        config: the dataset's configuration, where it has several.
        folder: where this dataset lies, None for the hub. A file ``<split>.jsonl`` (``<config>-<split>.jsonl``) in it
            is read as it is; otherwise the folder is read as the hub would read it.

    Raises:
        MissingDataError: the split is not there.
        DriftlabError: a line is not JSON, or a row lacks a field.
    """
    file = None if folder is None else folder / f"{config + '-' if config else ''}{split}.jsonl"
    found = _lines(file) if file is not None and file.is_file() else _loaded(dataset, split, config, folder)
    for index, row in enumerate(found, 1):
        missing = [field for field in fields if row.get(field) is None]
        if missing:
            raise DriftlabError(f"row {index} of {dataset}, split {split}, has no {missing[0]!r}; mend or replace it")
    return found


def drawn(found: Sequence[dict[str, Any]], *, task: str, count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` of the training rows ``found`` in an order drawn with ``seed``.

    Raises:
        SpecError: there are fewer.
    """
    if count > len(found):
        raise SpecError(f"target task {task!r} has {len(found)} training items, {count} were asked for")
    return random.Random(f"{task}:{seed}").sample(list(found), count)


def _lines(file: Path) -> list[dict[str, Any]]:
    found = []
    # Split at line feeds only: JSON strings may hold other characters that Python takes for the end of a line.
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise DriftlabError(
                    f"{file}, line {number}, is not JSON ({error}); mend or replace the file"
                ) from error
    return found


def _loaded(dataset: str, split: str, config: str | None, folder: Path | None) -> list[dict[str, Any]]:
    import datasets  # heavy, and needed here only

    if folder is not None and not folder.is_dir():
        raise MissingDataError(
            f"{dataset} is needed in {folder}, which is not there; give another folder with --data DIR"
        )
    try:
        if folder is None:
            return list(datasets.load_dataset(dataset, config, split=split))
        # A throw-away cache: the folder stays as it is, and runs that go on at the same time share nothing.
        with tempfile.TemporaryDirectory(prefix="driftlab-") as cache:
            return list(datasets.load_dataset(str(folder), config, split=split, cache_dir=cache, keep_in_memory=True))
    except Exception as error:
        where = "on the Hugging Face hub" if folder is None else f"in {folder}"
        raise MissingDataError(
            f"{dataset} has no split {split!r} that could be read {where} ({type(error).__name__}: {error}); "
            f"give a data folder that holds it as {dataset}/{config + '-' if config else ''}{split}.jsonl"
        ) from error
