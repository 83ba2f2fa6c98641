"""Grids of runs: which cells there are, what their table says of fabricated runs, and small real ones, interrupted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from driftlab import loop
from driftlab.cli import common, sweeps
from driftlab.errors import DriftlabError, SpecError
from driftlab.report.runs import RunData
from driftlab.report.sweep_figure import COMBINATIONS, sweep_figure
from driftlab.report.sweep_page import sweep_table, write_sweep
from driftlab.report.sweeps import SweepCell, SweepFrames, Value, build_sweep, shown_value
from driftlab.run.records import Example, Measurement
from driftlab.run.store import Manifest, RunStore
from driftlab.sweep import in_running_order, plan_sweep
from tests.test_loop import files

TARGET, FIRST, SECOND = "toy_target", "toy_first", "toy_second"
ITEMS = {TARGET: 40, FIRST: 20, SECOND: 20}
BASE = {TARGET: 10, FIRST: 16, SECOND: 10}

TOML = """
name = "small"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 4
max_new_tokens = 12
[es]
population = 4
iterations = 2
sigma = 0.02
rollouts = "stacked"
[measure]
every = 2
[probes.lm_eval]
tasks = ["embedded_rules"]
items = 20
batch_size = 64
"""


def toy_run(arm: str, seed: int, right: Mapping[str, int], norm: float, anchor: Mapping[str, Any]) -> RunData:
    """A run that ends after 30 steps with the first ``right`` items of each task right."""
    ends = {0: BASE, 30: right}
    spec = {
        "name": "toy",
        "arm": arm,
        "seed": seed,
        "model": {"source": "toy", "dtype": "float32"},
        "target": {"task": TARGET},
        "es": {"population": 4},
        "anchor": dict(anchor),
        "probes": {"lm_eval": {"tasks": [FIRST, SECOND]}},
    }
    manifest = Manifest(
        schema=1,
        run_id=f"toy/{arm}-{seed}",
        status="finished",
        error=None,
        digest="d",
        given={},
        spec=spec,
        model={"weights_hash": "w"},
        tasks={},
        provenance={},
    )
    rows = [
        Measurement(
            step=step, probe="lm_eval", quantity="accuracy", group=task, value=count / ITEMS[task], unit="fraction",
            stderr=None, n=ITEMS[task],
        )
        for step, counts in ends.items()
        for task, count in counts.items()
    ]  # fmt: skip
    norms = {"update_norm": norm, "predicted_norm": 2.0, "random_walk_ratio": norm / 2.0}
    rows += [
        Measurement(
            step=step, probe="weights", quantity=name, group="all", value=value if step else 0.0, unit="l2",
            stderr=0.01, n=1000,
        )
        for step in ends
        for name, value in norms.items()
    ]  # fmt: skip
    examples = [
        Example(
            step=step, task=task, item=f"{task}-{index:02d}", cluster=f"{task}-{index:02d}",
            correct=float(index < count), score=0.0, output_length=None, parsed=None, truncated=None, output=None,
        )
        for step, counts in ends.items()
        for task, count in counts.items()
        for index in range(ITEMS[task])
    ]  # fmt: skip
    return RunData(
        path=Path("/nowhere"), manifest=manifest, updates=[], measurements=rows, examples=examples, notices=()
    )


def toy_cell(
    lam: float, ends: Sequence[tuple[int, int, int]], norms: Sequence[float] = (2.0, 2.2), **others: Value
) -> SweepCell:
    """Values, then by seed the items of target, first and second prior task that are right at the end."""
    anchor = {"penalty": "l2" if lam else "none", "lambda": lam}
    arm = ", ".join([f"ES, lambda {lam:g}", *(f"{name} {value}" for name, value in others.items())])
    runs = [
        toy_run(arm, seed, dict(zip(BASE, right, strict=True)), norms[seed], anchor) for seed, right in enumerate(ends)
    ]
    return SweepCell(values={"anchor.lambda": lam, **others}, runs=runs)


def toy_grid() -> list[SweepCell]:
    """Without anchor 30 and 28 of 40 items of the target are right; lambda 10 loses two of them, lambda 100 twelve."""
    return [
        toy_cell(0.0, [(30, 12, 10), (28, 12, 10)]),
        toy_cell(10.0, [(28, 14, 10), (26, 14, 10)]),
        toy_cell(100.0, [(18, 16, 11), (16, 16, 11)]),
    ]


@pytest.fixture(scope="module")
def toy() -> SweepFrames:
    return build_sweep(toy_grid())


def test_means_intervals_and_the_comparison_with_no_anchor_by_hand(toy: SweepFrames) -> None:
    cells = toy.cells.set_index("cell")
    plain, weak, strong = (cells.loc[f"ES, lambda {value}"] for value in (0, 10, 100))
    assert (plain["target_base"], plain["target_final"]) == (0.25, pytest.approx(29 / 40))
    # Changes of 20/40 and 18/40: t quantile 12.7062 (1 degree of freedom) times SD 0.035355 over the root of 2.
    assert plain["target_change"] == pytest.approx(0.475)
    assert (plain["target_low"], plain["target_high"]) == pytest.approx((0.475 - 0.317655, 0.475 + 0.317655), abs=1e-6)
    # Both seeds lose exactly 2 items, other ones: four items lose a half each. The interval is the one over items,
    # 40/39 * (4 * 0.25 - 40 * 0.05^2) / 40^2 and half a gained and a lost item, t quantile 2.022691.
    assert weak["target_against"] == pytest.approx(-0.05)
    half = 2.022691 * (40 / 39 * 0.9 / 1600 + 1 / 1600) ** 0.5
    assert (weak["target_against_low"], weak["target_against_high"]) == pytest.approx((-0.05 - half, -0.05 + half))
    # Ten items lost in both seeds, four in one of them.
    half = 2.022691 * (40 / 39 * (10 + 4 * 0.25 - 40 * 0.09) / 1600 + 1 / 1600) ** 0.5
    assert (strong["target_against"], strong["target_against_high"]) == pytest.approx((-0.3, -0.3 + half))
    assert list(cells["against"].dropna()) == ["ES, lambda 0"] * 2
    assert cells["target_against"].isna().tolist() == [True, False, False]
    # 2.0 and 2.2: 12.7062 * 0.1.
    assert (plain["update_norm"], plain["update_norm_low"]) == pytest.approx((2.1, 2.1 - 1.27062), abs=1e-5)


def test_a_task_that_moves_in_one_cell_counts_in_the_average_of_all(toy: SweepFrames) -> None:
    """Alone, the cell without anchor would average over one task (-20 points), and be compared with two."""
    frames = toy
    assert (frames.priors, frames.inert) == ({"prior": (FIRST, SECOND)}, ())
    assert list(frames.cells["prior_change"]) == pytest.approx([-0.1, -0.05, 0.025])
    assert list(frames.cells["prior_base"]) == pytest.approx([0.65] * 3)
    assert list(frames.cells["prior_against"])[1:] == pytest.approx([0.05, 0.125])
    assert list(frames.rows["prior_change"]) == pytest.approx([-0.1, -0.1, -0.05, -0.05, 0.025, 0.025])
    alone = build_sweep([toy_cell(0.0, [(30, 12, 10), (28, 12, 10)])])
    assert (alone.inert, alone.cells["prior_change"][0]) == ((SECOND,), pytest.approx(-0.2))


def test_cells_are_compared_only_with_the_one_that_shares_their_other_values() -> None:
    grid = [
        toy_cell(lam, [(right, 16, 11)], (2.0,), **{"es.population": population})
        for lam, population, right in ((0.0, 10, 30), (0.0, 20, 20), (5.0, 10, 28), (5.0, 20, 24), (5.0, 30, 24))
    ]
    frames = build_sweep(grid)
    cells = frames.cells.set_index("cell")
    differences = cells["target_against"].dropna()
    assert dict(differences) == pytest.approx(
        {"ES, lambda 5, es.population 10": -0.05, "ES, lambda 5, es.population 20": 0.1}
    )
    table = sweep_table(frames, "sweep", "", {})
    shown = dict(zip(table.columns, table.rows[4], strict=True))
    assert (shown["es.population"], shown["target against no anchor"]) == ("30", "–")
    # One seed: the interval is over items, and a norm has none.
    assert shown["update norm"] == "2.000"
    assert shown["target change"].startswith("+35.0 [")


def test_what_is_missing_is_said_and_never_zero() -> None:
    grid = toy_grid()
    broken = grid[1].runs[1]
    rows = [m for m in broken.measurements if (m.step, m.group) != (30, TARGET) and m.quantity != "update_norm"]
    items = [e for e in broken.examples if (e.step, e.task) != (30, TARGET)]
    lacking = RunData(
        path=broken.path, manifest=broken.manifest, updates=[], measurements=rows, examples=items, notices=()
    )
    grid[1] = SweepCell(values=grid[1].values, runs=[grid[1].runs[0], lacking])
    frames = build_sweep(grid)
    table = sweep_table(frames, "sweep", "", {})
    row = dict(zip(table.columns, table.rows[1], strict=True))
    missing = ("target at end, %", "target change", "target against no anchor", "update norm")
    assert [row[name] for name in missing] == ["not measured"] * 4
    assert row["change, average of 2 prior tasks"].startswith("−5.0 [")
    assert frames.rows.loc[frames.rows["seed"] == 1, "target_change"].isna().tolist() == [False, True, False]
    figure = sweep_figure(frames)
    assert figure is not None
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[10.0]]


def test_figure_axis_and_reference_lines(toy: SweepFrames) -> None:
    figure = sweep_figure(toy)
    assert figure is not None
    assert [axes.get_xscale() for axes in figure.axes] == ["log"] * 3
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["10", "100"]
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == pytest.approx([29 / 40, 0.55])
    dotted = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert dotted == pytest.approx([0.25, 0.65])
    narrow = sweep_figure(build_sweep([toy_cell(lam, [(30, 12, 11)], (2.0,)) for lam in (2.0, 10.0)]))
    assert narrow is not None
    assert narrow.axes[0].get_xscale() == "linear"
    named = [
        SweepCell(values={"precision.master": name, "es.mirrored": mirrored}, runs=toy_cell(lam, [(30, 12, 11)]).runs)
        for lam, name, mirrored in ((1.0, "float32", True), (2.0, "float16", True), (3.0, "float32", False))
    ]
    figure = sweep_figure(build_sweep(named))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["float32", "float16"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-2:] == ["es.mirrored true", "es.mirrored false"]


def test_files_hold_units_and_are_the_same_bytes_twice(tmp_path: Path, toy: SweepFrames) -> None:
    def write(folder: str, frames: SweepFrames) -> dict[str, bytes]:
        write_sweep(frames, tmp_path / folder, name="sweep", title="Toy", sentences=["Said."], judged={})
        return {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}

    first = write("a", toy)
    # Over the earlier result, from runs read anew.
    assert write("a", build_sweep(toy_grid())) == first
    assert sorted(first) == ["sweep-cells.csv", "sweep.csv", "sweep.md", "sweep.png", "sweep.svg"]
    rows = list(csv.DictReader(io.StringIO(first["sweep.csv"].decode())))
    assert [(row["anchor.lambda"], row["seed"]) for row in rows[:3]] == [("0.0", "0"), ("0.0", "1"), ("10.0", "0")]
    assert float(rows[2]["target_change_points"]) == pytest.approx(45)
    assert float(rows[2]["target_against_points"]) == pytest.approx(-5)
    assert float(rows[2]["target_final_percent"]) == pytest.approx(70)
    assert rows[0]["target_against_points"] == ""
    page = first["sweep.md"].decode()
    assert "Target: toy\\_target. Training seeds: 0, 1. Last step: 30." in page
    assert "| 10 | 2 | 25.0 | 67.5 | +42.5 [" in page
    assert "(sweep.svg)" in page
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(DriftlabError, match="not the result of a sweep"):
        write("mine", toy)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("value", "text"), [(10.0, "10"), (0.3, "0.3"), (1e-5, "1e-05"), (1000000, "1000000"), (True, "true"), (None, "–")]
)
def test_values_as_a_reader_sees_them(value: Value, text: str) -> None:
    assert shown_value(value) == text


def test_cells_of_a_grid_in_their_order() -> None:
    cells = plan_sweep("nano-awd", ["es.population=10,30", "es.mirrored=true,false"], ["es.iterations=3"], "ES", (0, 1))
    assert [cell.label for cell in cells] == [
        f"ES, population {population}, mirrored {mirrored}" for population in (10, 30) for mirrored in ("true", "false")
    ]
    assert [run.folder for run in in_running_order(cells)][:5] == [
        "es-population-10-mirrored-true-s0",
        "es-population-10-mirrored-false-s0",
        "es-population-30-mirrored-true-s0",
        "es-population-30-mirrored-false-s0",
        "es-population-10-mirrored-true-s1",
    ]
    assert {run.spec.es.iterations for cell in cells for run in cell.runs} == {3}
    assert dict(cells[0].values) == {"es.population": 10, "es.mirrored": True}
    assert cells[1].runs[1].spec.es.mirrored is False


def test_lambda_zero_is_a_run_without_anchor_and_one_cell() -> None:
    cells = plan_sweep("nano-awd", ["anchor.lambda=0,0.5"], [], "ES+AWD-L2", ())
    assert [(c.runs[0].spec.anchor.penalty, c.runs[0].spec.anchor.lam) for c in cells] == [("none", 0.0), ("l2", 0.5)]
    assert cells[0].label == "ES+AWD-L2, lambda 0"
    over = ["anchor.penalty=l1,l2", "anchor.lambda=0,0.01"]
    assert [dict(cell.values) for cell in plan_sweep("nano-awd", over, [], "ES", ())] == [
        {"anchor.penalty": "none", "anchor.lambda": 0.0},
        {"anchor.penalty": "l1", "anchor.lambda": 0.01},
        {"anchor.penalty": "l2", "anchor.lambda": 0.01},
    ]
    over = ["anchor.penalty=none,l2"]
    lambdas = [cell.runs[0].spec.anchor.lam for cell in plan_sweep("nano-awd", over, [], "ES+AWD-L2", ())]
    assert lambdas == [0.0, 2.0]


def test_a_huber_delta_means_nothing_without_anchor() -> None:
    over = ["anchor.delta=0.01,0.02", "anchor.lambda=0,1"]
    cells = plan_sweep("nano-awd", over, ["anchor.penalty=huber"], "ES", ())
    assert [tuple(cell.values.values()) for cell in cells] == [(None, 0.0), (0.01, 1.0), (0.02, 1.0)]
    assert [cell.label for cell in cells][:2] == ["ES, lambda 0", "ES, delta 0.01, lambda 1"]


BAD: list[tuple[list[str], list[str], str | None, str]] = [
    (["es.popultion=1,2"], [], "ES", "did you mean 'es.population'"),
    (["es.population"], [], "ES", "--over takes KEY=V1,V2"),
    (["es.population="], [], "ES", "empty value"),
    (["es.population=4,,6"], [], "ES", "empty value"),
    (["es.population=4,4"], [], "ES", "a value twice"),
    (["es.sigma=0.01,1e-2"], [], "ES", "a value twice"),
    (["es.population=16,0x10"], [], "ES", "asks twice for population 16"),
    (["es.population=4", "es.population=6"], [], "ES", "names es.population twice"),
    (["es.population=4,6"], ["es.population=8"], "ES", "--over and --set both name es.population"),
    (["seed=0,1"], [], "ES", "seeds come from --seeds"),
    (["arm=a,b"], [], "ES", "--over cannot sweep arm"),
    (["es={population=4}"], [], "ES", "holds other keys: sweep one of alpha"),
    (["anchor.lam=1,2"], ["anchor.penalty=l2"], "ES", "spells it otherwise"),
    (["es.population=4,1"], [], "ES", "use 2 or more"),
    (["es.population=4,6"], [], "EX", "unknown arm 'EX'"),
    (["es.population=4,6"], [], None, "has the arms 'ES', 'ES+AWD-L2', 'shuffled reward', and one is swept"),
    (["anchor.lambda=0,3"], [], "ES", "anchor.penalty is none"),
    (["anchor.lambda=0,300"], [], "ES+AWD-L2", "alpha*lambda below 1"),
    ([], [], "ES", "at least one --over"),
    (["es.population=2", f"seed_like={','.join(map(str, range(30)))}"], [], "ES", "unknown key"),
    (["es.population=4", f"target.data_seed={','.join(map(str, range(25)))}"], [], "ES", f"tells {COMBINATIONS} apart"),
]


@pytest.mark.parametrize(("over", "overrides", "arm", "sentence"), BAD, ids=lambda value: str(value)[:40])
def test_bad_grids_are_one_sentence(
    over: list[str], overrides: list[str], arm: str | None, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        sweeps.sweep("nano-awd", over, set_=overrides, arm=arm, out_dir=tmp_path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def stop() -> Iterator[None]:
    """The flag that an interrupt sets is the process's own."""
    common.STOPPED.clear()
    yield
    common.STOPPED.clear()


