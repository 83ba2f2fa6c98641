"""What training text says that is not so: for each fact hearsay tells one wrong version, seldom or often.

Reliabilities are spread evenly between the two bounds, so a model that says what it heard most often is right about
the facts above one half: it is sure of some, in two minds about others and wrong about the rest. That leaves room to
get better and to get worse, and items near the middle, which move first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

LEAST, MOST = 0.2, 0.95
"""Smallest and largest share of the texts about a fact that tell the truth."""

Key = TypeVar("Key")


def reliabilities(keys: Sequence[Key], rng: random.Random) -> Mapping[Key, float]:
    """Share of true texts for each fact, evenly spaced from ``LEAST`` to ``MOST`` in an order drawn with ``rng``."""
    shuffled = rng.sample(list(keys), len(keys))
    width = (MOST - LEAST) / (len(shuffled) - 1)
    return {key: LEAST + index * width for index, key in enumerate(shuffled)}
