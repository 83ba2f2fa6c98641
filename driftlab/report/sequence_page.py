"""Sequences as a folder: page, figures, tables. The same sequences give the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.formats import NOT_MEASURED, Table, points
from driftlab.report.page import Shown, figure_files, provenance, template
from driftlab.report.sequence_columns import ABOUT, COLUMNS
from driftlab.report.sequence_figure import CAPTIONS, TITLES, figures
from driftlab.report.sequence_words import checkpoint_name, rows_of, scope, sentences, told
from driftlab.report.sequences import MEAN, SequenceFrames, mean_norms
from driftlab.report.words import settings, shared_and_own

_PAGES = (("page.html", "sequence.html", True), ("README.md", "sequence.md", False))
_OF_EXAMPLES = "`correct` of the same items in `examples/` of the stages' folders"
_METHOD = (
    "Stage i trains on target i from the end of stage i − 1, written exactly, in float32; an anchor pulls towards "
    "where its stage began. The optimiser of a stage starts anew."
)


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not a page of sequences."""
    check_replaceable(out, ["page.html", "tables/transfer.csv", "tables/repeats.csv"], "the page of a sequence")


def write_sequences(frames: SequenceFrames, out: Path) -> Path:
    """Write README.md, page.html, figures and tables to folder ``out``, in place of an earlier page; its absolute path.

    Raises:
        DriftlabError: ``out`` holds something else.
    """
    check_folder(out)
    return replace_folder(out, render(frames))


def render(frames: SequenceFrames) -> dict[str, bytes]:
    """Relative path to content of every file."""
    shown = [
        Shown(name=name, title=TITLES[name], caption=CAPTIONS[name], png=png, svg=svg)
        for name, png, svg in figures(frames)
    ]
    files = figure_files(shown)
    for name in COLUMNS:
        files[f"tables/{name}.csv"] = getattr(frames, name).to_csv(index=False, lineterminator="\n").encode()
    labels = [f"seed {seed}, stage {stage + 1}" for seed in frames.seeds for stage in range(len(frames.targets))]
    manifests = [run.manifest for run in frames.runs]
    context: dict[str, Any] = {
        "title": f"Sequence of {len(frames.targets)} targets: {frames.name}, {frames.arm}",
        "sentences": sentences(frames),
        "scope": scope(frames),
        "method": _METHOD,
        "figures": shown,
        "tables": page_tables(frames),
        "missing": [
            (f"{row['task']}, checkpoint {row['checkpoint']}", row["note"])
            for row in rows_of(frames.matrix)
            if row["status"] != "ok"
        ],
        "about": ABOUT,
        "columns": COLUMNS,
        "runs": labels,
        "settings": shared_and_own(settings([manifest.spec for manifest in manifests])),
        "provenance": shared_and_own(settings([provenance(manifest) for manifest in manifests])),
    }
    for file, name, html in _PAGES:
        files[file] = template(name, html).render(context).encode()
    return files


def page_tables(frames: SequenceFrames) -> list[Table]:
    """Those that stand in the page, as a reader sees them."""
    return [_matrix(frames), _changes(frames), transfer_table(frames), norm_table(frames), _angle_table(frames)]


def _cells(frames: SequenceFrames, name: str) -> list[tuple[str, ...]]:
    """Checkpoint by task; a base has no change."""
    rows = {(row["checkpoint"], row["task"]): row for row in rows_of(frames.matrix)}
    start = 0 if name == "accuracy" else 1
    found = []
    for checkpoint in range(start, len(frames.targets) + 1):
        cells = [rows[checkpoint, task] for task in frames.tasks]
        shown = [_percent(row) if name == "accuracy" else _change(row, name) for row in cells]
        found.append((checkpoint_name(frames, checkpoint), *shown))
    return found


def _percent(row: dict[str, Any]) -> str:
    if row["accuracy"] is None:
        return NOT_MEASURED
    text = points(row["accuracy"], sign=False)
    if row["accuracy_low"] is None:
        return f"{text} [no interval]"
    # An interval about 0 or 100 % must not show accuracies that do not exist.
    low, high = max(0.0, row["accuracy_low"]), min(1.0, row["accuracy_high"])
    return f"{text} [{points(low, sign=False)}, {points(high, sign=False)}]"


def _change(row: dict[str, Any], name: str) -> str:
    return NOT_MEASURED if row[name] is None else told(row, name)


