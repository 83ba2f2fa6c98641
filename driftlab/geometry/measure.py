"""Everything that ``driftlab geometry`` says about two solutions, measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from driftlab.drift import geometry as maths
from driftlab.errors import SpecError
from driftlab.geometry.lines import default_distances, direction_table, path_table
from driftlab.geometry.runs import Side, two_sides
from driftlab.geometry.scoring import Scorer, Weights
from driftlab.geometry.walk import Levels, follow, growth_rows, levels, share_row
from driftlab.models.base import DTYPES, load_base
from driftlab.models.checkpoints import check_base, in_format
from driftlab.report.geometry_frames import Geometry
from driftlab.run.parts import KlProbeSpec

Start = Callable[[str], Callable[[float], None]]
_LEAST_POINTS = 3

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_PARTS = (
    ("norm", re.compile(r"norm|(?:^|[._])ln(?:[._]|\d|$)")),
    ("Q", re.compile(r"\.(?:q_proj|q_lin|query|wq)\.")),
    ("K", re.compile(r"\.(?:k_proj|k_lin|key|wk)\.")),
    ("V", re.compile(r"\.(?:v_proj|v_lin|value|wv)\.")),
    ("QKV", re.compile(r"\.(?:qkv_proj|query_key_value|attn\.c_attn|W_?pack|qkv)\.")),
    ("O", re.compile(r"\.(?:o_proj|out_proj|out_lin|attn\.c_proj|attention\.dense|wo)\.")),
    ("MLP", re.compile(r"\.(?:mlp|feed_forward|ffn|block_sparse_moe|moe|fc1|fc2)(?:\.|$)")),
    ("embedding", re.compile(r"(?:^|\.)(?:embed_tokens|embed_positions|embed_in|word_embeddings|wte|wpe)\.")),
    ("head", re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_projection|score)\.")),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How to measure.

    Attributes:
        points: of the straight path, both ends included.
        distances: from the base along each direction, units of the weights' L2 norm; None for fractions of both norms.
        items: of each task, a seeded subset of the runs' own; None for all of them.
        tau: largest absolute change that counts as none.
        stages: steps between which the KL is taken, in both runs; None for the measured ones.
        seed: of the random direction and of the subset.
        data: folder of benchmark files; None for the one that the first run had.
    """

    points: int = 9
    distances: tuple[float, ...] | None = None
    items: int | None = None
    tau: float = 1e-6
    stages: tuple[int, ...] | None = None
    seed: int = 0
    data: Path | None = None

    def check(self) -> None:
        """Raises SpecError for what cannot be measured."""
        if self.points < _LEAST_POINTS:
            raise SpecError(
                f"--points is {self.points}, but a path has its two ends and a point between: use 3 or more"
            )
        if any(not math.isfinite(r) or r <= 0 for r in self.distances or ()):
            raise SpecError(f"--distances are {self.distances}, but a distance from the base is a number above 0")
        if self.items is not None and self.items < 2:
            raise SpecError(f"--items is {self.items}, but an interval needs at least 2 items")
        if not (math.isfinite(self.tau) and self.tau >= 0):
            raise SpecError(f"--tau is {self.tau}; an absolute change of 0 or more is needed")
        if self.stages is not None and len(set(self.stages)) < 2:
            raise SpecError("--stages names one step, but a divergence is taken between two: name two or more")


def tensor_part(name: str) -> str:
    """Q, K, V, QKV (fused), O, MLP, norm, embedding, head or other, from a canonical Hugging Face parameter name."""
    return next((part for part, pattern in _PARTS if pattern.search(name)), "other")


def measure(a: Path, b: Path, *, step_a: int | None, step_b: int | None, settings: Settings, start: Start) -> Geometry:
    """Compare the solution at ``step_a`` of run ``a`` with that at ``step_b`` of run ``b``; None for the last step.

    ``start`` is told each part of the work by name and gives what to tell its share done.

    Raises:
        SpecError: settings that cannot be measured.
        RunError: runs that cannot be compared, or whose weights cannot be had; see ``runs.two_sides``.
        DriftlabError: model, tasks or data cannot be had.
    """
    settings.check()
    sides = two_sides(a, b, step_a, step_b)
    for side in sides:
        if any(not 0 <= step <= side.step for step in settings.stages or ()):
            raise SpecError(f"--stages must lie within {side.store.path}, which is compared at step {side.step}")
    first, model = sides[0], sides[0].spec.model
    torch.set_num_threads(first.spec.threads)
    base = load_base(model.source, dtype=DTYPES[model.dtype], device=model.device, revision=model.revision)
    for side in sides:
        check_base(side.store, base)
    origin = in_format(base.weights, first.spec.precision.master)
    kl = next((side.spec.probes.kl for side in sides if side.spec.probes.kl is not None), None)
    scorer = Scorer(first, base, items=settings.items, seed=settings.seed, data=settings.data, kl=kl)
    followed = [
        follow(side, base.weights, origin, scorer, settings.stages, start(f"{side.label}: weights and KL"))
        for side in sides
    ]
    ends, parts, labels = [one.end for one in followed], levels(origin), [side.label for side in sides]
    norms = [math.sqrt(sum(one.squares[side.step].values())) for one, side in zip(followed, sides, strict=True)]
    distances = default_distances(norms) if settings.distances is None else tuple(sorted(set(settings.distances)))
    path = directions = pd.DataFrame()
    if scorer.tasks:
        path = path_table(sides, ends, scorer, settings.points, start("straight path"))
        directions = direction_table(
            labels, origin, ends, norms, scorer, distances, settings.seed, start("directions from the base")
        )
    sums = tensor_sums(origin, ends, settings.tau)
    return Geometry(
        runs=(_described(sides[0]), _described(sides[1])),
        settings=_asked(settings, distances, kl),
        target=scorer.target,
        tasks=scorer.tasks,
        shared_seeds=_shared_seeds(sides),
        missing=_missing(sides, scorer, norms),
        cosines=_cosine_table(sums, parts),
        path=path,
        directions=directions,
        kl=pd.DataFrame([row for one in followed for row in one.kl]),
        shares=pd.DataFrame([share_row(s, f, parts[0][2]) for s, f in zip(sides, followed, strict=True)]),
        norms=_norm_table(sides, [one.squares for one in followed], parts),
        growth=pd.DataFrame([row for s, f in zip(sides, followed, strict=True) for row in growth_rows(s, f, parts)]),
        sparsity=pd.DataFrame([row for which in (0, 1) for row in sparsity_rows(labels[which], which, sums)]),
    )


