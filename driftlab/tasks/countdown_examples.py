"""Countdown posed with two worked examples, for base models too small to follow instructions.

The same items and the same verdict as ``countdown``; only the prompt differs. It ends inside an open answer tag, so
the completion is the expression, and what follows ``</answer>`` (more invented examples) does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.tasks import countdown
from driftlab.tasks.arithmetic import evaluate
from driftlab.tasks.base import Item, Score

_EXAMPLES = (((3, 8, 5), 6, "3 + 8 - 5"), ((20, 6, 2, 10), 18, "20 + 6 + 2 - 10"))


def prompt(numbers: Sequence[int], target: float) -> str:
    """Two worked examples, then the item up to the open answer tag."""
    solved = "".join(f"{_posed(given, goal)} <answer>{solution}</answer>\n" for given, goal, solution in _EXAMPLES)
    return f"{solved}{_posed(numbers, target)} <answer>"


def _posed(numbers: Sequence[int], target: float) -> str:
    return f"Numbers: {', '.join(map(str, numbers))}. Target: {countdown.target_text(target)}."


def score(numbers: Sequence[int], target: float, completion: str) -> Score:
    """The verdict of ``countdown.score`` on the first answer, with a format part of its own.

    The prompt gives the tags, so they earn nothing: half the format score is for a readable expression, half for one
    that uses exactly the given numbers. Without the second half every answer of a small model earns the same, and
    equal rewards are no signal.
    """
    expression = completion.partition("</answer>")[0]
    verdict = countdown.score(numbers, target, f"<answer>{expression}</answer>")
    read = evaluate(countdown.answer(f"<answer>{expression}") or "")
    exact = read is not None and Counter(read[1]) == Counter(numbers)
    return Score(
        reward=float(verdict.correct) + countdown.FORMAT_WEIGHT * (0.5 * verdict.parsed + 0.5 * exact),
        correct=verdict.correct,
        parsed=verdict.parsed,
    )


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Prompt of an lm-eval document with the fields ``numbers`` and ``target``."""
    return prompt(doc["numbers"], doc["target"])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer."""
    verdict = score(doc["numbers"], doc["target"], results[0])
    return {"acc": float(verdict.correct), "parsed": float(verdict.parsed), "reward": verdict.reward}


class CountdownWithExamples:
    """The items of ``countdown``, posed with worked examples."""

    name = "countdown_examples"
    lm_eval_task = "countdown_examples"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """See ``Countdown.train_items``."""
        items = countdown.Countdown().train_items(count=count, seed=seed, data=data)
        return tuple(
            Item(id=item.id, prompt=prompt(item.fields["numbers"], item.fields["target"]), fields=item.fields)
            for item in items
        )

    def score(self, item: Item, completion: str) -> Score:
        """See the function ``score``."""
        return score(item.fields["numbers"], item.fields["target"], completion)
