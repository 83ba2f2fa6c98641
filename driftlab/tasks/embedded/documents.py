"""What every task of the embedded suite is made of: evaluation items and training texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftlab.tasks.base import content_hash

Doc = dict[str, Any]
"""One evaluation item as lm-eval sees it: column to value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingText:
    """One text the nano model is trained on; words are separated by single spaces.

    Attributes:
        prompt: given words, not learned; may be empty.
        answer: words learned (after an empty prompt all but the first), then the end of the sequence.
    """

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        return f"{self.prompt} {self.answer}".strip()


def choice_doc(*, query: str, choices: Sequence[str], gold: int, cluster: str, **labels: str | int) -> Doc:
    """A multiple-choice item; ``labels`` are further columns such as ``depth`` or ``category``.

    Args:
        query: prompt, without a trailing space.
        choices: endings, without a leading space.
        gold: index of the right ending.
        cluster: what the item shares with the items it is not independent of.
    """
    fields = {"query": query, "choices": list(choices), "gold": gold}
    return {"item": content_hash(fields), **fields, "cluster": cluster, **labels}
