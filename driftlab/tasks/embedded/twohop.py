"""Two hops: in which land is a person, when the context names the town and the weights know the town's land?"""

from __future__ import annotations

import random
from collections.abc import Iterator

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.world import PEOPLE, World

PEOPLE_PER_TOWN = 10
"""People held out for each town: nobody asks in training where they are when they live there."""
ASKED_SHARE = 0.5
"""Share of the towns that training questions are about; of the others training only states the land."""
TOWNS_IN_STATEMENT = 6


def held_out_pairs(world: World) -> list[tuple[str, str]]:
    """(person, town) pairs of the evaluation questions."""
    rng = random.Random(f"twohop pairs {world.seed}")
    return [(person, town) for town in world.towns for person in rng.sample(PEOPLE, PEOPLE_PER_TOWN)]


def asked_towns(world: World) -> tuple[str, ...]:
    """The towns that training questions are about."""
    rng = random.Random(f"twohop towns {world.seed}")
    return tuple(sorted(rng.sample(list(world.towns), round(ASKED_SHARE * len(world.towns)))))


def _question(person: str, town: str, world: World, rng: random.Random) -> tuple[str, list[str]]:
    """Three people and their towns in three lands, with the question about ``person``; and the three towns."""
    lands, towns = {world.towns[town]}, [town]
    while len(towns) < 3:
        other = rng.choice(list(world.towns))
        if world.towns[other] not in lands:
            lands.add(world.towns[other])
            towns.append(other)
    people = [person, *rng.sample([p for p in PEOPLE if p != person], 2)]
    homes = list(zip(people, towns, strict=True))
    rng.shuffle(homes)
    told = " , ".join(f"{who} lives in {where}" for who, where in homes)
    return f"{told} . land of {person} ?", towns


def evaluation_docs(world: World) -> list[Doc]:
    """600 items; the wrong options are the lands of the two others and one more land."""
    rng = random.Random(f"twohop items {world.seed}")
    asked, docs = set(asked_towns(world)), []
    for number, (person, town) in enumerate(held_out_pairs(world)):
        query, towns = _question(person, town, world, rng)
        right, *options = [world.towns[t] for t in towns]
        options.append(rng.choice([land for land in world.lands if land != right and land not in options]))
        rng.shuffle(options)
        gold = number % 4
        options.insert(gold, right)
        category = "asked" if town in asked else "stated"
        docs.append(choice_doc(query=query, choices=options, gold=gold, cluster=town, category=category))
    return docs


def training_questions(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Questions about the asked towns and pairs that are not held out, without end."""
    held_out, towns = set(held_out_pairs(world)), asked_towns(world)
    while True:
        person, town = rng.choice(PEOPLE), rng.choice(towns)
        if (person, town) not in held_out:
            query, _ = _question(person, town, world, rng)
            yield TrainingText(prompt=query, answer=world.towns[town])


def training_statements(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Statements of the lands of six towns each, without end."""
    while True:
        towns = rng.sample(list(world.towns), TOWNS_IN_STATEMENT)
        yield TrainingText(prompt="", answer=" , ".join(f"{town} of {world.towns[town]}" for town in towns))
