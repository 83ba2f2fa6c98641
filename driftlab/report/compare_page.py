"""A comparison as a folder: README.md, one self-contained compare.html, figures, tables, and compare.json.

The same runs give the same bytes: no time, no absolute path, everything in a fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.report import compare_figures as drawings
from driftlab.report import plots
from driftlab.report.compare import AtMatch, Comparison
from driftlab.report.compare_claims import claim_table, claims
from driftlab.report.compare_costs import at_target_table, ledger_table
from driftlab.report.compare_curves import KL, curve_table
from driftlab.report.compare_tables import (
    SELECTED,
    against_table,
    final_table,
    kl_table,
    matched_table,
    pair_table,
    ratio_table,
)
from driftlab.report.compare_words import SCOPE, captions, claim_sentence, match_sentence, pair_sentences
from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.formats import Table
from driftlab.report.page import Shown, figure_files, problem_rows, provenance, table_files, template
from driftlab.report.runs import RunData
from driftlab.report.words import settings, shared_and_own

PAGE = "compare.html"
SCHEMA = 1
"""Of ``compare.json``."""


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not a comparison."""
    check_replaceable(out, [PAGE], "a comparison")


def write_comparison(c: Comparison, runs: Sequence[RunData], out: Path) -> Path:
    """Write the comparison of ``runs`` to folder ``out``, replacing an earlier one there.

    Raises:
        DriftlabError: ``out`` holds something that is not a comparison, or there are too many arms to draw.
    """
    check_folder(out)
    return replace_folder(out, render(c, runs))


def all_tables(c: Comparison) -> list[Table]:
    """Every table, in the order of the page."""
    builders = (matched_table, final_table, against_table, pair_table, at_target_table, kl_table, ratio_table)
    return [build(c) for build in (*builders, claim_table, ledger_table)]


def sentences(c: Comparison) -> list[str]:
    """Where the runs are compared, every arm beside the first, and what of the published claims holds."""
    last = claim_sentence(claims(c))
    return [match_sentence(c), *pair_sentences(c), *([last] if last else [])]


def render(c: Comparison, runs: Sequence[RunData]) -> dict[str, bytes]:
    """Relative path to content of every file of the comparison."""
    tables, curves = all_tables(c), curve_table(c)
    figures = draw(c, curves)
    manifests = [run.manifest for run in runs]
    context: dict[str, Any] = {
        "target": c.frames.target,
        "runs": list(c.frames.runs["run"]),
        "sentences": sentences(c),
        "scope": SCOPE,
        "selected": SELECTED.strip(),
        "tables": {table.name: table for table in tables},
        "absent": _absent(c),
        "figures": figures,
        "problems": problem_rows(c.frames),
        "settings": shared_and_own(settings([manifest.spec for manifest in manifests])),
        "provenance": shared_and_own(settings([provenance(manifest) for manifest in manifests])),
    }
    pages = ((PAGE, "compare.html", True), ("README.md", "compare.md", False))
    files = {file: template(name, escape).render(context).encode() for file, name, escape in pages}
    files |= figure_files(figures) | table_files(tables)
    for name, table in (("curves", curves), ("ledger-iterations", c.ledger)):
        files[f"tables/{name}.csv"] = table.to_csv(index=False, lineterminator="\n").encode()
    files["compare.json"] = _document(c).encode()
    return files


def _absent(c: Comparison) -> dict[str, str]:
    """Why a table has no row."""
    return {
        "at-target": f"{c.no_target}.",
        "kl": "no run measured it.",
        "claims": "they are about ES beside GRPO, and these runs are not both.",
        **dict.fromkeys(("matched", "final", "against-first", "pairs", "ratios", "ledger"), "nothing was measured."),
    }


def draw(c: Comparison, curves: pd.DataFrame) -> list[Shown]:
    """The figures in order; one without rows says so on the page."""
    rows = {"curves": int((curves["quantity"] != KL).sum()), "kl-curves": int((curves["quantity"] == KL).sum())}
    rows["kl-map"] = len(c.chosen.kl)
    plan: tuple[tuple[str, str, Callable[[], plots.Figure]], ...] = (
        ("curves", "a. Norm and accuracy", lambda: drawings.curve_figure(c, curves)),
        ("kl-curves", "b. KL divergence from the base", lambda: drawings.kl_figure(c, curves)),
        ("kl-map", "c. KL divergence at the match", lambda: drawings.heat_figure(c)),
    )
    texts, shown = captions(c), []
    for name, title, build in plan:
        png, svg = plots.save(build()) if rows[name] else (None, None)
        shown.append(Shown(name=name, title=title, caption=texts[name], png=png, svg=svg))
    return shown


def _document(c: Comparison) -> str:
    """Every number that the sentences and tables rest on, unrounded; null where a number does not exist."""
    found = {
        "schema": SCHEMA,
        "target": c.frames.target,
        "margin": c.frames.margin,
        "sentences": sentences(c),
        "chosen": _match(c.chosen),
        "at_target": None if c.at_target is None else _match(c.at_target),
        "no_target": c.no_target or None,
        "claims": _records(claim_table(c).data),
        "ledger": _records(ledger_table(c).data),
    }
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _match(at: AtMatch) -> dict[str, Any]:
    tables = {name: getattr(at, name) for name in ("runs", "changes", "pairs", "norms", "kl", "ratios")}
    about = {"match": at.match.kind, "value": at.match.value, "given": at.match.given}
    return about | {name: _records(table) for name, table in tables.items()}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with Python's own types; NaN becomes None, and so does an end that is infinite."""
    whole = table.astype(object).where(table.notna(), None)
    return [{str(key): _plain(value) for key, value in row.items()} for row in whole.to_dict("records")]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
