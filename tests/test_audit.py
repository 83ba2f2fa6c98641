"""Reward functions against outputs that answer nothing, and their parsers against any text."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from driftlab.cli import app
from driftlab.errors import DriftlabError
from driftlab.tasks import audit_fuzz, countdown, countdown_examples
from driftlab.tasks.arithmetic import evaluate
from driftlab.tasks.audit import CANNED, CONTROL, FORMS, MARK, Finding, audit
from driftlab.tasks.audit_forms import Form, solution
from driftlab.tasks.audit_fuzz import KINDS, fuzz, fuzzed, soup
from driftlab.tasks.base import Item, Score
from driftlab.tasks.canonical import canonical
from driftlab.tasks.generative import extract
from driftlab.tasks.targets import TARGETS

FILES: dict[str, list[dict[str, Any]]] = {
    "countdown/train.jsonl": [
        {"numbers": [44, 19, 35], "target": 98},
        {"numbers": [3, 3, 8, 8], "target": 24},
        {"numbers": [1, 1, 1], "target": 50},  # no solution
        {"numbers": [3, 100, 8], "target": 266.6666666666667},  # 8 * 100 / 3, rounded to a double
    ],
    "openai/gsm8k/main-train.jsonl": [
        {"question": "Tom has 2 bags of 7 and 1 more. How many?", "answer": "2 * 7 = 14\n14 + 1 = 15\n#### 15"},
        {"question": "A car of $1,200 costs a quarter less. How much?", "answer": "A quarter is 300.\n#### 900"},
        {"question": "Half of 5 apples?", "answer": "5 / 2 = 2.5\n#### 2.5"},
    ],
    "tasksource/proofwriter/train.jsonl": [
        {"theory": "Anne is big. Big things are kind.", "question": f"Anne is {what}.", "answer": answer}
        for what, answer in (("kind", "True"), ("not kind", "False"), ("red", "Unknown"))
    ],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, rows in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def drawn(name: str, data: Path) -> tuple[Item, ...]:
    """Of tasks that read files all items, of the others eight."""
    count = {"countdown": 4, "countdown_examples": 4, "gsm8k": 3, "proofwriter": 3}.get(name, 8)
    return TARGETS[name].train_items(count=count, seed=0, data=data)


def audited(name: str, data: Path) -> dict[str, Finding]:
    return {finding.output: finding for finding in audit(TARGETS[name], drawn(name, data), FORMS[name])}


# Canned outputs.


def test_every_target_says_how_it_wants_its_answers() -> None:
    assert FORMS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_right_answers_alone_have_answer_credit(name: str, data: Path) -> None:
    findings = audited(name, data)
    assert [finding for finding in findings.values() if finding.fault] == []
    assert all(finding.right for finding in findings.values() if finding.correct)
    # Every item with a known answer earns the most there is: 1, or 1.1 where form counts a tenth.
    assert findings[CONTROL].mean == pytest.approx(1.0 if name.startswith("embedded_") else 1.1, abs=1e-15)
    assert findings[CONTROL].correct == findings[CONTROL].n > 0
    assert MARK not in os.environ


def test_countdown_pays_for_form_alone(data: Path) -> None:
    """A tenth for a readable expression in answer tags, half of it for a tag: LIT-238's graded format score."""
    findings = audited("countdown_generated", data)
    assert findings["right form, wrong content"].mean == pytest.approx(0.1, abs=1e-15)
    assert findings["right form, nothing in it"].mean == pytest.approx(0.05, abs=1e-15)
    # The prompt shows the form with an example.
    assert findings["prompt echoed"].mean == pytest.approx(0.1, abs=1e-15)
    assert findings["prompt echoed"].why == "form alone"
    for nothing in ("empty", "white space", "right content, wrong form", "overlong letters"):
        assert (findings[nothing].highest, findings[nothing].why) == (0.0, "")


def test_the_embedded_target_pays_for_nothing_but_answers(data: Path) -> None:
    paid = {finding.output for finding in audited("embedded_countdown", data).values() if finding.paid}
    # Its form is the answer itself, so nesting changes nothing.
    assert paid == {CONTROL, "the right answer, nested"}


