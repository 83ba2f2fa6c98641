"""What several commands share: consoles, options, and running a plan."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from driftlab.errors import DriftlabError, RunError, SpecError
from driftlab.run.store import RunStore, find_runs, in_order

if TYPE_CHECKING:
    from driftlab.run.plan import PlannedRun

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)
STOPPED = threading.Event()
"""Set by an interrupt; a run looks at it at its next event."""

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
SpecArgument = Annotated[str, typer.Argument(help="A preset's name or a .toml file.")]
ArmsOption = Annotated[list[str] | None, typer.Option("--arm", help="Only this arm of the spec. Repeatable.")]
ArmOption = Annotated[str | None, typer.Option("--arm", help="The arm; needed where the spec has several.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Base model: folder, .gguf file or hub id.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Benchmark files in the hub's names; default $DRIFTLAB_DATA.")
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.")]


def plan_of(spec: str, overrides: list[str] | None, arms: list[str] | None, seeds: str | None) -> list[PlannedRun]:
    from driftlab.run.plan import load_plan

    return load_plan(spec, overrides or [], arms or [], seeds_of(seeds))


def seeds_of(text: str | None) -> tuple[int, ...]:
    """The seeds of ``--seeds``; none without it."""
    from driftlab.run.plan import parse_seeds

    return () if text is None else parse_seeds(text)


@contextmanager
def work_bar() -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Progress with an estimate for work that tells its share done: ``start(label)`` gives what to tell it to.

    What is told after an interrupt raises KeyboardInterrupt.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=err) as bar:

        def start(label: str) -> Callable[[float], None]:
            task = bar.add_task(escape(label), total=1.0)

            def tell(share: float) -> None:
                if STOPPED.is_set():
                    raise KeyboardInterrupt
                bar.update(task, completed=share)

            return tell

        yield start


def run_all(plan: Sequence[PlannedRun], group: Path, resume: bool) -> None:
    """Run what is not finished yet in ``group``, one run after the other; a plan that cannot start is refused whole."""
    specs = [planned.spec for planned in plan]
    stay_offline([s.model.source for s in specs], [s.data for s in specs], [s.only_embedded_tasks for s in specs])
    from driftlab import loop
    from driftlab.console import RunProgress

    unfinished = loop.unfinished(plan, group, resume=resume)
    several = len({planned.spec.seed for planned in plan}) > 1
    for planned in plan:
        label = escape(planned.spec.arm) + (f", seed {planned.spec.seed}" if several else "")
        if planned not in unfinished:
            err.print(f"{label}: already finished in {group / planned.folder}")
            continue
        progress = RunProgress(planned.spec, err, STOPPED.is_set)
        try:
            with progress:
                store = loop.run(planned, group / planned.folder, resume=resume, listen=progress)
        except KeyboardInterrupt:
            err.print("stopped; the same command with --resume goes on")
            raise typer.Exit(130) from None
        for notice in store.notices:
            err.print(escape(notice))
        parts = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in progress.seconds.items())
        err.print(f"{label}: {store.manifest.status} in {store.path} ({parts})")


def run_plan(plan: list[PlannedRun], folder: Path, resume: bool) -> None:
    group = folder / plan[0].spec.name
    run_all(plan, group, resume)
    try:
        # Arms or seeds run before belong to the same experiment.
        write_report([store.path for store in runs_in(group)], group / "report", MARGIN)
    except DriftlabError as error:
        err.print(f"the report leaves out the other runs in {group}: {escape(str(error))}")
        own = in_order([RunStore.open(group / planned.folder) for planned in plan])
        write_report([store.path for store in own], group / "report", MARGIN)


def margin_of(points: float) -> float:
    """The fraction that ``--margin`` gives in points."""
    if not 0 < points < 100:
        raise SpecError(f"--margin is {points:g} points, but it must lie between 0 and 100")
    return points / 100


def overridden(set_: list[str] | None, model: str | None, data: Path | None) -> list[str]:
    """The overrides of ``--set``, ``--model`` and ``--data``."""
    given = list(set_ or [])
    if model is not None:
        given.append(f"model.source={quoted(model)}")
    if data is not None:
        given.append(f"data={quoted(str(data))}")
    return given


def write_report(runs: list[Path], folder: Path, margin: float) -> None:
    from driftlab.console import printable
    from driftlab.report.frames import build_frames
    from driftlab.report.page import check_folder, write_frames
    from driftlab.report.runs import read_run
    from driftlab.report.tables import final_table
    from driftlab.report.verdict_tables import short_seed_table, short_verdict_table

    check_folder(folder)
    fraction = margin_of(margin)
    data = [read_run(path) for path in runs]
    frames = build_frames(data, margin=fraction)
    write_frames(frames, data, folder)
    # A column for every run of every seed fits no terminal; the report holds them all.
    for table in [short_seed_table(frames)] if frames.repeated else [final_table(frames), short_verdict_table(frames)]:
        out.print(printable(table))
    out.print(f"report: {folder / 'report.html'}")


def runs_in(folder: Path) -> list[RunStore]:
    if (folder / "run.json").is_file():
        return [RunStore.open(folder)]
    found = find_runs(folder) if folder.is_dir() else []
    if not found:
        raise RunError(f"no runs in {folder}; 'driftlab demo' makes some in runs/")
    return in_order(found)


def show_plan(plan: list[PlannedRun]) -> None:
    from driftlab.estimate import describe

    for arm in dict.fromkeys(planned.spec.arm for planned in plan):
        runs = [planned for planned in plan if planned.spec.arm == arm]
        # Seeds change no size: the first stands for all.
        table = RichTable("", arm, box=None, pad_edge=False)
        table.add_row("seed" if len(runs) == 1 else "for each of seeds", ", ".join(str(one.spec.seed) for one in runs))
        for name, value in describe(runs[0].spec):
            table.add_row(name, value)
        out.print(table)


def stay_offline(sources: list[str], data: list[Path | None], own_tasks: list[bool]) -> None:
    """With everything on disk no library needs the hub; must be set before they are imported."""
    local = all(source == "nano" or Path(source).exists() for source in sources)
    if local and all(path is not None or embedded for path, embedded in zip(data, own_tasks, strict=True)):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("HF_DATASETS_OFFLINE", "1")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
