"""The command that takes in a run of other code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.markup import escape

from driftlab.cli.common import OutOption, err, out, stay_offline
from driftlab.errors import SpecError


def import_run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory of kschweig/es-awd (LIT-238).")],
    out_dir: OutOption = Path("runs"),
    model: Annotated[
        str | None,
        typer.Option("--model", help="Base model: folder, .gguf file or hub id; default the one the run names."),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", help="Rebuild and measure the weights: 'fused' as trained, or 'hf' unfused."),
    ] = None,
    step: Annotated[
        list[int] | None, typer.Option("--step", help="With --replay: only these steps. Repeatable.")
    ] = None,
    kl: Annotated[
        int, typer.Option("--kl", help="With --replay: texts drawn from the base for the KL; 0 for none.", min=0)
    ] = 0,
    device: Annotated[str, typer.Option("--device", help="With --replay: where the noise is drawn.")] = "cpu",
    arm: Annotated[
        str | None, typer.Option("--arm", help="What reports call it; default ES, ES+AWD-L1 or ES+AWD-L2.")
    ] = None,
) -> None:
    """Read a run of LIT-238's own code as a run of ours, for ls, show and report."""
    if replay not in (None, "hf", "fused"):
        raise SpecError(f"--replay is {replay!r}; use fused (the layout that was trained) or hf")
    if model is not None:
        stay_offline([model], [None], [True])
    from driftlab.importing import import_foreign

    store = import_foreign(
        directory,
        out_dir,
        name=_run_name(directory),
        arm=arm,
        model=model,
        layout=cast(Literal["hf", "fused"] | None, replay),
        device=device,
        steps=step,
        kl_texts=kl,
    )
    for note in store.manifest.provenance["import_notes"]:
        err.print(escape(f"note: {note}"))
    out.print(escape(f"{len(store.updates())} updates, measured at {len(store.example_steps())} steps: {store.path}"))


def _run_name(directory: Path) -> str:
    """The folder's name in the letters that names of runs are made of."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.resolve().name).lstrip("._-")
    return name or "imported"
