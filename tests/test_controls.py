"""Null controls: what each does to the weights, against closed forms, and that runs of them replay and resume."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from driftlab import loop
from driftlab.console import RunProgress
from driftlab.engines.base import Completion
from driftlab.engines.population import population
from driftlab.es.noise import noise
from driftlab.es.precision import FLOAT32
from driftlab.es.seeds import member_seeds
from driftlab.estimate import describe
from driftlab.models.base import load_base
from driftlab.models.checkpoints import State, export, rebuild
from driftlab.models.flops import Shape
from driftlab.models.hashing import weights_hash
from driftlab.run.store import RunStore
from driftlab.session import Event
from driftlab.tasks.base import Item, Score
from driftlab.trainers.controls import TRAINERS, direction_seed, shuffled
from driftlab.trainers.es import EsTrainer
from tests.test_loop import files, plan, quiet

CONTROLS = ["shuffled-reward", "random-direction", "base"]
UNANCHORED = 'anchor={penalty="none", lambda=0.0}'


class TestShuffle:
    VALUES = (1.5, -0.25, -1.25)

    def test_every_order_is_as_likely(self):
        """Six orders in 6000 steps: each 1000 times, within 4 standard deviations of a binomial count (28.9)."""
        orders = Counter(shuffled(self.VALUES, run_seed=3, step=t, signs=False) for t in range(1, 6001))
        assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(self.VALUES))}
        assert len(orders) == 6
        assert all(abs(count - 1000) < 4 * math.sqrt(6000 / 6 * 5 / 6) for count in orders.values())

    def test_signs_are_fair_and_sizes_stay(self):
        """The first place is negative in half of 4000 steps, within 4 standard deviations (31.6)."""
        drawn = [shuffled((1.0, 2.0, 3.0), run_seed=0, step=t, signs=True) for t in range(1, 4001)]
        assert all(sorted(map(abs, values)) == [1.0, 2.0, 3.0] for values in drawn)
        for place in range(3):
            assert abs(sum(values[place] < 0 for values in drawn) - 2000) < 4 * math.sqrt(1000)

    def test_depends_on_run_seed_and_step_alone(self):
        values = tuple(range(30))
        one = shuffled(values, run_seed=5, step=7, signs=False)
        assert one == shuffled(values, run_seed=5, step=7, signs=False)
        others = {shuffled(values, run_seed=s, step=t, signs=False) for s, t in [(5, 8), (6, 7), (57, 1), (7, 5)]}
        assert len(others - {one}) == 4

    def test_the_direction_is_no_members_noise(self):
        seeds = {direction_seed(run_seed) for run_seed in range(500)}
        assert len(seeds) == 500
        assert min(seeds) > max(max(member_seeds(run_seed, 1, 30)) for run_seed in range(500))


# A real problem small enough to repeat hundreds of times: an answer is the sum of the weights, and so is its reward.

SHAPES = {"a.weight": (3, 2), "b.bias": (4,)}
D, ALPHA, POPULATION, STEPS = 10, 0.05, 4, 6
TINY = (f"es.population={POPULATION}", f"es.iterations={STEPS}", "es.sigma=0.1", UNANCHORED)


class Sum:
    """The reward is the answer."""

    name = "sum"
    lm_eval_task = "embedded_countdown"

    def score(self, item, completion) -> Score:
        return Score(reward=float(completion), correct=False, parsed=True)


def sums(master, members, prompts) -> list[list[Completion]]:
    copies = population(master, members, "keyed", FLOAT32, 1)
    answers = [sum(float(w.sum()) for w in weights.values()) for weights in copies]
    return [[Completion(tokens=(1,), text=repr(answer), truncated=False)] for answer in answers]


def tiny_trainer(spec, base: dict[str, torch.Tensor] | None = None) -> EsTrainer:
    state = State.at_base(base or {name: torch.zeros(shape) for name, shape in SHAPES.items()})
    item = Item(id="0" * 16, prompt="", fields={})
    shape = Shape(weights=1, layers=1, width=1)
    return TRAINERS[spec.control](spec, state, sums, Sum(), [item], [(1,)], shape)


def displacement(state: State) -> np.ndarray:
    """theta_t - theta_0 in float64, flat."""
    return np.concatenate([(w.double() - state.base[n].double()).numpy().ravel() for n, w in state.weights.items()])


def walks(tmp_path: Path, control: str, runs: int, *, mirrored: bool) -> tuple[np.ndarray, np.ndarray]:
    """Final displacements [runs, d] of runs that differ in their seed, and the law's squared norm of each."""
    spec = plan(tmp_path, *TINY, f'control="{control}"', f"es.mirrored={str(mirrored).lower()}").spec
    ends, laws = [], []
    for seed in range(runs):
        trainer = tiny_trainer(spec.model_copy(update={"seed": seed}))
        updates = [trainer.iterate() for _ in range(STEPS)]
        ends.append(displacement(trainer.state))
        laws.append(D * (ALPHA / POPULATION) ** 2 * sum(c * c for u in updates for c in u.coefficients))
    return np.array(ends), np.array(laws)


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_shuffled_arm_is_a_random_walk_and_es_is_not(tmp_path, mirrored):
    """E||D||^2 is d (alpha/N)^2 sum c^2 over all steps, without mirroring alpha^2 d T/N; and the mean along the reward
    (all weights alike) is 0. Both within 3 standard errors over the runs. ES, which climbs, is 5 away from both."""
    walk, laws = walks(tmp_path, "shuffled-reward", 300, mirrored=mirrored)
    climb, climb_laws = walks(tmp_path, "none", 40, mirrored=mirrored)
    if not mirrored:
        # Relative 1e-6: the guard 1e-8 beside a standard deviation of rewards that is seldom below 0.03.
        np.testing.assert_allclose(laws, ALPHA**2 * D * STEPS / POPULATION, rtol=1e-6)
    excess = (walk**2).sum(axis=1) - laws
    along = walk.sum(axis=1) / math.sqrt(D)
    for sample in (excess, along):
        assert abs(sample.mean()) < 3 * sample.std(ddof=1) / math.sqrt(len(sample))
    for sample in ((climb**2).sum(axis=1) - climb_laws, climb.sum(axis=1) / math.sqrt(D)):
        assert sample.mean() > 5 * sample.std(ddof=1) / math.sqrt(len(sample))


