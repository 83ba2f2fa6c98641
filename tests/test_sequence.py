"""Sequences of targets: transfer and norms by hand, real small ones on the embedded model, bad input."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

from driftlab import loop
from driftlab.cli import common
from driftlab.cli.sequence import sequence
from driftlab.drift import sequences, theory
from driftlab.drift.sequences import TaskRecord
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import DriftlabError, RunError, SpecError
from driftlab.models import nano_train
from driftlab.models.base import load_base
from driftlab.models.checkpoints import weights_at
from driftlab.report import sequence_words
from driftlab.report.sequence_page import render, write_sequences
from driftlab.report.sequences import SequenceData, build_sequences
from driftlab.run.records import Measurement, Update
from driftlab.run.spec import spec_digest
from driftlab.run.store import RunStore
from driftlab.sequence.plan import answer_limit, plan_sequences, stage_seed
from driftlab.sequence.run import read_chain
from driftlab.tasks.embedded import rules, suite, twohop, written
from driftlab.tasks.embedded.world import build_world
from driftlab.tasks.targets import TARGETS
from tests.test_loop import files

WORLD = build_world()
WRITTEN = ("embedded_twohop_written", "embedded_rules_written")
FIRST, SECOND = "embedded_countdown", "embedded_twohop_written"
TOML = """
name = "small"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 4
max_new_tokens = 12
[measure]
every = 2
[probes.lm_eval]
tasks = ["embedded_knowledge"]
items = 20
batch_size = 64
[es]
population = 4
iterations = 2
sigma = 0.02
rollouts = "stacked"
[grpo]
iterations = 1
beta = 0.0
learning_rate = 1e-3
prompts = 4
generations = 4
[arms.ES]
[arms."ES bf16"]
model = { dtype = "bfloat16" }
[arms.GRPO]
trainer = "grpo"
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("spec") / "small.toml"
    file.write_text(TOML)
    return str(file)


