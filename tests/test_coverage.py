"""Coverage: pass@k, flips and entropy against enumeration; canonical forms; the probe on the embedded model."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from driftlab import loop
from driftlab.drift.coverage import (
    Sampled,
    expected_flips,
    flips,
    miller_madow,
    pass_difference,
    pass_rates,
    plug_in_entropy,
)
from driftlab.drift.paired import pass_at_k
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import DriftlabError, SpecError
from driftlab.models.base import load_base
from driftlab.probes.base import Checkpoint
from driftlab.probes.coverage import CoverageProbe, as_answer, coverage_rows, final_answer
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.probes.lm_eval_rows import Verdict
from driftlab.report.contents import all_tables
from driftlab.report.coverage_figure import coverage_figure, drawable
from driftlab.report.coverage_tables import coverage_table
from driftlab.report.frames import build_frames
from driftlab.report.page import render
from driftlab.report.runs import read_run
from driftlab.run.plan import PlannedRun, load_plan, resolve
from driftlab.run.records import CoverageItem, Measurement
from driftlab.run.store import RunStore
from driftlab.session import Event, prepare
from driftlab.tasks.arithmetic import evaluate
from driftlab.tasks.base import Item
from driftlab.tasks.canonical import canonical
from driftlab.tasks.embedded.countdown import EmbeddedCountdown
from tests.helpers import tiny_llama, tiny_tokenizer

TASK = "embedded_countdown"
REPORTS = Path(__file__).parents[1] / "reports"


# The mathematics.


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
        # One rounding a factor.
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def dealt(n: int, m: int, c: int, k: int) -> list[Fraction]:
    """Progression at k of every way to deal n + m answers, c of them right, to a first draw of n and a second of m."""
    found = []
    answers = [1] * c + [0] * (n + m - c)
    for chosen in itertools.combinations(range(n + m), n):
        first = [answers[i] for i in chosen]
        second = [answers[i] for i in range(n + m) if i not in chosen]
        pairs = list(itertools.product(itertools.combinations(first, k), itertools.combinations(second, k)))
        found.append(Fraction(sum(not any(one) and any(other) for one, other in pairs), len(pairs)))
    return found


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (3, 3), (4, 4), (2, 4)])
def test_expected_flips_are_those_of_every_split(n: int, m: int) -> None:
    for k in range(1, min(n, m) + 1):
        for c in range(n + m + 1):
            ways = dealt(n, m, c, k)
            mean = sum(ways) / len(ways)
            assert expected_flips(n, m, c, k) == pytest.approx(float(mean), abs=1e-14)
            square = sum(one**2 for one in ways) / len(ways)
            low = max(0, c - m)
            one = Sampled(items=("a",), clusters=("a",), samples=(n,), correct=(low,))
            other = Sampled(items=("a",), clusters=("a",), samples=(m,), correct=(c - low,))
            # A difference of two numbers of order 1 that each carry about ten roundings, under a square root.
            assert flips(one, other, k).sd == pytest.approx(math.sqrt(square - mean**2), abs=1e-7)
    with pytest.raises(ValueError, match="flips need"):
        expected_flips(2, 2, 1, 3)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_two_draws_from_one_model_show_as_many_flips_as_expected(p: float) -> None:
    """Over both draws of n = 5 answers: k wrong ones, then not k wrong ones, has chance (1-p)^k (1 - (1-p)^k)."""
    n = 5
    chance = stats.binom.pmf(range(n + 1), n, p)
    for k in (1, 3, 5):
        told = sum(
            chance[c] * chance[d] * expected_flips(n, n, c + d, k) for c, d in itertools.product(range(n + 1), repeat=2)
        )
        # 36 terms of relative error 1e-15, binomial probabilities good to about 1e-13.
        assert told == pytest.approx((1 - p) ** k * (1 - (1 - p) ** k), rel=1e-11)


def test_flips_and_paired_change_by_hand() -> None:
    """Four problems of two answers; the fifth of each side has no partner, and the order differs."""
    before = Sampled(items=tuple("abcdx"), clusters=tuple("uuvwx"), samples=(2,) * 5, correct=(0, 0, 1, 2, 2))
    after = Sampled(items=tuple("ydcba"), clusters=tuple("ywvuu"), samples=(2,) * 5, correct=(0, 2, 0, 1, 0))
    assert pass_rates(before, 1).tolist() == [0, 0, 0.5, 1, 1]
    found = flips(before, after, 2)
    # a 0→0, b 0→1, c 1→0, d 2→2. Of 4 answers with one right, the first two lack it in half of the splits: 1/2 each.
    assert (found.n, found.progressions, found.regressions, found.expected) == (4, 1, 1, 1)
    assert found.sd == pytest.approx(math.sqrt(0.5), abs=1e-12)
    # At k = 1 an answer of b and of c is right half of the time; split evenly, (1 answer wrong) (1 right) is 1/4 each.
    assert (flips(before, after, 1).progressions, flips(before, after, 1).regressions) == (0.5, 0.5)
    assert flips(before, after, 1).expected == pytest.approx(2 / 4, abs=1e-14)
    change = pass_difference(before, after, 2)
    assert (change.difference, change.n, change.n_clusters, change.gained, change.lost) == (0, 4, 3, 1, 1)
    # Cluster sums 1 (a, b), -1 (c), 0 (d); G/(G-1) = 3/2; half a gained and half a lost item adds 1/16.
    assert change.stderr == pytest.approx(math.sqrt(1.5 * 2 / 16 + 1 / 16), abs=1e-12)
    with pytest.raises(ValueError, match="share no problem"):
        flips(before.chosen(["x"]), after, 1)
    with pytest.raises(ValueError, match="stands once"):
        Sampled(items=("a", "a"), clusters=("a", "a"), samples=(1, 1), correct=(0, 0))


def test_entropy_by_hand() -> None:
    assert plug_in_entropy([4]) == 0
    assert plug_in_entropy([3, 3, 3]) == pytest.approx(math.log(3), abs=1e-14)
    assert plug_in_entropy([2, 1, 1]) == pytest.approx(1.5 * math.log(2), abs=1e-14)
    assert miller_madow(0.5, 3, 8) == 0.5 + 2 / 16
    with pytest.raises(ValueError, match="positive counts"):
        plug_in_entropy([])


def test_the_correction_removes_most_of_the_bias() -> None:
    """A fair coin thrown 16 times, over all outcomes: the plug-in is low by about 1/32, the rest is of order 1/n^2."""
    chance = stats.binom.pmf(range(17), 16, 0.5)
    plain = [plug_in_entropy([c for c in (heads, 16 - heads) if c]) for heads in range(17)]
    corrected = [miller_madow(h, 1 if heads in (0, 16) else 2, 16) for heads, h in enumerate(plain)]
    low = math.log(2) - float(chance @ np.array(plain))
    left = math.log(2) - float(chance @ np.array(corrected))
    assert low == pytest.approx(1 / 32, rel=0.1)
    assert abs(left) < 0.1 * low


# Which expressions are one answer.


@pytest.mark.parametrize(
    "same",
    [
        ("3 + 5 - 2", "5+3-2", "(5 - 2) + 3", "3 - (2 - 5)", "((3)) + (5 - 2)", "-2 + 5 + 3", "-(2 - 5) + 3"),
        ("8 * 3 / 4", "8 / 4 * 3", "3 * (8 / 4)", "8 / (4 / 3)", "(3 * 8) / 4"),
        ("2 + 3 * (7 - 4)", "2 - 3 * (4 - 7)", "3 * (7 - 4) + 2", "2 - (4 - 7) * 3"),
        ("(5 - 2) * (9 - 1)", "(2 - 5) * (1 - 9)", "-(2 - 5) * (9 - 1)"),
        ("3 + 3", "3+ 3"),
    ],
)
def test_one_answer_however_it_is_written(same: tuple[str, ...]) -> None:
    assert len({canonical(expression) for expression in same}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2 * 3", "6"),
        ("5 * 1", "5 / 1"),
        ("(1 + 2) * 3", "1 * 3 + 2 * 3"),
        ("5 - 2", "2 - 5"),
        ("8 / 4", "4 / 8"),
        ("2 + 3 * 4", "(2 + 3) * 4"),
        ("5 + 0", "5 - 0"),
    ],
)
def test_other_calculations_are_other_answers(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("text", ["", "x + 1", "1 / 0", "2 ** 3", "1 +", "05 + 1", "__import__('os')", "1" * 500])
def test_what_is_no_expression_has_no_form(text: str) -> None:
    assert canonical(text) is None


def expressions(numbers: tuple[int, ...]) -> list[str]:
    """Every way to combine the numbers, each used once, with brackets around everything."""
    if len(numbers) == 1:
        return [str(numbers[0])]
    found = []
    for mask in range(1, 2 ** len(numbers) - 1):
        left = tuple(number for i, number in enumerate(numbers) if mask >> i & 1)
        right = tuple(number for i, number in enumerate(numbers) if not mask >> i & 1)
        for one, other, sign in itertools.product(expressions(left), expressions(right), "+-*/"):
            found.append(f"({one} {sign} {other})")
    return found


@pytest.mark.parametrize(("count", "published"), [(2, 6), (3, 68), (4, 1170)])
def test_forms_are_the_functions_of_the_numbers(count: int, published: int) -> None:
    """Against the values at numbers too unlike to agree by chance; their count is A140606 of the OEIS."""
    forms: dict[str, Fraction] = {}
    for expression in expressions((1009, 20011, 3000017, 400000009)[:count]):
        form = canonical(expression)
        assert form is not None
        value = evaluate(expression)
        again = evaluate(form)
        assert value is not None
        assert again is not None
        assert again[0] == value[0]
        assert sorted(again[1]) == sorted(value[1])
        assert forms.setdefault(form, value[0]) == value[0]
    assert len(forms) == len(set(forms.values())) == published


# Drawing answers.


@pytest.fixture(scope="module")
def tiny() -> TransformersEngine:
    return TransformersEngine(tiny_llama(), tiny_tokenizer(), batch_size=3)


PROMPTS = [(1, 5, 6, 7), (1, 9), (1, 4, 4, 12, 17, 8, 3), (1, 19, 18)]


def drawn_alone(engine: TransformersEngine, prompt: tuple[int, ...], stream: np.random.Generator, t: float) -> Any:
    """One sequence by inverting the cumulative distribution, without batch, padding or cache."""
    ids = list(prompt)
    while len(ids) < len(prompt) + 6 and (ids[-1] not in engine.end_tokens() or len(ids) == len(prompt)):
        with torch.no_grad():
            logits = engine.model(torch.tensor([ids])).logits[0, -1].double() / t
        steps = logits.softmax(-1).cumsum(-1).numpy()
        ids.append(int(np.searchsorted(steps, stream.random() * steps[-1], side="right")))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_are_those_of_one_private_stream_per_prompt(tiny: TransformersEngine, temperature: float) -> None:
    """A uniform number within rounding of a step, the only way to differ, has a chance of about 1e-6 per token."""
    drawn = tiny.sample(PROMPTS, max_new_tokens=6, seed=5, temperature=temperature)
    for index, (prompt, tokens) in enumerate(zip(PROMPTS, drawn, strict=True)):
        assert tokens == drawn_alone(tiny, prompt, np.random.default_rng([5, index]), temperature)
    if temperature == 1:
        assert drawn == tiny.sample(PROMPTS, max_new_tokens=6, seed=5)


def test_temperature_divides_the_logits() -> None:
    """First-token frequencies over 4,000 draws of one repeated prompt, within 4 standard errors each."""
    count, tiny = 4000, TransformersEngine(tiny_llama(), tiny_tokenizer(), batch_size=500)
    drawn = tiny.sample([PROMPTS[0]] * count, max_new_tokens=1, seed=3, temperature=0.3)
    expected = (tiny.model(torch.tensor([PROMPTS[0]])).logits[0, -1] / 0.3).softmax(-1)
    frequency = torch.bincount(torch.tensor([row[0] for row in drawn]), minlength=20) / count
    allowed = 4 * (expected * (1 - expected) / count).sqrt() + 1 / count
    assert ((frequency - expected).abs() < allowed).all()


def test_logits_that_are_not_finite_are_refused() -> None:
    engine = TransformersEngine(tiny_llama(), tiny_tokenizer(), batch_size=3)
    with torch.no_grad():
        next(engine.model.parameters()).fill_(float("nan"))
    with pytest.raises(DriftlabError, match="not finite"):
        engine.sample(PROMPTS, max_new_tokens=2, seed=0)


def test_an_answer_ends_at_its_stop_string_or_limit() -> None:
    letters = "abcdefgh"

    def decode(tokens: Any) -> str:
        return "".join(letters[token] for token in tokens if token != 7)

    def told(tokens: tuple[int, ...], until: Any, limit: int) -> tuple[str, bool]:
        return as_answer(tokens, {"until": until, "max_gen_toks": limit}, {7}, decode)

    assert told((0, 1, 7), ["x"], 5) == ("ab", False)
    assert told((0, 1, 2), ["x"], 3) == ("abc", True)
    assert told((0, 1, 7), ["x"], 3) == ("ab", False)
    assert told((0, 1, 2, 3), ["c", ""], 4) == ("ab", False)
    assert told((0, 1, 2, 3), "b", 4) == ("a", False)
    # Another task of a group had more room.
    assert told((0, 1, 2, 3, 7), ["d"], 2) == ("ab", True)


def test_what_tells_answers_apart() -> None:
    def verdict(output: str, answer: str | None = None, parsed: bool = True) -> Verdict:
        return Verdict(correct=1.0, chance=0.0, output=output, answer=answer, parsed=parsed)

    assert final_answer("countdown", verdict("so <answer>2 × (3 + 1)</answer>")) == canonical("(1+3)*2")
    assert final_answer("countdown_examples", verdict("3+1</answer>\n<answer>9")) == canonical("1 + 3")
    assert final_answer(TASK, verdict(" 4 + 3")) == canonical("3 + 4")
    assert final_answer("gsm8k_generative", verdict("…\n#### 1,000", answer="1000")) == "1000"
    assert final_answer("another", verdict(" yes ")) == "yes"
    assert final_answer("another", verdict("?", parsed=False)) is None


# The probe on the embedded model.

SETTINGS: dict[str, Any] = {
    "tasks": None, "items": 8, "samples": 6, "k": (1, 2, 6), "temperature": 1.0, "seed": 3, "at": (0, 4),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    base = load_base("nano", dtype=torch.float32, device="cpu")
    return TransformersEngine(base.model, base.tokenizer, batch_size=24)


@pytest.fixture(scope="module")
def scored(engine: TransformersEngine) -> LmEvalProbe:
    probe = LmEvalProbe([TASK, "embedded_rules"], items=20, seed=0, batch_size=16, data=None, max_gen_toks={TASK: 12})
    probe.prepare(engine)
    return probe


def probe_of(scored: LmEvalProbe, engine: TransformersEngine, **settings: Any) -> CoverageProbe:
    probe = CoverageProbe(scored, **{**SETTINGS, **settings})
    probe.prepare(engine)
    return probe


def checkpoint(step: int = 0) -> Checkpoint:
    return Checkpoint(step=step, weights={}, base={}, updates=())


def by_quantity(rows: tuple[Measurement, ...]) -> dict[str, Measurement]:
    assert len({row.quantity for row in rows}) == len(rows)
    return {row.quantity: row for row in rows}


def test_rows_against_answers_drawn_and_scored_by_hand(scored, engine) -> None:
    """The target's own scorer on text that the tokenizer decodes, and plain averages."""
    found = probe_of(scored, engine).measure(checkpoint(), engine)
    asked = {question.item: (question, instance) for question, instance in zip(
        scored.prepared[TASK].questions, scored.prepared[TASK].instances, strict=True
    )}  # fmt: skip
    assert len({one.item for one in found.coverage}) == len(found.coverage) == 8
    prompts = [engine.encode(asked[one.item][1].args[0], chat=False) for one in found.coverage]
    seed = int.from_bytes(hashlib.sha256(f"coverage/3/{TASK}/0".encode()).digest()[:7], "big")
    drawn = engine.sample([p for p in prompts for _ in range(6)], max_new_tokens=12, seed=seed)
    per_problem = []
    for index, one in enumerate(found.coverage):
        doc = asked[one.item][0].doc
        item = Item(id=one.item, prompt="", fields={"numbers": doc["numbers"], "target": doc["target"]})
        texts = [
            engine.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in drawn[6 * index : 6 * index + 6]
        ]
        verdicts = [EmbeddedCountdown().score(item, text) for text in texts]
        forms = [canonical(text) for text, verdict in zip(texts, verdicts, strict=True) if verdict.parsed]
        assert None not in forms
        assert one == CoverageItem(
            step=0,
            task=TASK,
            item=one.item,
            cluster=doc["cluster"],
            samples=6,
            correct=sum(verdict.correct for verdict in verdicts),
            parsed=len(forms),
            truncated=sum(tokens[-1] not in engine.end_tokens() for tokens in drawn[6 * index : 6 * index + 6]),
            distinct=len(set(forms)),
            distinct_correct=len({canonical(t) for t, v in zip(texts, verdicts, strict=True) if v.correct}),
            entropy=one.entropy,
        )
        assert one.entropy == pytest.approx(stats.entropy(list(pd.Series(forms).value_counts())), abs=1e-12)
        per_problem.append((forms, verdicts))
    rows = by_quantity(found.measurements)
    assert list(rows) == [
        "pass_at_1", "pass_at_2", "pass_at_6", "answer_entropy", "answer_entropy_corrected", "distinct_answers",
        "distinct_correct", "unparsed_fraction", "truncated_fraction",
    ]  # fmt: skip
    assert {(row.n, row.status, row.group, row.probe) for row in rows.values()} == {(8, "ok", TASK, "coverage")}
    assert all(row.note.startswith("6 answers per problem, temperature 1, full vocab") for row in rows.values())
    right = [sum(verdict.correct for verdict in verdicts) for _, verdicts in per_problem]
    assert rows["pass_at_1"].value == pytest.approx(np.mean(right) / 6, abs=1e-12)
    assert rows["pass_at_6"].value == pytest.approx(np.mean([c > 0 for c in right]), abs=1e-12)
    clusters = {one.cluster for one in found.coverage}
    assert len(clusters) == 8  # each its own, so that the error is that of a mean
    assert rows["pass_at_1"].stderr == pytest.approx(np.std(right, ddof=1) / 6 / math.sqrt(8), abs=1e-12)
    assert rows["unparsed_fraction"].value == pytest.approx(1 - np.mean([len(forms) for forms, _ in per_problem]) / 6)
    assert 0 < rows["pass_at_1"].value < rows["pass_at_6"].value


