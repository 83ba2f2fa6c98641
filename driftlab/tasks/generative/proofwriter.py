"""ProofWriter, open world (Tafjord et al. 2021, arXiv 2012.13048), reasoned about and answered with a label.

The reward is answer correctness plus a tenth for the format, as in arXiv 2605.30148 (LIT-238): the answer on the last
line. The same scorer judges training completions and evaluation items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.tasks.base import Item, Score, content_hash
from driftlab.tasks.generative import extract, shared
from driftlab.tasks.generative.rows import drawn, rows
from driftlab.tasks.proofwriter import LABELS

DATASET = "tasksource/proofwriter"
_FIELDS = ("theory", "question", "answer")


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``theory`` and ``question`` (a statement)."""
    return (
        f"Facts and rules:\n{doc['theory'].strip()}\n\n"
        f"Statement: {doc['question'].strip()}\n\n"
        "Is the statement True (it follows), False (its negation follows) or Unknown (neither follows)? "
        'Write down your reasoning. End with a last line of the form "Answer: X", where X is True, False or Unknown.'
    )


def right(doc: Mapping[str, Any]) -> str:
    """The right label; some copies hold JSON booleans beside the string Unknown.

    Raises:
        DriftlabError: the answer is no label.
    """
    answer = str(doc["answer"])
    if answer not in LABELS:
        raise DriftlabError(f"ProofWriter has an item whose answer {answer!r} is none of {', '.join(LABELS)}")
    return answer


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.label``."""
    return extract.label(output)


def score(doc: Mapping[str, Any], output: str) -> Score:
    """See ``shared.rewarded``."""
    return shared.rewarded(extract.label, right(doc), output)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer, with ``unknown_fraction``: Unknown is the largest class."""
    unknown = {"unknown_fraction": float(read(doc, results[0]) == "Unknown")}
    return shared.rewarded_metrics(score(doc, results[0]), 1 / len(LABELS)) | unknown


class ProofWriter:
    """Training items from the split ``train`` of ``tasksource/proofwriter``."""

    name = "proofwriter"
    lm_eval_task = "proofwriter_generative"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """``count`` items in an order drawn with ``seed``.

        Raises:
            MissingDataError: the split is not there.
            SpecError: it has fewer than ``count`` items.
            DriftlabError: a row cannot be used.
        """
        found = rows(DATASET, "train", _FIELDS, folder=None if data is None else data / DATASET)
        return tuple(_item(row) for row in drawn(found, task=self.name, count=count, seed=seed))

    def score(self, item: Item, completion: str) -> Score:
        """See the function ``score``."""
        return score(item.fields, completion)


def _item(row: Mapping[str, Any]) -> Item:
    fields = {"theory": row["theory"], "question": row["question"], "answer": right(row)}
    return Item(id=content_hash(fields), prompt=doc_to_text(fields), fields=fields)
