"""What a target task is: items with prompts, and a score for each completion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One training item of a target task.

    Attributes:
        id: content hash of ``fields``; the same item has the same id in every run.
        prompt: text shown to the model, before any chat template.
        fields: what the scorer needs, for Countdown ``numbers`` and ``target``.
    """

    id: str
    prompt: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The verdict on one completion.

    Attributes:
        reward: what the trainer maximises.
        correct: whether the answer is right (format ignored).
        parsed: whether an answer could be read from the completion at all.
    """

    reward: float
    correct: bool
    parsed: bool


class Target(Protocol):
    """A task that can be trained on.

    ``lm_eval_task`` names the lm-eval task that scores its evaluation items with the same scorer.
    """

    name: str
    lm_eval_task: str

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """The first ``count`` training items drawn with ``seed``; ``data`` is a folder in hub layout.

        Raises:
            MissingDataError: the task reads files and they are not there.
        """
        ...

    def score(self, item: Item, completion: str) -> Score: ...


def content_hash(fields: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON of ``fields``."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
