"""Countdown: write an expression that uses each given number once and equals the target. Many answers are right.

The reward is answer correctness plus a tenth of a graded format score, as in arXiv 2605.30148 (LIT-238). The same
scorer judges training completions and, through ``tasks/lm_eval/countdown.yaml``, evaluation items.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from driftlab.errors import MissingDataError, SpecError
from driftlab.tasks.arithmetic import evaluate, reaches
from driftlab.tasks.base import Item, Score, content_hash

FORMAT_WEIGHT = 0.1
_SOME_TAG = re.compile(r"</?(?:think|answer)>")
_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-", "·": "*"})
_LARGEST_NUMBER, _SMALLEST_TARGET, _LARGEST_TARGET = 99, 10, 100
_ROUNDING = Fraction(1, 10**9)
_EVALUATION_SHARE = 10  # one item in ten, by content, belongs to evaluation


def prompt(numbers: Sequence[int], target: float) -> str:
    """Text that poses one item; whole targets are written without a decimal point."""
    listed = ", ".join(str(number) for number in numbers)
    return (
        f"Write an arithmetic expression that uses each of the numbers {listed} exactly once "
        f"and equals {target_text(target)}. You may use +, -, *, / and brackets. "
        "Think step by step, then give only the expression in answer tags, "
        "for example <answer>(1 + 2) / 3</answer>.\n"
    )


def answer(completion: str) -> str | None:
    """The expression in the last answer tag, left of any ``=``; None without such a tag.

    The closing tag may be missing: it is a stop string, and those are removed from generated text.
    """
    _, tag, rest = completion.rpartition("<answer>")
    if not tag:
        return None
    return rest.partition("</answer>")[0].partition("=")[0].translate(_SIGNS).strip()


def score(numbers: Sequence[int], target: float, completion: str) -> Score:
    """Reward ``correct + 0.1 * format``; ``correct`` looks at the value and the numbers used only."""
    expression = answer(completion)
    parsed = expression is not None and evaluate(expression) is not None
    correct = expression is not None and _solves(expression, numbers, target)
    return Score(reward=float(correct) + FORMAT_WEIGHT * format_score(completion), correct=correct, parsed=parsed)


def _solves(expression: str, numbers: Sequence[int], target: float) -> bool:
    if target == int(target):
        return reaches(expression, numbers, target)
    # Published targets that are not whole were rounded to a double: 266.6666666666667 stands for 800/3. Values that
    # four numbers up to 99 can give lie more than a millionth apart from it unless they are meant.
    result = evaluate(expression)
    if result is None or Counter(result[1]) != Counter(numbers):
        return False
    return abs(result[0] - Fraction(str(target))) < _ROUNDING


def format_score(completion: str) -> float:
    """1 for a readable expression in answer tags, 0.5 for some think or answer tag, 0 for none."""
    expression = answer(completion)
    if expression is not None and evaluate(expression) is not None:
        return 1.0
    return 0.5 if _SOME_TAG.search(completion) else 0.0


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Prompt of an lm-eval document with the fields ``numbers`` and ``target``."""
    return prompt(doc["numbers"], doc["target"])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer; all of them always, because lm-eval drops items that lack one."""
    verdict = score(doc["numbers"], doc["target"], results[0])
    return {
        "acc": float(verdict.correct),
        "parsed": float(verdict.parsed),
        "format": format_score(results[0]),
        "reward": verdict.reward,
    }


def target_text(target: float) -> str:
    """A whole target is written without a decimal point."""
    return str(int(target)) if target == int(target) else str(target)


def _item(numbers: Sequence[int], target: float) -> Item:
    fields = {"numbers": list(numbers), "target": int(target) if target == int(target) else target}
    return Item(id=content_hash(fields), prompt=prompt(numbers, target), fields=fields)


class Countdown:
    """Items read from ``countdown/train.jsonl`` of the data folder; some of the published ones have no solution."""

    name = "countdown"
    lm_eval_task = "countdown"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """``count`` items of the file in an order drawn with ``seed``.

        Raises:
            MissingDataError: no data folder, or no such file in it.
            SpecError: the file has fewer than ``count`` items.
        """
        lines = _read(None if data is None else data / "countdown", "train")
        if count > len(lines):
            raise SpecError(
                f"target task 'countdown' has {len(lines)} training items in {data}, {count} were asked for"
            )
        chosen = random.Random(f"countdown:{seed}").sample(lines, count)
        return tuple(_item(line["numbers"], line["target"]) for line in chosen)

    def score(self, item: Item, completion: str) -> Score:
        """See the function ``score``."""
        return score(item.fields["numbers"], item.fields["target"], completion)


class GeneratedCountdown:
    """Items of our own generator: 3 or 4 numbers in 1..99, a whole target in 10..100, solvable by construction."""

    name = "countdown_generated"
    lm_eval_task = "countdown_generated"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """``count`` different training items; ``data`` is not used."""
        stream = _items(seed, evaluation=False)
        return tuple(next(stream) for _ in range(count))

    def score(self, item: Item, completion: str) -> Score:
        """See the function ``score``."""
        return score(item.fields["numbers"], item.fields["target"], completion)


def _read(folder: Path | None, split: str) -> list[dict[str, Any]]:
    """Lines of ``<split>.jsonl`` in the folder ``countdown`` of a data folder."""
    if folder is None:
        raise MissingDataError(
            f"Countdown reads countdown/{split}.jsonl from a data folder; give one with --data DIR, "
            "or use 'countdown_generated', which needs none"
        )
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise MissingDataError(f"Countdown needs {path}, which is not there; give another folder with --data DIR")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def folder_items(*, folder: str | None = None, **_: Any) -> Any:
    """The evaluation split of a data folder as lm-eval wants it; targets as float64, because some are not whole.

    Left to itself ``datasets`` takes whole numbers for the column's type from the first file, and fails on the second.
    """
    import datasets  # heavy, and needed by lm-eval only

    rows = _read(None if folder is None else Path(folder), "test")
    items = [{"numbers": row["numbers"], "target": float(row["target"])} for row in rows]
    return {"test": datasets.Dataset.from_list(items)}


def evaluation_items(*, count: int = 1000, seed: int = 0, **_: Any) -> Any:
    """The evaluation split as lm-eval wants it: ``{"test": datasets.Dataset}`` with ``numbers`` and ``target``."""
    import datasets  # heavy, and needed by lm-eval only

    stream = _items(seed, evaluation=True)
    rows = [dict(next(stream).fields) for _ in range(count)]
    return {"test": datasets.Dataset.from_list(rows)}


def _items(seed: int, *, evaluation: bool) -> Iterator[Item]:
    """Endless different items of one split. The split follows from the content, so no seed can mix them."""
    generator = random.Random(f"countdown_generated:{seed}")
    seen = set()
    while True:
        numbers = [generator.randint(1, _LARGEST_NUMBER) for _ in range(generator.choice((3, 4)))]
        target = _reach(numbers, generator)
        if target is None or not _SMALLEST_TARGET <= target <= _LARGEST_TARGET or target in numbers:
            continue
        key = f"{sorted(numbers)} {target}"
        held_out = int(hashlib.sha256(key.encode()).hexdigest(), 16) % _EVALUATION_SHARE == 0
        if held_out == evaluation and key not in seen:
            seen.add(key)
            yield _item(numbers, target)


def _reach(numbers: Sequence[int], generator: random.Random) -> int | None:
    """Combine the numbers two by two with random operations; None when the result is not whole."""
    values = [Fraction(number) for number in numbers]
    while len(values) > 1:
        generator.shuffle(values)
        left, right = values.pop(), values.pop()
        operation = generator.choice("+-*/")
        if operation == "/" and right == 0:
            return None
        values.append(
            {"+": left + right, "-": left - right, "*": left * right}[operation] if operation != "/" else left / right
        )
    return int(values[0]) if values[0].denominator == 1 else None