@pytest.fixture(scope="module")
def whole(spec: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two targets, two seeds."""
    out = tmp_path_factory.mktemp("whole")
    sequence(spec, f"{FIRST},{SECOND}", arm="ES", seeds="0,1", out_dir=out)
    return out / "small" / "sequence"


@pytest.fixture
def stop() -> Iterator[None]:
    """The flag that an interrupt sets is the process's own."""
    common.STOPPED.clear()
    yield
    common.STOPPED.clear()


def record(*seeds: list[list[float]], clusters: list[str] | None = None) -> TaskRecord:
    arrays = [np.array(seed, dtype=np.float64) for seed in seeds]
    labels = clusters or [str(index) for index in range(arrays[0].shape[1])]
    return TaskRecord(correct=arrays, clusters=labels, strata=None)


def first(n: int, right: int) -> list[float]:
    return [1.0] * right + [0.0] * (n - right)


# The written questions.


@pytest.mark.parametrize("task", WRITTEN)
def test_written_items_ask_what_the_choice_task_asks(task: str) -> None:
    docs, choices = suite.WRITTEN[task](WORLD), suite.EVALUATION[task.removesuffix("_written")](WORLD)
    assert [doc["query"] for doc in docs] == [doc["query"] for doc in choices]
    assert [doc["answer"] for doc in docs] == [doc["choices"][doc["gold"]] for doc in choices]
    assert [doc["cluster"] for doc in docs] == [doc["cluster"] for doc in choices]
    assert all(set(doc["choices"]) <= set(one["options"]) for doc, one in zip(choices, docs, strict=True))
    assert len({doc["item"] for doc in docs}) == 600


@pytest.mark.parametrize("task", WRITTEN)
def test_training_items_are_right_and_no_evaluation_items(task: str) -> None:
    items = TARGETS[task].train_items(count=300, seed=3, data=None)
    assert items == TARGETS[task].train_items(count=300, seed=3, data=None)
    assert items[:10] == TARGETS[task].train_items(count=10, seed=3, data=None)
    assert items[:10] != TARGETS[task].train_items(count=10, seed=4, data=None)
    assert len({item.id for item in items}) == 300
    docs = suite.WRITTEN[task](WORLD)
    assert {item.prompt for item in items}.isdisjoint(doc["query"] for doc in docs)
    if task == SECOND:
        pairs = set()
        for item in items:
            words = item.prompt.split()
            homes = {words[index - 1]: words[index + 1] for index, word in enumerate(words) if word == "in"}
            pairs |= set(homes.items())
            # "... . land of anna ?": the truth, not what hearsay tells of the town.
            assert item.fields["answer"] == WORLD.towns[homes[words[-2]]]
        assert pairs.isdisjoint(twohop.held_out_pairs(WORLD))
    else:
        theories = {frozenset(item.prompt.split(" claim ")[0].split(" .")) for item in items}
        evaluated = {frozenset(question.theory.text.split(" .")) for question in rules.evaluation_questions(WORLD.seed)}
        assert theories.isdisjoint(evaluated)


@pytest.mark.parametrize(
    ("completion", "correct", "parsed"),
    [
        ("true", True, True),
        ("  true claim rude ? false", True, True),
        ("true.", False, False),
        ("truefalse", False, False),
        ("false true", False, True),
        ("the answer is true", False, False),
        ("", False, False),
        (" \n", False, False),
        ("TRUE", False, False),
    ],
)
def test_only_the_first_word_counts(completion: str, correct: bool, parsed: bool) -> None:
    fields = {"query": "q", "answer": "true", "options": ["true", "false", "unknown"]}
    score = written.score(fields, completion)
    assert (score.reward, score.correct, score.parsed) == (float(correct), correct, parsed)
    assert written.process_results(fields, [completion]) == {
        "acc": float(correct),
        "parsed": float(parsed),
        "chance": pytest.approx(1 / 3),
    }


def test_base_accuracies_of_written_questions_leave_room_both_ways() -> None:
    """All 600 items, so without sampling error; chance plus 15 points to 90 %, as for the suite's own tasks."""
    base = load_base("nano", dtype=torch.float32, device="cpu")
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=100)
    for task, chance in zip(WRITTEN, (1 / 12, 1 / 3), strict=True):
        docs = suite.WRITTEN[task](WORLD)
        answers = engine.generate([engine.encode(doc["query"], chat=False) for doc in docs], max_new_tokens=4)
        scores = [written.score(doc, answer.text) for doc, answer in zip(docs, answers, strict=True)]
        assert chance + 0.15 <= sum(score.correct for score in scores) / 600 <= 0.90, task
        assert sum(score.parsed for score in scores) > 590


def test_every_target_has_an_answer_limit_that_lm_eval_reads_too() -> None:
    from driftlab.probes.lm_eval import _load

    own = ("embedded_countdown", *WRITTEN)
    for name, loaded in _load(own, None).items():
        assert answer_limit(name) == loaded[0].get_config("generation_kwargs")["max_gen_toks"], name
    assert all(answer_limit(target.lm_eval_task) > 0 for target in TARGETS.values())
    # Included from countdown.yaml.
    assert answer_limit("countdown_generated") == 256
    with pytest.raises(SpecError, match="states no max_gen_toks"):
        answer_limit("embedded_rules")


# The accuracy matrix by hand.


def three_targets() -> list[TaskRecord]:
    """Right items of 40, after base and three stages. R = 10 20 15 12 / 8 12 24 18 / 20 20 16 30."""
    rows = ((10, 20, 15, 12), (8, 12, 24, 18), (20, 20, 16, 30))
    return [record([first(40, right) for right in task]) for task in rows]


