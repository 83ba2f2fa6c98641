"""The training reward beside the reward on items of the same kind that training never sees.

Both are earned greedily by the checkpoint itself, so that they can be subtracted: what a trainer reports is the mean
over perturbed members, or over sampled answers, and always on the batch that it fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from driftlab.engines.base import Engine
from driftlab.errors import SpecError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.no_trace import untouched
from driftlab.probes.rows import Rows
from driftlab.tasks.base import Item, Score, Target

QUANTITIES = {
    "training": ("training_reward", "training_accuracy"),
    "held_out": ("held_out_reward", "held_out_accuracy"),
}
"""Names of the rows by set."""


def what_is_asked(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same for two items that ask the same thing, training item or document of an evaluation task.

    Numbers in another order make another item and the same puzzle.
    """
    if "numbers" in fields:
        return tuple(sorted(fields["numbers"])), float(fields["target"])
    return tuple(fields[name] for name in ("theory", "question", "query") if name in fields)


def held_out_items(
    drawn: Sequence[Item],
    batch: Sequence[Item],
    count: int,
    task: str,
    evaluated: Sequence[Mapping[str, Any]] = (),
) -> tuple[Item, ...]:
    """The first ``count`` of ``drawn`` that ask something else than ``batch``, ``evaluated`` and each other.

    Args:
        evaluated: documents of the target's evaluation items, where a run measures any.

    Raises:
        SpecError: there are fewer.
    """
    taken = {what_is_asked(fields) for fields in (*(item.fields for item in batch), *evaluated)}
    fresh = {what_is_asked(item.fields): item for item in reversed(drawn)}  # the first of those that ask the same
    left = [item for item in drawn if fresh[what_is_asked(item.fields)] is item]
    left = [item for item in left if what_is_asked(item.fields) not in taken]
    if len(left) < count:
        raise SpecError(
            f"probes.held_out.items is {count}, but {task} has {len(left)} items beside the training batch: lower it"
        )
    return tuple(left[:count])


class HeldOutProbe:
    """Rows (unit): ``training_reward`` and ``held_out_reward`` (reward), ``training_accuracy`` and
    ``held_out_accuracy`` (fraction), ``reward_gap``, training minus held-out (reward), and after the base
    ``reward_gap_change``, the gap's change since then, paired by item (reward).

    Errors are over items. The two sets are independent draws, so the gap's error is the root of the sum of squares,
    and so is that of its change. A batch that was easy from the start has a gap at the base too: the change has not.

    Args:
        batch, held_out: items; ``prompts`` are token ids, those of the batch first.
    """

    name = "held_out"

    def __init__(
        self,
        target: Target,
        batch: Sequence[Item],
        held_out: Sequence[Item],
        prompts: Sequence[tuple[int, ...]],
        *,
        max_new_tokens: int,
    ) -> None:
        self.target, self.batch, self.held_out = target, tuple(batch), tuple(held_out)
        self.prompts, self.max_new_tokens = tuple(prompts), max_new_tokens
        self._base: list[Score] | None = None

    def prepare(self, engine: Engine) -> None:
        """Score the base, for the change since then."""
        self._base = self._scores(engine)

    def _scores(self, engine: Engine) -> list[Score]:
        with untouched(engine.model):
            answers = engine.generate(self.prompts, max_new_tokens=self.max_new_tokens)
        items = (*self.batch, *self.held_out)
        return [self.target.score(item, answer.text) for item, answer in zip(items, answers, strict=True)]

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Four rows and the gap; its change at every step but the base, where the base has been prepared."""
        scores = self._scores(engine)
        rows = Rows(checkpoint.step, self.name)
        seen, unseen = scores[: len(self.batch)], scores[len(self.batch) :]
        self._add(rows, QUANTITIES["training"], seen)
        self._add(rows, QUANTITIES["held_out"], unseen)
        gap, error = _difference([score.reward for score in seen], [score.reward for score in unseen])
        note = f"training batch of {len(seen)} minus {len(unseen)} held-out items"
        rows.add("reward_gap", gap, "reward", len(scores), group=self.target.name, stderr=error, note=note)
        if self._base is not None and checkpoint.step > 0:
            moved = [after.reward - before.reward for before, after in zip(self._base, scores, strict=True)]
            change, error = _difference(moved[: len(seen)], moved[len(seen) :])
            note = f"{note}, paired with the base by item"
            rows.add(
                "reward_gap_change", change, "reward", len(scores), group=self.target.name, stderr=error, note=note
            )
        return Measured(measurements=tuple(rows.rows))

    def _add(self, rows: Rows, names: tuple[str, str], scores: Sequence[Score]) -> None:
        """The rows of one set."""
        rewards, correct = [score.reward for score in scores], [float(score.correct) for score in scores]
        n, group, note = len(scores), self.target.name, "greedy answers of the checkpoint itself"
        reward, accuracy = names
        rows.add(reward, _mean(rewards), "reward", n, group=group, stderr=_error(rewards), note=note)
        rows.add(accuracy, _mean(correct), "fraction", n, group=group, stderr=_error(correct), note=note)


def _difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float | None]:
    """Of the means of two independent sets, with its standard error; None where one of them has none."""
    errors = _error(first), _error(second)
    known = [error for error in errors if error is not None]
    return _mean(first) - _mean(second), math.hypot(*known) if len(known) == len(errors) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for a single item."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
