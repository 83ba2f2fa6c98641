"""The embedded suite as a whole: its tasks by name for lm-eval, and the text the nano model is trained on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import datasets

from driftlab.tasks.base import Item
from driftlab.tasks.embedded import continuation, countdown, knowledge, rules, rules_written, twohop, twohop_written
from driftlab.tasks.embedded.documents import Doc, TrainingText
from driftlab.tasks.embedded.world import SEED, World, build_world

EVALUATION: Mapping[str, Callable[[World], list[Doc]]] = {
    "embedded_countdown": countdown.evaluation_docs,
    "embedded_continuation": continuation.evaluation_docs,
    "embedded_twohop": twohop.evaluation_docs,
    "embedded_knowledge": knowledge.evaluation_docs,
    "embedded_rules": rules.evaluation_docs,
}
WRITTEN: Mapping[str, Callable[[World], list[Doc]]] = {
    "embedded_twohop_written": twohop_written.evaluation_docs,
    "embedded_rules_written": rules_written.evaluation_docs,
}
"""Questions of the suite that are answered by writing: further targets to train on."""
TRAINING: Sequence[tuple[Callable[[World, random.Random, bool], Iterator[TrainingText]], int]] = (
    (countdown.training_texts, 24),
    (continuation.training_texts, 3),
    (twohop.training_questions, 24),
    (twohop.training_statements, 4),
    (knowledge.training_questions, 10),
    (knowledge.training_statements, 8),
    (rules.training_texts, 32),
)
"""Where training text comes from, and how many texts of each kind a batch holds."""


def load(task: str, **_: object) -> dict[str, datasets.Dataset]:
    """lm-eval's ``custom_dataset`` hook: the evaluation items of ``task``, always the same ones.

    Args:
        task: name from :data:`EVALUATION` or :data:`WRITTEN`; lm-eval passes the YAML's other metadata too,
            which is ignored.
    """
    return {"test": datasets.Dataset.from_list({**EVALUATION, **WRITTEN}[task](build_world(SEED)))}


def score_countdown(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """lm-eval's ``process_results`` hook of ``embedded_countdown``: the verdict of the training scorer."""
    item = Item(id=doc["item"], prompt=doc["query"], fields={"numbers": doc["numbers"], "target": doc["target"]})
    score = countdown.EmbeddedCountdown().score(item, results[0])
    return {"acc": float(score.correct), "parsed": float(score.parsed)}


def training_batches(world: World, seed: int, *, unsure: bool) -> Iterator[list[TrainingText]]:
    """Batches of training text, without end; each holds the same number of texts of each kind.

    With ``unsure`` the facts are told as hearsay has them, else as they are.
    """
    label = "unsure text" if unsure else "text"
    streams = [
        (source(world, random.Random(f"{label} {i} {seed}"), unsure), share)
        for i, (source, share) in enumerate(TRAINING)
    ]
    while True:
        yield [next(stream) for stream, share in streams for _ in range(share)]