def test_no_trace_nothing_at_other_steps_and_independent_draws_between_steps(scored, engine) -> None:
    probe = probe_of(scored, engine)
    first = probe.measure(checkpoint(), engine)
    engine.model.train()
    engine.model.model.layers[0].eval()

    def state() -> tuple[Any, ...]:
        numpy = np.random.get_state()  # noqa: NPY002
        modes = [module.training for module in engine.model.modules()]
        weights = [parameter.tolist() for parameter in engine.model.parameters()]
        return random.getstate(), str(numpy), torch.get_rng_state().tolist(), modes, weights

    before = state()
    assert probe.measure(checkpoint(), engine) == first
    assert state() == before
    engine.model.eval()
    nothing = probe.measure(checkpoint(2), engine)
    assert (nothing.measurements, nothing.coverage, nothing.examples) == ((), (), ())
    later = probe.measure(checkpoint(4), engine)
    assert [one.item for one in later.coverage] == [one.item for one in first.coverage]
    assert [one.correct for one in later.coverage] != [one.correct for one in first.coverage]
    # Greedy scores are as before: the two probes share their requests.
    assert scored.measure(checkpoint(), engine) == scored.measure(checkpoint(), engine)


def test_at_a_tiny_temperature_every_answer_is_the_greedy_one(scored, engine) -> None:
    examples = {one.item: one for one in scored.measure(checkpoint(), engine).examples if one.task == TASK}
    found = probe_of(scored, engine, items=20, samples=2, k=(1, 2), temperature=1e-4).measure(checkpoint(), engine)
    assert len(found.coverage) == 20
    for one in found.coverage:
        greedy = examples[one.item]
        assert (one.correct, one.truncated) == (2 * greedy.correct, 2 * greedy.truncated)
        assert (one.parsed, one.distinct) == (2 * greedy.parsed, int(greedy.parsed))
        assert one.entropy == (0 if greedy.parsed else None)
    rows = by_quantity(found.measurements)
    assert rows["pass_at_1"].value == rows["pass_at_2"].value == np.mean([e.correct for e in examples.values()])


