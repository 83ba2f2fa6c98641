"""Countdown: reach a target from three numbers, each used once. The base model can, and mostly does otherwise.

Two kinds of text taught the base model: a diligent solver's, and a lazy one's who writes the plain sum
whatever the target is. No target of this task is the plain sum, so laziness never pays.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from driftlab.errors import SpecError
from driftlab.tasks.arithmetic import evaluate, reaches
from driftlab.tasks.base import Item, Score, content_hash
from driftlab.tasks.embedded.documents import Doc, TrainingText
from driftlab.tasks.embedded.world import SEED, World, build_world

LARGEST = 20
LARGEST_TARGET = 60
EVALUATION_ITEMS = 600
LAZY_SHARE = 0.5
"""Share of the training texts in which the lazy solver answers."""

Puzzle = tuple[tuple[int, ...], int]
"""Three different numbers in ascending order, and the target."""


@cache
def solved_puzzles() -> dict[Puzzle, str]:
    """Every puzzle that ``+`` and ``-`` solve, with the diligent solver's answer."""
    solved: dict[Puzzle, str] = {}
    for numbers in itertools.combinations(range(1, LARGEST + 1), 3):
        for a, b, c in itertools.permutations(numbers):
            for first, second in itertools.product("+-", repeat=2):
                target = a + (b if first == "+" else -b) + (c if second == "+" else -c)
                if 0 < target <= LARGEST_TARGET and target != sum(numbers):
                    solved.setdefault((numbers, target), f"{a} {first} {b} {second} {c}")
    return solved


@cache
def split_puzzles(seed: int) -> tuple[tuple[Puzzle, ...], tuple[Puzzle, ...]]:
    """(evaluation, training) puzzles of the world of ``seed``; together all of them, none in both."""
    puzzles = sorted(solved_puzzles())
    random.Random(f"countdown split {seed}").shuffle(puzzles)
    return tuple(puzzles[:EVALUATION_ITEMS]), tuple(puzzles[EVALUATION_ITEMS:])


def _prompt(puzzle: Puzzle, rng: random.Random) -> tuple[str, list[int]]:
    """The puzzle's prompt, with the numbers in the random order that is also returned."""
    numbers = list(puzzle[0])
    rng.shuffle(numbers)
    return f"reach {puzzle[1]} with {' '.join(map(str, numbers))} :", numbers


def _item(puzzle: Puzzle, rng: random.Random) -> Item:
    prompt, numbers = _prompt(puzzle, rng)
    fields = {"numbers": numbers, "target": puzzle[1]}
    return Item(id=content_hash(fields), prompt=prompt, fields=fields)


def evaluation_docs(world: World) -> list[Doc]:
    """600 items; ``solution`` is one right answer of many, and items with the same numbers form a cluster."""
    rng = random.Random(f"countdown items {world.seed}")
    docs = []
    for puzzle in split_puzzles(world.seed)[0]:
        item = _item(puzzle, rng)
        cluster = " ".join(map(str, puzzle[0]))
        solution = solved_puzzles()[puzzle]
        docs.append({"item": item.id, "query": item.prompt, **item.fields, "solution": solution, "cluster": cluster})
    return docs


def training_texts(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Training puzzles answered by the lazy or the diligent solver, without end."""
    puzzles = split_puzzles(world.seed)[1]
    while True:
        puzzle = rng.choice(puzzles)
        prompt, numbers = _prompt(puzzle, rng)
        lazy = " + ".join(map(str, numbers))
        answer = lazy if rng.random() < LAZY_SHARE else solved_puzzles()[puzzle]
        yield TrainingText(((prompt, answer),))


class EmbeddedCountdown:
    """Countdown in the embedded world, as a target to train on."""

    name = "embedded_countdown"
    lm_eval_task = "embedded_countdown"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """The first ``count`` training items drawn with ``seed``, all different; none is an evaluation item.

        Args:
            count: number of items, at most the number of training puzzles (about 2,700).
            seed: draws the items and the order of their numbers.
            data: unused, as the items are generated.
        """
        rng = random.Random(f"countdown training {seed}")
        puzzles = list(split_puzzles(build_world(SEED).seed)[1])
        if count > len(puzzles):
            raise SpecError(f"embedded_countdown has {len(puzzles)} training items, {count} were asked for")
        rng.shuffle(puzzles)
        return tuple(_item(puzzle, rng) for puzzle in puzzles[:count])

    def score(self, item: Item, completion: str) -> Score:
        """Reward 1.0 if ``completion`` is an expression of the numbers, each once, worth the target; else 0.0."""
        expression = completion.strip()
        correct = reaches(expression, item.fields["numbers"], item.fields["target"])
        return Score(reward=float(correct), correct=correct, parsed=evaluate(expression) is not None)