def _matrix(frames: SequenceFrames) -> Table:
    return Table(
        name="matrix",
        title="Accuracy matrix R: % right after each stage [95 % interval]",
        columns=("after stage", *frames.tasks),
        rows=tuple(_cells(frames, "accuracy")),
        data=frames.matrix,
        source=f"Means of {_OF_EXAMPLES}. The base is that of the first stage; targets first, in their order.",
    )


def _changes(frames: SequenceFrames) -> Table:
    return Table(
        name="matrix",
        title="Change since the base, in points [95 % interval]",
        columns=("after stage", *frames.tasks),
        rows=tuple(_cells(frames, "since_base")),
        data=frames.matrix,
        source=f"Paired differences of {_OF_EXAMPLES}. Changes over single stages are in the file.",
    )


def transfer_table(frames: SequenceFrames) -> Table:
    """What the stages did to each target, and the means."""
    rows, last = [], len(frames.targets)
    for row in rows_of(frames.transfer):
        mean = row["task"] == MEAN
        first, final = row["stage"] == 1, row["stage"] == last
        cells = [
            "–" if first else _change(row, "forward"),
            _change(row, "learned"),
            "–" if final else _change(row, "backward"),
            "–" if final else NOT_MEASURED if row["forgetting"] is None else points(row["forgetting"]),
        ]
        rows.append(("mean over targets" if mean else f"{row['stage']}, {row['task']}", *cells))
    return Table(
        name="transfer",
        title="What the stages did to the targets, in points [95 % interval]",
        columns=("target", "before its own stage", "over its own stage", "from its own stage to the end", "forgetting"),
        rows=tuple(rows),
        data=frames.transfer,
        source=f"Paired differences of {_OF_EXAMPLES}. In the last row, first column: forward transfer; third: "
        "backward transfer (BWT; Lopez-Paz and Ranzato 2017). Forgetting (Chaudhry et al. 2018) is biased upwards.",
    )


def norm_table(frames: SequenceFrames) -> Table:
    """Norm after each stage beside its random walk, mean over seeds."""
    rows = []
    for row in rows_of(mean_norms(frames)):
        norm = _number(row["norm"])
        if row["norm_low"] is not None:
            norm += f" [{_number(row['norm_low'])}, {_number(row['norm_high'])}]"
        walk = "–" if row["predicted"] is None else f"{_number(row['predicted'])} ± {row['predicted_sd']:.2g}"
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
        cells = (norm, walk, ratio, _number(row["alpha_form"]), _number(row["increment"]))
        note = row["note"] or "–"
        rows.append((checkpoint_name(frames, row["stage"]), *cells, _number(row["increment_predicted"]), note))
    columns = (
        "after stage",
        "norm",
        "random walk",
        "norm / walk",
        "α√(dT/N)",
        "of this stage",
        "its random walk",
        "note",
    )
    return Table(
        name="norms",
        title="L2 norm of the weights minus the original base",
        columns=columns,
        rows=tuple(rows),
        data=frames.norms,
        source="From the weights of the `after-` folders and of the base, in float64"
        + ("; mean over seeds with the t interval over them" if len(frames.seeds) > 1 else "")
        + ". The random walk follows the coefficients and anchors in `updates.jsonl`, with the standard deviation of "
        "one walk; α√(dT/N), summed in squares over stages, assumes z-scored rewards and no anchor.",
    )


def terminal_tables(frames: SequenceFrames) -> list[Table]:
    """What fits a terminal: without the columns that stand in the page only."""
    norms = norm_table(frames)
    short = replace(norms, columns=norms.columns[:4], rows=tuple(row[:4] for row in norms.rows))
    return [transfer_table(frames), short]


def _angle_table(frames: SequenceFrames) -> Table:
    rows = []
    for row in rows_of(frames.angles):
        shown = ("none: a stage did not move",) * 3
        if row["cosine"] is not None:
            shown = (
                f"{row['cosine']:.4f}".replace("-", "−"),
                f"{row['angle']:.2f}",
                f"{row['z']:.1f}".replace("-", "−"),
            )
        seed = f"seed {row['seed']}, " if len(frames.seeds) > 1 else ""
        rows.append((f"{seed}stages {row['first']} and {row['second']}", *shown, f"{row['random_sd']:.2g}"))
    return Table(
        name="angles",
        title="Angle between the displacements of two stages",
        columns=("stages", "cosine", "angle, degrees", "standard deviations from 0", "sd of a random cosine"),
        rows=tuple(rows),
        data=frames.angles,
        source="From the same weights; a random direction's cosine has mean 0 and standard deviation 1/√d.",
    )


def _number(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:#.4g}".replace("-", "−")
