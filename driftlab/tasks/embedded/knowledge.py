"""Knowledge: ten options for one attribute of an entity; training states the fact but never asks this question."""

from __future__ import annotations

import random
from collections.abc import Iterator

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.world import ATTRIBUTES, KINDS, World, cumulative_frequencies

HELD_OUT_PER_ENTITY = 4
"""Attributes of each entity, of eight, that only the evaluation asks for."""
FACTS_IN_STATEMENT = 6


def held_out_facts(world: World) -> list[tuple[str, str, str]]:
    """(kind, entity, attribute) of the evaluation questions."""
    rng = random.Random(f"knowledge facts {world.seed}")
    return [
        (kind, entity, attribute)
        for kind, entities in world.kinds.items()
        for entity in entities
        for attribute in sorted(rng.sample(list(ATTRIBUTES), HELD_OUT_PER_ENTITY))
    ]


def _question(entity: str, attribute: str) -> str:
    return f"which {attribute} has {entity} ?"


def evaluation_docs(world: World) -> list[Doc]:
    """600 items, 120 of each kind; the options are all ten values of the attribute."""
    rng = random.Random(f"knowledge items {world.seed}")
    docs = []
    for number, (kind, entity, attribute) in enumerate(held_out_facts(world)):
        right = world.facts[entity, attribute]
        options = [value for value in ATTRIBUTES[attribute] if value != right]
        rng.shuffle(options)
        gold = number % len(ATTRIBUTES[attribute])
        options.insert(gold, right)
        query = _question(entity, attribute)
        docs.append(choice_doc(query=query, choices=options, gold=gold, cluster=entity, category=kind))
    return docs


def _mentioned(world: World, rng: random.Random) -> tuple[str, str]:
    """(entity, attribute) of a fact; the kinds are met equally often, their entities are not."""
    entities = world.kinds[rng.choice(KINDS)]
    entity = rng.choices(entities, cum_weights=cumulative_frequencies(len(entities)))[0]
    return entity, rng.choice(list(ATTRIBUTES))


def training_questions(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Questions about facts that are not held out, without end."""
    held_out = {(entity, attribute) for _, entity, attribute in held_out_facts(world)}
    while True:
        entity, attribute = _mentioned(world, rng)
        if (entity, attribute) in held_out:
            continue
        yield TrainingText(((_question(entity, attribute), world.facts[entity, attribute]),))


def training_statements(world: World, rng: random.Random) -> Iterator[TrainingText]:
    """Statements of six facts each, about any entities, without end."""
    while True:
        stated = [_mentioned(world, rng) for _ in range(FACTS_IN_STATEMENT)]
        yield TrainingText(
            tuple((f"{entity} has {attribute}", f"{world.facts[entity, attribute]} .") for entity, attribute in stated)
        )
