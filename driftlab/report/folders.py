"""Writing a folder of results whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


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
