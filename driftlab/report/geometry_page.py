"""The geometry of two solutions as a folder: page, figures, tables, and every number as JSON.

The same numbers give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.geometry_figure import CAPTIONS, TITLES, figures
from driftlab.report.geometry_frames import ABOUT, COLUMNS, Geometry, records, tidy
from driftlab.report.geometry_tables import page_tables
from driftlab.report.geometry_words import SCOPE, sentences
from driftlab.report.page import Shown, figure_files, template

SCHEMA = 1
_PAGES = (("page.html", "geometry.html", True), ("README.md", "geometry.md", False))


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not a geometry."""
    check_replaceable(out, ["geometry.json"], "the geometry of two solutions")


def write_geometry(geometry: Geometry, out: Path) -> Path:
    """Write README.md, page.html, geometry.json, figures and tables to folder ``out``; its absolute path.

    An earlier geometry there is replaced as a whole.

    Raises:
        DriftlabError: ``out`` holds something else.
    """
    check_folder(out)
    return replace_folder(out, render(geometry))


def render(geometry: Geometry) -> dict[str, bytes]:
    """Relative path to content of every file."""
    shown = [
        Shown(name=name, title=TITLES[name], caption=CAPTIONS[name], png=png, svg=svg)
        for name, png, svg in figures(geometry)
    ]
    files = {"geometry.json": _json(geometry), **figure_files(shown)}
    for name, table in tidy(geometry).items():
        files[f"tables/{name}.csv"] = table.to_csv(index=False, lineterminator="\n").encode()
    context: dict[str, Any] = {
        "title": f"Geometry of two solutions: {geometry.labels[0]} and {geometry.labels[1]}",
        "sentences": sentences(geometry),
        "scope": SCOPE,
        "figures": shown,
        "tables": page_tables(geometry),
        "missing": geometry.missing,
        "about": ABOUT,
        "columns": COLUMNS,
        "runs": geometry.runs,
        "settings": geometry.settings,
    }
    for file, name, html in _PAGES:
        files[file] = template(name, html).render(context).encode()
    return files


def _json(geometry: Geometry) -> bytes:
    """Every number with the meaning of its column; null where a number does not exist."""
    document = {
        "schema": SCHEMA,
        "a": geometry.runs[0],
        "b": geometry.runs[1],
        "settings": geometry.settings,
        "target": geometry.target,
        "tasks": geometry.tasks,
        "shared_noise_seeds": geometry.shared_seeds,
        "sentences": sentences(geometry),
        "not_measured": [{"what": what, "why": why} for what, why in geometry.missing],
        "tables": {
            name: {"about": ABOUT[name], "columns": COLUMNS[name], "rows": records(table)}
            for name, table in tidy(geometry).items()
        },
    }
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item()
