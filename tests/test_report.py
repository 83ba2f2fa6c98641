"""Reports of synthetic runs whose answers are known."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftlab.drift.stats import paired_difference
from driftlab.errors import DriftlabError
from driftlab.report.contents import all_tables
from driftlab.report.figures import prior_figure
from driftlab.report.formats import points, to_latex, to_markdown, without_folders
from driftlab.report.frames import Frames, build_frames
from driftlab.report.looks import COLOURS, looks
from driftlab.report.page import write_report
from driftlab.report.runs import RunData, read_run
from driftlab.report.tables import final_table
from driftlab.report.words import main_sentences
from driftlab.run.records import Example, Measurement, Update
from driftlab.run.store import Manifest, RunStore


def said(frames: Frames) -> str:
    """The report's first sentences, one after the other."""
    return " ".join(main_sentences(frames))


TARGET = "toy_target"
PRIORS = ("toy_choice", "toy_rules")
STEPS = (0, 10, 20, 30)
N = 60
D = 1000
SIGMA, ALPHA, POPULATION = 0.02, 0.01, 4

# Share of items right by task and step: the target rises, one prior falls and one keeps every item.
ACCURACY = {
    TARGET: {0: 0.2, 10: 0.5, 20: 0.8, 30: 0.7},
    "toy_choice": {0: 0.8, 10: 0.7, 20: 0.5, 30: 0.6},
    "toy_rules": {0: 0.5, 10: 0.5, 20: 0.5, 30: 0.5},
}


def manifest(arm: str, **changes: Any) -> Manifest:
    spec = {
        "name": f"toy-{arm}",
        "arm": arm,
        "seed": 0,
        "model": {"source": "/somewhere/private/models/toy", "dtype": "float32"},
        "target": {"task": TARGET},
        "es": {"sigma": SIGMA, "alpha": ALPHA, "population": POPULATION, "iterations": STEPS[-1], "mirrored": False},
        "anchor": {"penalty": "none", "lambda": 0.0},
        "probes": {"lm_eval": {"tasks": list(PRIORS), "items": N}},
    }
    values: dict[str, Any] = {"run_id": f"id-{arm}", "status": "finished", "error": None, "spec": spec}
    values |= changes
    provenance = {"commit": "0123abc", "device": "cpu", "packages": {"torch": "2.9"}, "command": "driftlab run /a/b/c"}
    return Manifest(
        schema=1,
        digest="d" * 64,
        given={},
        model={"weights_hash": "w0"},
        tasks={"prior": "h0"},
        provenance=provenance,
        **values,
    )


def update(step: int) -> Update:
    return Update(
        step=step,
        seeds=(1, 2, 3, 4),
        coefficients=(1.0, -1.0, 1.0, -1.0),
        population=POPULATION,
        sigma=SIGMA,
        alpha=ALPHA,
        penalty="none",
        decay=0.0,
        rewards=tuple(min(1.0, 0.2 + 0.03 * step) - 0.001 * max(0, step - 20) + 0.01 * m for m in range(4)),
        step_norm=0.1,
        step_cosine=None if step == 1 else 0.01,
        weights_hash=f"{step:08x}",
        prompt_tokens=10,
        generated_tokens=20,
        seconds={"rollout": 1.0, "total": 1.5},
    )


def example(task: str, step: int, index: int) -> Example:
    generated = task == TARGET
    return Example(
        step=step,
        task=task,
        item=f"{task}-{index:03d}",
        cluster=f"theory-{index // 3}" if task == "toy_rules" else f"{task}-{index:03d}",
        correct=float(index < round(ACCURACY[task][step] * N)),
        score=None,
        output_length=20 if generated else None,
        parsed=True if generated else None,
        truncated=False if generated else None,
        output=f"<script>alert({step})</script> ``` | {index}" if generated else None,
    )


