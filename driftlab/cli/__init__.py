"""The commands, nothing else: each reads its arguments, calls one function and prints what came back."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer
from rich.markup import escape

from driftlab.cli import audit, compare, foreign, geometry, pilot, reproduce, runs, sequence, studies, sweeps
from driftlab.cli.common import STOPPED, err
from driftlab.errors import DriftlabError

app = typer.Typer(
    help="What fine-tuning does to the abilities a language model was not trained on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    runs.demo,
    runs.run,
    runs.report,
    runs.power,
    runs.ls,
    runs.show,
    runs.export,
    studies.emulate,
    sweeps.sweep,
):
    app.command()(command)
app.command()(sweeps.search_lambda)
app.command()(sequence.sequence)
app.command()(reproduce.reproduce)
app.command()(pilot.pilot)
app.command()(compare.compare)
app.command()(geometry.geometry)
app.command()(audit.audit)
app.command("import")(foreign.import_run)

models_app = typer.Typer(help="Base models.", no_args_is_help=True)
models_app.command("fetch")(runs.models_fetch)
app.add_typer(models_app, name="models")


def main() -> None:
    """Entry point. Bad input is one sentence on stderr and exit code 2."""
    # Waiting threads that spin slow two busy cores down tenfold; must be set before torch starts its threads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except DriftlabError as error:
        err.print(f"[bold red]driftlab:[/] {escape(str(error))}")
        sys.exit(2)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Inside a library's callback it may be swallowed: the flag stops the run at its next event all the same.
    STOPPED.set()
    raise KeyboardInterrupt
