"""The reproductions: published norms from real walks, and pages from a stand-in that is wrong by a known amount."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from driftlab.cli.reproduce import reproduce as command
from driftlab.drift import theory
from driftlab.drift.emulator import Walk, WalkCurve
from driftlab.errors import DriftlabError, SpecError
from driftlab.es.precision import Precision
from driftlab.published import comparison, lit235, lit237, lit238, lit238_lambda
from driftlab.published.comparison import Planned, Settings, compared, emulate_all, most_room, notable, room
from driftlab.published.data import source
from driftlab.published.reproduce import RECIPES, check_folder, recipe, render, write
from driftlab.published.variations import wanted_std
from driftlab.report import plots

NAMES = ("lit238-fig6", "lit238-fig5", "lit235-table3", "lit237-fig3")
SMALL = Settings(coordinates=4096, threads=1)


def nothing(fraction: float) -> None:
    assert 0.0 <= fraction <= 1.0 + 1e-9


def stand_in(factor: float) -> Callable[..., WalkCurve]:
    """A walk whose norm is ``factor`` times that of exact arithmetic (L1 told as L2 of a thousandfold lambda)."""

    def emulate(
        walk: Walk, *, base: np.ndarray, d: int, at: tuple[int, ...], seed: int, threads: int, progress: object
    ) -> WalkCurve:
        decay = walk.alpha * walk.lam * (1000.0 if walk.penalty == "l1" else 1.0)
        law = [theory.anchored_form(walk.alpha, min(decay, 0.9), d, step, walk.population) for step in at]
        norm = [factor * value for value in law]
        return WalkCurve(
            steps=tuple(at), norm=tuple(norm), stderr=tuple(0.001 * value for value in norm), law=tuple(law),
            coordinates=base.size, seconds=1.0,
        )  # fmt: skip

    return emulate


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving a figure takes a second, and most tests look at none."""
    monkeypatch.setattr(plots, "save", lambda figure: (b"png", b"svg"))


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch, undrawn: None) -> None:
    monkeypatch.setattr(comparison, "emulate", stand_in(1.0))


def walked(plan: dict[str, Planned], settings: Settings = SMALL) -> dict[str, comparison.Compared]:
    curves = emulate_all(plan, settings, nothing)
    return {name: compared(name, curves[name], planned.at[-1], planned, settings) for name, planned in plan.items()}


def test_figure_6_in_float16_and_exactly() -> None:
    """Published 92.134 (L1) and 67.676 (L2), weight scale 0.023; exact arithmetic gives 60.7 and 52.8 instead."""
    origin = source("lit238_fig6_update_norm")
    plan = {arm.label: lit238.walk_of(origin, arm) for arm in lit238.ARMS if arm.penalty != "none"}
    found = walked(plan)
    for label, published, law in (("ES(30)+L1(0.01)", 92.133639, None), ("ES(30)+L2(10)", 67.676355, 52.83)):
        row = found[label]
        assert row.ours == pytest.approx(published, abs=0.03 * published + 3 * row.stderr)
        assert row.exact is not None
        assert abs(row.exact / published - 1.0) > 0.2
        if law is not None:
            assert row.exact == pytest.approx(law, abs=0.005)
    # L2 by hand: (alpha^2 d / N) q^2 (1 - q^1000) / (1 - q^2) with q = 0.995.
    by_hand = 5e-4 * math.sqrt(3_397_103_616 / 30 * 0.995**2 * (1 - 0.995**1000) / (1 - 0.995**2))
    assert found["ES(30)+L2(10)"].exact == pytest.approx(
        by_hand, rel=1e-7
    )  # scores are divided by their deviation + 1e-8


def test_figure_6_needs_every_choice() -> None:
    """One step with one rounding, in place of a rounding after every operation, gives exact arithmetic's L1 norm."""
    origin = source("lit238_fig6_update_norm")
    arm = lit238.Arm(label="l1", population=30, penalty="l1", lam=0.01)
    base = lit238.walk_of(origin, arm)
    walk = Walk(
        population=30, alpha=5e-4, sigma=1e-3, penalty="l1", lam=0.01, steps=500, precision=Precision(master="float16")
    )
    row = walked({"l1": Planned(walk=walk, d=base.d, at=(500,))})["l1"]
    assert row.exact is not None
    assert row.ours == pytest.approx(row.exact, rel=0.01)


