"""Reward functions against outputs that answer nothing, and their parsers against any text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftlab.cli import app
from driftlab.tasks.arithmetic import reaches
from driftlab.tasks.audit import CANNED, FORMS, Form, audit, fuzz, fuzzed, solution
from driftlab.tasks.base import Item, Score
from driftlab.tasks.targets import TARGETS

WITHOUT_DATA = ("countdown_generated", "embedded_countdown")


def drawn(name: str, data: Path | None = None, count: int = 10) -> tuple[Item, ...]:
    return TARGETS[name].train_items(count=count, seed=0, data=data)


def test_every_target_says_how_it_wants_its_answers():
    assert FORMS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_the_forms_are_the_right_ones(name):
    """What the audit calls right earns the highest reward, and what it calls wrong no answer credit."""
    target, form = TARGETS[name], FORMS[name]
    known = 0
    for item in drawn(name):
        answer = form.right(item)
        if answer is not None:
            known += 1
            assert target.score(item, form.wrap(answer)).correct
        assert not target.score(item, form.wrap(form.wrong(item))).correct
    assert known == 10  # both draw solvable items only


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_no_degenerate_output_counts_as_right(name):
    findings = {finding.output: finding for finding in audit(TARGETS[name], drawn(name), FORMS[name])}
    assert {"empty", "code", "overlong", "tower of powers"} <= findings.keys()
    assert all(finding.correct == 0 for finding in findings.values())
    assert findings["empty"].highest == 0.0


def test_countdown_pays_for_form_alone():
    """A tenth for a readable expression in answer tags, half of it for the tags: LIT-238's graded format score."""
    findings = {
        f.output: f for f in audit(TARGETS["countdown_generated"], drawn("countdown_generated"), FORMS["countdown"])
    }
    assert findings["right form, wrong content"].mean == pytest.approx(0.1, abs=1e-15)
    assert findings["right form, nothing in it"].mean == pytest.approx(0.05, abs=1e-15)
    assert findings["right content, wrong form"].highest == 0.0
    # The prompt shows the form with an example, so that repeating it earns the format's share.
    assert findings["prompt echoed"].mean == pytest.approx(0.1, abs=1e-15)


def test_the_embedded_target_pays_for_nothing_but_answers():
    findings = audit(TARGETS["embedded_countdown"], drawn("embedded_countdown"), FORMS["embedded_countdown"])
    assert all(finding.highest == 0.0 for finding in findings)


def test_code_is_never_run(tmp_path):
    marker = tmp_path / "ran"
    code = f"__import__('pathlib').Path('{marker}').touch()"
    for name in TARGETS:
        if name in WITHOUT_DATA:
            item = drawn(name, count=1)[0]
            for text in (code, FORMS[name].wrap(code), FORMS[name].wrap(f"({code})")):
                assert not TARGETS[name].score(item, text).correct
    assert not marker.exists()


def test_solutions_are_found_where_brackets_are_needed():
    def item(numbers: list[int], target: float) -> Item:
        return Item(id="0" * 16, prompt="", fields={"numbers": numbers, "target": target})

    # (8 / (3 - 8 / 3)) = 24 is the classic that needs a fraction on the way.
    found = solution(item([3, 3, 8, 8], 24))
    assert found is not None
    assert reaches(found, [3, 3, 8, 8], 24)
    assert solution(item([1, 1, 1, 1], 24)) is None  # four ones reach 9 at most


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_parsers_survive_ten_thousand_random_texts(name):
    items, form = drawn(name), FORMS[name]
    texts = list(fuzzed(items, form, count=10_000, seed=1))
    assert len(set(texts)) > 7_000  # short ones repeat
    assert fuzz(TARGETS[name], items, form, count=10_000, seed=1) == []


@pytest.mark.parametrize("name", ["countdown", "countdown_examples", "gsm8k"])
def test_tasks_on_real_items(name, data):
    items, form = drawn(name, data), FORMS[name]
    assert all(finding.correct == 0 for finding in audit(TARGETS[name], items, form))
    assert fuzz(TARGETS[name], items, form, count=10_000, seed=2) == []


def proofwriter_item() -> Item:
    return Item(id="1" * 16, prompt="Is it?", fields={"theory": "", "question": "", "answer": "True"})


def test_proofwriter_on_an_item_of_its_kind():
    items, form = [proofwriter_item()], FORMS["proofwriter"]
    assert all(finding.correct == 0 for finding in audit(TARGETS["proofwriter"], items, form))
    assert fuzz(TARGETS["proofwriter"], items, form, count=10_000, seed=3) == []


class Lenient:
    """A scorer with two faults: it takes a right number anywhere, and dies of a null byte."""

    name = lm_eval_task = "lenient"

    def train_items(self, *, count, seed, data):
        raise NotImplementedError

    def score(self, item: Item, completion: str) -> Score:
        if "\x00" in completion:
            raise ValueError("null")
        found = "7" in completion
        return Score(reward=math.inf if "inf" in completion else float(found), correct=found, parsed=True)


def test_planted_faults_are_found():
    item = Item(id="2" * 16, prompt="what makes 7 ?", fields={"numbers": [3, 4], "target": 7})
    form = Form(wrap=lambda x: f"[{x}]", right=lambda item: "7", wrong=lambda item: "8")
    names = {name for name in CANNED if name != "null byte"}
    findings = {}
    for name in names:
        text = CANNED[name](item, form)
        findings[name] = text is not None and Lenient().score(item, text).correct
    assert findings["prompt echoed"]
    assert findings["all candidates listed"]
    assert not findings["empty"]
    problems = {crash.problem for crash in fuzz(Lenient(), [item], form, count=2_000, seed=0)}
    assert problems == {"ValueError: null", "reward inf"}


def test_the_command_tells_and_exits_by_what_it_found():
    result = CliRunner().invoke(app, ["audit", "embedded_countdown", "countdown_generated", "--fuzz", "100"])
    assert result.exit_code == 0, result.output
    assert "embedded_countdown: 24 degenerate outputs on 20 items, 0 earn more than 0" in result.output
    assert "0 (form only)" in result.output


def test_the_command_fails_where_an_output_counts_as_right(monkeypatch):
    lenient = {
        **FORMS,
        "embedded_countdown": Form(wrap=lambda x: x, right=lambda i: None, wrong=FORMS["embedded_countdown"].right),
    }
    monkeypatch.setattr("driftlab.tasks.audit.FORMS", lenient)
    result = CliRunner().invoke(app, ["audit", "embedded_countdown", "--fuzz", "0"])
    assert result.exit_code == 1
    assert "(a fault)" in result.output
