"""PIQA (Bisk et al. 2020, arXiv 1911.11641), answered with the number of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftlab.tasks.generative import extract, shared

NAMES = "12"
"""The solutions' names; the dataset's labels are 0 and 1."""


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``goal``, ``sol1`` and ``sol2``."""
    return (
        f"Goal: {doc['goal'].strip()}\n\n"
        f"Two solutions:\n{shared.listed(NAMES, [doc['sol1'], doc['sol2']])}\n\n"
        "Which solution reaches the goal? Reply with only the number: 1 or 2."
    )


def right(doc: Mapping[str, Any]) -> str:
    """Number of the right solution.

    Raises:
        DriftlabError: the label is neither 0 nor 1.
    """
    return shared.named(NAMES, int(doc["label"]), "piqa_generative")


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.digit``."""
    return extract.digit(output, NAMES)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer."""
    return shared.metrics(read(doc, results[0]), right(doc), len(NAMES))
