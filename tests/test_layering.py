"""Imports point down the floors, and heavy libraries stay behind their one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "driftlab"

# From the top. A module may import its own floor's package and every lower floor.
FLOORS = [
    {"cli"},
    {"console"},
    {"sweep", "importing", "geometry", "pilot", "sequence"},
    {"loop", "estimate", "emulation"},
    {"session"},
    {"trainers", "probes"},
    {"engines", "published"},
    {"models", "report"},
    {"drift"},
    {"run"},
    {"es", "tasks"},
    {"errors"},
]
FLOOR = {name: index for index, floor in enumerate(FLOORS) for name in floor}

DOORS = {
    "lm_eval": {"probes/lm_eval.py"},
    "matplotlib": {"report/plots.py"},
    "trl": {"trainers/grpo.py"},
    "vllm": {"engines/vllm.py"},
}


def modules() -> list[tuple[str, ast.Module]]:
    return [
        (str(file.relative_to(PACKAGE)), ast.parse(file.read_text(encoding="utf-8")))
        for file in sorted(PACKAGE.rglob("*.py"))
    ]


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the floor"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize(("path", "tree"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_down(path, tree):
    here = part(path)
    if here == "__init__":
        assert not {name for name in imports(tree) if name.startswith("driftlab.")}
        return
    for name in imports(tree):
        if name.startswith("driftlab.") and name != "driftlab.__version__":
            there = name.split(".")[1]
            assert there == here or FLOOR[there] > FLOOR[here], f"{path} imports {name}"


@pytest.mark.parametrize(("path", "tree"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_heavy_libraries_have_one_door(path, tree):
    roots = {name.split(".")[0] for name in imports(tree)}
    for library, doors in DOORS.items():
        assert library not in roots or path in doors or part(path) in doors, f"{path} imports {library}"
    if part(path) in {"drift", "report", "run", "errors"}:
        allowed = {"run/store.py": {"safetensors"}}.get(path, set())
        assert not roots & {"torch", "transformers", "safetensors", "datasets"} - allowed, path


@pytest.mark.parametrize(("path", "tree"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_modules_and_functions_stay_readable(path, tree):
    assert len((PACKAGE / path).read_text(encoding="utf-8").splitlines()) <= 300, path
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import driftlab", {"torch", "matplotlib", "transformers", "lm_eval", "pandas"}),
        ("import driftlab.cli", {"torch", "matplotlib", "transformers", "lm_eval"}),
        ("import driftlab.report.page, driftlab.drift.stats, driftlab.drift.theory", {"torch", "transformers"}),
    ],
)
def test_light_imports(statement, absent):
    """In a fresh interpreter: what a statement loads."""
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not absent & set(result.stdout.split())
