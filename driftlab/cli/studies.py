"""Commands about the instrument's mathematics: they train nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from driftlab.cli.common import SetOption, out, overridden, plan_of, work_bar
from driftlab.errors import SpecError

if TYPE_CHECKING:
    from driftlab.drift.emulator import Walk
    from driftlab.run.spec import RunSpec


def emulate(
    spec: Annotated[str, typer.Argument(help="A preset's name or a .toml file.")],
    set_: SetOption = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Only this arm of the spec. Repeatable.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Base model: folder, .gguf file or hub id.")] = None,
    weight_std: Annotated[
        float | None,
        typer.Option("--weight-std", help="Take weights from a normal law with this deviation, not from the model."),
    ] = None,
    coordinates: Annotated[int, typer.Option("--coordinates", help="Weights that stand for all.")] = 65_536,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, noise and rewards.", min=0)] = 0,
    threads: Annotated[int, typer.Option("--threads", help="Blocks of weights walked at a time.", min=1)] = 1,
) -> None:
    """How far the weights of SPEC would walk without a reward signal, in its own arithmetic, beside the exact law."""
    from driftlab.emulation import emulate_run, sample_of, walk_of

    overrides = overridden(set_, model, None)
    specs = [planned.spec for planned in plan_of(spec, overrides, arm, None)]
    # A shuffled-reward arm is the walk of the arm that it controls: shown once. Arms that do not walk are left out.
    walks: dict[Walk, RunSpec] = {}
    for one in [one for one in specs if one.walks] or specs:
        walks.setdefault(walk_of(one), one)
    sources = {one.model.source for one in walks.values()}
    if len(sources) > 1:
        raise SpecError(f"these arms have unlike base models ({', '.join(sorted(sources))}): choose with --arm")
    sample = sample_of(specs[0].model.source, weight_std=weight_std, coordinates=coordinates, seed=seed)
    table = RichTable("arm", "step", "norm", "error", "exact law", "norm / law", box=None, pad_edge=False)
    with work_bar() as start:
        for one in walks.values():
            found = emulate_run(one, sample, seed=seed, threads=threads, progress=start(one.arm))
            for step, norm, error, law in zip(found.steps, found.norm, found.stderr, found.law, strict=True):
                exact, ratio = ("none", "–") if law is None else (f"{law:.4f}", f"{norm / law:.4f}" if law else "–")
                table.add_row(escape(one.arm), str(step), f"{norm:.4f}", f"{error:.2g}", exact, ratio)
    out.print(
        f"{sample.d:,} weights, {sample.base.size:,} emulated, {sample.source}; error: Monte-Carlo standard error"
    )
    out.print(table)