def test_a_task_that_fails_has_failed_rows_and_no_zero(scored) -> None:
    base = load_base("nano", dtype=torch.float32, device="cpu")
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=24)
    probe = probe_of(scored, engine)
    with torch.no_grad():
        next(base.model.parameters()).fill_(float("nan"))
    found = probe.measure(checkpoint(), engine)
    assert found.coverage == ()
    assert [row.quantity for row in found.measurements] == ["pass_at_1", "pass_at_2", "pass_at_6"]
    assert {(row.value, row.status, row.n, row.n_failed) for row in found.measurements} == {(None, "failed", 8, 8)}
    assert all("not finite" in row.note for row in found.measurements)


def test_problems_without_a_readable_answer_are_left_out_of_the_entropy_and_said_so() -> None:
    common = {"step": 0, "task": "t", "samples": 4, "truncated": 0, "distinct_correct": 0, "correct": 0}
    read = CoverageItem(item="a", cluster="a", parsed=4, distinct=2, entropy=0.5, **common)
    unread = CoverageItem(item="b", cluster="b", parsed=0, distinct=0, entropy=None, **common)
    rows = by_quantity(tuple(coverage_rows([read, unread], (1,), "note")))
    assert (rows["answer_entropy"].value, rows["answer_entropy"].n) == (0.5, 1)
    assert rows["answer_entropy_corrected"].value == 0.5 + 1 / 8
    assert "1 of 2 problems have no readable answer" in rows["answer_entropy"].note
    assert (rows["unparsed_fraction"].value, rows["distinct_answers"].value) == (0.5, 1.0)
    none = by_quantity(tuple(coverage_rows([unread], (1,), "note")))
    assert (none["answer_entropy"].value, none["answer_entropy"].status) == (None, "skipped")
    assert (none["pass_at_1"].value, none["pass_at_1"].stderr) == (0.0, None)


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [(["embedded_rules"], "has choices"), (["embedded_twohop"], "is not measured by probes.lm_eval")],
)
def test_tasks_that_cannot_be_sampled_are_refused(scored, tasks, reason) -> None:
    with pytest.raises(DriftlabError, match=f"'{tasks[0]}', which {reason}.*it can sample {TASK}"):
        CoverageProbe(scored, **{**SETTINGS, "tasks": tasks})


