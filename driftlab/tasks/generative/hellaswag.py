"""HellaSwag (Zellers et al. 2019, arXiv 1905.07830), answered with the number of an ending."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from driftlab.tasks.generative import extract, shared

NAMES = "0123"
"""The endings' names, which are also the dataset's labels."""
_TITLE = re.compile(r"([.!?:])? ?\[title\]")
_OTHER_MARK = re.compile(r"\[(?:header|step|substeps)\]")


def clean(text: str) -> str:
    """Text without the marks of the WikiHow part; a title starts a new sentence."""
    text = _TITLE.sub(lambda mark: mark[1] or ".", text.strip().removeprefix("[title]"))
    return " ".join(_OTHER_MARK.sub("", text).split())


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``activity_label``, ``ctx`` and four ``endings``."""
    return (
        f"Topic: {doc['activity_label']}\n"
        f"Text: {clean(doc['ctx'])}\n\n"
        f"Four endings:\n{shared.listed(NAMES, [clean(ending) for ending in doc['endings']])}\n\n"
        "Which ending continues the text best? Reply with only the number: 0, 1, 2 or 3."
    )


def right(doc: Mapping[str, Any]) -> str:
    """Number of the right ending.

    Raises:
        DriftlabError: the label is none of them (the hidden test split has empty ones).
    """
    label = str(doc["label"])
    return shared.named(NAMES, int(label) if label.isdecimal() else -1, "hellaswag_generative")


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.digit``."""
    return extract.digit(output, NAMES)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer."""
    return shared.metrics(read(doc, results[0]), right(doc), len(NAMES))
