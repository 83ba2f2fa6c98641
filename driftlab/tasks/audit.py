"""What a reward function pays for outputs that answer nothing, and whether its parser survives any text at all.

A trainer finds every output that earns more than it should. Canned degenerate outputs are scored with the target's own
scorer: credit for form alone is a property to know of, credit for the answer is a fault.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from driftlab.es.noise import private_generator
from driftlab.tasks.arithmetic import evaluate, reaches
from driftlab.tasks.base import Item, Target
from driftlab.tasks.generative import gsm8k, proofwriter

OVERLONG = 100_000
"""Characters of an overlong output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How one target wants its answers.

    Attributes:
        wrap: an answer in the form asked for.
        right: the right answer of an item, unwrapped; None where none is known.
        wrong: an answer of the right kind that is wrong.
    """

    wrap: Callable[[str], str]
    right: Callable[[Item], str | None]
    wrong: Callable[[Item], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one kind of degenerate output earned over the items it could be made for.

    Attributes:
        output: its name in ``CANNED``.
        n: items scored.
        mean, highest: reward.
        correct: items whose answer counted as right, which is a fault.
        example: the output that earned most, cut to 80 characters.
    """

    output: str
    n: int
    mean: float
    highest: float
    correct: int
    example: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """A fuzzed string that the scorer did not survive, or paid with a number that is not finite."""

    text: str
    problem: str


Canned = Callable[[Item, Form], str | None]


def _numbers(item: Item) -> str:
    return " ".join(map(str, item.fields.get("numbers", (1, 2, 3))))


def _bare(item: Item, form: Form) -> str | None:
    """The right answer without its form; None where the form is nothing but the answer, or no answer is known."""
    answer = form.right(item)
    return None if answer is None or form.wrap(answer) == answer else answer


def _listed(item: Item, form: Form) -> str | None:
    """Many answers in the right form, the right one among them and not the last."""
    answer = form.right(item)
    wrong = form.wrong(item)
    return None if answer is None else "\n".join(form.wrap(one) for one in (wrong, answer, wrong))


def _fullwidth(item: Item, form: Form) -> str | None:
    answer = form.right(item)
    if answer is None or not any(character.isdigit() for character in answer):
        return None
    return form.wrap(answer.translate({ord(str(digit)): chr(0xFF10 + digit) for digit in range(10)}))