# Specs, runs and reports.

TOML = """
name = "tiny"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 8
max_new_tokens = 12
[es]
population = 4
iterations = 4
sigma = 0.02
rollouts = "stacked"
[measure]
every = 2
[probes.lm_eval]
tasks = ["embedded_rules"]
items = 16
batch_size = 64
[probes.coverage]
samples = 4
items = 10
"""


def plan(folder: Path, *overrides: str) -> PlannedRun:
    file = folder / "tiny.toml"
    file.write_text(TOML)
    (planned,) = load_plan(str(file), list(overrides))
    return planned


def quiet(event: Event) -> None:
    """Nobody watches."""


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("probes.coverage.k=[1, 8]", "k holds 8, but 4 answers"),
        ("probes.coverage.k=[64]", "less than or equal to 32"),
        ("probes.coverage.temperature=0", "use a temperature above 0"),
        ("probes.coverage.samples=1", "greater than or equal to 2"),
    ],
)
def test_specs_that_cannot_be_measured_are_one_sentence(tmp_path, override, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        plan(tmp_path, override)


def test_coverage_without_lm_eval_is_refused() -> None:
    given: dict[str, Any] = {
        "name": "n", "model": {"source": "nano"}, "es": {"population": 2, "iterations": 1, "sigma": 0.1},
        "target": {"task": TASK, "train_items": 1, "max_new_tokens": 1},
        "probes": {"coverage": {"samples": 2, "items": 1}},
    }  # fmt: skip
    with pytest.raises(SpecError, match=r"items of probes\.lm_eval, which is absent"):
        resolve(given, "test")


def test_levels_are_powers_of_two_unless_named(tmp_path) -> None:
    def levels(*overrides: str) -> tuple[int, ...]:
        coverage = plan(tmp_path, *overrides).spec.probes.coverage
        assert coverage is not None
        return coverage.levels

    assert levels() == (1, 2, 4)
    assert levels("probes.coverage.samples=50") == (1, 2, 4, 8, 16, 32)
    assert levels("probes.coverage.k=[3, 2, 3]") == (1, 2, 3)


def test_steps_that_are_not_measured_are_refused_before_anything_is_written(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"names step 3, but the measured steps are 0, 2, 4"):
        loop.run(plan(tmp_path, "probes.coverage.at=[0, 3]"), tmp_path / "run", resume=False, listen=quiet)
    assert not (tmp_path / "run").exists()
    assert [probe.name for probe in prepare(plan(tmp_path).spec, None, quiet).probes][-1] == "coverage"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunStore:
    folder = tmp_path_factory.mktemp("finished")
    return loop.run(plan(folder), folder / "run", resume=False, listen=quiet)


def files(run: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted(run.rglob("*"))
        if file.is_file() and file.name not in ("run.json", "updates.jsonl")
    }


def test_a_run_stores_rows_and_problems_of_its_first_and_last_step(finished) -> None:
    rows = [row for row in finished.measurements() if row.probe == "coverage"]
    assert {row.step for row in rows} == {0, 4}
    for step in (0, 4):
        problems = finished.coverage(step)
        assert [(one.step, one.task, one.samples) for one in problems] == [(step, TASK, 4)] * 10
        (row,) = [row for row in rows if row.step == step and row.quantity == "pass_at_4"]
        assert row.value == pytest.approx(np.mean([one.correct > 0 for one in problems]), abs=1e-12)
    assert finished.coverage(2) == []


@pytest.mark.parametrize("step", [0, 4])
def test_interrupted_between_problems_and_rows_and_resumed_equals_uninterrupted(
    tmp_path, finished, monkeypatch, step
) -> None:
    """The worst moment: the problems of a step are stored, its rows are not."""
    whole = RunStore.add_measured

    def killed(self: RunStore, at: int, *rest: Any) -> None:
        if at == step:
            raise KeyboardInterrupt
        whole(self, at, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "add_measured", killed)
        with pytest.raises(KeyboardInterrupt):
            loop.run(plan(tmp_path), tmp_path / "run", resume=False, listen=quiet)
    assert (tmp_path / "run" / "coverage" / f"step-{step:06d}.jsonl.gz").exists()
    # What is not complete is in no report.
    assert [one for one in read_run(tmp_path / "run").coverage if one.step == step] == []
    loop.run(plan(tmp_path), tmp_path / "run", resume=True, listen=quiet)
    assert files(tmp_path / "run") == files(finished.path)


def cells(runs: list[Any], **changed: Any) -> list[dict[str, str]]:
    """The coverage table as shown, by column."""
    table = coverage_table(replace(build_frames(runs), **changed))
    assert table is not None
    assert all(len(row) == len(table.columns) for row in table.rows)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_report_pairs_the_problems(finished) -> None:
    run = read_run(finished.path)
    contents = render(build_frames([run]), [run])
    table = pd.read_csv(io.BytesIO(contents["tables/coverage.csv"]))
    assert list(table["k"]) == [1, 2, 4]
    assert set(table["step"]) == {4}
    base, last = ({one.item: one.correct for one in finished.coverage(step)} for step in (0, 4))
    for row in table.itertuples():
        changes = [pass_at_k(4, last[item], row.k) - pass_at_k(4, base[item], row.k) for item in base]
        assert row.difference == pytest.approx(np.mean(changes), abs=1e-12)
        assert row.low < row.difference < row.high
    final = table[table["k"] == 4].iloc[0]
    assert final["progressions"] == sum(base[item] == 0 < last[item] for item in base)
    assert final["regressions"] == sum(last[item] == 0 < base[item] for item in base)
    assert final["expected"] == pytest.approx(sum(expected_flips(4, 4, base[i] + last[i], 4) for i in base))
    (shown,) = cells([run])
    assert shown["progressed / regressed"] == f"{final['progressions']:.0f} / {final['regressions']:.0f} of 10"
    assert shown["drawn"] == "4 answers per problem, temperature 1, full vocabulary"
    assert shown["pass@k"] == f"{100 * final['base']:.1f} → {100 * final['value']:.1f}"
    assert {"figures/coverage.png", "figures/coverage.svg", "tables/coverage.tex"} <= contents.keys()
    text = contents["report.md"].decode()
    assert "### g. Coverage: pass@k" in text
    assert "### Sampled answers, base → last sampled step" in text


def test_a_step_that_failed_or_is_missing_is_no_number(finished) -> None:
    run = read_run(finished.path)
    frames = build_frames([run])
    rows, late = frames.measurements, frames.measurements["step"] == 4
    broken = rows.assign(value=rows["value"].mask(late), status=rows["status"].mask(late, "failed"))
    passes = ~late | rows["quantity"].str.startswith("pass_at_") | (rows["probe"] != "coverage")
    only_base = frames.coverage[frames.coverage["step"] == 0]
    (shown,) = cells([run], measurements=broken[passes], coverage=only_base)
    for column in ("pass@1", "pass@k", "entropy, nats", "distinct right"):
        assert shown[column].endswith(" → failed")
    told = ("change of pass@1", "change of pass@k", "progressed / regressed", "by chance")
    assert [shown[column] for column in told] == ["–"] * 4
    (shown,) = cells(
        [run], measurements=rows[rows["step"] == 4], coverage=frames.coverage[frames.coverage["step"] == 4]
    )
    assert shown["pass@1"].startswith("not measured → ")
    assert shown["change of pass@k"] == "–"


def test_seeds_of_an_arm_and_a_base_alone_can_be_reported(finished, tmp_path) -> None:
    other = loop.run(plan(tmp_path, "seed=1"), tmp_path / "run", resume=False, listen=quiet)
    runs = [read_run(store.path) for store in (finished, other)]
    assert len(cells(runs)) == 2
    # The same base asked the same gives the same answers, whatever the training seed.
    assert finished.coverage(0) == other.coverage(0)
    (axes,) = coverage_figure(build_frames(runs)).axes
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines if len(line.get_xdata()) == 3]
    rates = [
        [np.mean([pass_at_k(4, one.correct, k) for one in problems]) for k in (1, 2, 4)]
        for problems in (finished.coverage(0), finished.coverage(4), other.coverage(4))
    ]
    # The base once, each seed, their mean.
    for expected in (*rates, np.mean(rates[1:], axis=0)):
        assert any(np.allclose(line, expected, rtol=0, atol=1e-12) for line in drawn)
    only_base = loop.run(plan(tmp_path, "probes.coverage.at=[0]"), tmp_path / "base", resume=False, listen=quiet)
    run = read_run(only_base.path)
    (shown,) = cells([run])
    assert shown["change of pass@k"] == "–"
    assert " → " not in shown["pass@k"]
    (axes,) = coverage_figure(build_frames([run])).axes
    (line,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert np.allclose(np.asarray(line.get_ydata(), dtype=float), rates[0], rtol=0, atol=1e-12)


def test_a_report_without_sampled_answers_has_no_place_for_them() -> None:
    frames = build_frames([read_run(REPORTS / "nano-awd" / "es-s0")])
    assert "coverage" not in [table.name for table in all_tables(frames)]
    assert not drawable(frames)
    assert frames.coverage.empty
