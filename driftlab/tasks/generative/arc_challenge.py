"""ARC-Challenge (Clark et al. 2018, arXiv 1803.05457), reasoned about and answered with a letter.

Items have three to five options, named by letters or by digits in the data; here always by letters, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.tasks.generative import extract, shared


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``question`` and ``choices`` (``text`` and ``label``)."""
    texts = doc["choices"]["text"]
    return (
        f"Question: {doc['question'].strip()}\n"
        f"Options:\n{shared.listed(shared.letters(len(texts)), texts)}\n\n"
        'Think step by step. End with a last line of the form "The answer is (X)", where X is the letter of the right '
        "option."
    )


def right(doc: Mapping[str, Any]) -> str:
    """Letter of the right option.

    Raises:
        DriftlabError: the key names none of the options.
    """
    labels = list(doc["choices"]["label"])
    if doc["answerKey"] not in labels:
        raise DriftlabError(
            f"task 'arc_challenge_generative' has an item whose answer {doc['answerKey']!r} is none of "
            f"{', '.join(labels)}"
        )
    return shared.letters(len(labels))[labels.index(doc["answerKey"])]


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.letter``."""
    return extract.letter(output, len(doc["choices"]["text"]))


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer."""
    return shared.metrics(read(doc, results[0]), right(doc), len(doc["choices"]["text"]))