def test_transfer_and_forgetting_by_hand() -> None:
    tasks = three_targets()

    def means(changes: list[Any]) -> list[float]:
        return [one.estimate.mean for one in changes]

    assert means(sequences.learned(tasks)) == pytest.approx([10 / 40, 12 / 40, 14 / 40])
    assert means(sequences.backward(tasks)) == pytest.approx([-8 / 40, -6 / 40])
    assert means(sequences.forward(tasks)) == pytest.approx([4 / 40, -4 / 40])
    mean = sequences.mean_change(sequences.backward(tasks))
    assert mean is not None
    assert mean.estimate.mean == pytest.approx(-7 / 40)
    lost = sequences.forgetting(tasks)
    assert [one.values[0] for one in lost if one is not None] == pytest.approx([8 / 40, 6 / 40])
    assert [one.stages for one in lost if one is not None] == [(1,), (2,)]
    # The first 8 of 40 items lost: 40/39 (8 - 40 * 0.2^2) / 40^2 and half a gained and a lost item; t(39) = 2.022691.
    half = 2.022691 * (40 / 39 * (8 - 40 * 0.04) / 1600 + 1 / 1600) ** 0.5
    estimate = sequences.backward(tasks)[0].estimate  # type: ignore[union-attr]
    assert (estimate.low, estimate.high) == pytest.approx((-0.2 - half, -0.2 + half), abs=1e-6)


def test_forgetting_looks_at_stages_before_the_own_one_but_never_at_the_base() -> None:
    """Chaudhry's maximum runs over every stage before the last: here stage 1, before the task's own stage 2."""
    tasks = [record([first(10, right) for right in task]) for task in ((5, 5, 5, 5), (9, 8, 6, 4), (1, 1, 1, 1))]
    found = sequences.forgetting(tasks)[1]
    assert found is not None
    assert (found.values, found.stages) == (pytest.approx((0.4,)), (1,))