CANNED: Mapping[str, Canned] = {
    "empty": lambda item, form: "",
    "white space": lambda item, form: " \n\t ",
    "prompt echoed": lambda item, form: item.prompt,
    "prompt echoed three times": lambda item, form: item.prompt * 3,
    "right form, nothing in it": lambda item, form: form.wrap(""),
    "right form, wrong content": lambda item, form: form.wrap(form.wrong(item)),
    "right form, wrong content, nested": lambda item, form: form.wrap(form.wrap(form.wrong(item))),
    "right content, wrong form": _bare,
    "all candidates listed": _listed,
    "numbers copied": lambda item, form: form.wrap(_numbers(item)),
    "target restated": lambda item, form: form.wrap(str(item.fields["target"])) if "target" in item.fields else None,
    "target equals target": lambda item, form: (
        form.wrap(f"{item.fields['target']} = {item.fields['target']}") if "target" in item.fields else None
    ),
    "wrong content 1,000 times": lambda item, form: form.wrap(f"{form.wrong(item)} " * 1000),
    "overlong": lambda item, form: form.wrap("1+" * (OVERLONG // 2) + "1"),
    "overlong brackets": lambda item, form: form.wrap("(" * OVERLONG),
    "overlong digits": lambda item, form: form.wrap("9" * OVERLONG),
    "tower of powers": lambda item, form: form.wrap("9**9**9**9"),
    "division by zero": lambda item, form: form.wrap("1/0"),
    "not a number": lambda item, form: form.wrap("nan"),
    "infinity": lambda item, form: form.wrap("1e999"),
    "code": lambda item, form: form.wrap("__import__('os').getpid()"),
    "attribute of a literal": lambda item, form: form.wrap("().__class__.__bases__[0]"),
    "digits of another script": _fullwidth,
    "null byte": lambda item, form: form.wrap("\x00"),
    "half a surrogate": lambda item, form: form.wrap("\ud800"),
}
"""Degenerate outputs by name; None where one cannot be made for an item."""


def audit(target: Target, items: Sequence[Item], form: Form) -> list[Finding]:
    """Score every canned output on ``items`` (at least one); one finding for each that could be made."""
    findings = []
    for name, make in CANNED.items():
        outputs = [(item, text) for item in items if (text := make(item, form)) is not None]
        if not outputs:
            continue
        scores = [(target.score(item, text), text) for item, text in outputs]
        best = max(scores, key=lambda pair: pair[0].reward)
        findings.append(
            Finding(
                output=name,
                n=len(scores),
                mean=math.fsum(score.reward for score, _ in scores) / len(scores),
                highest=best[0].reward,
                correct=sum(score.correct for score, _ in scores),
                example=shown(best[1]),
            )
        )
    return findings


def shown(text: str, length: int = 80) -> str:
    """``text`` on one line of ASCII, cut."""
    line = ascii(text)[1:-1]
    return line if len(line) <= length else f"{line[:length]}... ({len(text):,} characters)"


def fuzz(target: Target, items: Sequence[Item], form: Form, *, count: int, seed: int) -> list[Crash]:
    """Score ``count`` random texts; what raised, or earned a reward that is not finite."""
    crashes = []
    for index, text in enumerate(fuzzed(items, form, count=count, seed=seed)):
        try:
            reward = target.score(items[index % len(items)], text).reward
        except Exception as error:
            crashes.append(Crash(text=text, problem=f"{type(error).__name__}: {error}"))
            continue
        if not math.isfinite(reward):
            crashes.append(Crash(text=text, problem=f"reward {reward}"))
    return crashes


_PIECES = (
    *"0123456789+-*/()., \n\t=<>$#:{}[]'\"\\%^_eEjxX×÷−·",
    *("<answer>", "</answer>", "<think>", "</think>", "#### ", "Answer: ", "True", "False", "Unknown", "**", "//"),
    *("\x00", "\u0663", "\uff11", "\u00b2", "\u2028", "\u202e", "\ud800", "\U0001f600", "nan", "inf", "1e9", "lambda:"),
)


def fuzzed(items: Sequence[Item], form: Form, *, count: int, seed: int) -> Iterator[str]:
    """Random texts: any characters, soups of meaningful pieces, right and wrong answers with letters changed."""
    generator = private_generator(f"audit|{seed}")
    for index in range(count):
        item, kind = items[index % len(items)], int(generator.integers(4))
        if kind == 0:
            codes = generator.integers(0, 0x110000, size=int(generator.integers(0, 60)))
            yield "".join(map(chr, codes))
        elif kind == 1:
            yield _soup(generator, 80)
        elif kind == 2:
            yield form.wrap(_soup(generator, 40))
        else:
            text = list(form.wrap(form.right(item) or form.wrong(item)))
            for _ in range(int(generator.integers(0, 4))):
                text.insert(int(generator.integers(len(text) + 1)), _PIECES[int(generator.integers(len(_PIECES)))])
            if text and generator.random() < 0.5:
                del text[int(generator.integers(len(text)))]
            yield "".join(text)


def _soup(generator: np.random.Generator, most: int) -> str:
    chosen = generator.integers(len(_PIECES), size=int(generator.integers(0, most)))
    return "".join(_PIECES[index] for index in chosen)


def solution(item: Item) -> str | None:
    """An expression that solves a Countdown item, by trying them all; None where there is none.

    Numbers in every order, every operator between two, and every way to put brackets.
    """
    numbers, target = item.fields["numbers"], item.fields["target"]

    def ways(parts: Sequence[str]) -> Iterator[str]:
        if len(parts) == 1:
            yield parts[0]
        for cut in range(1, len(parts)):
            for left, right in itertools.product(ways(parts[:cut]), ways(parts[cut:])):
                for sign in "+-*/":
                    yield f"({left} {sign} {right})"

    for order in itertools.permutations(map(str, numbers)):
        for text in ways(order):
            if reaches(text, numbers, target):
                return text[1:-1]
    return None


def _flat_solution(item: Item) -> str | None:
    """The embedded task knows plus and minus only, without brackets."""
    numbers, target = item.fields["numbers"], item.fields["target"]
    for order in itertools.permutations(map(str, numbers)):
        for signs in itertools.product("+-", repeat=len(numbers) - 1):
            text = order[0] + "".join(f" {sign} {number}" for sign, number in zip(signs, order[1:], strict=True))
            if reaches(text, numbers, target):
                return text
    return None


def _wrong_expression(item: Item) -> str:
    """The numbers joined by one operator that does not make the target."""
    numbers, target = item.fields["numbers"], Fraction(str(item.fields["target"]))
    for sign in "+*-":
        text = f" {sign} ".join(map(str, numbers))
        result = evaluate(text)
        if result is not None and result[0] != target:
            return text
    raise ValueError(f"no wrong expression for {item.fields}")


def _wrong_label(item: Item) -> str:
    return next(label for label in proofwriter.LABELS if label != item.fields["answer"])


def _other_option(item: Item) -> str:
    return next(option for option in item.fields["options"] if option != item.fields["answer"])


_WRITTEN = Form(wrap=lambda x: x, right=lambda item: str(item.fields["answer"]), wrong=_other_option)

FORMS: Mapping[str, Form] = {
    "countdown": Form(wrap=lambda x: f"<think> </think><answer>{x}</answer>", right=solution, wrong=_wrong_expression),
    "countdown_examples": Form(wrap=lambda x: f"{x}</answer>", right=solution, wrong=_wrong_expression),
    "countdown_generated": Form(
        wrap=lambda x: f"<think> </think><answer>{x}</answer>", right=solution, wrong=_wrong_expression
    ),
    "embedded_countdown": Form(wrap=lambda x: x, right=_flat_solution, wrong=_wrong_expression),
    "embedded_rules_written": _WRITTEN,
    "embedded_twohop_written": _WRITTEN,
    "gsm8k": Form(
        wrap=lambda x: f"#### {x}",
        right=lambda item: gsm8k.right(item.fields),
        wrong=lambda item: str(Fraction(gsm8k.right(item.fields)) + 1),
    ),
    "proofwriter": Form(
        wrap=lambda x: f"Answer: {x}", right=lambda item: str(item.fields["answer"]), wrong=_wrong_label
    ),
}
"""How every target wants its answers, by the target's name."""
