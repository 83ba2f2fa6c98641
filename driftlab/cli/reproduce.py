"""The command that puts published numbers beside our own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from driftlab.cli.common import out, work_bar
from driftlab.errors import SpecError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="What to reproduce; --list names all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the page; default reports/reproduce/NAME.")
    ] = None,
    coordinates: Annotated[
        int | None, typer.Option("--coordinates", help="Weights emulated in a walk of population 30.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the emulated weights and noise.")] = 0,
    weight_std: Annotated[
        float | None, typer.Option("--weight-std", help="Standard deviation of the emulated weights.")
    ] = None,
) -> None:
    """Published update norms beside emulated ones: minutes on a laptop, no model, no accelerator."""
    from driftlab.published.reproduce import RECIPES

    if list_:
        listed = RichTable("name", "what", box=None, pad_edge=False)
        for known, made in RECIPES.items():
            listed.add_row(known, made.what)
        out.print(listed)
        return
    if name is None:
        raise SpecError(f"say what to reproduce: {', '.join(RECIPES)}")
    _make(name, out_dir or Path("reports") / "reproduce" / name, coordinates, seed, weight_std)


def _make(name: str, folder: Path, coordinates: int | None, seed: int, weight_std: float | None) -> None:
    from driftlab.console import printable
    from driftlab.published.comparison import WEIGHT_STD, Settings
    from driftlab.published.reproduce import check_folder, recipe, write

    chosen = recipe(name)
    settings = Settings(
        coordinates=chosen.coordinates if coordinates is None else coordinates,
        seed=seed,
        weight_std=WEIGHT_STD if weight_std is None else weight_std,
    )
    # Refuse a folder before the minutes of work, not after them.
    check_folder(folder)
    began = time.monotonic()
    with work_bar() as start:
        page = chosen.make(settings, start(name))
    write(page, settings, folder)
    out.print(escape(page.title))
    for sentence in page.summary:
        out.print(escape(sentence))
    for _, table in page.tables:
        out.print(printable(table))
    for heading, texts in (("differences above 3 %", page.differences), ("not reproduced", page.missing)):
        out.print(f"{heading}:")
        for text in texts:
            out.print(f"  {escape(text)}")
    out.print(f"page: {escape(str(folder / 'README.md'))} ({time.monotonic() - began:.0f} s)")