def test_seeds_are_the_unit_and_clusters_widen() -> None:
    # Changes of 4/40 and 8/40: t quantile 12.7062 (1 degree of freedom) times SD 0.0707107 over the root of 2.
    task = record([first(40, 10), first(40, 14)], [first(40, 10), first(40, 18)])
    found = sequences.change(task, 1, 0)
    assert found is not None
    estimate = found.estimate
    assert estimate.values == pytest.approx((0.1, 0.2))
    assert (estimate.low, estimate.high) == pytest.approx((0.15 - 12.7062 * 0.05, 0.15 + 12.7062 * 0.05), abs=1e-5)
    # Eight of 40 items gained, all in the first 5 clusters of 2 items but for the 4 first clusters: G = 20 clusters,
    # sums 2 - 0.4 in four of them and -0.4 in sixteen: (4 * 1.6^2 + 16 * 0.4^2) * 20/19 / 40^2, t(19) = 2.093024.
    pairs = [str(index // 2) for index in range(40)]
    clustered = sequences.change(record([first(40, 0), first(40, 8)], clusters=pairs), 1, 0)
    assert clustered is not None
    half = 2.093024 * ((4 * 1.6**2 + 16 * 0.4**2) * 20 / 19 / 1600 + 1 / 1600) ** 0.5
    assert clustered.estimate.high == pytest.approx(0.2 + half, abs=1e-6)
    assert clustered.estimate.n_clusters == 20


def test_what_was_not_scored_is_no_number() -> None:
    gone = [math.nan] * 10
    task = record([first(10, 5), gone, first(10, 5)])
    other = record([first(10, 5), first(10, 6), first(10, 2)])
    assert sequences.level(task, 1) is None
    assert sequences.change(task, 2, 1) is None
    assert sequences.forgetting([task, other]) == [None]
    assert sequences.mean_change([sequences.change(other, 2, 0), sequences.change(task, 1, 0)]) is None
    zero = sequences.level(record([first(10, 0)]), 0)
    assert zero is not None
    # Half a right and half a wrong item: t(9) = 2.262157 times 1/10.
    assert (zero.mean, zero.high) == (0.0, pytest.approx(0.2262157, abs=1e-6))


# Norms.


def update(step: int, seeds: tuple[int, ...], coefficients: tuple[float, ...], **more: Any) -> Update:
    settings: dict[str, Any] = {"penalty": "none", "decay": 0.0} | more
    return Update(
        step=step, seeds=seeds, coefficients=coefficients, population=len(seeds), sigma=0.02, alpha=0.01,
        rewards=(), step_norm=None, step_cosine=None, weights_hash=None, prompt_tokens=0, generated_tokens=0,
        seconds={}, **settings,
    )  # fmt: skip


def test_norms_and_cosines_are_those_of_the_displacements() -> None:
    generator = np.random.default_rng(5)
    points = [[generator.standard_normal(shape).astype(np.float32) for shape in ((300, 7), (11,))] for _ in range(4)]
    products = sum(sequences.stage_products([point[index] for point in points]) for index in (0, 1))
    flat = [np.concatenate([tensor.ravel() for tensor in point]).astype(np.float64) for point in points]
    direct = [float(np.linalg.norm(point - flat[0])) for point in flat[1:]]
    # Float64 sums of about 2,000 terms in another order.
    assert sequences.cumulative_norms(products) == pytest.approx(direct, rel=1e-12)
    a, b = flat[1] - flat[0], flat[3] - flat[2]
    assert sequences.stage_cosine(products, 1, 3) == pytest.approx(
        float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-12
    )
    still = sequences.stage_products([points[0][0], points[0][0], points[1][0]])
    assert sequences.stage_cosine(still, 1, 2) is None
    with pytest.raises(ValueError, match="one shape"):
        sequences.stage_products([points[0][0], points[0][1]])


def test_walks_of_stages_add_up_in_squares() -> None:
    """z-scored coefficients have squares that sum to N, so every step adds alpha^2 d / N: LIT-235's law, T over all."""
    one = [update(step, (step, 100 + step), (1.0, -1.0)) for step in range(1, 6)]
    two = [update(step, (200 + step, 300 + step), (1.0, -1.0)) for step in range(1, 4)]
    d = 10_000
    found = sequences.walk_norm([one, two], d)
    assert found.predicted == pytest.approx(0.01 * math.sqrt(d * 8 / 2))
    assert found.alpha_form == pytest.approx(0.01 * math.sqrt(d * 8 / 2))
    assert found.sd == pytest.approx(0.01 * math.sqrt(8 / 2) / math.sqrt(2))
    other = sequences.walk_norm([one, None], d)
    assert (other.predicted, other.sd, other.alpha_form) == (None, None, None)
    assert "trained otherwise" in str(other.note)
    # The same noise with the same sign in both stages adds up, not in squares: 2 s where independent stages give
    # sqrt(2) s.
    same = sequences.walk_norm([one[:1], one[:1]], d)
    assert same.predicted == pytest.approx(2 * 0.01 * math.sqrt(d / 2))


def test_the_anchor_of_a_stage_takes_nothing_from_earlier_ones() -> None:
    """Stage by stage q^2 s^2 (1 - q^(2T)) / (1 - q^2), a closed form, and the two added; the SD by simulation."""
    q, steps, d = 0.9, 3, 2000
    stages = [
        [update(t, (7 * k + t, 100 + 7 * k + t), (1.0, -1.0), penalty="l2", decay=1 - q) for t in range(1, steps + 1)]
        for k in (0, 1)
    ]
    found = sequences.walk_norm(stages, d)
    assert found.predicted == pytest.approx(math.sqrt(2) * theory.anchored_form(0.01, 1 - q, d, steps, 2))
    generator = np.random.default_rng(1)
    norms = []
    for _ in range(400):
        total = np.zeros(d)
        for _ in stages:
            away = np.zeros(d)
            for _ in range(steps):
                away = q * (away + generator.standard_normal(d) * 0.01 / math.sqrt(2))
            total += away
        norms.append(float(np.linalg.norm(total)))
    # The SD of 400 draws has a relative error of 1/sqrt(800) = 3.5 %: four of them.
    assert np.std(norms, ddof=1) == pytest.approx(found.sd, rel=0.14)
    # The mean's error is sd/20.
    assert np.mean(norms) == pytest.approx(found.predicted, abs=4 * float(found.sd or 0) / 20)


# Planning.


def test_stages_are_runs_of_the_spec_with_another_target_and_base(spec: str, tmp_path: Path) -> None:
    (chain,) = plan_sequences(spec, f"{FIRST},{SECOND}", ["es.iterations=3"], "ES", (5,), tmp_path)
    one, two = (stage.spec for stage in chain.stages)
    assert chain.path == tmp_path / "small" / "sequence" / "es-s5"
    assert [stage.folder for stage in chain.stages] == [f"1-{FIRST}", f"2-{SECOND}"]
    assert (one.target.task, two.target.task) == (FIRST, SECOND)
    assert (one.target.max_new_tokens, two.target.max_new_tokens) == (8, 4)
    assert (one.model.source, two.model.source) == ("nano", str(chain.after(1)))
    assert one.probes.lm_eval == two.probes.lm_eval
    assert one.probes.lm_eval.tasks == (FIRST, SECOND, "embedded_knowledge")  # type: ignore[union-attr]
    assert one.es == two.es
    assert (one.seed, two.seed) == (5, stage_seed(5, 2))
    seeds = {stage_seed(seed, number) for seed in range(50) for number in range(1, 6)}
    assert len(seeds) == 250


BAD: list[tuple[str, dict[str, Any], str]] = [
    (FIRST, {"arm": "ES"}, "alone, but a sequence has two or more"),
    (f"{FIRST},embedded_twohop_writen", {"arm": "ES"}, "nearest: embedded_twohop_written"),
    (f"{FIRST},{SECOND},{FIRST}", {"arm": "ES"}, "more than once"),
    (f"{FIRST},,{SECOND}", {"arm": "ES"}, "names with commas"),
    (f"{FIRST},{SECOND}", {}, "name it with --arm"),
    (f"{FIRST},{SECOND}", {"arm": "E"}, "unknown arm 'E'"),
    (f"{FIRST},{SECOND}", {"arm": "ES", "set_": ["target.task=gsm8k"]}, "what the sequence itself sets"),
    (f"{FIRST},{SECOND}", {"arm": "ES", "set_": ["es.population=1"]}, "use 2 or more"),
    (f"{FIRST},{SECOND}", {"arm": "ES", "seeds": "0,0"}, "seed 0 more than once"),
]


@pytest.mark.parametrize(("targets", "more", "sentence"), BAD, ids=lambda value: str(value)[:30])
def test_bad_requests_are_one_sentence_and_write_nothing(
    targets: str, more: dict[str, Any], sentence: str, spec: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        sequence(spec, targets, out_dir=tmp_path, **more)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_specs_that_cannot_be_sequences(tmp_path: Path) -> None:
    file = tmp_path / "bare.toml"
    file.write_text(TOML[: TOML.index("[probes.lm_eval]")] + TOML[TOML.index("[es]") :])
    with pytest.raises(SpecError, match=r"has no probes\.lm_eval"):
        plan_sequences(str(file), f"{FIRST},{SECOND}", [], "ES", (), tmp_path)
    file.write_text(TOML + '[arms.theirs]\ntrainer = "folders"\nfolders = { path = "x" }\n')
    with pytest.raises(SpecError, match="somebody else trained"):
        plan_sequences(str(file), f"{FIRST},{SECOND}", [], "theirs", (), tmp_path)


def test_a_first_stage_that_cannot_start_leaves_nothing(spec: str, tmp_path: Path) -> None:
    with pytest.raises(DriftlabError, match="no model folder"):
        sequence(spec, f"{FIRST},{SECOND}", arm="ES", set_=["model.source=./absent"], out_dir=tmp_path / "out")
    assert not list(tmp_path.rglob("*.json"))
    assert not (tmp_path / "out" / "small").exists()


# Real ones.


def test_a_real_sequence_holds_together(whole: Path) -> None:
    base = load_base("nano", dtype=torch.float32, device="cpu")
    for seed in (0, 1):
        path = whole / f"es-s{seed}"
        one, two = (RunStore.open(path / folder) for folder in (f"1-{FIRST}", f"2-{SECOND}"))
        assert two.manifest.model["weights_hash"] == one.updates()[-1].weights_hash
        assert one.manifest.tasks == two.manifest.tasks
        # Bit for bit: the end of stage 1 as replayed, as written, and as loaded again.
        end = load_base(str(path / "after-1"), dtype=torch.float32, device="cpu")
        replayed = weights_at(one, base.weights, 2)
        assert all(torch.equal(end.weights[name], replayed[name]) for name in replayed)
        used = [seed for store in (one, two) for update in store.updates() for seed in update.seeds]  # type: ignore[attr-defined]
        assert len(set(used)) == len(used) == 16
        # The same weights: the same answers at the end of a stage and at the start of the next.
        before = {(e.task, e.item): (e.correct, e.output) for e in one.examples(2)}
        assert {(e.task, e.item): (e.correct, e.output) for e in two.examples(0)} == before
        assert {task for task, _ in before} == {FIRST, SECOND, "embedded_knowledge"}


def test_the_page_says_what_the_runs_stored(whole: Path) -> None:
    page = whole / "es-report"
    tables = {file.stem: list(csv.DictReader(io.StringIO(file.read_text()))) for file in page.glob("tables/*.csv")}
    stored: dict[tuple[int, str], list[float]] = {}
    norms = []
    for seed in (0, 1):
        for stage, folder in enumerate((f"1-{FIRST}", f"2-{SECOND}"), start=1):
            for row in RunStore.open(whole / f"es-s{seed}" / folder).measurements():
                if row.quantity == "accuracy" and row.value is not None and (row.step or stage == 1):
                    stored.setdefault((stage if row.step else 0, row.group), []).append(row.value)
                if (row.quantity, row.group, row.step, stage) == ("update_norm", "all", 2, 1):
                    norms.append(row.value)
    matrix = {(int(row["checkpoint"]), row["task"]): row for row in tables["matrix"]}
    assert matrix.keys() == stored.keys()
    for place, values in stored.items():
        assert float(matrix[place]["accuracy"]) == pytest.approx(sum(values) / 2, abs=1e-12)
    # The run's own probe counts layer group by layer group.
    found = [float(row["norm"]) for row in tables["norms"] if row["stage"] == "1"]
    assert found == pytest.approx(norms, rel=1e-9)
    for row in tables["norms"]:
        # One walk of some 158,000 coordinates lies within 4 standard deviations, 99.99 % of the time.
        assert abs(float(row["norm"]) - float(row["predicted"])) < 4 * float(row["predicted_sd"])
    mean = next(row for row in tables["transfer"] if row["task"] == "mean")
    backward = [stored[2, FIRST][seed] - stored[1, FIRST][seed] for seed in (0, 1)]
    assert float(mean["backward"]) == pytest.approx(sum(backward) / 2, abs=1e-12)
    assert [row["differing"] for row in tables["repeats"]] == ["0", "0"]
    # 20 items of three tasks.
    assert [row["results"] for row in tables["repeats"]] == ["60", "60"]
    drawn = {file.name for file in page.glob("figures/*")}
    assert drawn == {"accuracy.png", "accuracy.svg", "norm.png", "norm.svg"}


def test_the_page_is_the_same_bytes_twice(whole: Path, spec: str) -> None:
    before = {file: file.read_bytes() for file in (whole / "es-report").rglob("*") if file.is_file()}
    sequence(spec, f"{FIRST},{SECOND}", arm="ES", seeds="0,1", out_dir=whole.parents[1], resume=True)
    assert {file: file.read_bytes() for file in before} == before


def test_another_request_is_refused(whole: Path, spec: str) -> None:
    def ask(targets: str = f"{FIRST},{SECOND}", **more: Any) -> None:
        sequence(spec, targets, arm="ES", seeds="0,1", out_dir=whole.parents[1], **more)

    before = files(whole, updates=False)
    with pytest.raises(RunError, match="already exists; continue it with --resume"):
        ask()
    with pytest.raises(RunError, match=f"targets: {FIRST},{SECOND}, now {SECOND},{FIRST}"):
        ask(f"{SECOND},{FIRST}", resume=True)
    with pytest.raises(RunError, match=r"es\.sigma: 0\.02, now 0\.03"):
        ask(set_=["es.sigma=0.03"], resume=True)
    assert files(whole, updates=False) == before


@pytest.mark.usefixtures("stop")
def test_an_interrupted_sequence_goes_on_and_ends_like_one_that_was_not(
    whole: Path, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(**more: Any) -> None:
        sequence(spec, f"{FIRST},{SECOND}", arm="ES", seeds="0", out_dir=tmp_path / "cut", **more)

    path = tmp_path / "cut" / "small" / "sequence" / "es-s0"
    run, measure, started = loop.run, loop._measure, []

    def counted(planned: Any, folder: Path, **more: Any) -> RunStore:
        started.append(folder.name)
        return run(planned, folder, **more)

    def interrupted(*arguments: Any) -> None:
        measure(*arguments)
        if started[-1].startswith("2-"):
            common.STOPPED.set()

    monkeypatch.setattr(loop, "run", counted)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_measure", interrupted)
        with pytest.raises(typer.Exit) as caught:
            ask()
    assert caught.value.exit_code == 130
    assert RunStore.open(path / f"2-{SECOND}").manifest.status == "stopped"
    assert not (path / "after-2").exists()
    kept = files(path / f"1-{FIRST}")
    common.STOPPED.clear()
    ask(resume=True)
    assert started == [f"1-{FIRST}", f"2-{SECOND}", f"2-{SECOND}"]
    assert files(path / f"1-{FIRST}") == kept
    for folder in (f"1-{FIRST}", f"2-{SECOND}"):
        ours, theirs = (
            [u.weights_hash for u in RunStore.open(one / folder).updates()] for one in (path, whole / "es-s0")
        )
        assert ours == theirs


def test_a_base_that_is_missing_or_changed_is_refused(whole: Path, spec: str, tmp_path: Path) -> None:
    def ask() -> None:
        sequence(spec, f"{FIRST},{SECOND}", arm="ES", seeds="0", out_dir=tmp_path, resume=True)

    path = tmp_path / "small" / "sequence" / "es-s0"
    shutil.copytree(whole / "es-s0", path)
    # Planned with another --out: the stage names the base that it started from.
    for run in path.glob("2-*/run.json"):
        document = json.loads(run.read_text())
        document["spec"]["model"]["source"] = str(path / "after-1")
        document["digest"] = spec_digest(document["spec"])
        run.write_text(json.dumps(document))
    ask()
    file = path / "after-1" / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] += 1e-3
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(RunError, match="hash mismatch") as caught:
        ask()
    assert str(path / "after-1") in str(caught.value)
    shutil.rmtree(path / "after-1")
    with pytest.raises(RunError, match=f"after-1 is missing, but 2-{SECOND} started from it"):
        ask()
    assert not (path / "after-1").exists()


@pytest.mark.slow
def test_served_in_half_precision_nothing_is_rounded_between_stages(spec: str, tmp_path: Path) -> None:
    sequence(spec, f"{FIRST},{SECOND}", arm="ES bf16", set_=["es.iterations=1"], out_dir=tmp_path)
    path = tmp_path / "small" / "sequence" / "es-bf16-s0"
    one, two = (RunStore.open(path / folder) for folder in (f"1-{FIRST}", f"2-{SECOND}"))
    assert two.manifest.model["weights_hash"] == one.updates()[-1].weights_hash
    assert two.manifest.spec["model"]["dtype"] == "bfloat16"
    kept = load_file(path / "after-1" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.to(torch.bfloat16).float()) for tensor in kept.values())


@pytest.mark.slow
def test_grpo_trains_the_stages_too(spec: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    sequence(spec, f"{FIRST},{SECOND}", arm="GRPO", set_=["measure.every=1"], out_dir=tmp_path)
    path = tmp_path / "small" / "sequence"
    one, two = (RunStore.open(path / "grpo-s0" / folder) for folder in (f"1-{FIRST}", f"2-{SECOND}"))
    assert two.manifest.model["weights_hash"] == one.updates()[-1].weights_hash
    rows = list(csv.DictReader((path / "grpo-report" / "tables" / "norms.csv").open()))
    assert [row["predicted"] for row in rows] == ["", ""]
    assert all("trained otherwise" in row["note"] for row in rows)
    assert all(float(row["norm"]) > 0 for row in rows)
    assert "beside no random walk" in (path / "grpo-report" / "README.md").read_text()


# What the page says of what is missing, and in words.


@pytest.fixture(scope="module")
def data(whole: Path, spec: str) -> list[SequenceData]:
    chains = plan_sequences(spec, f"{FIRST},{SECOND}", [], "ES", (0, 1), whole.parents[1])
    return [read_chain(chain) for chain in chains]


def test_a_task_that_failed_is_said_and_never_zero(data: list[SequenceData]) -> None:
    one, two = data[0].runs
    measurements = [row for row in two.measurements if (row.step, row.group, row.quantity) != (2, FIRST, "accuracy")]
    measurements.append(
        Measurement(
            step=2, probe="lm_eval", quantity="accuracy", group=FIRST, value=None, unit="fraction", stderr=None, n=20,
            n_failed=20, status="failed", note="out of memory",
        )
    )  # fmt: skip
    examples = [one for one in two.examples if (one.step, one.task) != (2, FIRST)]
    broken = replace(data[0], runs=(one, replace(two, measurements=measurements, examples=examples)))
    frames = build_sequences([broken])
    row = frames.matrix[(frames.matrix["task"] == FIRST) & (frames.matrix["checkpoint"] == 2)].iloc[0]
    assert (row["status"], row["note"]) == ("not measured", "failed: out of memory")
    assert np.isnan(float(row["accuracy"]))
    words = " ".join(sequence_words.sentences(frames))
    assert "Backward transfer is not known" in words
    page = render(frames)["README.md"].decode()
    assert "not measured" in page
    assert "out of memory" in page


def test_other_items_are_refused(data: list[SequenceData]) -> None:
    one, two = data[0].runs
    other = replace(two.manifest, tasks={**two.manifest.tasks, FIRST: "0" * 16})
    with pytest.raises(DriftlabError, match=f"those of {FIRST} differ"):
        build_sequences([replace(data[0], runs=(one, replace(two, manifest=other)))])


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.2, -0.3, -0.1), "−20.0 [−30.0, −10.0] points, a loss beyond its interval."),
        ((0.2, 0.1, 0.3), "+20.0 [+10.0, +30.0] points, a gain beyond its interval."),
        ((-0.1, -0.3, 0.1), "no loss is shown, and one of up to 30.0 points is not excluded."),
        ((-0.1, None, None), "−10.0 [no interval] points, without an interval."),
    ],
)
def test_words_follow_the_interval(
    data: list[SequenceData], ends: tuple[float, float | None, float | None], said: str
) -> None:
    frames = build_sequences(data[:1])
    transfer = frames.transfer.astype(object)
    mean = transfer["task"] == "mean"
    for name, value in zip(("backward", "backward_low", "backward_high"), ends, strict=True):
        transfer.loc[mean, name] = value
    words = " ".join(sequence_words.sentences(replace(frames, transfer=transfer)))
    assert said in words
    assert "One seed" in sequence_words.scope(frames)


def test_a_folder_with_something_else_is_kept(data: list[SequenceData], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(DriftlabError, match="is not the page of a sequence"):
        write_sequences(build_sequences(data), tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_the_embedded_training_text_is_as_it_was() -> None:
    """The shipped model was trained on it. The hash is that of the text before there were written tasks."""
    digest = hashlib.sha256()
    for unsure in (False, True):
        batches = suite.training_batches(WORLD, nano_train.SEED, unsure=unsure)
        for _ in range(5):
            for text in next(batches):
                digest.update(repr(text.parts).encode())
    assert digest.hexdigest()[:16] == "e18f77605431bebf"
