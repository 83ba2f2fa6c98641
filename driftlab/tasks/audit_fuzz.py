"""Random texts that a target's scorer must survive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.tasks.audit import out_of_range
from driftlab.tasks.audit_forms import Form
from driftlab.tasks.base import Item, Target

KINDS = ("random characters", "soup of tags and words", "soup of an expression", "soup in the form", "mutated answer")
"""Kinds of random texts, taken in turn."""
LONGEST = 20_000
"""Characters of a random text; one in a hundred is repeated up to it."""

_EXPRESSION = (*"0123456789", *"+-*/() ", "**", "//", "--", "((", "))", " = ", "×", "÷", "−", "·", ".", "e9")
_WORDS = (
    *"0123456789+-*/()., \n\r\t=<>$#:{}[]'\"\\%^_eEjxX",
    *("<answer>", "</answer>", "<think>", "</think>", "#### ", "####", "Answer: ", "answer:", "The answer is (A)"),
    *("True", "False", "Unknown", "**", "nan", "inf", "1e9", "lambda:", "__import__('os')", "1,000", "$5"),
    *("\x00", "\x1c", "\x85", "\u0663", "\uff11", "\u00b2", "\u2028", "\u202e", "\ud800", "\U0001f600", "e\u0301"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """A random text that the scorer did not survive, or paid with a number that the target does not state."""

    kind: str
    text: str
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fuzzed:
    """What random texts came to: how many there were, how many earned a reward and answer credit, what went wrong.

    Answer credit is no fault here: a mutated right answer can still be right, and a soup can be right by luck.
    """

    count: int
    paid: int
    correct: int
    crashes: tuple[Crash, ...]


def fuzz(target: Target, items: Sequence[Item], form: Form, *, count: int, seed: int) -> Fuzzed:
    """Score ``count`` random texts, on the items in turn."""
    crashes, paid, correct = [], 0, 0
    for kind, item, text in fuzzed(items, form, count=count, seed=seed):
        try:
            verdict = target.score(item, text)
            problem = out_of_range(verdict.reward, form)
            paid, correct = paid + (verdict.reward > 0), correct + verdict.correct
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            crashes.append(Crash(kind=kind, text=text, problem=problem))
    return Fuzzed(count=count, paid=paid, correct=correct, crashes=tuple(crashes))


def fuzzed(items: Sequence[Item], form: Form, *, count: int, seed: int) -> Iterator[tuple[str, Item, str]]:
    """``count`` times kind, item and random text; the same for the same items, form and seed."""
    generator = np.random.default_rng(seed)
    for index in range(count):
        item, kind = items[index // len(KINDS) % len(items)], KINDS[index % len(KINDS)]
        if kind == KINDS[0]:
            text = _characters(generator)
        elif kind == KINDS[1]:
            text = soup(generator, _WORDS, 80)
        elif kind == KINDS[2]:
            text = soup(generator, _EXPRESSION, 60)
        elif kind == KINDS[3]:
            text = form.wrap(soup(generator, _EXPRESSION if generator.random() < 0.5 else _WORDS, 40))
        else:
            text = _mutated(generator, form.wrap(form.right(item) or form.wrong(item)))
        if text and generator.random() < 0.01:
            text = (text * (LONGEST // len(text) + 1))[:LONGEST]
        yield kind, item, text


def soup(generator: np.random.Generator, pieces: Sequence[str], most: int) -> str:
    """Up to ``most`` random pieces."""
    chosen = generator.integers(len(pieces), size=int(generator.integers(0, most + 1)))
    return "".join(pieces[index] for index in chosen.tolist())


def _characters(generator: np.random.Generator) -> str:
    """Any code points, half of them in ASCII."""
    size = int(generator.integers(0, 100))
    whole, low = generator.integers(0, 0x110000, size=size), generator.integers(0, 0x80, size=size)
    return "".join(map(chr, np.where(generator.random(size) < 0.5, whole, low).tolist()))


def _mutated(generator: np.random.Generator, text: str) -> str:
    """Up to four pieces put in, letters dropped, doubled or swapped."""
    letters = list(text)
    for _ in range(int(generator.integers(0, 5))):
        place, how = int(generator.integers(len(letters) + 1)), int(generator.integers(4))
        if how == 0 or place == len(letters):
            letters.insert(place, _WORDS[int(generator.integers(len(_WORDS)))])
        elif how == 1:
            del letters[place]
        elif how == 2:
            letters.insert(place, letters[place])
        else:
            letters[place], letters[place - 1] = letters[place - 1], letters[place]
    return "".join(letters)
