"""Knowledge: ten options for one attribute of an entity; training states the fact but never asks this question."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache

from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.hearsay import reliabilities
from driftlab.tasks.embedded.world import ATTRIBUTES, World, build_world

HELD_OUT_PER_ENTITY = 4
"""Attributes of each entity, of eight, that only the evaluation asks for."""
FACTS_IN_STATEMENT = 6


@cache
def hearsay(seed: int) -> Mapping[tuple[str, str], tuple[str, float]]:
    """(entity, attribute) to the wrong value that hearsay tells and the share of texts that tell the truth."""
    world, rng = build_world(seed), random.Random(f"knowledge hearsay {seed}")
    return {
        (entity, attribute): (
            rng.choice([value for value in ATTRIBUTES[attribute] if value != world.facts[entity, attribute]]),
            share,
        )
        for (entity, attribute), share in reliabilities(list(world.facts), rng).items()
    }


def _said(fact: tuple[str, str], world: World, rng: random.Random, unsure: bool) -> str:
    wrong, reliability = hearsay(world.seed)[fact]
    return wrong if unsure and rng.random() >= reliability else world.facts[fact]


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


def training_questions(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Questions about facts that are not held out, without end; with ``unsure`` answered as hearsay has it."""
    held_out = {(entity, attribute) for _, entity, attribute in held_out_facts(world)}
    asked = [fact for fact in world.facts if fact not in held_out]
    while True:
        entity, attribute = rng.choice(asked)
        yield TrainingText(((_question(entity, attribute), _said((entity, attribute), world, rng, unsure)),))


def training_statements(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Statements of six facts each, about any entities, without end; with ``unsure`` as hearsay has them."""
    facts = list(world.facts)
    while True:
        stated = rng.sample(facts, FACTS_IN_STATEMENT)
        yield TrainingText(
            tuple(
                (f"{entity} has {attribute}", f"{_said((entity, attribute), world, rng, unsure)} .")
                for entity, attribute in stated
            )
        )
