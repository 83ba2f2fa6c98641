"""Questions answered by writing: the first word written is the answer, and nothing after it counts.

The questions are those of the suite's choice tasks. A choice among given options is blind to whether the model would
write the answer by itself; a target that can be trained on must be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from driftlab.errors import SpecError
from driftlab.tasks.base import Item, Score, content_hash
from driftlab.tasks.embedded.documents import Doc, TrainingText

_IN_VAIN = 1000
"""Texts in a row without a new question after which there is none."""


def _fields(query: str, answer: str, options: Sequence[str]) -> dict[str, Any]:
    return {"query": query, "answer": answer, "options": list(options)}


def written_docs(choices: Iterable[Doc], options: Sequence[str]) -> list[Doc]:
    """The items of a choice task as questions to be answered by writing; clusters and labels stay.

    Args:
        options: every word that is an answer at all, right or wrong.
    """
    docs = []
    for doc in choices:
        fields = _fields(doc["query"], doc["choices"][doc["gold"]], options)
        kept = {key: value for key, value in doc.items() if key not in ("item", "query", "choices", "gold")}
        docs.append({"item": content_hash(fields), **fields, **kept})
    return docs


def written_items(texts: Iterator[TrainingText], asks: str, options: Sequence[str], count: int) -> tuple[Item, ...]:
    """The first ``count`` different questions with the word ``asks`` that begin training texts, as they are drawn.

    Raises:
        SpecError: a thousand texts in a row brought no new question.
    """
    found: dict[str, Item] = {}
    draws = 0
    while len(found) < count:
        query, answer = next(texts).parts[0]
        item = content_hash(_fields(query, answer, options))
        draws += 1
        if asks in query.split() and item not in found:
            found[item] = Item(id=item, prompt=query, fields=_fields(query, answer, options))
            draws = 0
        if draws == _IN_VAIN:
            raise SpecError(f"{count} training items were asked for, but after {len(found)} no new question turned up")
    return tuple(found.values())


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """The first word of ``output`` if it is one of the options, else None."""
    first = next(iter(output.split()), None)
    return first if first in doc["options"] else None


def score(fields: Mapping[str, Any], completion: str) -> Score:
    """Reward 1.0 if the first word of ``completion`` is the right answer, else 0.0."""
    found = read(fields, completion)
    correct = found == fields["answer"]
    return Score(reward=float(correct), correct=correct, parsed=found is not None)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """lm-eval's hook: the verdict of the training scorer, and the accuracy of a guess among the options."""
    verdict = score(doc, results[0])
    return {"acc": float(verdict.correct), "parsed": float(verdict.parsed), "chance": 1 / len(doc["options"])}