@pytest.mark.usefixtures("stop")
def test_an_interrupted_sweep_goes_on_and_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(TOML)
    # The file has one arm, so none need be named.
    over, set_ = ["es.sigma=0.02,0.05"], ["es.population=6"]
    sweeps.sweep(str(spec), over, set_=set_, out_dir=tmp_path / "whole")

    started: list[str] = []
    run = loop.run

    def interrupted(planned: Any, path: Path, **more: Any) -> RunStore:
        started.append(planned.folder)
        if len(started) == 2:
            common.STOPPED.set()
        return run(planned, path, **more)

    monkeypatch.setattr(loop, "run", interrupted)
    with pytest.raises(typer.Exit) as caught:
        sweeps.sweep(str(spec), over, set_=set_, out_dir=tmp_path / "cut")
    assert caught.value.exit_code == 130
    group = tmp_path / "cut" / "small-sweep"
    assert sorted(entry.name for entry in group.iterdir()) == ["es-sigma-0-02-s0"]
    done = files(group / "es-sigma-0-02-s0")
    with pytest.raises(DriftlabError, match="already exists; continue it with --resume"):
        sweeps.sweep(str(spec), over, set_=set_, out_dir=tmp_path / "cut")

    common.STOPPED.clear()
    sweeps.sweep(str(spec), over, set_=set_, out_dir=tmp_path / "cut", resume=True)
    assert started == ["es-sigma-0-02-s0", "es-sigma-0-05-s0", "es-sigma-0-05-s0"]
    assert files(group / "es-sigma-0-02-s0") == done
    for name in ("es-sigma-0-02-s0", "es-sigma-0-05-s0"):
        assert files(group / name) == files(tmp_path / "whole" / "small-sweep" / name)
    results = files(group / "sweep", updates=False)
    assert results == files(tmp_path / "whole" / "small-sweep" / "sweep", updates=False)
    # The norm of a random walk of two steps: alpha sqrt(d T / N), sigma 0.05 against 0.02.
    rows = list(csv.DictReader(io.StringIO(str(results["sweep.csv"], "utf-8"))))  # type: ignore[arg-type]
    ratio = float(rows[1]["predicted_norm"]) / float(rows[0]["predicted_norm"])
    assert ratio == pytest.approx(2.5, rel=0.05)
