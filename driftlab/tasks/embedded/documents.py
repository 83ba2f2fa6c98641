"""What every task of the embedded suite is made of: evaluation items and training texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftlab.tasks.base import content_hash

Doc = dict[str, Any]
"""One evaluation item as lm-eval sees it: column to value."""


@dataclass(frozen=True, slots=True)
class TrainingText:
    """One text the nano model is trained on; words are separated by single spaces.

    Attributes:
        parts: pairs of words that are given and words that are learned, one after the other; the end of
            the sequence is learned too. Words that nothing determines, such as which facts a text states,
            are given: learning them would be learning noise.
    """

    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return " ".join(words for part in self.parts for words in part)


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
