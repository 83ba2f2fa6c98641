"""Countdown: the scorer, the generator, and what untrusted text can do to them."""

from __future__ import annotations

import itertools
import json
import random
import string
from fractions import Fraction
from pathlib import Path

import pytest

from driftlab.errors import MissingDataError, SpecError
from driftlab.tasks.base import Item
from driftlab.tasks.countdown import (
    Countdown,
    GeneratedCountdown,
    answer,
    evaluation_items,
    folder_items,
    format_score,
    process_results,
    prompt,
    score,
)
from driftlab.tasks.targets import TARGETS, target


@pytest.mark.parametrize(
    ("completion", "correct", "parsed", "format_"),
    [
        ("<think>hm</think><answer>(44 + 19) + 35</answer>", True, True, 1.0),
        ("<answer>44 + 19 + 35", True, True, 1.0),  # the stop string was removed
        ("<answer> 44+19+35 = 98 </answer>", True, True, 1.0),
        ("<answer>1</answer> no: <answer>35 + 44 + 19</answer>", True, True, 1.0),  # the last one counts
        ("<answer>44 + 19 + 35 + 0</answer>", False, True, 1.0),  # a number that was not given
        ("<answer>44 + 54</answer>", False, True, 1.0),
        ("<answer>98</answer>", False, True, 1.0),
        ("<answer>44 - 19 + 35</answer>", False, True, 1.0),
        ("<answer>forty-four plus 54</answer>", False, False, 0.5),
        ("<answer></answer>", False, False, 0.5),
        ("<answer>44 / (19 - 19) + 35</answer>", False, False, 0.5),
        ("<answer>__import__('os').system('true')</answer>", False, False, 0.5),
        ("<answer>9**9**9**9</answer>", False, False, 0.5),
        ("<answer>44 // 19</answer>", False, False, 0.5),
        ("<answer>" + "(" * 10_000 + "</answer>", False, False, 0.5),
        ("<answer>" + "9" * 10_000, False, False, 0.5),
        ("<think>never closed", False, False, 0.5),
        ("44 + 19 + 35", False, False, 0.0),  # no tag, no answer
        ("", False, False, 0.0),
    ],
)
def test_scorer(completion: str, correct: bool, parsed: bool, format_: float) -> None:
    verdict = score([44, 19, 35], 98, completion)
    assert (verdict.correct, verdict.parsed, format_score(completion)) == (correct, parsed, format_)
    assert verdict.reward == pytest.approx(float(correct) + 0.1 * format_)
    metrics = process_results({"numbers": [44, 19, 35], "target": 98.0}, [completion])
    assert metrics == {
        "acc": float(correct), "parsed": float(parsed), "format": format_, "reward": verdict.reward
    }  # fmt: skip


def test_targets_that_are_not_whole() -> None:
    assert score([137, 5], 27.4, "<answer>137 / 5</answer>").correct
    assert score([80, 10, 3], 266.6666666666667, "<answer>80 * 10 / 3</answer>").correct
    assert not score([80, 10, 3], 266.66, "<answer>80 * 10 / 3</answer>").correct
    assert not score([80, 10, 3], 266.6666666666667, "<answer>800 / 3</answer>").correct
    assert "equals 27.4." in prompt([137, 5], 27.4)
    assert "equals 98." in prompt([44, 19, 35], 98.0)


def test_typeset_signs_are_read() -> None:
    assert answer("<answer>6 × 7 − 2</answer>") == "6 * 7 - 2"


def test_random_text_never_raises() -> None:
    generator = random.Random(0)
    pieces = [
        *string.printable,
        "<answer>",
        "</answer>",
        "<think>",
        "**",
        "//",
        "()",
        "12",
        "\u0661",
        "\x00",
        "é",
        "=",
        "e9",
    ]
    for _ in range(5000):
        text = "<answer>" + "".join(generator.choices(pieces, k=generator.randint(0, 60)))
        verdict = score([3, 4, 5], 12, text)
        assert 0.0 <= verdict.reward <= 1.1


