"""MMLU-Pro (Wang et al. 2024, arXiv 2406.01574), five solved examples of the category, answered with a letter.

The examples are the category's items of the validation split with their published reasoning, in the order of the file:
the same for every item, every checkpoint and every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import MissingDataError
from driftlab.tasks.generative import extract, shared
from driftlab.tasks.generative.rows import rows

DATASET = "TIGER-Lab/MMLU-Pro"
SHOTS = 5
_FIELDS = ("question", "options", "answer_index", "category")
_OPENING = "A: Let's think step by step."  # of every published reasoning


def documents(*, folder: str | None = None, **_: Any) -> Any:
    """The test split as lm-eval wants it, each item with the field ``shots``: its solved examples as text.

    Raises:
        MissingDataError: a split is not there, or a category has no solved examples.
    """
    import datasets  # heavy, and needed by lm-eval only

    where = None if folder is None else Path(folder)
    solved: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(DATASET, "validation", (*_FIELDS, "cot_content"), folder=where):
        solved[row["category"]].append(row)
    items = rows(DATASET, "test", _FIELDS, folder=where)
    return {"test": datasets.Dataset.from_list([{**item, "shots": shots(item, solved)} for item in items])}


def shots(item: Mapping[str, Any], solved: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The first five solved examples of the item's category, as text; never the item itself.

    Raises:
        MissingDataError: there are none.
    """
    others = [row for row in solved.get(item["category"], ()) if row["question"] != item["question"]]
    if not others:
        raise MissingDataError(
            f"{DATASET} has no solved examples of the category {item['category']!r} in its validation split; "
            "give a folder that holds them with --data DIR"
        )
    return "\n\n".join(f"{posed(row)} {_reasoning(row)}" for row in others[:SHOTS])


def posed(doc: Mapping[str, Any]) -> str:
    """Question, options and the start of the reasoning."""
    listed = shared.listed(shared.letters(len(doc["options"])), doc["options"])
    return f"Question: {doc['question'].strip()}\nOptions:\n{listed}\nReasoning:"


def _reasoning(row: Mapping[str, Any]) -> str:
    """Published reasoning, with the answer on a line of its own in the form that is asked for."""
    answer = f"The answer is ({right(row)})."
    text = row["cot_content"].strip().removeprefix(_OPENING).removesuffix(answer).strip()
    return f"{text}\n{answer}"


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of an item with ``question``, ``options``, ``category`` and ``shots``."""
    return (
        f"Multiple-choice questions about {doc['category']}. Solved examples come first; answer the last question. "
        'Think step by step and end with a last line of the form "The answer is (X)", where X is the letter of the '
        f"right option.\n\n{doc['shots']}\n\n{posed(doc)}"
    )


def right(doc: Mapping[str, Any]) -> str:
    """Letter of the right option.

    Raises:
        DriftlabError: the index is none of the options.
    """
    return shared.named(shared.letters(len(doc["options"])), int(doc["answer_index"]), "mmlu_pro_generative")


def read(doc: Mapping[str, Any], output: str) -> str | None:
    """See ``extract.letter``."""
    return extract.letter(output, len(doc["options"]))


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of one generated answer."""
    return shared.metrics(read(doc, results[0]), right(doc), len(doc["options"]))
