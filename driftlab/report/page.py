"""The report itself: a folder with report.md, one self-contained report.html, figures and tables.

The same runs give the same bytes: no time, no absolute path, everything in a fixed order.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from driftlab.drift.curves import MARGIN
from driftlab.report import coverage_figure, held_out, plots
from driftlab.report import figures as drawings
from driftlab.report.contents import all_tables
from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.formats import Table, markdown_text, to_csv, to_latex, to_markdown, without_folders
from driftlab.report.frames import Frames, build_frames
from driftlab.report.lost import shown_items
from driftlab.report.pairing import accuracy_rows
from driftlab.report.runs import RunData
from driftlab.report.verdict_tables import REASON_COLUMNS, reason_rows
from driftlab.report.words import (
    ITEM_SCOPE,
    SCOPE,
    SEED_SCOPE,
    captions,
    diagnosis,
    explained,
    main_sentences,
    settings,
    shared_and_own,
)

SAMPLES = 2
SAMPLE_LENGTH = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One figure of the page; ``png`` and ``svg`` are None when its quantity was not measured."""

    name: str
    title: str
    caption: str
    png: bytes | None
    svg: bytes | None

    @property
    def data_uri(self) -> str | None:
        return None if self.svg is None else "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One item's model text at the base and at the final step."""

    run: str
    item: str
    step: int
    base: str
    base_verdict: str
    final: str
    final_verdict: str


def write_report(runs: Sequence[RunData], out: Path, *, margin: float = MARGIN) -> Path:
    """Write the report of ``runs`` to folder ``out``, replacing an earlier report there, and return ``out``.

    Args:
        margin: largest change that still counts as stable, a fraction.

    Raises:
        DriftlabError: the runs cannot stand in one report, or ``out`` holds something that is not a report.
    """
    check_folder(out)
    return write_frames(build_frames(runs, margin=margin), runs, out)


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not a report."""
    check_replaceable(out, ["report.html"], "a report")


def write_frames(frames: Frames, runs: Sequence[RunData], out: Path) -> Path:
    """Write the report of ``frames``, the tables of ``runs``; an earlier report in ``out`` is replaced."""
    return replace_folder(out, render(frames, runs))


def render(frames: Frames, runs: Sequence[RunData]) -> dict[str, bytes]:
    """Relative path to content of every file of the report."""
    tables = {table.name: table for table in all_tables(frames)}
    figures = draw(frames)
    manifests = [run.manifest for run in runs]
    context: dict[str, Any] = {
        "target": frames.target,
        "runs": list(frames.runs["run"]),
        "sentences": [*main_sentences(frames), *held_out.held_out_words(frames)],
        "scope": SCOPE + SEED_SCOPE * frames.repeated + ITEM_SCOPE * frames.examples.empty,
        "explained": explained(frames),
        "diagnosis": diagnosis(frames),
        "reasons": reason_rows(frames),
        "reason_columns": REASON_COLUMNS,
        "lost": shown_items(frames.lost),
        "has_items": not frames.examples.empty,
        "repeated": frames.repeated,
        "tables": tables,
        "figures": figures,
        "problems": problem_rows(frames),
        "samples": samples(frames),
        "sample_length": SAMPLE_LENGTH,
        "settings": shared_and_own(settings([manifest.spec for manifest in manifests])),
        "provenance": shared_and_own(settings([provenance(manifest) for manifest in manifests])),
    }
    files = {name: template(name, escape).render(context).encode() for name, escape in _PAGES}
    files |= figure_files(figures)
    files |= table_files(tables.values())
    files["tables/lost-items.csv"] = frames.lost.to_csv(index=False, lineterminator="\n").encode()
    return files


def figure_files(figures: Iterable[Shown]) -> dict[str, bytes]:
    """Path and content of the figures that could be drawn."""
    files = {}
    for figure in figures:
        if figure.png is not None and figure.svg is not None:
            files[f"figures/{figure.name}.png"] = figure.png
            files[f"figures/{figure.name}.svg"] = figure.svg
    return files


def table_files(tables: Iterable[Table]) -> dict[str, bytes]:
    """Path and content of every table in its three formats."""
    formats = (("csv", to_csv), ("md", to_markdown), ("tex", to_latex))
    return {f"tables/{table.name}.{suffix}": write(table).encode() for table in tables for suffix, write in formats}


_PAGES = (("report.html", True), ("report.md", False))


def draw(frames: Frames) -> list[Shown]:
    """The figures in order; one whose rows do not exist says so instead of showing empty axes.

    What few runs ask for has a figure only where there is something.
    """
    accuracy = accuracy_rows(frames.measurements)
    target = accuracy[(accuracy["group"] == frames.target) & (accuracy["status"] == "ok")]
    prior = accuracy[accuracy["group"].isin(frames.priors) & (accuracy["status"] == "ok")]
    plan: tuple[tuple[str, str, Callable[[Frames], plots.Figure], int], ...] = (
        ("target", "a. Target", drawings.target_figure, len(target) + len(frames.updates)),
        ("differences", "b. Change of the prior tasks", drawings.difference_figure, len(frames.bands)),
        ("priors", "c. Prior tasks", drawings.prior_figure, len(prior)),
        ("norms", "d. Update norm", drawings.norm_figure, len(frames.rows("update_norm", probe="weights"))),
        ("kl", "e. KL divergence from the base", drawings.kl_figure, len(frames.rows("kl_base_to_step", probe="kl"))),
        ("path", "f. Prior average against target", drawings.path_figure, len(frames.prior_averages)),
    )
    texts = captions(frames)
    shown = []
    for name, title, build, rows in plan:
        png, svg = plots.save(build(frames)) if rows else (None, None)
        shown.append(Shown(name=name, title=title, caption=texts[name], png=png, svg=svg))
    optional = (
        (coverage_figure.drawable(frames), coverage_figure, coverage_figure.coverage_figure),
        (len(held_out.held_out_rows(frames)) > 0, held_out, held_out.held_out_figure),
    )
    for there, module, build in optional:
        if there:
            png, svg = plots.save(build(frames))
            shown.append(Shown(name=module.NAME, title=module.TITLE, caption=module.caption(frames), png=png, svg=svg))
    return shown


def problem_rows(frames: Frames) -> list[tuple[str, ...]]:
    """The problem table as text, folders of this machine left out."""
    return [
        tuple(without_folders(str(cell)) for cell in row) for row in frames.problems.itertuples(index=False, name=None)
    ]


def samples(frames: Frames) -> list[Sample]:
    """A few target outputs of each arm's first run, base beside final: items that changed first, then by item."""
    found = []
    table = frames.examples[(frames.examples["task"] == frames.target) & frames.examples["output"].notna()]
    first = frames.runs.drop_duplicates("arm")
    for run, last in first[["run", "last_step"]].itertuples(index=False, name=None):
        own = table[table["run"] == run].drop_duplicates(["step", "item"]).set_index("item")
        base, final = own[own["step"] == 0], own[own["step"] == last]
        if last == 0:
            continue
        common = sorted(base.index.intersection(final.index))
        common.sort(key=lambda item: bool(base.loc[item, "correct"] == final.loc[item, "correct"]))
        for item in common[:SAMPLES]:
            before, after = base.loc[item], final.loc[item]
            found.append(
                Sample(
                    run=run,
                    item=str(item),
                    step=last,
                    base=_cut(before["output"]),
                    base_verdict=_verdict(before),
                    final=_cut(after["output"]),
                    final_verdict=_verdict(after),
                )
            )
    return found