def row(step: int, probe: str, quantity: str, group: str, value: float, unit: str, **more: Any) -> Measurement:
    defaults: dict[str, Any] = {"stderr": None, "n": N}
    return Measurement(
        step=step, probe=probe, quantity=quantity, group=group, value=value, unit=unit, **defaults | more
    )


def rows_at(step: int, scale: float) -> list[Measurement]:
    walk = ALPHA * math.sqrt(D * step / POPULATION)
    norms = {
        "update_norm": scale * walk,
        "predicted_norm": scale * walk,
        "predicted_norm_alpha": walk,
        "predicted_norm_sigma": walk * SIGMA / ALPHA,
    }
    rows = [row(step, "lm_eval", "accuracy", task, ACCURACY[task][step], "fraction") for task in (TARGET, *PRIORS)]
    for number, group in enumerate((TARGET, *PRIORS), start=1):
        kl = 0.002 * number * step * scale
        rows += [
            row(step, "kl", quantity, group, kl, "nats/token", stderr=0.1 * kl, n=16)
            for quantity in ("kl_base_to_step", "kl_base_to_step_prompt_average")
        ]
    rows += [row(step, "weights", quantity, "all", value, "l2", n=D) for quantity, value in norms.items()]
    return [*rows, row(step, "weights", "update_norm", "layer.0", norms["update_norm"] / 2, "l2", n=D // 2)]


def toy_run(arm: str = "ES", steps: tuple[int, ...] = STEPS, scale: float = 1.0, **changes: Any) -> RunData:
    return RunData(
        path=Path("/nowhere") / arm,
        manifest=manifest(arm, **changes),
        updates=[update(step) for step in range(1, steps[-1] + 1)],
        measurements=[measurement for step in steps for measurement in rows_at(step, scale)],
        examples=[example(task, step, i) for step in steps for task in (TARGET, *PRIORS) for i in range(N)],
    )


def two_arms() -> list[RunData]:
    return [toy_run("ES"), toy_run("ES+AWD-L2", scale=0.6)]


def without(run: RunData, **where: Any) -> RunData:
    kept = [m for m in run.measurements if any(getattr(m, name) != value for name, value in where.items())]
    return replace(run, measurements=kept)


def failed(run: RunData, step: int, task: str, note: str) -> RunData:
    """The accuracy of ``task`` at ``step`` failed: no value, and no items."""
    changed = [
        replace(m, value=None, status="failed", note=note)
        if (m.step, m.quantity, m.group) == (step, "accuracy", task)
        else m
        for m in run.measurements
    ]
    items = [e for e in run.examples if (e.step, e.task) != (step, task)]
    return replace(run, measurements=changed, examples=items)


def test_a_cell_of_the_final_table_comes_from_its_rows() -> None:
    run = toy_run()
    table = final_table(build_frames([run]))
    cell = dict(zip(table.columns, next(r for r in table.rows if r[0] == "toy_choice"), strict=True))
    scores = {
        step: {e.item: e.correct for e in run.examples if (e.task, e.step) == ("toy_choice", step)} for step in (0, 30)
    }
    items = sorted(scores[0])
    by_hand = np.array([scores[30][item] - scores[0][item] for item in items])
    # t quantile with 59 degrees of freedom; half a gained and half a lost item in the variance.
    half = 2.0009953780882688 * math.sqrt(by_hand.var(ddof=1) / N + 1 / N**2)
    assert cell["items"] == str(N)
    assert cell["ES, step 30"] == (
        f"{points(by_hand.mean())} [{points(by_hand.mean() - half)}, {points(by_hand.mean() + half)}]"
    )
    assert cell["ES, step 30"].startswith("−20.0 [")
    raw = next(r for r in table.data.to_dict("records") if r["task"] == "toy_choice")
    assert (raw["gained"], raw["lost"], raw["unpaired"]) == (0, 12, 0)


def test_clusters_and_average() -> None:
    run = toy_run()
    frames = build_frames([run])
    rules = frames.differences.query("task == 'toy_rules' and step == 30").iloc[0]
    assert (rules["n"], rules["n_clusters"], rules["gained"] + rules["lost"]) == (60, 20, 0)
    average = frames.averages.query("step == 30").iloc[0]
    choice = frames.differences.query("task == 'toy_choice' and step == 30").iloc[0]
    # A task that never changes is in no average.
    assert average["difference"] == choice["difference"] == pytest.approx(-0.2)
    text = to_markdown(final_table(frames))
    # No item changed: the error is that of half a gained and half a lost item, t quantile with 19 degrees of freedom.
    assert f"0.0 [−{100 * 2.0930 / 60:.1f}, +{100 * 2.0930 / 60:.1f}]" in text
    assert "average of 1 prior task" in text
    frames = build_frames([with_a_lost_rule(run)])
    average = frames.averages.query("step == 30").iloc[0]
    rules = frames.differences.query("task == 'toy_rules' and step == 30").iloc[0]
    assert average["difference"] == pytest.approx((-0.2 - 1 / 60) / 2)
    assert average["stderr"] == pytest.approx(math.hypot(choice["stderr"], rules["stderr"]) / 2)
    assert "average of 2 prior tasks" in to_markdown(final_table(frames))


def with_a_lost_rule(run: RunData) -> RunData:
    """One item of toy_rules is wrong at the last step."""
    lost = ("toy_rules", 30, "toy_rules-000")
    moved = [replace(e, correct=0.0) if (e.task, e.step, e.item) == lost else e for e in run.examples]
    value = 0.5 - 1 / N
    rows = [
        replace(m, value=value) if (m.group, m.step, m.quantity) == ("toy_rules", 30, "accuracy") else m
        for m in run.measurements
    ]
    return replace(run, examples=moved, measurements=rows)


def test_items_pair_by_content_not_by_order() -> None:
    run = toy_run()
    shuffled = replace(run, examples=list(reversed(run.examples)))
    plain, other = build_frames([run]).differences, build_frames([shuffled]).differences
    assert plain[["task", "step", "difference", "n"]].equals(other[["task", "step", "difference", "n"]])


def test_items_at_one_step_only_are_counted_not_guessed() -> None:
    run = toy_run()
    dropped = replace(run, examples=[e for e in run.examples if (e.step, e.item) != (30, "toy_choice-000")])
    change = build_frames([dropped]).differences.query("task == 'toy_choice' and step == 30").iloc[0]
    expected = paired_difference(
        [float(i < 48) for i in range(1, N)], [float(i < 36) for i in range(1, N)], [str(i) for i in range(1, N)]
    )
    assert (change["n"], change["unpaired"]) == (59, 1)
    assert change["stderr"] == pytest.approx(expected.stderr)


def test_peaks_are_the_first_highest_values() -> None:
    peaks = build_frames([toy_run()]).peaks.set_index("quantity")
    assert (peaks.loc["target accuracy", "step"], peaks.loc["target accuracy", "value"]) == (20, 0.8)
    assert peaks.loc["training reward", "step"] == 30 - 3  # reward saturates at 27 and only falls after


def test_sentence_says_what_the_intervals_say() -> None:
    sentence = said(build_frames([toy_run()]))
    assert re.search(r"ES: from step 0 to step 30 the target toy_target rose by 50\.0 points \(95 % interval", sentence)
    assert "and the average of 1 prior task fell by 20.0 points" in sentence
    assert "of 2 verdicts on prior tasks 1 declined (toy_choice), 1 cannot say" in sentence
    run = toy_run()
    flip = {"toy_choice-000": 0.0, "toy_choice-059": 1.0, "toy_rules-000": 0.0}
    base = {(e.task, e.item): e.correct for e in run.examples if e.step == 0}
    level = [replace(e, correct=flip.get(e.item, base[e.task, e.item])) if e.step == 30 else e for e in run.examples]
    sentence = said(build_frames([replace(run, examples=level)]))
    assert "the target toy_target kept every item's result" in sentence
    assert "2 prior tasks shows no change distinguishable from zero (−0.8 points, 95 % interval −" in sentence


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built but not rendered, which takes most of a report's time."""
    monkeypatch.setattr("driftlab.report.plots.save", lambda figure: (b"png", b"<svg/>"))


@pytest.mark.usefixtures("undrawn")
def test_failed_rows_are_shown_as_failed_and_never_averaged_over(tmp_path: Path) -> None:
    run = failed(toy_run(), 30, "toy_choice", "out of memory in /some/folder/cache.bin")
    frames = build_frames([run, toy_run("other")])
    table = final_table(frames)
    cells = {r[0]: r[2] for r in table.rows}
    assert cells["toy_choice"] == "failed"
    assert cells["average of 1 prior task"] == "not measured"
    assert "prior task was not measured (toy_choice failed)" in said(frames)
    out = write_report([run, toy_run("other")], tmp_path / "report")
    html = (out / "report.html").read_text()
    assert "out of memory in …/cache.bin" in html
    assert "/some/folder" not in html


def test_figures_mark_failed_steps() -> None:
    def labels(figure: Any) -> list[str]:
        return [text.get_text() for text in figure.legends[0].get_texts()]

    assert labels(prior_figure(build_frames([toy_run()]))) == ["ES", "base model"]
    frames = build_frames([failed(toy_run(), 20, "toy_choice", "out of memory")])
    assert labels(prior_figure(frames)) == ["ES", "base model", "failed or skipped"]


def test_gains_that_cancel_within_clusters_are_not_called_certain() -> None:
    """Every theory gains one item and loses one: clusters do not differ, and what is left is the half counts."""
    run = toy_run()
    moved = []
    for e in run.examples:
        place = int(e.item[-3:]) % 3
        keep = e.task != "toy_rules" or e.step not in (0, 30)
        moved.append(e if keep else replace(e, correct=float(place == (0 if e.step == 0 else 1))))
    rows = [
        replace(m, value=1 / 3) if (m.group, m.quantity) == ("toy_rules", "accuracy") else m for m in run.measurements
    ]
    table = final_table(build_frames([replace(run, examples=moved, measurements=rows)]))
    width = f"{100 * 2.0930 / 60:.1f}"
    assert next(r for r in table.rows if r[0] == "toy_rules")[2] == f"0.0 [−{width}, +{width}]"


def test_what_is_absent_is_listed() -> None:
    run = without(toy_run(), step=20, quantity="accuracy", group="toy_rules")
    partly = [replace(m, n_failed=3) if (m.step, m.group) == (10, TARGET) else m for m in run.measurements]
    stopped = replace(run, measurements=partly, manifest=manifest("ES", status="stopped", error="interrupted"))
    problems = build_frames([replace(stopped, notices=("updates.jsonl: dropped a torn last line",))]).problems
    found = {(r.step, r.what, r.status): r.note for r in problems.itertuples()}
    assert found["20", "lm_eval accuracy, toy_rules", "not measured"] == "no row stored"
    assert found["10", f"lm_eval accuracy, {TARGET}", "failed"] == "3 of 60 items failed"
    assert found["", "run", "stopped"] == "interrupted"
    assert "torn" in found["", "run", "repaired"]
    only = build_frames([toy_run()]).problems
    assert list(zip(only["what"], only["status"], strict=True)) == [("lm_eval accuracy, toy_rules", "noted")]


def test_a_task_that_never_moves_and_weights_that_are_the_base_are_noted() -> None:
    run = toy_run()
    zero = [m for m in run.measurements if (m.quantity, m.group, m.step) == ("update_norm", "all", 30)]
    rows = [*run.measurements, replace(zero[0], quantity="zero_fraction", value=1.0, unit="fraction")]
    found = build_frames([replace(run, measurements=rows)]).problems
    notes = dict(zip(found["what"], found["note"], strict=True))
    assert "in no average" in notes["lm_eval accuracy, toy_rules"]
    assert notes["weights"] == "the weights are exactly the base: nothing was trained"


def test_accuracy_rows_that_their_items_do_not_give_are_reported() -> None:
    run = toy_run()
    wrong = [
        replace(m, value=0.9) if (m.step, m.quantity, m.group) == (30, "accuracy", "toy_rules") else m
        for m in run.measurements
    ]
    problems = build_frames([replace(run, measurements=wrong)]).problems
    problems = problems[problems["status"] != "noted"]
    assert list(problems["status"]) == ["disagrees"]
    assert problems["note"].iloc[0] == "the accuracy row says 0.9000, its 60 items give 0.5000"


def test_runs_that_do_not_belong_together_are_refused() -> None:
    other = toy_run("B")
    spec = {**other.manifest.spec, "target": {"task": "else"}}
    with pytest.raises(DriftlabError, match=r"share the target task: id-B has else, id-ES has toy_target"):
        build_frames([toy_run(), replace(other, manifest=manifest("B", spec=spec))])
    moved = replace(other.manifest, model={"weights_hash": "w1"})
    with pytest.raises(DriftlabError, match="share the base model"):
        build_frames([toy_run(), replace(other, manifest=moved)])
    asked = replace(other.manifest, tasks={"toy_rules": "h1"})
    first = replace(toy_run(), manifest=replace(toy_run().manifest, tasks={"toy_rules": "h0"}))
    with pytest.raises(DriftlabError, match="prompts of toy_rules, but in id-ES and id-B the items are the same"):
        build_frames([first, replace(other, manifest=asked)])
    fewer = [e for e in other.examples if e.item not in ("toy_rules-003", "toy_rules-004")]
    with pytest.raises(DriftlabError, match="2 items are in one of them only, for example toy_rules-003"):
        build_frames([first, replace(other, manifest=asked, examples=fewer)])
    with pytest.raises(DriftlabError, match=r"id-ES holds no measurement \(status finished\)"):
        build_frames([replace(toy_run(), measurements=[])])
    with pytest.raises(DriftlabError, match="at least one run"):
        build_frames([])


def test_one_colour_per_arm_one_label_per_run() -> None:
    spec = {**toy_run().manifest.spec, "seed": 1}
    again = replace(toy_run(), manifest=manifest("ES", spec=spec, run_id="again"))
    frames = build_frames([toy_run(), again, toy_run("ES+AWD-L2")])
    assert list(frames.runs["run"]) == ["ES, seed 0", "ES, seed 1", "ES+AWD-L2"]
    drawn = looks(frames)
    assert [look.colour for look in drawn.values()] == [COLOURS[0], COLOURS[0], COLOURS[1]]
    assert drawn["ES, seed 0"].line != drawn["ES, seed 1"].line
    with pytest.raises(DriftlabError, match="at most 6 arms"):
        looks(build_frames([toy_run(f"arm {i}") for i in range(7)]))


class Page(HTMLParser):
    """Collects tags and what they refer to, so that a page's promises can be checked."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.images_without_alt = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.references += [value for name in ("src", "href") if (value := values.get(name))]
        self.images_without_alt += tag == "img" and not values.get("alt")


def test_page_is_one_safe_file(tmp_path: Path) -> None:
    out = write_report(two_arms(), tmp_path / "report")
    html = (out / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert "script" not in page.tags
    assert "&lt;script&gt;alert(30)&lt;/script&gt;" in html
    assert page.images_without_alt == 0
    assert page.tags.count("img") == 6
    assert all(reference.startswith("data:image/svg+xml;base64,") for reference in page.references)
    assert page.tags.count("h1") == 1
    assert str(tmp_path) not in html
    assert "/somewhere" not in html
    assert "…/toy" in html
    assert "link" not in page.tags
    markdown = (out / "report.md").read_text()
    assert "````text\n<script>alert(0)</script> ```" in markdown  # the text's own backticks cannot end its block
    for name in re.findall(r"\]\((figures/[^)]+)\)", markdown):
        assert (out / name).is_file()


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_same_runs_same_bytes(tmp_path: Path) -> None:
    first = files_below(write_report(two_arms(), tmp_path / "a" / "report"))
    second = files_below(write_report(two_arms(), tmp_path / "b" / "elsewhere"))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert {
        f"figures/{name}.{kind}"
        for name in ("target", "differences", "priors", "norms", "kl", "path")
        for kind in ("png", "svg")
    } <= (first.keys())
    # Two pages, six figures in two formats, eleven tables in three, and the lost items.
    assert len(first) == 2 + 12 + 33 + 1


@pytest.mark.usefixtures("undrawn")
def test_an_earlier_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    out = write_report([toy_run()], tmp_path / "report")
    (out / "stale.txt").write_text("old")
    write_report([toy_run()], out)
    assert not (out / "stale.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(DriftlabError, match="not a report"):
        write_report([toy_run()], other)
    assert (other / "thesis.txt").read_text() == "mine"


def test_a_run_with_the_base_only(tmp_path: Path) -> None:
    run = replace(toy_run(steps=(0,)), updates=[])
    out = write_report([run], tmp_path / "report")
    html = (out / "report.html").read_text()
    assert "only the base model was measured" in html
    assert {r[2] for r in final_table(build_frames([run])).rows} == {"not measured"}


def test_a_run_without_kl_or_priors_says_so(tmp_path: Path) -> None:
    run = toy_run()
    spec = {**run.manifest.spec, "probes": {"lm_eval": None}}
    bare = replace(
        run,
        manifest=manifest("ES", spec=spec),
        measurements=[m for m in run.measurements if m.probe != "kl" and m.group not in PRIORS],
        examples=[],
    )
    out = write_report([bare], tmp_path / "report")
    html = (out / "report.html").read_text()
    assert html.count("Not measured: no row to draw.") == 4  # differences, priors, KL, path
    assert "no items stored at step 0" in said(build_frames([bare]))
    assert not (out / "figures" / "kl.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_table_files(tmp_path: Path) -> None:
    out = write_report(two_arms(), tmp_path / "report")
    rows = list(csv.DictReader(io.StringIO((out / "tables" / "final-minus-base.csv").read_text())))
    target = next(r for r in rows if r["task"] == TARGET and r["run"] == "ES")
    assert float(target["difference"]) == pytest.approx(0.5)
    assert (target["n"], target["status"]) == ("60", "ok")
    for table in all_tables(build_frames(two_arms())):
        assert all(len(r) == len(table.columns) for r in table.rows)
        latex = to_latex(table)
        assert latex.isascii()
        assert "toy\\_" in latex or table.name in ("target", "norms", "controls", "floor", "format")


def test_folders_are_left_out_but_links_and_ratios_stay() -> None:
    assert without_folders("model at /a/b/c.gguf") == "model at …/c.gguf"
    assert without_folders("driftlab run --data=/a/b/c x") == "driftlab run --data=…/c x"
    for text in ("https://example.org/a/b", "nats/token", "Qwen/Qwen2.5-3B", "3/4"):
        assert without_folders(text) == text


def test_a_stored_run_reads_back(tmp_path: Path) -> None:
    run = toy_run()
    store = RunStore.create(tmp_path / "run", run.manifest, {}, {})
    for step in run.updates:
        store.append_update(step)
    for at in STEPS:
        store.add_measured(at, [m for m in run.measurements if m.step == at], [e for e in run.examples if e.step == at])
    again = read_run(tmp_path / "run")
    assert build_frames([again]).differences.equals(build_frames([run]).differences)