def test_random_direction_is_a_straight_line_of_the_walks_length(tmp_path):
    """Displacement t is alpha sqrt(t/N) eps, eps drawn anew here and multiplied in float64.

    Tolerance: five float32 roundings a step (coefficient, product, scale, product, sum) of numbers below 0.25.
    """
    trainer = tiny_trainer(plan(tmp_path, *TINY, 'control="random-direction"', "seed=4").spec)
    eps = np.concatenate([noise(direction_seed(4), name, shape).ravel() for name, shape in SHAPES.items()]).astype(
        float
    )
    for t in range(1, STEPS + 1):
        update = trainer.iterate()
        expected = ALPHA * math.sqrt(t / POPULATION) * eps
        assert np.abs(expected).max() < 0.25
        np.testing.assert_allclose(displacement(trainer.state), expected, rtol=0, atol=5 * t * 2**-26)
        assert (update.rewards, update.prompt_tokens, update.generated_tokens) == ((), 0, 0)
        assert len(update.seeds) == len(update.coefficients) == 1


def test_base_keeps_every_bit(tmp_path):
    """Also the sign of a weight that is -0.0, which adding 0.0 would take."""
    base = {name: torch.full(shape, -0.0) for name, shape in SHAPES.items()}
    trainer = tiny_trainer(plan(tmp_path, *TINY, 'control="base"').spec, base)
    for t in (1, 2, 3):
        update = trainer.iterate()
        assert update.weights_hash == weights_hash(base)
        assert (update.step, update.seeds, update.coefficients, update.rewards) == (t, (), (), ())
        assert (update.step_norm, update.step_cosine, update.generated_tokens) == (0.0, None, 0)
    assert all(torch.signbit(w).all() for w in trainer.state.weights.values())


# Real runs of the embedded model.


def overrides(control: str) -> tuple[str, ...]:
    anchor = () if control in ("none", "shuffled-reward") else (UNANCHORED,)
    return (f'control="{control}"', "keyframes_every=1", *anchor)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, RunStore]:
    """One run of every control and of ES, with the live weights of every step kept."""
    folder = tmp_path_factory.mktemp("controls")
    return {
        control: loop.run(plan(folder, *overrides(control)), folder / control, resume=False, listen=quiet)
        for control in TRAINERS
    }


@pytest.mark.parametrize("control", CONTROLS)
def test_replay_equals_live_bit_for_bit_and_is_exported(tmp_path, runs, control):
    """Keyframes hold the live weights; without them every step is rebuilt from the updates alone."""
    shutil.copytree(runs[control].path, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "weights")
    bare, updates = RunStore.open(tmp_path / "bare"), runs[control].updates()
    base = load_base("nano", dtype=torch.float32, device="cpu")
    for step in range(1, 5):
        live = runs[control].keyframe(step)
        replayed = rebuild(bare, base.weights, updates, step).weights
        assert live.keys() == replayed.keys()
        assert all(torch.equal(live[name], replayed[name]) for name in live)
    assert (weights_hash(replayed) == base.weights_hash) == (control == "base")
    assert export(bare.path, None, tmp_path / "hf") == 4
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(exported[name], live[name]) for name in exported)


