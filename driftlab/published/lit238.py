"""The ES runs of LIT-238 (Fig. 6) and the arithmetic they were made in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from driftlab.es.anchor import Penalty
from driftlab.published.comparison import Planned
from driftlab.published.data import Source

ENGINES = 8
"""Engines that share the population in the code of LIT-238; the first one holds the master weights."""

LAST = 500
AT = tuple(range(25, LAST + 1, 25))


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One published run."""

    label: str
    population: int
    penalty: Penalty
    lam: float


ARMS = (
    Arm(label="ES(30)", population=30, penalty="none", lam=0.0),
    Arm(label="ES(30)+L1(0.01)", population=30, penalty="l1", lam=0.01),
    Arm(label="ES(30)+L2(10)", population=30, penalty="l2", lam=10.0),
    Arm(label="ES(128)", population=128, penalty="none", lam=0.0),
    Arm(label="ES(256)", population=256, penalty="none", lam=0.0),
)


def restored_members(population: int) -> int:
    """Members perturbed on the master itself: those of the first engine."""
    return math.ceil(population / ENGINES)


def walk_of(origin: Source, arm: Arm) -> Planned:
    """The arm in the paper's arithmetic, over all parameters that the published norm counts."""
    walk = origin.protocol.walk(
        in_place_members=restored_members(arm.population), population=arm.population, penalty=arm.penalty, lam=arm.lam
    )
    return Planned(walk=walk, d=origin.protocol.counted, at=AT)
