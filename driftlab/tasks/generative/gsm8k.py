"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168), reasoned about and answered with a number.

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

DATASET = "openai/gsm8k"


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``question``."""
    return (
        f"{doc['question'].strip()}\n\n"
        'Solve the problem step by step. End with a last line that holds only "####", a space and the answer as a '
        "number without unit."
    )


def right(doc: Mapping[str, Any]) -> str:
    """The answer in lowest terms, from the last line of the published solution.

    Raises:
        DriftlabError: that line holds no number.
    """
    found = extract.number(extract.last_line(doc["answer"]))
    if found is None:
        raise DriftlabError(f"GSM8K has an item whose solution does not end with '#### number': {doc['question']!r}")
    return found


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.number``; equal numbers read the same, however they were written."""
    return extract.number(output)


def score(doc: Mapping[str, Any], output: str) -> Score:
    """See ``shared.rewarded``."""
    return shared.rewarded(extract.number, right(doc), output)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer; nobody guesses a number, so ``chance`` is 0."""
    return shared.rewarded_metrics(score(doc, results[0]), 0.0)


class Gsm8k:
    """Training items from the split ``train`` of ``openai/gsm8k``, configuration ``main``."""

    name = "gsm8k"
    lm_eval_task = "gsm8k_generative"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """``count`` items in an order drawn with ``seed``.

        Raises:
            MissingDataError: the split is not there.
            SpecError: it has fewer than ``count`` items.
            DriftlabError: a row cannot be used.
        """
        folder = None if data is None else data / DATASET
        found = rows(DATASET, "train", ("question", "answer"), config="main", folder=folder)
        return tuple(_item(row) for row in drawn(found, task=self.name, count=count, seed=seed))

    def score(self, item: Item, completion: str) -> Score:
        """See the function ``score``."""
        return score(item.fields, completion)


def _item(row: Mapping[str, Any]) -> Item:
    right(row)  # a solution without a number is found before training, not in it
    fields = {"question": row["question"], "answer": row["answer"]}
    return Item(id=content_hash(fields), prompt=doc_to_text(fields), fields=fields)