def tensor_sums(base: Weights, ends: Sequence[Weights], tau: float) -> dict[str, maths.PairSums]:
    """Sums over every tensor of the two solutions ``ends``."""
    a, b = ends
    return {name: maths.pair_sums(zero.numpy(), a[name].numpy(), b[name].numpy(), tau) for name, zero in base.items()}


def _total(sums: dict[str, maths.PairSums], names: Sequence[str]) -> maths.PairSums:
    total = maths.PairSums()
    for name in names:
        total.add(sums[name])
    return total


def _cosine_table(sums: dict[str, maths.PairSums], parts: Levels) -> pd.DataFrame:
    rows = []
    for level, name, d, tensors in parts:
        total = _total(sums, tensors)
        found = maths.alignment(total)
        rows.append(
            {
                "level": level,
                "name": name,
                "d": d,
                "norm_a": math.sqrt(total.squared_a),
                "norm_b": math.sqrt(total.squared_b),
                "cosine": found.cosine,
                "angle": found.angle,
                "random_mean": 0.0,
                "random_sd": found.random_sd,
                "random_abs": found.random_abs,
                "z": found.z,
                "status": "skipped" if found.cosine is None else "ok",
                "note": "a displacement is 0" if found.cosine is None else None,
            }
        )
    return pd.DataFrame(rows)


def _norm_table(sides: Sequence[Side], squares: Sequence[dict[int, dict[str, float]]], parts: Levels) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"run": side.label, "step": step, "level": level, "name": name, "d": d}
            | {"squared_norm": sum(at[one] for one in tensors)}
            for side, found in zip(sides, squares, strict=True)
            for step, at in sorted(found.items())
            for level, name, d, tensors in parts
        ]
    )


def sparsity_rows(label: str, which: int, sums: dict[str, maths.PairSums]) -> list[dict[str, Any]]:
    """Share of small and of no changes of A (``which`` 0) or B (1): per layer and part, for a layer, for the model."""
    groups: dict[tuple[str, str], list[maths.PairSums]] = {}
    for name, one in sums.items():
        found = _LAYER.search(name)
        layer, part = "none" if found is None else str(int(found.group(1))), tensor_part(name)
        for key in ((layer, part), (layer, "all"), ("all", part), ("all", "all")):
            groups.setdefault(key, []).append(one)
    rows = []
    for (layer, part), members in groups.items():
        n = sum(one.n for one in members)
        row: dict[str, Any] = {"run": label, "layer": layer, "part": part, "tensors": len(members), "n": n}
        for quantity, prefix in (("sparsity", "within"), ("zero_fraction", "unchanged")):
            counts = [getattr(one, f"{prefix}_{'ab'[which]}") for one in members]
            row[quantity] = sum(counts) / n
            row[f"{quantity}_tensor_mean"] = sum(c / one.n for c, one in zip(counts, members, strict=True)) / len(
                counts
            )
        rows.append(row)
    return rows


def _described(side: Side) -> dict[str, Any]:
    manifest = side.store.manifest
    return {
        "label": side.label,
        "run_id": manifest.run_id,
        "arm": side.spec.arm,
        "seed": side.spec.seed,
        "trainer": side.spec.trainer,
        "control": side.spec.control,
        "anchor": side.spec.anchor.penalty,
        "step": side.step,
        "base_weights_hash": manifest.model["weights_hash"],
        "served": side.spec.model.dtype,
        "master": side.spec.precision.master,
    }


def _asked(settings: Settings, distances: Sequence[float], kl: KlProbeSpec | None) -> dict[str, Any]:
    return {
        "points": settings.points,
        "distances": list(distances),
        "items": settings.items,
        "tau": settings.tau,
        "stages": None if settings.stages is None else sorted(set(settings.stages)),
        "seed": settings.seed,
        "kl_texts": None if kl is None else kl.model_dump(),
    }


def _shared_seeds(sides: Sequence[Side]) -> int:
    """Noise seeds that both solutions were made with; 0 where one is not of ES."""
    a, b = ({seed for update in side.updates or () for seed in update.seeds} for side in sides)
    return len(a & b)


def _missing(sides: Sequence[Side], scorer: Scorer, norms: Sequence[float]) -> tuple[tuple[str, str], ...]:
    """(what, why) for every part that could not be measured as a whole."""
    found = []
    if not scorer.tasks:
        found.append(("accuracy on the path and along directions", "neither run measures lm-eval tasks"))
    if not scorer.draws_texts:
        found.append(("KL from stage to stage", "neither run has a KL probe, whose settings its texts are drawn with"))
    for side, norm in zip(sides, norms, strict=True):
        if norm == 0:
            found.append((f"direction of {side.label}", "its weights are those of the base"))
    return tuple(found)
