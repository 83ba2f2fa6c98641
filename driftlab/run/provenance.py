"""Who ran what, with which code, where."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from driftlab import __version__

# Packages whose version can move a number or change a file format.
_PACKAGES = ("torch", "transformers", "tokenizers", "lm-eval", "datasets", "numpy", "safetensors")


_OF_TRAINERS = {"grpo": ("trl", "peft", "accelerate")}


def collect(*, device: str, dtype: str, threads: int, trainer: str = "es") -> dict[str, Any]:
    """Provenance of this process, JSON types only; with the packages that ``trainer`` runs on."""
    commit, dirty = _revision()
    return {
        "driftlab": __version__,
        "commit": commit,
        "dirty": dirty,
        "packages": {name: _version(name) for name in (*_PACKAGES, *_OF_TRAINERS.get(trainer, ()))},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout this package lies in; None when it lies in none."""
    folder = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return result.stdout.strip()

    # A package installed inside somebody else's checkout is not that checkout's code.
    if git("ls-files", "__init__.py") != "__init__.py":
        return None, None
    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", str(folder))
    return commit, None if status is None else bool(status)