def test_table_3_is_the_closed_form(exact: None) -> None:
    """7.5e-4 sqrt(4022468096 x 100 k / 30) = 86.85, 122.82, 150.42, 173.69; published within half a percent."""
    page = lit235.reproduce(SMALL, nothing)
    rows = page.values[page.values["published"].notna()]
    assert rows["published"].tolist() == [87.28, 122.76, 149.99, 173.00]
    for row, norm in zip(rows.itertuples(), (86.85, 122.82, 150.42, 173.69), strict=True):
        assert row.exact == pytest.approx(7.5e-4 * math.sqrt(4022468096 * row.step / 30), rel=1e-9)
        assert row.exact == pytest.approx(norm, abs=0.005)
        assert abs(row.exact_difference) < 0.005


def test_lit237_counts_the_tied_embedding_twice(exact: None) -> None:
    """5e-4 sqrt(1777088000 x 500 / 30) = 86.05 beside 88.2 +- 0.5; the step-0 point is no test."""
    page = lit237.reproduce(SMALL, nothing)
    rows = page.values[page.values["published"].notna() & page.values["emulated"].notna()]
    assert len(rows) == 10
    last = rows.iloc[-1]
    assert last["published"] == 88.2
    assert last["published_error"] == 0.5
    assert last["exact"] == pytest.approx(86.05, abs=0.005)
    assert last["emulated_difference_error"] == pytest.approx(math.hypot(0.001, 0.5 / 88.2) * 86.05 / 88.2, rel=1e-3)


def test_lit237_reads_grpo(exact: None) -> None:
    page = lit237.reproduce(SMALL, nothing)
    rows = page.values[(page.values["run"] == "GRPO") & (page.values["step"] == 500)].set_index("law")
    assert rows.loc["normal", "consistent_norm"] == pytest.approx(1.83, abs=0.03)
    assert rows.loc["laplace", "consistent_norm"] == pytest.approx(1.06, abs=0.03)
    text = " ".join((*page.summary, *page.missing, *(words for words, _ in page.tables)))
    assert "not a re-measurement" in text
    assert "1.00 to 1.84" in text


def test_figure_5_has_every_published_lambda(exact: None) -> None:
    page = lit238_lambda.reproduce(SMALL, nothing)
    labels = page.values["run"].tolist()
    assert len(labels) == 26
    assert labels[0] == "no anchor"
    known = page.values[page.values["published"].notna()].set_index("run")["published"].to_dict()
    assert known == {"no anchor": 119.213889, "L1 0.01": 92.133639, "L2 10": 67.676355}
    assert page.values["published_target_accuracy"].isna().sum() == 3
    # Half the spacing 2^-16 of float16 in [2^-6, 2^-5) over alpha; 2^-12 over alpha.
    assert "0.0153" in page.summary[1]
    assert "0.49" in page.summary[1]


