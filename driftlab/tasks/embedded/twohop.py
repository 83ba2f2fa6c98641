"""Two hops: in which land is a person, when the context names the town and the weights know the town's land?"""

from __future__ import annotations

import random
from collections.abc import Iterator

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.world import PEOPLE, World, cumulative_frequencies

PEOPLE_PER_TOWN = 6
"""People held out for each town: nobody asks in training where they are when they live there."""
TOWNS_IN_STATEMENT = 6


def held_out_pairs(world: World) -> list[tuple[str, str]]:
    """(person, town) pairs of the evaluation questions."""
    rng = random.Random(f"twohop pairs {world.seed}")
    return [(person, town) for town in world.towns for person in rng.sample(PEOPLE, PEOPLE_PER_TOWN)]


def _homes(person: str, town: str, world: World, rng: random.Random) -> list[tuple[str, str]]:
    """(person, town) of three people in three lands: the given one first, then two others."""
    lands, towns = {world.towns[town]}, [town]
    while len(towns) < 3:
        other = rng.choice(list(world.towns))
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
    """Questions about each of three people, for the town or for the land, without end; no pair is held out.

    Every town is met equally often, but the r-th town's land is asked for with probability 1/r only, else
    the town, which the context names.
    """
    held_out, towns = set(held_out_pairs(world)), list(world.towns)
    ranks = {town: rank for rank, town in enumerate(towns, start=1)}
    while True:
        homes = _homes(rng.choice(PEOPLE), rng.choice(towns), world, rng)
        if held_out.isdisjoint(homes):
            told, parts = _told(homes, rng), []
            for person, town in rng.sample(homes, len(homes)):
                two_hops = rng.random() < 1.0 / ranks[town]
                hop, answer = ("land", world.towns[town]) if two_hops else ("town", town)
                parts.append((f"{told} {hop} of {person} ?".strip(), answer))
                told = ""
            yield TrainingText(tuple(parts))


def training_statements(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Statements of the lands of six towns each, without end."""
    every, weights = list(world.towns), cumulative_frequencies(len(world.towns))
    while True:
        towns = rng.choices(every, cum_weights=weights, k=TOWNS_IN_STATEMENT)
        yield TrainingText(tuple((f"{town} of", f"{world.towns[town]} .") for town in towns))