@pytest.mark.parametrize("control", CONTROLS)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, runs, control):
    planned, path = plan(tmp_path, *overrides(control)), tmp_path / "run"
    seen: list[Event] = []

    def stop_after_step_3(event: Event) -> None:
        seen.append(event)
        if (event.kind, event.step) == ("iteration", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=False, listen=stop_after_step_3)
    assert len(RunStore.open(path).updates()) == 3
    assert loop.run(planned, path, resume=True, listen=quiet).manifest.status == "finished"
    assert files(path) == files(runs[control].path)
    rewards = [event.reward for event in seen if event.kind == "iteration"]
    assert len(rewards) == 3
    assert all((reward is None) == (control != "shuffled-reward") for reward in rewards)


def test_shuffling_deals_es_own_coefficients_to_other_draws(runs):
    """At step 1 both arms stand on the base: the same members with the same rewards. The anchor stays as well."""
    es, walk = runs["none"].updates(), runs["shuffled-reward"].updates()
    assert walk[0].seeds == es[0].seeds == member_seeds(0, 1, 4)
    assert walk[0].rewards == es[0].rewards
    assert sorted(walk[0].coefficients) == sorted(es[0].coefficients)
    assert walk[0].coefficients != es[0].coefficients
    assert [u.seeds for u in walk] == [u.seeds for u in es]
    assert {(u.penalty, u.decay) for u in walk} == {("l2", 0.05)}
    assert walk[-1].weights_hash != es[-1].weights_hash


def test_random_direction_has_the_predicted_norm(runs):
    """Within 4 standard deviations of the norm of d Gaussians, which the row carries: sd = norm / sqrt(2 d)."""
    rows = {(r.step, r.quantity): r for r in runs["random-direction"].measurements() if r.group == "all"}
    for step in (2, 4):
        d = rows[step, "update_norm"].n
        norm = 0.01 * math.sqrt(d * step / 4)
        assert rows[step, "predicted_norm"].value == pytest.approx(norm, rel=1e-12)
        assert rows[step, "predicted_norm"].stderr == pytest.approx(norm / math.sqrt(2 * d), rel=1e-12)
        assert abs(rows[step, "update_norm"].value - norm) < 4 * norm / math.sqrt(2 * d)


def test_the_base_arm_measures_the_base_again(runs):
    """Every number of tasks and distributions is that of step 0, item by item; nothing has moved; no 0/0."""
    store = runs["base"]
    rows = store.measurements()

    def at(step: int) -> list[tuple]:
        return [(r.quantity, r.group, r.value, r.stderr, r.n) for r in rows if r.step == step and r.probe != "weights"]

    def verdicts(step: int) -> list[tuple]:
        return [(e.task, e.item, e.correct, e.score, e.output) for e in store.examples(step)]

    assert at(0) == at(2) == at(4)
    assert verdicts(0) == verdicts(2) == verdicts(4)
    late = {r.quantity: r for r in rows if r.step == 4 and r.group == "all"}
    assert late["update_norm"].value == late["predicted_norm"].value == late["predicted_norm"].stderr == 0.0
    assert late["random_walk_ratio"].status == "skipped"
    assert late["random_walk_ratio"].note


def test_an_arm_without_rewards_shows_none(tmp_path):
    """The words beside the bar: the reward of an iteration, nothing where there is none."""
    console = Console(file=io.StringIO())
    with RunProgress(plan(tmp_path).spec, console, lambda: False) as progress:
        for reward, words in ((0.25, "reward 0.250"), (None, "")):
            progress(Event(kind="iteration", step=1, seconds=1.0, reward=reward))
            assert progress._bar.tasks[0].description == words


def test_a_dry_run_counts_no_rollouts_where_there_are_none(tmp_path):
    """Iterations * members * prompts otherwise: 4 * 4 * 8."""
    expected = {"none": "128", "shuffled-reward": "128", "random-direction": "0", "base": "0"}
    for control in TRAINERS:
        lines = dict(describe(plan(tmp_path, *overrides(control)).spec))
        assert lines["rollouts"] == expected[control]
        assert lines["control"].startswith(control)


def test_a_run_names_its_control(runs):
    """In the stored spec, where reports look for it; ES says none."""
    for control, store in runs.items():
        assert json.loads((store.path / "run.json").read_text())["spec"]["control"] == control
