"""Writing a folder of results whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from driftlab.errors import DriftlabError


def check_replaceable(out: Path, marks: Iterable[str], what: str) -> None:
    """Raises DriftlabError when ``out`` holds something that is not ``what``, which is known by the files ``marks``."""
    ours = all((out / name).is_file() for name in marks)
    if out.exists() and not ours and (not out.is_dir() or any(out.iterdir())):
        raise DriftlabError(f"{out} exists and is not {what}; choose another folder with --out")


def replace_folder(out: Path, files: Mapping[str, bytes]) -> Path:
    """Write ``files`` (relative path to content) as folder ``out``, in place of what was there; its absolute path.

    Everything is written to a folder beside it first, so that a result is never half there.
    """
    # "." has no name to put a folder beside.
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (out.with_name(f".{out.name}.{kind}-{os.getpid()}") for kind in ("part", "old"))
    try:
        for name, data in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(data)
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    return out
