"""Countdown with worked examples: what each kind of completion earns, by hand."""

from __future__ import annotations

import pytest

from driftlab.tasks.countdown_examples import doc_to_text, process_results, score

NUMBERS, TARGET = (44, 19, 35), 98


@pytest.mark.parametrize(
    ("completion", "reward", "correct", "parsed"),
    [
        ("44 + 19 + 35</answer>\nNumbers: 1, 2", 1.1, True, True),
        ("35 + 19 + 44", 1.1, True, True),
        ("44 + 19 - 35</answer>", 0.1, False, True),  # readable, the right numbers
        ("98</answer>", 0.05, False, True),  # readable only
        ("44 + 19 + 35 + 0</answer>", 0.05, False, True),
        ("add them</answer> <answer>44 + 19 + 35</answer>", 0.0, False, False),  # only the first answer counts
        ("", 0.0, False, False),
        ("__import__('os')", 0.0, False, False),
    ],
)
def test_score(completion, reward, correct, parsed):
    verdict = score(NUMBERS, TARGET, completion)
    assert verdict.reward == pytest.approx(reward, abs=1e-12)
    assert (verdict.correct, verdict.parsed) == (correct, parsed)


def test_the_evaluation_task_uses_the_same_prompt_and_verdict():
    doc = {"numbers": list(NUMBERS), "target": TARGET}
    assert doc_to_text(doc).endswith("Numbers: 44, 19, 35. Target: 98. <answer>")
    assert process_results(doc, ["44 + 19 + 35"]) == {"acc": 1.0, "parsed": 1.0, "reward": pytest.approx(1.1)}


def test_the_worked_examples_are_right():
    solved = [line for line in doc_to_text({"numbers": [1], "target": 1}).splitlines() if "</answer>" in line]
    assert len(solved) == 2
    for line in solved:
        numbers = [int(n) for n in line.split("Numbers: ")[1].split(".")[0].split(", ")]
        goal = int(line.split("Target: ")[1].split(".")[0])
        assert score(numbers, goal, line.split("<answer>")[1]).correct
