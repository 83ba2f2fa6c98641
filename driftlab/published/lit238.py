"""The ES runs of LIT-238 (Fig. 6) and the arithmetic they were made in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from driftlab.drift.emulator import Walk
from driftlab.es.precision import Precision
from driftlab.published.comparison import Planned
from driftlab.published.data import Protocol, Source

ENGINES = 8
"""Engines that share the population in the code of LIT-238; the first one holds the master weights."""

LAST = 500
AT = tuple(range(25, LAST + 1, 25))


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One published run."""

    label: str
    population: int
    penalty: Literal["none", "l1", "l2"]
    lam: float


ARMS = (
    Arm(label="ES(30)", population=30, penalty="none", lam=0.0),
    Arm(label="ES(30)+L1(0.01)", population=30, penalty="l1", lam=0.01),
    Arm(label="ES(30)+L2(10)", population=30, penalty="l2", lam=10.0),
    Arm(label="ES(128)", population=128, penalty="none", lam=0.0),
    Arm(label="ES(256)", population=256, penalty="none", lam=0.0),
)


def published_precision(protocol: Protocol, population: int) -> Precision:
    """The paper's arithmetic, with the first engine's members perturbed on the master itself."""
    restored = math.ceil(population / ENGINES)
    return Precision(master=protocol.dtype, update=protocol.update, in_place_members=restored)


def walk_of(origin: Source, arm: Arm) -> Planned:
    """The arm in the paper's arithmetic, over all parameters that the published norm counts."""
    protocol = origin.protocol
    walk = Walk(
        population=arm.population,
        alpha=protocol.alpha,
        sigma=protocol.sigma,
        penalty=arm.penalty,
        lam=arm.lam,
        precision=published_precision(protocol, arm.population),
        steps=protocol.steps,
    )
    return Planned(walk=walk, d=protocol.counted, at=AT)
