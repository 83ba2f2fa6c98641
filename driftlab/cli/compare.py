"""The command that holds arms side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftlab.cli.common import MARGIN, MarginOption, margin_of, out, runs_in
from driftlab.run.store import in_order


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories of two or more arms, or folders of them.")],
    match: Annotated[
        str,
        typer.Option(
            "--match", help="What the runs have in common where they are compared: step, rollouts, flops or target."
        ),
    ] = "step",
    at: Annotated[
        float | None,
        typer.Option(
            "--at",
            help="Its value; target accuracy in %. Default: the last common step, the smallest budget, or the highest "
            "accuracy that every run reached.",
        ),
    ] = None,
    margin: MarginOption = MARGIN,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the comparison; default 'compare' in the first folder given."),
    ] = None,
) -> None:
    """Compare arms (ES, GRPO, ...) at one step, budget or target accuracy: differences, KL, ledger, claims."""
    from driftlab.console import printable
    from driftlab.report.compare import build_comparison
    from driftlab.report.compare_page import PAGE, check_folder, sentences, write_comparison
    from driftlab.report.compare_tables import against_table, matched_table
    from driftlab.report.runs import read_run

    folder = out_dir or runs[0] / "compare"
    check_folder(folder)
    fraction = margin_of(margin)
    found = {store.path.resolve(): store for place in runs for store in runs_in(place)}
    data = [read_run(store.path) for store in in_order(found.values())]
    value = at if at is None or match != "target" else at / 100
    comparison = build_comparison(data, kind=match, value=value, margin=fraction)
    write_comparison(comparison, data, folder)
    for table in (matched_table(comparison), against_table(comparison)):
        out.print(printable(table))
    for sentence in sentences(comparison):
        out.print(sentence, markup=False)
    out.print(f"comparison: {folder / PAGE}")
