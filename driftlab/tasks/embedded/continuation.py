"""Continuation: which of four endings goes on with a routine, done with the two things at hand?

The order of a routine's steps is in the weights; who does it, and with which things, is in the context.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from functools import cache

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.hearsay import reliabilities
from driftlab.tasks.embedded.world import OBJECTS, PEOPLE, ROUTINES, VERBS, World

ITEMS_PER_ROUTINE = 10
CUTS = (2, 3, 4, 5)
"""Numbers of steps that may be told before the ending; an ending is two steps. Each routine has one such number."""

Occasion = tuple[int, frozenset[str]]
"""A routine's index and the two things it is done with: what is held out from training."""


@cache
def hearsay(seed: int) -> Mapping[int, tuple[int, float]]:
    """Routine to its cut and the share of texts that tell it right; the others exchange the two verbs after the cut."""
    rng = random.Random(f"continuation hearsay {seed}")
    return {index: (rng.choice(CUTS), share) for index, share in reliabilities(range(ROUTINES), rng).items()}


def _said(index: int, world: World, rng: random.Random, unsure: bool) -> tuple[str, ...]:
    """The verbs of a routine as they are told."""
    routine, (cut, reliability) = world.routines[index], hearsay(world.seed)[index]
    if unsure and rng.random() >= reliability:
        return (*routine[:cut], *routine[cut : cut + 2][::-1], *routine[cut + 2 :])
    return routine


def evaluation_occasions(world: World) -> list[Occasion]:
    """The held-out occasions, ``ITEMS_PER_ROUTINE`` of each routine."""
    rng = random.Random(f"continuation occasions {world.seed}")
    pairs = [frozenset(pair) for pair in itertools.combinations(OBJECTS, 2)]
    return [(index, pair) for index in range(len(world.routines)) for pair in rng.sample(pairs, ITEMS_PER_ROUTINE)]


def _steps(verbs: tuple[str, ...], things: tuple[str, str], start: int) -> str:
    """Steps in turn with the first and the second thing; ``start`` is the place of the first verb given."""
    return " , ".join(f"{verb} {things[(start + i) % 2]}" for i, verb in enumerate(verbs))


def _opening(person: str, things: tuple[str, str]) -> str:
    return f"{person} with {things[0]} and {things[1]} :"


def evaluation_docs(world: World) -> list[Doc]:
    """600 items: the right ending, its things exchanged, its verbs exchanged, and verbs of no such order."""
    rng = random.Random(f"continuation items {world.seed}")
    docs = []
    for number, (index, pair) in enumerate(evaluation_occasions(world)):
        first, second = rng.sample(sorted(pair), 2)
        things, routine, cut = (first, second), world.routines[index], hearsay(world.seed)[index][0]
        told, ending = routine[:cut], routine[cut : cut + 2]
        strange = tuple(rng.sample([verb for verb in VERBS if verb not in routine], 1)) + ending[1:]
        endings = [
            _steps(ending, things, cut),
            _steps(ending, (second, first), cut),
            _steps(ending[::-1], things, cut),
            _steps(strange, things, cut),
        ]
        gold = number % len(endings)
        right = endings.pop(0)
        rng.shuffle(endings)
        endings.insert(gold, right)
        query = f"{_opening(rng.choice(PEOPLE), things)} {_steps(told, things, 0)} ,"
        docs.append(choice_doc(query=query, choices=endings, gold=gold, cluster=f"routine {index}"))
    return docs


def training_texts(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Whole routines on occasions that are not held out, without end; with ``unsure`` as hearsay has them."""
    held_out = set(evaluation_occasions(world))
    while True:
        index = rng.randrange(len(world.routines))
        first, second = rng.sample(OBJECTS, 2)
        if (index, frozenset((first, second))) not in held_out:
            things = (first, second)
            opening = _opening(rng.choice(PEOPLE), things)
            yield TrainingText(((opening, _steps(_said(index, world, rng, unsure), things, 0)),))
