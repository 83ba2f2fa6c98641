"""What the tasks share: how options are listed, and what an answer earns."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from driftlab.errors import DriftlabError
from driftlab.tasks.base import Score
from driftlab.tasks.countdown import FORMAT_WEIGHT
from driftlab.tasks.generative.extract import last_line


def letters(count: int) -> str:
    """Names of ``count`` options: A, B, C and so on."""
    return string.ascii_uppercase[:count]


def listed(names: Sequence[str], texts: Sequence[str]) -> str:
    """One option a line, "name. text"."""
    return "\n".join(f"{name}. {text.strip()}" for name, text in zip(names, texts, strict=True))


def named(names: Sequence[str], index: int, task: str) -> str:
    """Name of the right option.

    Raises:
        DriftlabError: ``index`` is none of the options (hidden answers are stored as -1).
    """
    if not 0 <= index < len(names):
        raise DriftlabError(f"task {task!r} has an item whose answer is option number {index} of {len(names)}")
    return names[index]


def metrics(found: str | None, right: str, options: int) -> dict[str, float]:
    """``acc``, ``parsed`` and ``chance`` (the accuracy of a guess) of one answer; an unparsed answer is wrong."""
    return {"acc": float(found == right), "parsed": float(found is not None), "chance": 1 / options}


def rewarded(rule: Callable[[str], str | None], right: str, output: str) -> Score:
    """Reward ``correct + 0.1 * format`` of LIT-238; ``format`` is 1 when ``rule`` reads an answer in the last line."""
    found = rule(output)
    in_place = rule(last_line(output)) is not None
    return Score(
        reward=float(found == right) + FORMAT_WEIGHT * in_place, correct=found == right, parsed=found is not None
    )


def rewarded_metrics(verdict: Score, chance: float) -> dict[str, float]:
    """What a task with a reward returns for one answer; ``chance`` is the accuracy of a guess."""
    return {
        "acc": float(verdict.correct),
        "parsed": float(verdict.parsed),
        "chance": chance,
        "reward": verdict.reward,
    }
