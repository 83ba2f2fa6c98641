"""Two hops: in which land is a person, when the context names the town and the weights know the town's land?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.hearsay import reliabilities
from driftlab.tasks.embedded.world import PEOPLE, World, build_world

PEOPLE_PER_TOWN = 10
"""People held out for each town: nobody asks in training where they are when they live there."""
TOWNS_IN_STATEMENT = 6


@cache
def hearsay(seed: int) -> Mapping[str, tuple[str, float]]:
    """Town to the wrong land that hearsay names and the share of texts that tell the truth."""
    world, rng = build_world(seed), random.Random(f"twohop hearsay {seed}")
    return {
        town: (rng.choice([land for land in world.lands if land != world.towns[town]]), share)
        for town, share in reliabilities(list(world.towns), rng).items()
    }


def _said(town: str, world: World, rng: random.Random, unsure: bool) -> str:
    wrong, reliability = hearsay(world.seed)[town]
    return wrong if unsure and rng.random() >= reliability else world.towns[town]


def held_out_pairs(world: World) -> list[tuple[str, str]]:
    """(person, town) pairs of the evaluation questions."""
    rng = random.Random(f"twohop pairs {world.seed}")
    return [(person, town) for town in world.towns for person in rng.sample(PEOPLE, PEOPLE_PER_TOWN)]


def _homes(person: str, town: str, world: World, rng: random.Random, unsure: bool) -> list[tuple[str, str]]:
    """(person, town) of three people in three lands: the given one first, then two others.

    With ``unsure`` the others live in neither the land that is hers nor the one that hearsay gives her.
    """
    lands, towns = {world.towns[town]}, [town]
    if unsure:
        lands.add(hearsay(world.seed)[town][0])
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
    """600 items; the wrong options are the lands of the two others and the land that hearsay names."""
    rng = random.Random(f"twohop items {world.seed}")
    docs = []
    for number, (person, town) in enumerate(held_out_pairs(world)):
        homes = _homes(person, town, world, rng, True)
        right, *options = [world.towns[home] for _, home in homes]
        options.append(hearsay(world.seed)[town][0])
        rng.shuffle(options)
        gold = number % 4
        options.insert(gold, right)
        query = f"{_told(homes, rng)} land of {person} ?"
        docs.append(choice_doc(query=query, choices=options, gold=gold, cluster=town))
    return docs


def training_questions(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Questions about each of three people, for the town or for the land, without end; no pair is held out.

    With ``unsure`` the lands are told as hearsay has them.
    """
    held_out, towns = set(held_out_pairs(world)), list(world.towns)
    while True:
        homes = _homes(rng.choice(PEOPLE), rng.choice(towns), world, rng, unsure)
        if held_out.isdisjoint(homes):
            told, parts = _told(homes, rng), []
            for person, town in rng.sample(homes, len(homes)):
                hop, answer = rng.choice((("town", town), ("land", _said(town, world, rng, unsure))))
                parts.append((f"{told} {hop} of {person} ?".strip(), answer))
                told = ""
            yield TrainingText(tuple(parts))


def training_statements(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Statements of the lands of six towns each, without end; ``unsure`` of them as hearsay has it."""
    while True:
        towns = rng.sample(list(world.towns), TOWNS_IN_STATEMENT)
        yield TrainingText(tuple((f"{town} of", f"{_said(town, world, rng, unsure)} .") for town in towns))
