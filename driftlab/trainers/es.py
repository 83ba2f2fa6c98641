"""Evolution strategies on one page: ask, evaluate, tell (LIT-211, LIT-238)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftlab.engines.base import Completion
from driftlab.engines.population import Member, Rollouts
from driftlab.errors import TrainingError
from driftlab.es.seeds import member_seeds
from driftlab.es.shaping import coefficients
from driftlab.models.checkpoints import State, step_of
from driftlab.models.flops import Shape
from driftlab.run.records import Update
from driftlab.run.spec import RunSpec
from driftlab.tasks.base import Item, Target
from driftlab.trainers.base import Arrive, Record, cost_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Mean reward of each member over the fixed batch, and what it cost.

    ``prompt_tokens`` and ``generated_tokens`` are those of each rollout.
    """

    rewards: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    generated_tokens: tuple[int, ...]
    rollout_seconds: float
    reward_seconds: float


class EsTrainer:
    """N members, greedy rollouts on a fixed batch, z-scored rewards, one update, anchored weight decay.

    Args:
        spec: the run.
        state: weights, advanced in place by ``tell``.
        rollouts: evaluates perturbed copies of the master.
        prompts: token ids of ``items``, in the same order.
        shape: of the model, for the count of operations.
    """

    def __init__(
        self,
        spec: RunSpec,
        state: State,
        rollouts: Rollouts,
        target: Target,
        items: Sequence[Item],
        prompts: Sequence[Sequence[int]],
        shape: Shape,
    ) -> None:
        self.spec, self.state, self.rollouts = spec, state, rollouts
        self.target, self.items, self.prompts, self.shape = target, items, prompts, shape

    def train(self, record: Record, arrive: Arrive) -> None:
        while self.state.step < self.spec.iterations:
            record(self.iterate())
            arrive()

    def iterate(self) -> Update:
        """One iteration; ``state`` moves one step on."""
        started = time.perf_counter()
        seeds = self.ask()
        evaluation = self.evaluate(self.members(seeds))
        return self.tell(seeds, evaluation, started)

    def ask(self) -> tuple[int, ...]:
        """One seed per noise draw: half the population when mirrored."""
        es = self.spec.evolution
        count = es.population // 2 if es.mirrored else es.population
        return member_seeds(self.spec.seed, self.state.step + 1, count)

    def members(self, seeds: Sequence[int]) -> list[Member]:
        """Mirrored: all plus members, then all minus members."""
        signs = (1, -1) if self.spec.evolution.mirrored else (1,)
        return [Member(seed, sign * self.spec.evolution.sigma) for sign in signs for seed in seeds]

    def evaluate(self, members: Sequence[Member]) -> Evaluation:
        started = time.perf_counter()
        completions = self.rollouts(self.state.weights, members, self.prompts)
        rolled = time.perf_counter()
        rewards = tuple(self._mean_reward(index, answers) for index, answers in enumerate(completions))
        return Evaluation(
            rewards=rewards,
            prompt_tokens=tuple(len(prompt) for prompt in self.prompts) * len(members),
            generated_tokens=tuple(len(answer.tokens) for answers in completions for answer in answers),
            rollout_seconds=rolled - started,
            reward_seconds=time.perf_counter() - rolled,
        )

    def _mean_reward(self, member: int, answers: Sequence[Completion]) -> float:
        rewards = [
            self.target.score(item, answer.text).reward for item, answer in zip(self.items, answers, strict=True)
        ]
        for item, reward in zip(self.items, rewards, strict=True):
            if not math.isfinite(reward):
                raise TrainingError(
                    f"the reward of {self.target.name} is {reward} at step {self.state.step + 1}, member {member}, "
                    f"item {item.id}: rewards must be finite; the run keeps its first {self.state.step} updates"
                )
        return math.fsum(rewards) / len(rewards)

    def _flat_note(self) -> str:
        anchored = self.spec.anchor.penalty != "none" and self.spec.decay > 0
        return "all rewards equal: zero ES step" + (", the anchor still applied" if anchored else "")

    def shaped(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """Rewards of all members to one coefficient per noise draw."""
        return coefficients(rewards, mirrored=self.spec.evolution.mirrored)

    def tell(self, seeds: Sequence[int], evaluation: Evaluation, started: float) -> Update:
        flat = min(evaluation.rewards) == max(evaluation.rewards)
        scores = self.shaped(evaluation.rewards)
        return self.advance(seeds, scores, evaluation, started, note=self._flat_note() if flat else None)

    def advance(
        self,
        seeds: Sequence[int],
        scores: Sequence[float],
        evaluation: Evaluation,
        started: float,
        note: str | None = None,
    ) -> Update:
        """Move ``state`` by ``scores`` along the noise of ``seeds``, then the anchor; the record of it."""
        es, anchor, began = self.spec.evolution, self.spec.anchor, time.perf_counter()
        asked = Update(
            step=self.state.step + 1,
            seeds=tuple(seeds),
            coefficients=tuple(scores),
            population=es.population,
            sigma=es.sigma,
            alpha=es.step_scale,
            penalty=anchor.penalty,
            decay=self.spec.decay,
            delta=anchor.delta,
            rewards=evaluation.rewards,
            step_norm=None,
            step_cosine=None,
            weights_hash=None,
            prompt_tokens=sum(evaluation.prompt_tokens),
            generated_tokens=sum(evaluation.generated_tokens),
            seconds={},
            note=note,
        )
        # Through the record, as a replay does.
        geometry = self.state.advance(step_of(asked, self.spec), self.spec.threads)
        fingerprint = self.state.hash()
        ended = time.perf_counter()
        seconds = {
            "rollout": evaluation.rollout_seconds,
            "reward": evaluation.reward_seconds,
            "update": ended - began,
            "total": ended - started,
        }
        return replace(
            asked,
            step_norm=geometry.norm,
            step_cosine=geometry.cosine,
            weights_hash=fingerprint,
            seconds={part: round(value, 6) for part, value in seconds.items()},
            cost=cost_of(
                self.shape,
                evaluation.prompt_tokens,
                evaluation.generated_tokens,
                self.spec.model.device,
                trained=False,
            ),
        )
