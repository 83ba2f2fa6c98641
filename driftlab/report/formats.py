"""A table and its three file formats: CSV for numbers, Markdown for reading, LaTeX for papers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

NOT_MEASURED = "not measured"


def points(value: float, *, sign: bool = True) -> str:
    """A fraction as percentage points with one decimal; ``-0.0`` is written ``0.0``."""
    rounded = round(100 * value, 1) + 0.0
    return (f"{rounded:+.1f}" if sign and rounded else f"{rounded:.1f}").replace("-", "−")


def interval(value: float, low: float, high: float) -> str:
    """``−2.0 [−4.1, +0.1]``, fractions in points; an end that would round to 0 keeps its side of it."""

    def end(fraction: float) -> str:
        text = points(fraction)
        return f"{100 * fraction:+.2f}".replace("-", "−") if text == "0.0" and abs(fraction) >= 5e-5 else text

    return f"{points(value)} [{end(low)}, {end(high)}]"


def count_range(values: pd.Series) -> str:
    """``250``, or ``30 to 960`` where counts differ; ``no`` where there are none."""
    if not len(values):
        return "no"
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table.

    Attributes:
        name: file name without suffix.
        title: what it holds, with its unit.
        columns, rows: as shown; every row has one text per column.
        data: the same numbers unrounded (and, for norms, every step), for CSV.
        source: which files and columns of a run each cell comes from.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: pd.DataFrame
    source: str


def to_csv(table: Table) -> str:
    """Unrounded numbers; an empty field is a number that does not exist, its ``status`` says why."""
    return str(table.data.to_csv(index=False, lineterminator="\n"))


def to_markdown(table: Table, rest: str = "---:") -> str:
    """Pipe table, first column left, the ``rest`` right unless told otherwise; text cannot break out of its cell."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"

    rule = "|:---|" + f"{rest}|" * (len(table.columns) - 1)
    return "\n".join([line(table.columns), rule, *(line(row) for row in table.rows)]) + "\n"


_MARKDOWN = {letter: f"\\{letter}" for letter in "\\|_*`"} | {"<": "&lt;", "&": "&amp;", "\n": " ", "\r": " "}


def markdown_text(text: str) -> str:
    # Brackets stay as they are, intervals are full of them; what follows one must not make it a link.
    return "".join(_MARKDOWN.get(letter, letter) for letter in text).replace("](", "]\\(")


_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\n": " ",
    "−": "$-$",
    "–": "--",
    "±": "$\\pm$",
    "→": "$\\to$",
    "‖": "$\\|$",
    "√": "$\\surd$",
    "α": "$\\alpha$",
    "σ": "$\\sigma$",
    "θ": "$\\theta$",
    "ₜ": "$_t$",
    "₀": "$_0$",
    "<": "$<$",
    ">": "$>$",
}


def to_latex(table: Table) -> str:
    """A ``tabular`` with booktabs rules, plain ASCII where the text allows it."""

    def line(cells: tuple[str, ...]) -> str:
        # A cell that starts with "[" would be read as an argument of the row end before it.
        return " & ".join(f"{{{_latex_text(cell)}}}" for cell in cells) + " \\\\"

    body = [line(row) for row in table.rows]
    head = [
        f"% {_latex_text(table.title)}",
        "% needs \\usepackage{booktabs}",
        "\\begin{tabular}{l" + "r" * (len(table.columns) - 1),
    ]
    head[-1] += "}"
    lines = [*head, "\\toprule", line(table.columns), "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``{"es.sigma": "0.02"}``, sorted by key, folders of this machine left out."""
    found: dict[str, str] = {}
    for key in sorted(tree, key=str):
        value = tree[key]
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
            )
            found[f"{prefix}{key}"] = without_folders(text)
    return found


# An absolute path of two or more parts that is not the tail of a URL or of a name such as "and/or".
_FOLDERS = re.compile(r"(?<![\w.:/…])(?:/|[A-Za-z]:\\)(?:[^\s/\\'\",;:]+[/\\])+")


def without_folders(text: str) -> str:
    """``/some/folder/model.gguf`` to ``…/model.gguf``: where a file lay on one machine tells a reader nothing."""
    return _FOLDERS.sub("…/", text)