def reachable(values: tuple[Fraction, ...], wanted: Fraction) -> bool:
    """Whether some expression over all ``values`` equals ``wanted``: tries every order, operation and bracketing."""
    if len(values) == 1:
        return values[0] == wanted
    for i, j in itertools.permutations(range(len(values)), 2):
        a, b = values[i], values[j]
        rest = tuple(value for k, value in enumerate(values) if k not in (i, j))
        results = {a + b, a - b, a * b} | ({a / b} if b else set())
        if any(reachable((result, *rest), wanted) for result in results):
            return True
    return False


def solvable(item: Item) -> bool:
    return reachable(tuple(Fraction(number) for number in item.fields["numbers"]), Fraction(item.fields["target"]))


def test_generated_items_are_solvable() -> None:
    items = GeneratedCountdown().train_items(count=60, seed=1, data=None)
    assert all(solvable(item) for item in items)
    assert {len(item.fields["numbers"]) for item in items} == {3, 4}
    assert all(1 <= number <= 99 for item in items for number in item.fields["numbers"])
    assert all(10 <= item.fields["target"] <= 100 for item in items)
    assert not any(item.fields["target"] in item.fields["numbers"] for item in items)


def test_generated_items_are_deterministic_and_distinct() -> None:
    target_task = GeneratedCountdown()
    items = target_task.train_items(count=300, seed=5, data=None)
    assert items == target_task.train_items(count=300, seed=5, data=None)
    assert items[:100] == target_task.train_items(count=100, seed=5, data=None)
    assert items != target_task.train_items(count=300, seed=6, data=None)
    assert len({item.id for item in items}) == 300


def test_training_and_evaluation_items_are_disjoint() -> None:
    def key(numbers: list[int], wanted: float) -> tuple[tuple[int, ...], float]:
        return tuple(sorted(numbers)), wanted

    evaluation = {key(row["numbers"], row["target"]) for row in evaluation_items(count=500)["test"]}
    assert len(evaluation) == 500
    for seed in range(4):
        items = GeneratedCountdown().train_items(count=500, seed=seed, data=None)
        assert not evaluation & {key(item.fields["numbers"], item.fields["target"]) for item in items}


def test_folder_items(tmp_path: Path) -> None:
    folder = tmp_path / "countdown"
    folder.mkdir()
    rows = [{"id": i, "numbers": [i, 2, 3], "target": i + 5} for i in range(1, 6)]
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "test.jsonl").write_text('{"numbers": [1, 2], "target": 3}\n{"numbers": [137, 5], "target": 27.4}\n')
    items = Countdown().train_items(count=3, seed=0, data=tmp_path)
    assert items == Countdown().train_items(count=3, seed=0, data=tmp_path)
    assert len({item.id for item in items}) == 3
    numbers = items[0].fields["numbers"]
    assert Countdown().score(items[0], f"<answer>{'+'.join(map(str, numbers))}</answer>").reward == pytest.approx(1.1)
    assert folder_items(folder=str(folder))["test"]["target"][:] == [3.0, 27.4]
    with pytest.raises(SpecError, match="5 training items"):
        Countdown().train_items(count=6, seed=0, data=tmp_path)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"--data DIR.*countdown_generated"):
        Countdown().train_items(count=1, seed=0, data=None)
    with pytest.raises(MissingDataError, match=str(tmp_path)):
        Countdown().train_items(count=1, seed=0, data=tmp_path)


def test_real_items(data_dir: Path) -> None:
    items = Countdown().train_items(count=200, seed=0, data=data_dir)
    assert len({item.id for item in items}) == 200


def test_targets_by_name() -> None:
    assert all(found.name == name for name, found in TARGETS.items())
    assert target("countdown_generated").lm_eval_task == "countdown_generated"
    with pytest.raises(SpecError, match=r"'countdwn'.*countdown"):
        target("countdwn")
