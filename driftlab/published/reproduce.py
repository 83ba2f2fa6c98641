"""The reproductions by name, and the folder one is written to."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2

from driftlab import __version__
from driftlab.errors import SpecError
from driftlab.published import lit235, lit237, lit238_lambda, lit238_norms
from driftlab.published.comparison import NOTABLE, Progress, Reproduction, Settings
from driftlab.report.folders import check_replaceable
from driftlab.report.formats import markdown_text, to_markdown

_PACKAGES = ("numpy", "scipy", "pandas", "matplotlib", "torch")  # whose version can move a number or a pixel
_FILES = ("README.md", "values.csv", "figure.png", "figure.svg")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One reproduction.

    Attributes:
        make: does it; pure but for ``progress``.
        coordinates: default of ``Settings.coordinates``, for minutes on two cores.
        what: one line for a list.
    """

    make: Callable[[Settings, Progress], Reproduction]
    coordinates: int
    what: str


RECIPES: dict[str, Recipe] = {
    "lit238-fig6": Recipe(
        make=lit238_norms.reproduce,
        coordinates=65_536,
        what="five update norms of ES, with and without anchored weight decay (arXiv 2605.30148)",
    ),
    "lit238-fig5": Recipe(
        make=lit238_lambda.reproduce,
        coordinates=24_576,
        what="the norm at every lambda, beside the published accuracies (arXiv 2605.30148)",
    ),
    "lit235-table3": Recipe(
        make=lit235.reproduce,
        coordinates=131_072,
        what="four update norms of ES along four tasks (arXiv 2604.01499)",
    ),
    "lit237-fig3": Recipe(
        make=lit237.reproduce,
        coordinates=131_072,
        what="the ES norm against iteration, and GRPO's norm squared in float16 (arXiv 2601.20861)",
    ),
}


def recipe(name: str) -> Recipe:
    """The reproduction called ``name``. Raises SpecError for another name."""
    if name not in RECIPES:
        raise SpecError(f"there is no reproduction {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not a reproduction."""
    check_replaceable(out, _FILES, "a reproduction")


def write(page: Reproduction, settings: Settings, out: Path) -> Path:
    """Write README.md, values.csv, figure.png and figure.svg to ``out``, and return it.

    The same reproduction and settings give the same bytes. An earlier reproduction in ``out`` is overwritten.

    Raises:
        DriftlabError: ``out`` holds something that is not a reproduction.
    """
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, data in render(page, settings).items():
        (out / name).write_bytes(data)
    return out


def render(page: Reproduction, settings: Settings) -> dict[str, bytes]:
    """Content of every file, by name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("driftlab.published", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": markdown_text, "table": to_markdown, "prose": _prose}
    readme = environment.get_template("page.md.j2").render(
        page=page, command=command(page.name, settings), versions=_versions(), notable=f"{100 * NOTABLE:g}"
    )
    values = page.values.to_csv(index=False, lineterminator="\n")
    contents = (readme.encode(), values.encode(), page.png, page.svg)
    return dict(zip(_FILES, contents, strict=True))


def command(name: str, settings: Settings) -> str:
    """The command line that makes this page again, its folder left out."""
    return (
        f"driftlab reproduce {name} --coordinates {settings.coordinates} --seed {settings.seed} "
        f"--weight-std {settings.weight_std:g}"
    )


def _prose(text: str) -> str:
    """Text for a Markdown page; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else markdown_text(part) for part in parts)


def _versions() -> str:
    found = [f"driftlab {__version__}", f"Python {platform.python_version()}"]
    return ", ".join(found + [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES])
