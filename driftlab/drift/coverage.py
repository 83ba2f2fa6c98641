"""What several sampled answers per problem say: pass@k between checkpoints, problems won and lost, variety of answers.

Sources: Chen et al. 2021, arXiv 2107.03374 (unbiased pass@k); Miller 1955 (bias of the plug-in entropy). Problems
are paired by item between two checkpoints or two runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from driftlab.drift.paired import pass_at_k
from driftlab.drift.stats import Array, PairedDifference, paired_difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Problems at one checkpoint: item and cluster of each, answers drawn, and how many of those are right."""

    items: tuple[str, ...]
    clusters: tuple[str, ...]
    samples: tuple[int, ...]
    correct: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.items), len(self.clusters), len(self.samples), len(self.correct)}
        if len(lengths) != 1 or len(set(self.items)) != len(self.items):
            raise ValueError(f"every problem needs one cluster and two counts, and stands once; got lengths {lengths}")

    def chosen(self, items: Sequence[str]) -> Sampled:
        """These problems only, in this order."""
        place = {item: index for index, item in enumerate(self.items)}
        rows = [place[item] for item in items]
        return Sampled(
            items=tuple(items),
            clusters=tuple(self.clusters[row] for row in rows),
            samples=tuple(self.samples[row] for row in rows),
            correct=tuple(self.correct[row] for row in rows),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Flips:
    """Problems won and lost between two checkpoints, beside what two draws from one model would show.

    Attributes:
        k: answers looked at per problem.
        n: problems paired.
        progressions: problems with no right answer among k before and at least one after. Whole where k answers were
            drawn; with more, the mean over all choices of k of them.
        regressions: the other way.
        expected: progressions, and as many regressions, to be expected where nothing changed.
        sd: standard deviation of either number where nothing changed, problems taken as independent.
    """

    k: int
    n: int
    progressions: float
    regressions: float
    expected: float
    sd: float


def common_problems(before: Sampled, after: Sampled) -> tuple[Sampled, Sampled]:
    """Both restricted to the problems that both have, in the order of ``before``.

    Raises:
        ValueError: they share none.
    """
    there = set(after.items)
    shared = [item for item in before.items if item in there]
    if not shared:
        raise ValueError("the two share no problem")
    return before.chosen(shared), after.chosen(shared)


def pass_rates(problems: Sampled, k: int) -> Array:
    """``paired.pass_at_k`` of each problem, shape [problems]."""
    pairs = zip(problems.samples, problems.correct, strict=True)
    return np.array([pass_at_k(samples, correct, k) for samples, correct in pairs])


def pass_difference(before: Sampled, after: Sampled, k: int, level: float = 0.95) -> PairedDifference:
    """Change of pass@k over the problems that both have, as a fraction; ``gained`` and ``lost`` count any change.

    The interval is ``stats.paired_difference``'s: it covers both the draw of problems and that of the answers.
    """
    first, second = common_problems(before, after)
    return paired_difference(pass_rates(first, k), pass_rates(second, k), first.clusters, level=level)


def flips(before: Sampled, after: Sampled, k: int) -> Flips:
    """Problems won and lost at k, with the numbers that chance alone gives.

    A problem that is seldom solved flips between two draws of answers though the model is the same. Where nothing
    changed, which of a problem's answers were drawn before and which after is a matter of chance, given how many of all
    are right: the expectation and the spread below are exact under that, whatever the solve probabilities are.
    """
    first, second = common_problems(before, after)
    solved, later = pass_rates(first, k), pass_rates(second, k)
    expected = variance = 0.0
    for n, m, c, d in zip(first.samples, second.samples, first.correct, second.correct, strict=True):
        mean = expected_flips(n, m, c + d, k)
        expected += mean
        variance += _mean_square(n, m, c + d, k) - mean**2
    return Flips(
        k=k,
        n=len(first.items),
        progressions=float(((1 - solved) * later).sum()),
        regressions=float((solved * (1 - later)).sum()),
        expected=expected,
        sd=math.sqrt(max(variance, 0.0)),
    )


def expected_flips(samples: int, more: int, correct: int, k: int) -> float:
    """Chance that k of ``samples`` answers hold none that is right, and k of ``more`` others at least one.

    ``correct`` of all of them are right, and any of them may be among the first: ``C(N - c, k) / C(N, k) -
    C(N - c, 2k) / C(N, 2k)`` with N all answers and c the right ones, the chance that k of N are all wrong without that
    2k of N are. By symmetry it is also the chance of the opposite flip.

    Raises:
        ValueError: not ``1 <= k <= samples``, ``k <= more`` and ``0 <= correct <= samples + more``.
    """
    total = samples + more
    if not (1 <= k <= min(samples, more) and 0 <= correct <= total):
        raise ValueError(f"flips need 1 <= k <= answers and 0 <= correct <= all, got {k}, {samples}, {more}, {correct}")
    none, wrong = math.comb(total, k), total - correct
    return math.comb(wrong, k) / none - math.comb(wrong, 2 * k) / math.comb(total, 2 * k)


def _mean_square(samples: int, more: int, correct: int, k: int) -> float:
    """Mean of the squared progression of one problem over every way to deal its answers to the two draws."""
    first = np.arange(max(0, correct - more), min(samples, correct) + 1)
    chance = stats.hypergeom.pmf(first, samples + more, correct, samples)
    won = [(1 - pass_at_k(samples, int(c), k)) * pass_at_k(more, correct - int(c), k) for c in first]
    return float(chance @ np.square(won))


def plug_in_entropy(counts: Sequence[int]) -> float:
    """Entropy in nats of the observed frequencies; 0 where one answer was given throughout.

    It is biased low, by (K - 1) / 2n to first order, with K possible answers and n drawn (Miller 1955).

    Raises:
        ValueError: nothing was counted, or a count is not positive.
    """
    if not counts or min(counts) < 1:
        raise ValueError(f"an entropy needs positive counts, got {list(counts)}")
    total = sum(counts)
    return math.log(total) - math.fsum(count * math.log(count) for count in counts) / total


def miller_madow(entropy: float, distinct: int, drawn: int) -> float:
    """The plug-in entropy plus its first-order bias, with the answers seen in place of those possible."""
    return entropy + (distinct - 1) / (2 * drawn)
