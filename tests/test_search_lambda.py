"""The search for lambda from above: its rule on fabricated runs, its bad input, and a small real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driftlab import sweep
from driftlab.cli import sweeps
from driftlab.errors import DriftlabError, SpecError
from driftlab.report.runs import RunData
from driftlab.report.sweep_page import sweep_table
from driftlab.report.sweep_words import ACCEPTED, REJECTED, RULE, UNKNOWN, search_sentences, verdicts
from driftlab.report.sweeps import SweepCell, build_sweep
from driftlab.run.plan import PlannedRun
from driftlab.sweep import Cell, plan_search, search_from_above
from tests.test_loop import files
from tests.test_sweep import TARGET, TOML, toy_cell

PLAIN = toy_cell(0.0, [(30, 12, 10), (28, 12, 10)])
# Of 40 items the target loses 2 or 12 in each seed (the interval: tests/test_sweep.py), or gains 10.
WEAK = toy_cell(10.0, [(28, 14, 10), (26, 14, 10)])
STRONG = toy_cell(100.0, [(18, 16, 11), (16, 16, 11)])
BETTER = toy_cell(10.0, [(40, 14, 10), (38, 14, 10)])


def said(cells: Sequence[SweepCell]) -> str:
    return " ".join(search_sentences(build_sweep(cells)))


def planned(start: float = 8.0, steps: int = 4, **more: Any) -> list[Cell]:
    settings: dict[str, Any] = {"penalty": "l2", "factor": 0.5, "overrides": [], "arm": "ES", "seeds": (0, 1)}
    return plan_search("nano-awd", start=start, steps=steps, **settings | more)


def test_the_band_says_no_more_than_the_intervals() -> None:
    frames = build_sweep([PLAIN, STRONG, WEAK])
    text = " ".join(search_sentences(frames))
    assert text.startswith(RULE)
    assert (
        "Largest lambda accepted: 10, target against no anchor −5.0 [−12.0, +2.0] points: a loss of up to 12.0" in text
    )
    assert "Smallest lambda rejected: 100, target against no anchor −30.0 [−44.8, −15.2] points." in text
    assert "One seed" not in text
    assert verdicts(frames) == {"ES, lambda 100": REJECTED, "ES, lambda 10": ACCEPTED}
    table = sweep_table(frames, "search", "", verdicts(frames))
    assert [(row[0], row[-1]) for row in table.rows] == [("0", "–"), ("100", REJECTED), ("10", ACCEPTED)]


def test_a_band_that_is_open() -> None:
    assert "the band is open above: start from a larger one" in said([PLAIN, WEAK])
    assert "None of the 1 lambdas tried was accepted: go on below 100." in said([PLAIN, STRONG])
    text = said([PLAIN, BETTER])
    assert "10, target against no anchor +25.0 [" in text
    assert "the interval excludes a loss" in text


def test_one_seed_is_said_to_be_one() -> None:
    text = said([toy_cell(0.0, [(30, 12, 10)], (2.0,)), toy_cell(10.0, [(28, 12, 11)], (2.0,))])
    # Two items of 40 lost, each wholly: 40/39 * (2 - 40 * 0.05^2) / 40^2 and half a gained and a lost item.
    half = 2.022691 * (40 / 39 * 1.9 / 1600 + 1 / 1600) ** 0.5
    assert f"−5.0 [−{100 * (0.05 + half):.1f}, +{100 * (half - 0.05):.1f}] points" in text
    assert "One seed: the intervals are over items only" in text


def test_without_a_measured_target_nothing_is_judged() -> None:
    run = WEAK.runs[0]
    rows = [row for row in run.measurements if (row.step, row.group) != (30, TARGET)]
    items = [example for example in run.examples if (example.step, example.task) != (30, TARGET)]
    lacking = RunData(path=run.path, manifest=run.manifest, updates=[], measurements=rows, examples=items)
    cells = [PLAIN, SweepCell(values=WEAK.values, runs=[lacking, WEAK.runs[1]])]
    frames = build_sweep(cells)
    assert verdicts(frames) == {"ES, lambda 10": UNKNOWN}
    text = " ".join(search_sentences(frames))
    assert "Not judged, because the target's difference or its interval is missing: lambda 10." in text
    assert "accepted:" in text
    assert "nan" not in text


def test_the_search_runs_from_above_and_stops_at_the_first_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored runs are fabricated: lambda 8 loses twelve items in each seed, lambda 4 two."""
    stored = {"es-no-anchor": PLAIN, "es-l2-lambda-8": STRONG, "es-l2-lambda-4": WEAK}
    monkeypatch.setattr(sweep, "read_run", lambda path: stored[path.name[:-3]].runs[int(path.name[-1])])
    executed: list[list[str]] = []

    def execute(runs: Sequence[PlannedRun]) -> None:
        executed.append([run.folder for run in runs])

    found = search_from_above(planned(), Path("group"), execute)
    assert executed == [
        ["es-no-anchor-s0", "es-no-anchor-s1"],
        ["es-l2-lambda-8-s0", "es-l2-lambda-8-s1"],
        ["es-l2-lambda-4-s0", "es-l2-lambda-4-s1"],
    ]
    assert [cell.values["anchor.lambda"] for cell in found] == [0.0, 8.0, 4.0]