class Careless:
    """A scorer with the faults that it is told to have; otherwise right if ``<7>`` is the whole completion."""

    name = lm_eval_task = "careless"

    def __init__(self, verdict: Callable[[str], Score | None]) -> None:
        self.verdict = verdict

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        return (Item(id="2" * 16, prompt="what makes 7 ?", fields={}),) * count

    def score(self, item: Item, completion: str) -> Score:
        right = completion == "<7>"
        return self.verdict(completion) or Score(reward=float(right), correct=right, parsed=True)


PLAIN = Form(
    wrap=lambda content: f"<{content}>", right=lambda item: "7", wrong=lambda item: "8", copied=lambda item: ("0",),
    counts=None, whole=True, format_credit=0.0, highest=1.0,
)  # fmt: skip


def problems(verdict: Callable[[str], Score | None]) -> dict[str, str]:
    """Problem by output that the audit finds in a scorer with one fault."""
    careless = Careless(verdict)
    findings = audit(careless, careless.train_items(count=2, seed=0, data=None), PLAIN)
    assert {finding.output for finding in findings} == CANNED.keys() - {"the right answer with × ÷ −"}
    return {finding.output: finding.problem for finding in findings if finding.problem is not None}


def paid(reward: float) -> Score:
    return Score(reward=reward, correct=False, parsed=True)


def test_a_scorer_without_a_fault_has_none() -> None:
    assert problems(lambda text: None) == {}


def test_a_right_answer_anywhere_is_a_fault() -> None:
    found = problems(lambda text: Score(reward=1.0, correct=True, parsed=True) if "7" in text else None)
    assert {"prompt echoed", "all candidates listed", "right content, wrong form"} <= found.keys()
    assert CONTROL not in found
    assert set(found.values()) == {"answer credit, but the answer is not right"}


def test_answer_credit_in_reward_alone_is_a_fault() -> None:
    assert problems(lambda text: None if text else paid(0.2)) == {"empty": "answer credit, but the answer is not right"}


def test_code_that_runs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)

    def runs(text: str) -> Score | None:
        if text.startswith("__import__"):
            eval(text)
        return None

    assert problems(runs) == {"code": "the scorer runs the code"}
    assert MARK not in os.environ


def test_a_scorer_that_raises_or_leaves_its_range_is_a_fault() -> None:
    def dies(text: str) -> Score | None:
        if text == "\x00":
            raise ValueError("null")
        return None

    assert problems(dies) == {"null bytes": "the scorer raises ValueError: null"}
    assert problems(lambda text: paid(math.nan) if text == "nan" else None) == {
        "not a number, or infinite": "the reward is nan"
    }
    assert problems(lambda text: paid(math.inf) if text == "" else None) == {"empty": "the reward is inf"}
    assert problems(lambda text: paid(-1.0) if text == "" else None) == {"empty": "the reward -1 is not in 0 to 1"}
    too_much = problems(lambda text: Score(reward=2.0, correct=True, parsed=True) if text == "<7>" else None)
    assert too_much[CONTROL] == "the reward 2 is not in 0 to 1"


def test_a_scorer_that_pays_nothing_proves_nothing() -> None:
    assert problems(lambda text: paid(0.0))[CONTROL].startswith("a right answer earns no answer credit")


def reachable(numbers: list[int]) -> set[Fraction]:
    """Every value of three numbers, each once: both ways to put brackets, by Python's own arithmetic."""
    found = set()
    for a, b, c in itertools.permutations(map(Fraction, numbers)):
        for first, second in itertools.product("+-*/", repeat=2):
            for text in (f"(a {first} b) {second} c", f"a {first} (b {second} c)"):
                try:
                    found.add(eval(text, {"a": a, "b": b, "c": c}))
                except ZeroDivisionError:
                    continue
    return found


def test_a_solution_is_found_exactly_where_there_is_one() -> None:
    generator = random.Random(3)
    hits = 0
    for _ in range(150):
        numbers, target = [generator.randint(1, 12) for _ in range(3)], generator.randint(1, 40)
        found = solution(Item(id="0" * 16, prompt="", fields={"numbers": numbers, "target": target}))
        assert (found is not None) == (target in reachable(numbers))
        if found is not None:
            hits += 1
            assert sorted(map(int, re.findall("[0-9]+", found))) == sorted(numbers)
            assert eval(re.sub("([0-9]+)", r"Fraction(\1)", found)) == target
    assert 20 < hits < 130


