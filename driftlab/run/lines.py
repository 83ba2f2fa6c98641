"""Records as lines of text and back; nothing here opens a file."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from driftlab.errors import RunError
from driftlab.run.records import Cost, CoverageItem, Example, GradientStep, Iteration, Measurement, Update

Record = TypeVar("Record", Update, GradientStep, Measurement, Example, CoverageItem)


def line(record: Iteration | Measurement | Example | CoverageItem) -> str:
    """One line of JSON, with its newline."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def parse(text: bytes | str, kind: type[Record], file: Path, number: int) -> Record:
    """The record in line ``number`` of ``file``.

    Raises:
        RunError: the line is no such record; the message names file and line.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        names = {field.name for field in fields(kind)}
        unknown = set(document) - names
        if unknown:
            raise ValueError(f"unknown field {sorted(unknown)[0]}")
        lists = {key: tuple(value) for key, value in document.items() if isinstance(value, list)}
        if document.get("cost") is not None:
            document["cost"] = Cost(**document["cost"])
        return kind(**{**document, **lists})
    except (ValueError, TypeError) as error:
        raise RunError(f"{file} line {number} is not a valid record ({error}); restore the file from a copy") from None


def compressed(text: str) -> bytes:
    """gzip without time and name in the header: the same text gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as stream:
        stream.write(text.encode())
    return buffer.getvalue()
