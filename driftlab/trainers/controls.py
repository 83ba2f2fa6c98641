"""Null controls: arms that move the weights, or leave them, without learning anything about the task.

Whatever such an arm does to an ability is chance or disturbance, and the yardstick for what training does to it. Each
is ES with one part replaced and leaves ordinary updates: replay, resume and export need not know of controls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from driftlab.es.noise import private_generator
from driftlab.run.records import Update
from driftlab.run.spec import Control
from driftlab.trainers.es import EsTrainer, Evaluation

NO_ROLLOUTS = Evaluation(rewards=(), prompt_tokens=(), generated_tokens=(), rollout_seconds=0.0, reward_seconds=0.0)


class ShuffledRewardTrainer(EsTrainer):
    """ES whose coefficients are dealt to the noise draws at random: the same step sizes, and a pure random walk.

    Member seeds, rollouts and anchor are those of ES with the same run seed; ``rewards`` stay as each member earned
    them. E||theta_T - theta_0||^2 = alpha^2 d T / N exactly (LIT-235's law), whatever the task rewards.
    """

    def shaped(self, rewards: Sequence[float]) -> tuple[float, ...]:
        es, step = self.spec.evolution, self.state.step + 1
        return shuffled(super().shaped(rewards), run_seed=self.spec.seed, step=step, signs=es.mirrored)


class RandomDirectionTrainer(EsTrainer):
    """A straight walk along one noise draw eps: theta_t = theta_0 + alpha sqrt(t / N) eps.

    After every step the norm is that of the random walk, alpha sqrt(d t / N), so the two differ in shape alone.
    """

    def iterate(self) -> Update:
        started = time.perf_counter()
        step, population = self.state.step + 1, self.spec.evolution.population
        # The coefficients up to step t add up to sqrt(N t), and the update divides by N.
        coefficient = math.sqrt(population) * (math.sqrt(step) - math.sqrt(step - 1))
        return self.advance((direction_seed(self.spec.seed),), (coefficient,), NO_ROLLOUTS, started)


class BaseTrainer(EsTrainer):
    """No update: the base model at every step, so that every difference measured is the instrument's own."""

    def iterate(self) -> Update:
        return self.advance((), (), NO_ROLLOUTS, time.perf_counter())


TRAINERS: Mapping[Control, type[EsTrainer]] = {
    "none": EsTrainer,
    "shuffled-reward": ShuffledRewardTrainer,
    "random-direction": RandomDirectionTrainer,
    "base": BaseTrainer,
}


def shuffled(values: Sequence[float], *, run_seed: int, step: int, signs: bool) -> tuple[float, ...]:
    """``values`` in a random order that depends on run seed and step alone.

    Args:
        values: coefficients, one per noise draw.
        run_seed, step: key of the private generator; ``step`` counts from 1.
        signs: also give each value a random sign. A mirrored pair's coefficients, unlike z-scores, do not add up to
            0, and their sum still points along the reward; which member of a pair is the plus one is arbitrary.
    """
    generator = private_generator(f"shuffled-reward|{run_seed}|{step}")
    order = generator.permutation(len(values))
    flips = generator.choice((-1.0, 1.0), size=len(values)) if signs else np.ones(len(values))
    return tuple(float(flip) * values[index] for flip, index in zip(flips, order, strict=True))


def direction_seed(run_seed: int) -> int:
    """The noise seed of a random-direction run, in [2**31, 2**32): never that of a member, which is below."""
    return int(private_generator(f"random-direction|{run_seed}").integers(2**31, 2**32))