# Random texts.


@pytest.mark.parametrize("name", TARGETS)
def test_scorers_survive_ten_thousand_random_texts(name: str, data: Path) -> None:
    items, form = drawn(name, data), FORMS[name]
    found = fuzz(TARGETS[name], items, form, count=10_000, seed=1)
    assert found.crashes == ()
    # Some mutated answers are still right: the texts come close to what is read.
    assert 20 < found.correct <= found.paid < 10_000


def test_texts_are_many_and_the_same_for_a_seed(data: Path) -> None:
    items, form = drawn("countdown_generated", data), FORMS["countdown_generated"]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    texts = list(fuzzed(items, form, count=2_000, seed=1))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    assert texts == list(fuzzed(items, form, count=2_000, seed=1))
    assert texts != list(fuzzed(items, form, count=2_000, seed=2))
    assert Counter(kind for kind, _, _ in texts) == dict.fromkeys(KINDS, 400)
    assert len({text for _, _, text in texts}) > 1_500
    assert max(len(text) for _, _, text in texts) == audit_fuzz.LONGEST


def test_random_texts_find_planted_faults() -> None:
    def careless(text: str) -> Score | None:
        if "\x00" in text:
            raise ValueError("null")
        return paid(math.inf) if "inf" in text else None

    scorer = Careless(careless)
    found = fuzz(scorer, scorer.train_items(count=2, seed=0, data=None), PLAIN, count=2_000, seed=0)
    assert {crash.problem for crash in found.crashes} == {"ValueError: null", "the reward is inf"}


