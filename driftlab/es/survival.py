"""What of an intended change of the weights arrives once it is rounded into a number format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import numpy as np

from driftlab.es.precision import Array, Dtype, rounded, spacing


@dataclass(slots=True)
class Arrived:
    """Sums over coordinates of an intended change and of what was applied, in float64.

    Attributes:
        intended, applied: squared norms.
        product: inner product of the two.
        meant: coordinates with an intended change other than 0.
        still: of these, those that did not move.
    """

    intended: float = 0.0
    applied: float = 0.0
    product: float = 0.0
    meant: int = 0
    still: int = 0

    def add(self, other: Arrived) -> None:
        for name in ("intended", "applied", "product", "meant", "still"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def ratio(self) -> float | None:
        """||applied|| / ||intended||; None where nothing was intended."""
        return math.sqrt(self.applied / self.intended) if self.intended > 0 else None

    @property
    def cosine(self) -> float | None:
        """Between applied and intended; None where either is 0."""
        scale = math.sqrt(self.applied) * math.sqrt(self.intended)
        return self.product / scale if scale > 0 else None

    @property
    def unmoved(self) -> float | None:
        """Share of the coordinates with an intended change that did not move; None where nothing was intended."""
        return self.still / self.meant if self.meant else None


@dataclass(slots=True)
class Survival:
    """One step in one number format, over a set of coordinates.

    Attributes:
        n: coordinates.
        update, decay: the ES step and the anchor's pull.
        half_spacing: sum over coordinates of half the distance to the next value of the format: a change smaller than
            that, added to a value on the grid, moves nothing.
        residue: sum of squares of ((theta + sigma*eps) - sigma*eps) - theta, each operation rounded: what adding and
            subtracting one member's noise leaves behind.
        noise: sum of squares of sigma*eps for the same member; 0 where no member was drawn.
    """

    n: int = 0
    update: Arrived = field(default_factory=Arrived)
    decay: Arrived = field(default_factory=Arrived)
    half_spacing: float = 0.0
    residue: float = 0.0
    noise: float = 0.0

    def add(self, other: Survival) -> None:
        for part in fields(self):
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if isinstance(mine, Arrived):
                mine.add(theirs)
            else:
                setattr(self, part.name, mine + theirs)


def arrived(intended: Array, before: Array, after: Array) -> Arrived:
    """Sums for an ``intended`` change of weights that went from ``before`` to ``after``."""
    meant = intended != 0
    want, got = intended.astype(np.float64), after.astype(np.float64) - before
    return Arrived(
        intended=float(np.add.reduce(want * want)),
        applied=float(np.add.reduce(got * got)),
        product=float(np.add.reduce(want * got)),
        meant=int(np.count_nonzero(meant)),
        still=int(np.count_nonzero(meant & (got == 0.0))),
    )


def restore_residue(theta: Array, disturbance: Array, dtype: Dtype) -> Array:
    """((theta + disturbance) - disturbance) - theta with every operation rounded to ``dtype``."""
    there = rounded(theta + disturbance, dtype)
    return rounded(there - disturbance, dtype) - theta


def half_spacings(theta: Array, dtype: Dtype) -> float:
    """Sum over coordinates of half the distance to the next value of ``dtype``."""
    return 0.5 * float(np.add.reduce(spacing(theta, dtype)))
