"""What a probe is: it looks at a checkpoint beside the base model and returns measurements, leaving no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from driftlab.engines.base import Engine, Weights
from driftlab.es.survival import Survival
from driftlab.run.records import CoverageItem, Example, Iteration, Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Weights after the first ``step`` updates, beside the base.

    Attributes:
        step: number of updates applied.
        weights: master weights theta_t, held as float32.
        base: base weights theta_0 in the master's format, likewise.
        updates: the ``step`` updates that lead from base to weights; empty for step 0.
        survival: what of the last step arrived, by tensor and format; empty where it was not asked for.
    """

    step: int
    weights: Weights
    base: Weights
    updates: Sequence[Iteration]
    survival: Mapping[str, Mapping[str, Survival]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one probe says about one checkpoint."""

    measurements: tuple[Measurement, ...]
    examples: tuple[Example, ...] = ()
    coverage: tuple[CoverageItem, ...] = ()


class Probe(Protocol):
    name: str

    def prepare(self, engine: Engine) -> None:
        """Once per run, while ``engine`` serves the base model: draw references, build requests."""
        ...

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """``engine`` serves ``checkpoint.weights``. Weights, mode and every random state stay as they were."""
        ...
