"""The embedded suite's world: its words, and the facts that are true in it, all drawn from one seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SEED = 20260
"""The seed of the world the shipped nano model was trained in."""

NUMBERS = tuple(str(n) for n in range(100))
PEOPLE = _words("anna bert cora dirk elsa finn gina hugo iris jack kate liam mona nils olga paul rosa sven tina ulf")
OBJECTS = _words(
    "lamp rope bowl coat drum flag gate horn jar kite lute mask net oar pipe quilt rug saw tent urn "
    "vase wheel axe bell cart desk fan globe hat ink"
)
VERBS = _words(
    "find lift wash dry polish store open fill weigh mark carry lower paint sand mend fold wrap tie "
    "heat cool turn press cut join test clean hang pack"
)
TRAITS = _words("kind loud calm bold shy wise tall quick proud neat rude keen fair grim")
KINDS = ("beast", "plant", "stone", "tool", "spirit")
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "colour": _words("red blue green black white brown grey pink gold violet"),
    "home": _words("river hill forest marsh cave meadow shore desert lake cliff"),
    "sound": _words("hum click roar buzz chirp hiss rattle growl sigh knock"),
    "scent": _words("rose smoke mint salt honey tar pine musk lemon dust"),
    "month": _words("january february march april june july august october november december"),
    "keeper": _words("smith baker monk sailor hunter weaver miller tailor farmer scribe"),
    "metal": _words("iron copper silver tin lead zinc nickel cobalt bronze steel"),
    "shape": _words("cube cone ring disc star rod arc knot spiral wedge"),
}
GRAMMAR = _words(
    "<pad> <bos> <eos> <unk> + - * / ( ) . , : ? reach with in land town of which has and lacks "
    "gives bars claim true false unknown"
)
ENTITIES_PER_KIND = 30
TOWNS = 60
LANDS = 12
ROUTINES = 60
ROUTINE_LENGTH = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Everything that is true in one world.

    Attributes:
        seed: what the facts were drawn with.
        lands: names of the lands.
        towns: town to the land it lies in.
        routines: for each routine its verbs in the order in which they are done.
        kinds: kind to the names of its entities.
        facts: (entity, attribute) to the attribute's value.
    """

    seed: int
    lands: tuple[str, ...]
    towns: Mapping[str, str]
    routines: tuple[tuple[str, ...], ...]
    kinds: Mapping[str, tuple[str, ...]]
    facts: Mapping[tuple[str, str], str]

    def vocabulary(self) -> tuple[str, ...]:
        """Every word of the world, in the fixed order of the tokenizer's ids."""
        entities = tuple(itertools.chain.from_iterable(self.kinds.values()))
        values = tuple(itertools.chain.from_iterable(ATTRIBUTES.values()))
        people_and_things = PEOPLE + OBJECTS + VERBS + TRAITS + KINDS
        words = GRAMMAR + NUMBERS + people_and_things + tuple(ATTRIBUTES) + values
        return tuple(dict.fromkeys(words + self.lands + tuple(self.towns) + entities))


def _names(endings: str, count: int) -> tuple[str, ...]:
    """``count`` invented names: two syllables and one of the space-separated ``endings``."""
    first = _words("ba ce di fo gu ha je ki lo mu na pe ri so tu va")
    second = _words("rl nd st mb rk ln")
    every = [a + b + c for c, b, a in itertools.product(endings.split(), second, first)]
    return tuple(every[:count])


@cache
def build_world(seed: int = SEED) -> World:
    """Draw the world of ``seed``. The same seed gives the same world in every process."""
    rng = random.Random(f"world {seed}")
    lands = _names("ia", LANDS)
    towns = _names("ton ham", TOWNS)
    # Every land has equally many towns, so that no land is the likelier answer.
    shares = [lands[i % LANDS] for i in range(TOWNS)]
    rng.shuffle(shares)
    names = _names("or ax", ENTITIES_PER_KIND * len(KINDS))
    kinds = {kind: names[i * ENTITIES_PER_KIND : (i + 1) * ENTITIES_PER_KIND] for i, kind in enumerate(KINDS)}
    facts: dict[tuple[str, str], str] = {}
    for kind in KINDS:
        for attribute, values in ATTRIBUTES.items():
            # Equally many entities of a kind have each value: guessing the commonest one does not pay.
            drawn = [values[i % len(values)] for i in range(ENTITIES_PER_KIND)]
            rng.shuffle(drawn)
            facts.update({(entity, attribute): value for entity, value in zip(kinds[kind], drawn, strict=True)})
    return World(
        seed=seed,
        lands=lands,
        towns=dict(zip(towns, shares, strict=True)),
        routines=tuple(tuple(rng.sample(VERBS, ROUTINE_LENGTH)) for _ in range(ROUTINES)),
        kinds=kinds,
        facts=facts,
    )