@pytest.mark.parametrize("name", NAMES)
def test_pages_hold_what_was_promised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "emulate", stand_in(1.0))
    page = RECIPES[name].make(SMALL, nothing)
    files = render(page, SMALL)
    text = files["README.md"].decode()
    for heading in ("What was needed to match", "Differences above 3 %", "Not reproduced", "Sources"):
        assert f"\n## {heading}\n" in text
    assert f"driftlab reproduce {name} --coordinates 4096 --seed 0 --weight-std 0.023" in text
    assert "training" in text.split("## Not reproduced")[1]
    assert "arXiv 26" in text
    assert "nan" not in text
    assert "None " not in text.replace("None: ", "")
    values = pd.read_csv(pd.io.common.BytesIO(files["values.csv"]))
    assert {"published", "published_error", "emulated", "emulated_stderr", "exact"} <= set(values.columns)
    assert files["figure.png"].startswith(b"\x89PNG")
    assert b"<svg" in files["figure.svg"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_every_difference_above_3_percent_is_explained(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    monkeypatch.setattr(comparison, "emulate", stand_in(factor))
    page = RECIPES[name].make(SMALL, nothing)
    rows = page.values
    if "emulated_difference" in rows:
        far = rows[rows["emulated_difference"].abs() > 0.03]
        assert len(far)
        told = [text for text in page.differences if "emulated " in text]
        assert len(told) == len(far)
        for text in told:
            assert len(text.split(").", 1)[1].strip()) > 20


def test_room_is_never_more_than_the_numbers_allow() -> None:
    """sqrt(42.149415^2 - 40.73^2) = 10.85; at most: published at its longest, the walk two errors shorter."""
    assert room(42.149415, 40.73) == pytest.approx(10.85, abs=0.01)
    assert room(40.0, 41.0) == 0.0
    row = comparison.Compared(
        run="ES", step=1, published=5.0, error=0.0, how="exact", ours=4.0, stderr=0.5, exact=None, d=1, coordinates=1
    )
    assert most_room(row) == 4.0
    assert row.difference == pytest.approx(-0.2)
    assert notable([row]) == [row]
    assert row.exact_difference is None


def test_wanted_weight_scale_is_read_between_neighbours() -> None:
    def curve(norm: float) -> WalkCurve:
        return WalkCurve(steps=(500,), norm=(norm,), stderr=(0.1,), law=(None,), coordinates=9, seconds=0.0)

    norms = {0.012: 55.0, 0.02: 62.0, 0.03: 72.0}
    curves = {f"L2, weights of standard deviation {std:g}": curve(norm) for std, norm in norms.items()}
    row = comparison.Compared(
        run="L2",
        step=500,
        published=68.0,
        error=0.0,
        how="exact",
        ours=66.0,
        stderr=0.1,
        exact=53.0,
        d=1,
        coordinates=9,
    )
    assert wanted_std(row, 0.023, curves) == pytest.approx(0.023 + 0.007 / 3)


def test_settings_and_names_are_checked() -> None:
    with pytest.raises(SpecError, match="99 coordinates"):
        Settings(coordinates=99)
    with pytest.raises(SpecError, match="standard deviation of the weights is 0"):
        Settings(weight_std=0.0)
    with pytest.raises(SpecError, match="seed is -1"):
        Settings(seed=-1)
    with pytest.raises(SpecError, match="no reproduction 'fig9'; known: lit238-fig6"):
        recipe("fig9")


def test_larger_populations_take_fewer_coordinates() -> None:
    origin = source("lit238_fig6_update_norm")
    counts = [lit238.walk_of(origin, arm).coordinates(Settings(coordinates=30_000)) for arm in lit238.ARMS]
    assert counts == [30_000, 30_000, 30_000, 7031, 3516]


def test_only_its_own_folder_is_overwritten(tmp_path: Path, exact: None) -> None:
    page = lit235.reproduce(SMALL, nothing)
    out = tmp_path / "new" / "folder"
    assert write(page, SMALL, out) == out
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert set(before) == {"README.md", "values.csv", "figure.png", "figure.svg"}
    write(page, SMALL, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "README.md").write_text("mine")
    with pytest.raises(DriftlabError, match="not a reproduction"):
        check_folder(tmp_path / "letters")


def invoke(*arguments: str) -> object:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_lists(tmp_path: Path) -> None:
    shown = invoke("--list")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in NAMES)
    assert isinstance(invoke().exception, SpecError)
    assert isinstance(invoke("fig9", "--out", str(tmp_path)).exception, SpecError)


def test_the_command_refuses_before_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "emulate", None)  # a call would be a TypeError
    (tmp_path / "notes.txt").write_text("mine")
    refused = invoke("lit235-table3", "--out", str(tmp_path))
    assert isinstance(refused.exception, DriftlabError)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_the_command_twice_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real walks, few coordinates; one choice varied, and the weight scales."""
    monkeypatch.setattr(lit237, "_CHANGES", {"10 members on the master itself": lit237.restored(10)})
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        done = invoke("lit237-fig3", "--coordinates", "400", "--seed", "3", "--out", str(folder))
        assert done.exit_code == 0, done.exception
        assert "88.2 ± 0.5" in done.stdout
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert first == second
    assert b"--coordinates 400 --seed 3" in first["README.md"]
    assert str(tmp_path).encode() not in first["README.md"]