READERS: dict[str, Callable[[str], Any]] = {
    "digit": lambda text: extract.digit(text, "1234"),
    "letter": lambda text: extract.letter(text, 5),
    "label": extract.label,
    "number": extract.number,
    "last line": extract.last_line,
    "evaluate": evaluate,
    "canonical": canonical,
    "countdown.answer": countdown.answer,
    "countdown.format_score": countdown.format_score,
    "countdown_examples.score": lambda text: countdown_examples.score([1, 2, 3], 6, text),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_survive_ten_thousand_random_texts(name: str, data: Path) -> None:
    read = READERS[name]
    items = drawn("countdown_generated", data)
    answers = [read(text) for _, _, text in fuzzed(items, FORMS["countdown_generated"], count=10_000, seed=4)]
    assert len(answers) == 10_000


def test_evaluate_agrees_with_python_on_ten_thousand_expressions() -> None:
    """Python itself, on fractions. It also knows a plus sign before a number, which is refused here."""
    generator = np.random.default_rng(5)
    pieces = (*"123456789", "10", *"+-*/", " + ", " - ", " * ", " / ", "(", ")", " ")
    agreed = 0
    for _ in range(10_000):
        text = soup(generator, pieces, 12)
        found = evaluate(text)
        refused = re.search(r"\*\s*\*|/\s*/", text) or re.search(r"(^|[-+*/(])\s*\+", text)
        try:
            # Ruling out these operators first leaves no power to blow up.
            value = None if refused else eval(re.sub("([0-9]+)", r"Fraction(\1)", text.strip()))
        except (SyntaxError, TypeError, ZeroDivisionError):
            value = None
        value = value if isinstance(value, Fraction) else None  # "()" is a tuple
        assert (None if found is None else found[0]) == value, text
        agreed += value is not None
    assert agreed > 300


HOSTILE: dict[str, Callable[[int], str]] = {
    "letters": lambda n: "a" * n,
    "open tags": lambda n: "<answer>" * (n // 8),
    "sum": lambda n: "<answer>" + "1+" * (n // 2) + "1</answer>",
    "brackets": lambda n: "(" * (n // 2) + "1" + ")" * (n // 2),
    "minus signs": lambda n: "-" * n + "1",
    "digits": lambda n: "#### " + "9" * n,
    "thousands": lambda n: "#### 1" + ",000" * (n // 4),
    "equal signs": lambda n: "<answer>1" + "=" * n,
    "stars": lambda n: "#### " + "*" * n + "1",
    "the answer is": lambda n: "the answer is " * (n // 14),
    "answers": lambda n: "Answer: " * (n // 8),
    "spaces": lambda n: "Answer:" + " " * n + "x",
}


def calls(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that ``work`` makes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", HOSTILE)
def test_long_texts_in_one_line_take_no_more_calls(kind: str, data: Path) -> None:
    """What the work of Python comes to does not grow with the text; a pattern that backtracks would not come back."""
    short, long = HOSTILE[kind](1_000), HOSTILE[kind](200_000)
    for name in TARGETS:
        item = drawn(name, data)[0]
        counts = [calls(partial(TARGETS[name].score, item, text)) for text in (short, long)]
        assert counts[1] <= counts[0], name
        assert counts[0] < 200, name


@pytest.mark.parametrize("line", ["#### x", "Answer: X", "<answer>", "####", "\x1c"])
def test_work_grows_with_the_number_of_lines_and_no_faster(line: str, data: Path) -> None:
    for name in TARGETS:
        item = drawn(name, data)[0]
        some, more = (calls(partial(TARGETS[name].score, item, f"{line}\n" * n)) for n in (2_000, 4_000))
        assert more <= 2 * some + 50, name


def test_bombs_are_refused_unevaluated() -> None:
    for bomb in ("9**9**9**9", "9**9", "(9**9)**9", "9//1", "9%1", "1<<99", "9" * 201, "((((" * 60, "-" * 201):
        assert evaluate(bomb) is None
        assert calls(partial(evaluate, bomb)) < 60
    # The largest value that fits: four factors of 49 nines.
    found = evaluate("*".join(["9" * 49] * 4))
    assert found is not None
    assert found[0] == (10**49 - 1) ** 4


# The command.


def test_the_command_tells_what_it_found_and_what_it_left_out(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "data"
    (own / "countdown").mkdir(parents=True)
    rows = FILES["countdown/train.jsonl"]
    (own / "countdown" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["audit", "--fuzz", "50", "--items", "4", "--data", str(own), "--out"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "a")])
    assert result.exit_code == 0, result.output
    assert "countdown: " in result.output
    assert "on 4 items (3 with a known right answer)" in result.output
    for name in ("gsm8k", "proofwriter"):
        assert f"{name}: not audited, " in result.output
    assert "No fault: of these texts countdown, countdown_examples, countdown_generated, embedded_" in result.output
    page = (tmp_path / "a" / "audit.md").read_text()
    assert "| countdown | right form, wrong content | 4 of 4 | 0.100 | 0.100 | 0 | form alone |" in page
    assert str(tmp_path) not in page
    outputs = pd.read_csv(tmp_path / "a" / "outputs.csv")
    assert set(outputs["target"]) == TARGETS.keys() - {"gsm8k", "proofwriter"}
    assert not outputs["fault"].any()
    texts = pd.read_csv(tmp_path / "a" / "random-texts.csv")
    assert texts["texts"].tolist() == [50] * (len(TARGETS) - 2)

    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "b")]).exit_code == 0
    for name in ("audit.md", "outputs.csv", "random-texts.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_command_fails_where_an_output_counts_as_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Lenient(type(TARGETS["embedded_countdown"])):  # type: ignore[misc]
        def score(self, item: Item, completion: str) -> Score:
            if not completion:
                return Score(reward=1.0, correct=True, parsed=True)
            if completion.startswith("9"):
                raise OverflowError("too many nines")
            return super().score(item, completion)

    monkeypatch.setitem(TARGETS, "embedded_countdown", Lenient())
    result = CliRunner().invoke(app, ["audit", "embedded_countdown", "--fuzz", "500", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "Faults: embedded_countdown (" in result.output
    page = (tmp_path / "out" / "audit.md").read_text()
    assert "fault: answer credit, but the answer is not right" in page
    assert "OverflowError: too many nines" in page


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    for arguments, sentence in (
        (["audit", "countdwn"], "unknown target task 'countdwn'"),
        (["audit", "countdown", "--data", str(tmp_path)], "Countdown needs"),
        (["audit", "embedded_countdown", "--out", str(taken)], "is not an audit"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, DriftlabError)
        assert sentence in str(result.exception)
    assert [file.name for file in taken.iterdir()] == ["notes.txt"]
