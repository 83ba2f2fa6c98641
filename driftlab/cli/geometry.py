"""The command about the geometry of two solutions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from driftlab.cli.common import RunArgument, err, out, stay_offline, work_bar
from driftlab.errors import SpecError
from driftlab.run.store import RunStore

if TYPE_CHECKING:
    from driftlab.report.geometry_frames import Geometry

PointsOption = Annotated[int, typer.Option("--points", help="Points of the straight path, both ends included.")]
DistancesOption = Annotated[
    str | None,
    typer.Option(
        "--distances",
        help="Distances from the base along each direction, for example 0.5,1,2; "
        "default 0.25, 0.5, 1, 1.5 and 2 times either norm.",
    ),
]
ItemsOption = Annotated[
    int | None, typer.Option("--items", help="Items of each task, a seeded subset; default all of the runs' own.")
]
TauOption = Annotated[float, typer.Option("--tau", help="Largest absolute change of a weight that counts as none.")]
StagesOption = Annotated[
    str | None,
    typer.Option("--stages", help="Steps between which the KL is taken, for example 0,50,100; default measured ones."),
]


def geometry(
    run_a: RunArgument,
    run_b: RunArgument,
    step_a: Annotated[int | None, typer.Option("--step-a", help="Step of the first run; default its last.")] = None,
    step_b: Annotated[int | None, typer.Option("--step-b", help="Step of the second run; default its last.")] = None,
    points: PointsOption = 9,
    distances: DistancesOption = None,
    items: ItemsOption = None,
    tau: TauOption = 1e-6,
    stages: StagesOption = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random direction and of --items.")] = 0,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the page.")] = Path("geometry"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Benchmark files in the hub's names; default those of the first run.")
    ] = None,
) -> None:
    """Compare two solutions in weight space: angle, straight path, directions, KL, random walk, sparsity."""
    between = None if stages is None else _numbers("--stages", stages, int)
    away = None if distances is None else _numbers("--distances", distances, float)
    _stay_offline(run_a, data)
    from driftlab.geometry.measure import Settings, measure
    from driftlab.report.geometry_page import check_folder, write_geometry

    settings = Settings(
        points=points,
        distances=away,
        items=items,
        tau=tau,
        stages=None if between is None else tuple(int(step) for step in between),
        seed=seed,
        data=data,
    )
    # Refuse a folder before the minutes of work, not after them.
    check_folder(out_dir)
    began = time.monotonic()
    try:
        with work_bar() as start:
            found = measure(run_a, run_b, step_a=step_a, step_b=step_b, settings=settings, start=start)
    except KeyboardInterrupt:
        err.print("stopped; nothing was written")
        raise typer.Exit(130) from None
    folder = write_geometry(found, out_dir)
    _show(found)
    out.print(f"page: {escape(str(folder / 'page.html'))} ({time.monotonic() - began:.0f} s)")


def _stay_offline(run: Path, data: Path | None) -> None:
    from driftlab.run.spec import RunSpec

    given = RunStore.open(run).manifest.spec
    if "imported" not in given:  # refused later, with a reason
        spec = RunSpec.model_validate(given)
        stay_offline([spec.model.source], [data or spec.data], [spec.only_embedded_tasks])


def _show(found: Geometry) -> None:
    from driftlab.console import printable
    from driftlab.report.geometry_tables import terminal_tables
    from driftlab.report.geometry_words import sentences

    for table in terminal_tables(found):
        out.print(printable(table))
    for sentence in sentences(found):
        out.print(escape(sentence))


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    """The values of a list such as ``0.5,1,2``. Raises SpecError for an entry that is no such number."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise SpecError(f"{option} is {text!r}, but it must be {what} with commas between them") from None