def _cut(text: str) -> str:
    return text if len(text) <= SAMPLE_LENGTH else text[:SAMPLE_LENGTH] + " […]"


def _verdict(row: pd.Series) -> str:
    words = ["correct" if row["correct"] else "wrong"]
    words += ["unparsed"] * (row["parsed"] is False) + ["truncated"] * (row["truncated"] is True)
    return ", ".join(words)


def provenance(manifest: Any) -> dict[str, Any]:
    """What the page says about how a run came about."""
    kept = {"run_id": manifest.run_id, "digest": manifest.digest, "status": manifest.status}
    return {**kept, "model": manifest.model, "tasks": manifest.tasks, **manifest.provenance}


def _prose(text: str) -> Markup:
    """Escaped text with its `code` marked and "95 %" kept on one line."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<=\d) %", "\u00a0%", marked))


def _breakable(text: str) -> Markup:
    """Escaped text that a narrow column may break after an underscore."""
    return Markup(str(escape(text)).replace("_", "_<wbr>"))


def _fence(text: str) -> str:
    """The text as a Markdown code block that its own backticks cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _rows_as_markdown(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    table = Table(name="", title="", columns=tuple(columns), rows=tuple(rows), data=pd.DataFrame(), source="")
    return to_markdown(table, rest=":---")


def template(name: str, escape: bool) -> jinja2.Template:
    """A page's template, with the filters and functions that pages share."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("driftlab.report"),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": markdown_text, "fence": _fence, "table": to_markdown}
    environment.filters |= {"prose": _prose, "breakable": _breakable}
    environment.globals["rows_as_markdown"] = _rows_as_markdown
    return environment.get_template(f"{name}.j2")
