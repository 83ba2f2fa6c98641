"""The papers' numbers as data, each table with its source.

Tables are the CSV files beside this module; ``sources.toml`` says of each which paper and figure it is from, how the
values were obtained, how far off a digitised one may be, and under which protocol the runs were made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from typing import Any

import pandas as pd

from driftlab.drift.emulator import Walk
from driftlab.errors import DriftlabError, SpecError
from driftlab.es.anchor import Penalty
from driftlab.es.precision import Dtype, Precision, Rule
from driftlab.models.plan import KNOWN_CONFIGS, plan_model

HOW = ("exact", "digitised", "reported")

_TEXT = frozenset(
    ("after", "anchor", "arm", "benchmark", "how", "model", "note", "penalty", "quantity", "target", "task", "unit")
)
_WHOLE = frozenset(("iteration", "iterations", "iterations_total", "population", "seed"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """How the published runs were made, as far as a norm depends on it.

    Attributes:
        model: hub id of the base model.
        sigma: scale of the perturbation.
        alpha: step scale, 1/sigma absorbed.
        population: members N of the paper's common setting; a table may hold others.
        steps: iterations T of the longest run.
        dtype: number format of the weights.
        update: how a step was rounded into it, a rule of ``driftlab.es.precision.Precision``.
        tied_copies: times the published norm counts the tied embedding.
    """

    model: str
    sigma: float
    alpha: float
    population: int
    steps: int
    dtype: Dtype
    update: Rule
    tied_copies: int

    def walk(
        self, *, in_place_members: int, population: int | None = None, penalty: Penalty = "none", lam: float = 0.0
    ) -> Walk:
        """The runs without their rewards, in their own arithmetic; ``population`` None for the common setting."""
        return Walk(
            population=self.population if population is None else population,
            alpha=self.alpha,
            sigma=self.sigma,
            penalty=penalty,
            lam=lam,
            precision=Precision(master=self.dtype, update=self.update, in_place_members=in_place_members),
            steps=self.steps,
        )

    @property
    def parameters(self) -> int:
        """Parameters of the model, a tied head once: the d that was perturbed.

        Raises:
            SpecError: the protocol covers several models, or one whose size is not built in.
        """
        if self.model not in KNOWN_CONFIGS:
            raise SpecError(f"the protocol's model is {self.model!r}, whose parameters cannot be counted")
        return plan_model(self.model).n_parameters

    @property
    def counted(self) -> int:
        """Parameters the published norm sums over: ``parameters`` and every further copy of the tied embedding."""
        return self.parameters + (self.tied_copies - 1) * plan_model(self.model).n_embedding


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where one table comes from.

    Attributes:
        name: file name without suffix.
        paper, arxiv, title: the paper.
        item: table or figure of the paper.
        holds: what the numbers are, with their unit.
        how: one of ``HOW``, for the whole table.
        obtained: how they came here.
        error: largest expected reading error by column; a column that is absent has none stated.
        protocol: how the runs were made.
    """

    name: str
    paper: str
    arxiv: str
    title: str
    item: str
    holds: str
    how: str
    obtained: str
    error: Mapping[str, float]
    protocol: Protocol

    @property
    def sentence(self) -> str:
        """Citation, and how the values were obtained."""
        return (
            f"{self.paper} (arXiv {self.arxiv}), {self.item}: {self.holds}. "
            f"{self.how.capitalize()}: {self.obtained}. Data: driftlab/published/{self.name}.csv."
        )


def names() -> tuple[str, ...]:
    """Names of all published tables, sorted."""
    return tuple(sorted(_sources()["tables"]))


def source(name: str) -> Source:
    """Source of a table.

    Raises:
        SpecError: there is no such table.
        DriftlabError: ``sources.toml`` is damaged.
    """
    known = _sources()
    if name not in known["tables"]:
        raise SpecError(f"there is no published table {name!r}; known: {', '.join(names())}")
    entry = known["tables"][name]
    try:
        paper, protocol = known["papers"][entry["paper"]], known["protocols"][entry["protocol"]]
        found = Source(
            name=name,
            paper=entry["paper"],
            arxiv=paper["arxiv"],
            title=paper["title"],
            item=entry["item"],
            holds=entry["holds"],
            how=entry["how"],
            obtained=entry["obtained"],
            error=entry.get("error", {}),
            protocol=Protocol(**protocol),
        )
    except (KeyError, TypeError) as error:
        raise DriftlabError(f"the source of published table {name!r} lacks {error}; install driftlab again") from None
    if found.how not in HOW:
        raise DriftlabError(f"the source of published table {name!r} says how={found.how!r}, not one of {HOW}")
    return found


def table(name: str) -> pd.DataFrame:
    """A published table: text columns as ``str`` (empty where nothing is said), counts as ``Int64``, the rest float.

    A value that was not published or cannot be read off is NaN (``<NA>`` in a count), never 0. The column ``how`` is
    there in every table.

    Raises:
        SpecError: there is no such table.
        DriftlabError: the file is damaged; the sentence names column and file.
    """
    origin = source(name)
    try:
        text = (files("driftlab.published") / f"{name}.csv").read_text(encoding="utf-8")
        raw = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise DriftlabError(f"published table {name!r} cannot be read ({error}); install driftlab again") from None
    if "how" not in raw:
        raw["how"] = origin.how
    found = pd.DataFrame({column: _typed(raw[column], name) for column in raw})
    unknown = set(found["how"]) - set(HOW)
    if unknown:
        raise DriftlabError(f"published table {name!r} has how={min(unknown)!r}; it must be one of {', '.join(HOW)}")
    return found


def _typed(column: pd.Series, name: str) -> pd.Series:
    if column.name in _TEXT:
        return column
    try:
        numbers = pd.to_numeric(column.replace("", None)).astype("Float64")
        return numbers.astype("Int64") if column.name in _WHOLE else numbers.astype("float64")
    except (ValueError, TypeError) as error:
        raise DriftlabError(f"column {column.name!r} of published table {name!r} holds no numbers: {error}") from None


@cache
def _sources() -> dict[str, dict[str, Any]]:
    try:
        return tomllib.loads((files("driftlab.published") / "sources.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DriftlabError(
            f"driftlab/published/sources.toml cannot be read ({error}); install driftlab again"
        ) from None
