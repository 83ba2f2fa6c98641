"""Member seeds, from a private generator keyed by (run seed, step): resuming needs no stored random state."""

from __future__ import annotations

import numpy as np


def member_seeds(run_seed: int, step: int, count: int) -> tuple[int, ...]:
    """``count`` distinct seeds in [0, 2**31) for iteration ``step`` (1 is the first).

    Distinct, because two members with one seed would be one member counted twice.
    """
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence([run_seed, step])))
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        seeds[int(generator.integers(0, 2**31))] = None
    return tuple(seeds)