def test_planned_lambdas() -> None:
    cells = planned(start=0.7, factor=0.7, steps=3)
    assert [cell.values["anchor.lambda"] for cell in cells] == [0.0, 0.7, 0.49, 0.343]
    assert [cell.label for cell in cells][:2] == ["ES, no anchor", "ES, l2 lambda 0.7"]
    assert [(c.runs[0].spec.anchor.penalty, c.runs[0].spec.anchor.lam) for c in cells[:2]] == [
        ("none", 0.0),
        ("l2", 0.7),
    ]
    # An arm's own anchor gives way to the one searched for.
    cells = planned(arm="ES+AWD-L2", penalty="l1", start=0.01)
    assert [(c.runs[0].spec.anchor.penalty, c.runs[0].spec.anchor.lam) for c in cells[:2]] == [
        ("none", 0.0),
        ("l1", 0.01),
    ]
    huber = planned(penalty="huber", overrides=["anchor.delta=0.02"])
    assert [cell.runs[0].spec.anchor.delta for cell in huber[:2]] == [None, 0.02]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start": 300.0}, "but L2 anchored weight decay needs alpha*lambda below 1: lower anchor.lambda"),
        ({"start": 0.0}, "--from is 0, but the search starts from a lambda above 0"),
        ({"start": float("nan")}, "--from is nan"),
        ({"factor": 1.0}, "--factor is 1,"),
        ({"factor": 0.0}, "--factor is 0,"),
        ({"steps": 0}, "--steps is 0"),
        ({"penalty": "none"}, "no lambda to search for"),
        ({"penalty": "l3"}, "anchor.penalty in nano-awd is 'l3'"),
        ({"set_": ["anchor.lambda=3"]}, "--set anchor.lambda=... is what the search itself sets"),
        ({"set_": ["anchor.penalty=l1"]}, "leave it out"),
        ({"set_": ["es.popultion=3"]}, "did you mean 'es.population'"),
        ({"set_": ["seed=3"], "seeds": "0,1"}, "both name the seed"),
        ({"seeds": "0,0"}, "names seed 0 more than once"),
        ({"arm": "shuffled reward"}, "is a shuffled-reward control, which learns no target"),
        ({"arm": None}, "has the arms 'ES', 'ES+AWD-L2', 'shuffled reward', and one is swept"),
        ({"arm": "EX"}, "unknown arm 'EX'"),
    ],
    ids=str,
)
def test_bad_searches_are_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"penalty": "l2", "start": 8.0, "arm": "ES", "out_dir": tmp_path}
    with pytest.raises(SpecError) as caught:
        sweeps.search_lambda("nano-awd", **arguments | changes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_search_needs_the_targets_accuracy(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(TOML[: TOML.index("[probes.lm_eval]")])
    with pytest.raises(SpecError, match=r"has no probes\.lm_eval, but the search judges by the target's accuracy"):
        sweeps.search_lambda(str(spec), "l2", 1.0, out_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_real_search_and_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(TOML)
    search: dict[str, Any] = {"penalty": "l2", "start": 20.0, "steps": 2, "out_dir": tmp_path}
    sweeps.search_lambda(str(spec), **search)
    group = tmp_path / "small-search-lambda"
    text = " ".join(capsys.readouterr().out.split())
    assert "Rule, set before the search" in text
    # Two steps cannot cost 20 items anything that their interval does not hold: the first lambda is accepted.
    assert sorted(entry.name for entry in group.iterdir()) == ["es-l2-lambda-20-s0", "es-no-anchor-s0", "search-l2"]
    first = files(group / "search-l2", updates=False)
    page = str(first["search.md"], "utf-8")  # type: ignore[arg-type]
    assert "Largest lambda accepted: 20" in page
    assert "One seed: the intervals are over items only" in page
    assert "# Search for lambda from above, small, ES, l2" in page

    with pytest.raises(DriftlabError, match="continue it with --resume"):
        sweeps.search_lambda(str(spec), **search)
    stamps = [file.stat().st_mtime_ns for file in sorted(group.rglob("run.json"))]
    sweeps.search_lambda(str(spec), **search, resume=True)
    assert [file.stat().st_mtime_ns for file in sorted(group.rglob("run.json"))] == stamps
    assert files(group / "search-l2", updates=False) == first
