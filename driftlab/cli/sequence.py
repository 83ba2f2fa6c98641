"""The command that trains on several targets one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from driftlab.cli.common import (
    ArmOption,
    OutOption,
    ResumeOption,
    SeedsOption,
    SetOption,
    SpecArgument,
    err,
    out,
    run_all,
    seeds_of,
    stay_offline,
    work_bar,
)

if TYPE_CHECKING:
    from driftlab.report.sequences import SequenceData, SequenceFrames
    from driftlab.sequence.plan import Chain, Stage


def sequence(
    spec: SpecArgument,
    targets: Annotated[
        str, typer.Option("--targets", help="Target tasks in the order of training, for example A,B,C.")
    ],
    arm: ArmOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
) -> None:
    """Train one arm of SPEC on several targets one after the other: what each stage taught, and what it cost."""
    from driftlab.report.sequence_page import check_folder, write_sequences
    from driftlab.report.sequences import build_sequences
    from driftlab.sequence.plan import plan_sequences, refuse_other

    chains = plan_sequences(spec, targets, set_ or [], arm, seeds_of(seeds), out_dir)
    first = chains[0]
    page = first.path.parent / (re.sub(r"-s\d+$", "", first.path.name) + "-report")
    check_folder(page)
    refuse_other(chains, resume=resume)
    err.print(f"{len(first.stages)} stages, {len(chains) * len(first.stages)} runs in {first.path.parent}")
    asked = first.asked.spec
    stay_offline([asked.model.source], [asked.data], [first.stages[0].spec.only_embedded_tasks])
    from driftlab.sequence.run import run_chain

    def execute(stage: Stage, folder: Path) -> None:
        err.print(f"stage {stage.number} of {len(first.stages)}: {escape(stage.task)}")
        run_all([stage], folder, resume)

    try:
        for chain in chains:
            run_chain(chain, execute)
        frames = build_sequences(_read(chains))
    except KeyboardInterrupt:
        err.print("stopped; the same command with --resume goes on from here")
        raise typer.Exit(130) from None
    write_sequences(frames, page)
    _show(frames)
    out.print(f"page: {escape(str(page / 'page.html'))}")


def _read(chains: list[Chain]) -> list[SequenceData]:
    from driftlab.sequence.run import read_chain

    found = []
    with work_bar() as start:
        tell = start("how far the weights went")
        for number, chain in enumerate(chains, start=1):
            found.append(read_chain(chain))
            tell(number / len(chains))
    return found


def _show(frames: SequenceFrames) -> None:
    from driftlab.console import printable
    from driftlab.report.sequence_page import terminal_tables
    from driftlab.report.sequence_words import sentences

    for table in terminal_tables(frames):
        out.print(printable(table))
    for sentence in sentences(frames):
        out.print(escape(sentence))
