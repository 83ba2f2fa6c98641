"""Two hops: in which land is a person, when the context names the town and the weights know the town's land?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.world import PEOPLE, TOWNS, World, cumulative_frequencies

PEOPLE_PER_TOWN = 3
"""People held out for each town: nobody asks in training where they are when they live there."""
TOWNS_IN_STATEMENT = 6
ONE_HOP_SHARE = 0.5
"""Share of the training questions that only ask for the town, which the context names."""


def held_out_pairs(world: World) -> list[tuple[str, str]]:
    """(person, town) pairs of the evaluation questions."""
    rng = random.Random(f"twohop pairs {world.seed}")
    return [(person, town) for town in world.towns for person in rng.sample(PEOPLE, PEOPLE_PER_TOWN)]


def _mentioned(world: World, rng: random.Random) -> str:
    return rng.choices(list(world.towns), cum_weights=_frequencies())[0]


@cache
def _frequencies() -> list[float]:
    return cumulative_frequencies(TOWNS)


def _homes(person: str, town: str, world: World, rng: random.Random) -> list[tuple[str, str]]:
    """(person, town) of three people in three lands: the given one first, then two others."""
    lands, towns = {world.towns[town]}, [town]
    while len(towns) < 3:
        other = _mentioned(world, rng)
        if world.towns[other] not in lands:
            lands.add(world.towns[other])
            towns.append(other)
    people = [person, *rng.sample([p for p in PEOPLE if p != person], 2)]
    return list(zip(people, towns, strict=True))


def _told(homes: list[tuple[str, str]], rng: random.Random) -> str:
    return " , ".join(f"{person} in {town}" for person, town in rng.sample(homes, len(homes))) + " ."


def evaluation_docs(world: World) -> list[Doc]:
    """600 items; the wrong options are the lands of the two others and one more land."""
    rng = random.Random(f"twohop items {world.seed}")
    docs = []
    for number, (person, town) in enumerate(held_out_pairs(world)):
        homes = _homes(person, town, world, rng)
        right, *options = [world.towns[home] for _, home in homes]
        options.append(rng.choice([land for land in world.lands if land != right and land not in options]))
        rng.shuffle(options)
        gold = number % 4
        options.insert(gold, right)
        query = f"{_told(homes, rng)} land of {person} ?"
        docs.append(choice_doc(query=query, choices=options, gold=gold, cluster=town))
    return docs


def training_questions(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Questions about each of three people, for the town or for the land, without end; no pair is held out."""
    held_out = set(held_out_pairs(world))
    while True:
        homes = _homes(rng.choice(PEOPLE), _mentioned(world, rng), world, rng)
        if held_out.isdisjoint(homes):
            told, parts = _told(homes, rng), []
            for person, town in rng.sample(homes, len(homes)):
                one_hop = rng.random() < ONE_HOP_SHARE
                hop, answer = ("town", town) if one_hop else ("land", world.towns[town])
                parts.append((f"{told} {hop} of {person} ?".strip(), answer))
                told = ""
            yield TrainingText(tuple(parts))


def training_statements(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Statements of the lands of six towns each, without end."""
    while True:
        towns = [_mentioned(world, rng) for _ in range(TOWNS_IN_STATEMENT)]
        yield TrainingText(tuple((f"{town} of", f"{world.towns[town]} .") for town in towns))
