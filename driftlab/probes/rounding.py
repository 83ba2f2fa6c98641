"""What of the last step survived the rounding into the formats in which weights are served and kept."""

from __future__ import annotations

import math

from driftlab.engines.base import Engine
from driftlab.es.precision import Dtype
from driftlab.es.survival import Arrived, Survival
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.rows import Rows
from driftlab.probes.weights import layer_group


class RoundingProbe:
    """Survival of the step that led to a checkpoint, for ``all`` weights and each layer group.

    Rows (unit), each for what is ``served`` and, when the master is half precision, for the ``master``:
    ``update_survival`` and ``decay_survival`` (ratio: ||applied|| / ||intended||), ``update_survival_cosine`` and
    ``decay_survival_cosine`` (cosine of applied and intended), ``update_unmoved`` and ``decay_unmoved`` (fraction of
    the coordinates meant to move that did not), ``dead_zone`` (absolute: half the distance to the next value of the
    format, mean over weights), ``restore_residue`` (ratio: root mean square of what adding and subtracting one
    member's noise leaves behind, over that of the noise). Intended is what float32 arithmetic gives for the step and
    for the anchor's pull; the decay is what it moved once the step was there.
    """

    name = "rounding"

    def __init__(self, *, served: Dtype, master: Dtype) -> None:
        self.formats = ("served",) if master == "float32" else ("served", "master")
        self.dtypes = {"served": served, "master": master}

    def prepare(self, engine: Engine) -> None:
        """Nothing to prepare: the step is watched while it is taken."""

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        rows = Rows(checkpoint.step, self.name)
        for form in self.formats:
            groups = {"all": Survival()}
            for name, found in checkpoint.survival.items():
                groups["all"].add(found[form])
                groups.setdefault(layer_group(name), Survival()).add(found[form])
            for group, survival in groups.items():
                self._add(rows, form, group, survival, checkpoint)
        return Measured(measurements=tuple(rows.rows))

    def _add(self, rows: Rows, form: str, group: str, survival: Survival, checkpoint: Checkpoint) -> None:
        n = survival.n or sum(tensor.numel() for tensor in checkpoint.base.values())
        missing = "step 0 is the base model" if checkpoint.step == 0 else None
        note = self.dtypes[form]
        for part, found in (("update", survival.update), ("decay", survival.decay)):
            nothing = missing or f"no {part} was intended"
            for quantity, value, unit in _arrived(part, found):
                rows.add(f"{quantity}_{form}", value, unit, n, group=group, note=note if value is not None else nothing)
        width = survival.half_spacing / survival.n if survival.n else None
        rows.add(f"dead_zone_{form}", width, "absolute", n, group=group, note=missing or note)
        left = math.sqrt(survival.residue / survival.noise) if survival.noise > 0 else None
        nothing = missing or "the step drew no member"
        rows.add(f"restore_residue_{form}", left, "ratio", n, group=group, note=note if left is not None else nothing)


def _arrived(part: str, found: Arrived) -> tuple[tuple[str, float | None, str], ...]:
    return (
        (f"{part}_survival", found.ratio, "ratio"),
        (f"{part}_survival_cosine", found.cosine, "cosine"),
        (f"{part}_unmoved", found.unmoved, "fraction"),
    )
