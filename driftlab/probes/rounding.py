"""What of the last step survived the rounding into the formats in which weights are served and kept."""

from __future__ import annotations

import math

from driftlab.engines.base import Engine
from driftlab.es.precision import Dtype
from driftlab.es.survival import Survival
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
        names, note = QUANTITIES[form], self.dtypes[form]

        def add(name: str, value: float | None, unit: str, why_not: str) -> None:
            said = note if value is not None else missing or why_not
            rows.add(names[name], value, unit, n, group=group, note=said)

        for part, found in (("update", survival.update), ("decay", survival.decay)):
            nothing = f"no {part} was intended"
            add(part, found.ratio, "ratio", nothing)
            add(f"{part} cosine", found.cosine, "cosine", nothing)
            add(f"{part} unmoved", found.unmoved, "fraction", nothing)
        add("dead zone", survival.half_spacing / survival.n if survival.n else None, "absolute", "no step was watched")
        left = math.sqrt(survival.residue / survival.noise) if survival.noise > 0 else None
        add("residue", left, "ratio", "the step drew no member")


QUANTITIES = {
    "served": {
        "update": "update_survival_served",
        "update cosine": "update_survival_cosine_served",
        "update unmoved": "update_unmoved_served",
        "decay": "decay_survival_served",
        "decay cosine": "decay_survival_cosine_served",
        "decay unmoved": "decay_unmoved_served",
        "dead zone": "dead_zone_served",
        "residue": "restore_residue_served",
    },
    "master": {
        "update": "update_survival_master",
        "update cosine": "update_survival_cosine_master",
        "update unmoved": "update_unmoved_master",
        "decay": "decay_survival_master",
        "decay cosine": "decay_survival_cosine_master",
        "decay unmoved": "decay_unmoved_master",
        "dead zone": "dead_zone_master",
        "residue": "restore_residue_master",
    },
}
"""Names of the rows by format."""
