"""Rules, written: whether a claim is true, false or unknown after up to three rule steps."""

from __future__ import annotations

import random
from pathlib import Path

from driftlab.tasks.base import Item, Score
from driftlab.tasks.embedded import rules, written
from driftlab.tasks.embedded.documents import Doc
from driftlab.tasks.embedded.world import SEED, World, build_world


def evaluation_docs(world: World) -> list[Doc]:
    """The 600 questions of the choice task; the three labels are the answers."""
    return written.written_docs(rules.evaluation_docs(world), rules.LABELS)


class RulesWritten:
    """Rules in the embedded world, as a target to train on."""

    name = "embedded_rules_written"
    lm_eval_task = "embedded_rules_written"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """The first ``count`` questions drawn with ``seed``, all different, on no theory of an evaluation item.

        ``data`` is not used.
        """
        texts = rules.training_texts(build_world(SEED), random.Random(f"rules_written training {seed}"), False)
        return written.written_items(texts, "claim", rules.LABELS, count)

    def score(self, item: Item, completion: str) -> Score:
        """See ``written.score``."""
        return written.score(item.fields, completion)
