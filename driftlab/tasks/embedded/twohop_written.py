"""Two hops, written: the land in which a person is, when the context names the town and the weights know its land.

Training items ask about other (person, town) pairs than evaluation items do, but about the same towns: what is learned
of a town's land, against hearsay, holds for whoever lives there.
"""

from __future__ import annotations

import random
from pathlib import Path

from driftlab.tasks.base import Item, Score
from driftlab.tasks.embedded import twohop, written
from driftlab.tasks.embedded.documents import Doc
from driftlab.tasks.embedded.world import SEED, World, build_world


def evaluation_docs(world: World) -> list[Doc]:
    """The 600 questions of the choice task; any land is an answer."""
    return written.written_docs(twohop.evaluation_docs(world), world.lands)


class TwohopWritten:
    """Two hops in the embedded world, as a target to train on; the truth is rewarded, not what hearsay tells."""

    name = "embedded_twohop_written"
    lm_eval_task = "embedded_twohop_written"

    def train_items(self, *, count: int, seed: int, data: Path | None) -> tuple[Item, ...]:
        """The first ``count`` questions drawn with ``seed``, all different, about no pair of an evaluation item.

        ``data`` is not used.
        """
        world = build_world(SEED)
        texts = twohop.training_questions(world, random.Random(f"twohop_written training {seed}"), False)
        return written.written_items(texts, "land", world.lands, count)

    def score(self, item: Item, completion: str) -> Score:
        """See ``written.score``."""
        return written.score(item.fields, completion)
