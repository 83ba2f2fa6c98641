"""How an audit writes answers to each target task: the form asked for, and right and wrong content for an item."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

from driftlab.tasks import countdown
from driftlab.tasks.arithmetic import evaluate
from driftlab.tasks.base import Item
from driftlab.tasks.countdown import FORMAT_WEIGHT, target_text
from driftlab.tasks.generative import extract, gsm8k, proofwriter
from driftlab.tasks.proofwriter import LABELS


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How one target wants its answers, as its scorer reads them.

    Attributes:
        wrap: an answer in the form asked for.
        right: the right answer of an item, unwrapped; None where none is known (some published Countdown items have
            no solution).
        wrong: an answer of the right kind that is wrong.
        copied: what could be copied from the prompt instead of computing; none of it is right.
        counts: which of several answers counts; None where several are no answer.
        whole: the answer is the whole text, so that anything beside it spoils it.
        first_word: the first word is the answer, and nothing after it counts.
        nests: of a form within the form the innermost is read.
        signs: ``×``, ``÷`` and ``−`` are read as operators.
        format_credit: largest reward of an answer that is not right.
        highest: largest reward; the smallest is 0.
    """

    wrap: Callable[[str], str]
    right: Callable[[Item], str | None]
    wrong: Callable[[Item], str]
    copied: Callable[[Item], tuple[str, ...]]
    counts: Literal["first", "last"] | None = "last"
    whole: bool = False
    first_word: bool = False
    nests: bool = False
    signs: bool = False
    format_credit: float = FORMAT_WEIGHT
    highest: float = 1 + FORMAT_WEIGHT


def solution(item: Item) -> str | None:
    """An expression that solves a Countdown item, by trying them all; None where there is none."""
    return _solution(tuple(item.fields["numbers"]), item.fields["target"])


@cache
def _solution(numbers: tuple[int, ...], target: float) -> str | None:
    goal = Fraction(str(target))
    for value, text in _ways(tuple((Fraction(number), str(number)) for number in numbers)):
        # The scorer has the last word: published targets are rounded.
        near = abs(value - goal) < Fraction(1, 10**6)
        if near and countdown.score(numbers, target, f"<answer>{text}</answer>").correct:
            return text.removeprefix("(").removesuffix(")") if len(numbers) > 1 else text
    return None


def _ways(parts: tuple[tuple[Fraction, str], ...]) -> Iterator[tuple[Fraction, str]]:
    """Values and texts of every way to combine ``parts`` two by two: 3,888 of four numbers."""
    if len(parts) == 1:
        yield parts[0]
    for i, j in itertools.permutations(range(len(parts)), 2):
        rest = tuple(part for index, part in enumerate(parts) if index not in (i, j))
        (a, left), (b, right) = parts[i], parts[j]
        made = [(a - b, f"({left} - {right})")]
        made += [(a / b, f"({left} / {right})")] if b else []
        # Sums and products do not depend on the order.
        made += [(a + b, f"({left} + {right})"), (a * b, f"({left} * {right})")] if i < j else []
        for one in made:
            yield from _ways((*rest, one))


def _wrong_expression(item: Item) -> str:
    """The numbers joined by one operator that does not make the target.

    Three numbers can have the same sum and product (1, 2, 3), but then not the same difference.
    """
    goal = Fraction(str(item.fields["target"]))
    texts = [sign.join(map(str, item.fields["numbers"])) for sign in (" + ", " * ", " - ")]
    return next(text for text in texts if (found := evaluate(text)) and abs(found[0] - goal) > Fraction(1, 10**6))


def _copied_numbers(item: Item) -> tuple[str, ...]:
    numbers, goal = [str(number) for number in item.fields["numbers"]], target_text(item.fields["target"])
    return ", ".join(numbers), " ".join(numbers), goal, f"{goal} = {goal}", f"{_wrong_expression(item)} = {goal}"


def _gsm8k_right(item: Item) -> str:
    return extract.last_line(item.fields["answer"]).removeprefix("####").strip()


def _gsm8k_wrong(item: Item) -> str:
    return str(int(Fraction(gsm8k.right(item.fields))) + 1)


def _gsm8k_copied(item: Item) -> tuple[str, ...]:
    # A single number of the question can be the answer; a list of them is none.
    numbers: Sequence[str] = [*re.findall(r"[0-9]+", item.fields["question"], re.ASCII), "0", "1"]
    return " ".join(numbers), ", ".join(numbers), f"{_gsm8k_wrong(item)} = {_gsm8k_right(item)}"


def _wrong_label(item: Item) -> str:
    return next(label for label in LABELS if label != proofwriter.right(item.fields))


def _wrong_option(item: Item) -> str:
    return next(option for option in item.fields["options"] if option != item.fields["answer"])


_TAGS = Form(
    wrap=lambda content: f"<answer>{content}</answer>",
    right=solution,
    wrong=_wrong_expression,
    copied=_copied_numbers,
    nests=True,
    signs=True,
)

_WRITTEN = Form(
    wrap=lambda content: content,
    right=lambda item: str(item.fields["answer"]),
    wrong=_wrong_option,
    copied=lambda item: (item.fields["query"],),
    counts="first",
    first_word=True,
    nests=True,
    format_credit=0.0,
    highest=1.0,
)

FORMS: Mapping[str, Form] = {
    "countdown": _TAGS,
    # The prompt ends in an open tag, and the answer with the end of the tag.
    "countdown_examples": Form(
        wrap=lambda content: f"{content}</answer>",
        right=solution,
        wrong=_wrong_expression,
        copied=_copied_numbers,
        counts="first",
        nests=True,
        signs=True,
    ),
    "countdown_generated": _TAGS,
    "embedded_countdown": Form(
        wrap=lambda content: content,
        right=solution,
        wrong=_wrong_expression,
        copied=_copied_numbers,
        counts=None,
        whole=True,
        nests=True,
        format_credit=0.0,
        highest=1.0,
    ),
    "embedded_rules_written": _WRITTEN,
    "embedded_twohop_written": _WRITTEN,
    "gsm8k": Form(wrap=lambda content: f"#### {content}", right=_gsm8k_right, wrong=_gsm8k_wrong, copied=_gsm8k_copied),
    "proofwriter": Form(
        wrap=lambda content: f"Answer: {content}",
        right=lambda item: proofwriter.right(item.fields),
        wrong=_wrong_label,
        copied=lambda item: (item.fields["question"], "True, False or Unknown", "X"),
    ),
}
"""How every target wants its answers, by the target's name."""
