"""The promises, on the embedded model: replay and resume bit for bit, probes without a trace, named failures."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from driftlab import loop
from driftlab.errors import RunError, TrainingError
from driftlab.models.base import load_base
from driftlab.models.checkpoints import State, export, rebuild
from driftlab.models.hashing import weights_hash
from driftlab.probes.base import Checkpoint
from driftlab.run.plan import PlannedRun, load_plan
from driftlab.run.store import RunStore
from driftlab.session import Event, Listener, prepare
from driftlab.tasks.base import Score
from driftlab.trainers.es import EsTrainer

TOML = """
name = "tiny"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 8
max_new_tokens = 12
[es]
population = 4
iterations = 4
sigma = 0.02
rollouts = "stacked"
[anchor]
penalty = "l2"
lambda = 5.0
[measure]
every = 2
[probes.kl]
sequences = 3
max_new_tokens = 6
[probes.lm_eval]
tasks = ["embedded_rules"]
items = 12
batch_size = 64
"""


def plan(folder: Path, *overrides: str) -> PlannedRun:
    file = folder / "tiny.toml"
    file.write_text(TOML)
    (planned,) = load_plan(str(file), list(overrides))
    return planned


def quiet(event: Event) -> None:
    """Nobody watches."""


def files(run: Path, *, updates: bool = True) -> dict[str, bytes | list]:
    """Everything a folder says, wall times and peak memory aside; with ``updates`` it is a run."""
    lines = [json.loads(line) for line in (run / "updates.jsonl").read_text().splitlines()] if updates else []
    for line in lines:
        del line["seconds"], line["cost"]["process_peak_bytes"]
    return {
        "updates": lines,
        **{
            str(file.relative_to(run)): file.read_bytes()
            for file in sorted(run.rglob("*"))
            if file.is_file() and file.name not in ("run.json", "updates.jsonl")
        },
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunStore:
    folder = tmp_path_factory.mktemp("finished")
    return loop.run(plan(folder, "keyframes_every=2"), folder / "run", resume=False, listen=quiet)


@pytest.fixture(scope="module")
def base():
    return load_base("nano", dtype=torch.float32, device="cpu")


def test_a_run_holds_what_was_asked(finished):
    assert finished.manifest.status == "finished"
    assert [update.step for update in finished.updates()] == [1, 2, 3, 4]
    assert finished.example_steps() == [0, 2, 4]
    rows = finished.measurements()
    tasks = {"embedded_countdown", "embedded_rules"}
    for step in (0, 2, 4):
        assert {r.group for r in rows if r.step == step and r.quantity == "accuracy"} == tasks
        assert {r.group for r in rows if r.step == step and r.quantity == "kl_base_to_step"} == tasks
    at_base = {(r.quantity, r.group): r for r in rows if r.step == 0}
    assert at_base["kl_base_to_step", "embedded_rules"].value == 0.0
    assert at_base["update_norm", "all"].value == 0.0
    (norm,) = [r for r in rows if r.step == 4 and r.quantity == "update_norm" and r.group == "all"]
    assert norm.n == finished.manifest.model["n_parameters"]


def test_replay_equals_live_bit_for_bit(tmp_path, finished, base):
    """Live weights of every step, copied while training, against a replay from the stored updates alone."""
    planned = plan(tmp_path)
    session = prepare(planned.spec.model_copy(update={"probes": type(planned.spec.probes)()}), None, quiet)
    state = State.at_base(session.base.weights)
    parts = (session.rollouts, session.target, session.items, session.prompts, session.shape)
    trainer = EsTrainer(planned.spec, state, *parts)
    updates = finished.updates()
    for step in range(1, 5):
        update = trainer.iterate()
        assert replace(update, seconds={}, cost=None) == replace(updates[step - 1], seconds={}, cost=None)
        replayed = rebuild(finished, base.weights, updates, step)
        assert all(torch.equal(replayed.weights[name], state.weights[name]) for name in state.weights)


def test_replay_without_keyframes_is_the_same(tmp_path, finished):
    store = loop.run(plan(tmp_path), tmp_path / "run", resume=False, listen=quiet)
    assert finished.keyframe_steps() == [2, 4]
    assert store.keyframe_steps() == []
    kept = {name: data for name, data in files(finished.path).items() if not name.startswith("weights")}
    mine = files(store.path)
    # A keyframe is part of what its iteration stores.
    frames = [line["cost"].pop("stored_bytes") for line in kept["updates"]]
    assert [line["cost"].pop("stored_bytes") for line in mine["updates"]] == [0, 0, 0, 0]
    size = (finished.path / "weights" / "step-000002.safetensors").stat().st_size
    assert frames == [0, size, 0, size]
    assert mine == kept


def test_other_weights_are_noticed_on_replay(finished, base):
    updates = finished.updates()
    changed = {**base.weights, "model.norm.weight": base.weights["model.norm.weight"].clone()}
    changed["model.norm.weight"][0] = torch.nextafter(changed["model.norm.weight"][0], torch.tensor(torch.inf))
    with pytest.raises(RunError, match="hash mismatch"):
        rebuild(finished, changed, updates, 1)


class Killer:
    """Interrupts the run when event number ``at`` arrives."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, event: Event) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def count_events(tmp_path: Path) -> int:
    seen: list[Event] = []
    loop.run(plan(tmp_path, "keyframes_every=2"), tmp_path / "counted", resume=False, listen=seen.append)
    return len(seen)


def test_interrupted_anywhere_and_resumed_equals_uninterrupted(tmp_path, finished):
    planned = plan(tmp_path, "keyframes_every=2")
    expected = files(finished.path)
    interrupted = 0
    for at in range(2, count_events(tmp_path), 3):
        path = tmp_path / f"at-{at}"
        with pytest.raises(KeyboardInterrupt):
            loop.run(planned, path, resume=False, listen=Killer(at))
        if path.exists():
            assert RunStore.open(path).manifest.status == "stopped"
            interrupted += 1
        store = loop.run(planned, path, resume=True, listen=quiet)
        assert store.manifest.status == "finished"
        assert files(path) == expected
    assert interrupted >= 3


def test_damage_of_a_hard_kill_is_repaired_on_resume(tmp_path, finished):
    """A torn update, a status that still says started, and the examples of an earlier step lost."""
    planned = plan(tmp_path, "keyframes_every=2")
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=False, listen=Killer(count_events(tmp_path) - 2))
    store = RunStore.open(path)
    store.set_status("started")
    updates = path / "updates.jsonl"
    updates.write_bytes(updates.read_bytes()[:-20])
    (path / "examples" / "step-000002.jsonl.gz").unlink()
    resumed = loop.run(planned, path, resume=True, listen=quiet)
    assert any("torn" in notice for notice in resumed.notices)
    repaired, expected = files(path), files(finished.path)
    # The lost step was measured again later than it was before: the same rows in another order.
    rows = [contents.pop("measurements.jsonl") for contents in (repaired, expected)]
    assert sorted(rows[0].splitlines()) == sorted(rows[1].splitlines())
    assert repaired == expected


def test_finished_run_is_left_alone(finished, tmp_path):
    before = files(finished.path)
    again = loop.run(plan(tmp_path, "keyframes_every=2"), finished.path, resume=True, listen=quiet)
    assert again.manifest.status == "finished"
    assert files(finished.path) == before


def test_what_is_left_of_a_plan(finished, tmp_path):
    """Not a finished run, but an interrupted one and one never started; any run that cannot start refuses all."""
    planned = plan(tmp_path, "keyframes_every=2")
    other = plan(tmp_path, "keyframes_every=2", "seed=1")
    shutil.copytree(finished.path, tmp_path / planned.folder)
    assert loop.unfinished([planned, other], tmp_path, resume=True) == [other]
    RunStore.open(tmp_path / planned.folder).set_status("stopped", "interrupted")
    assert loop.unfinished([other, planned], tmp_path, resume=True) == [other, planned]
    with pytest.raises(RunError, match="--resume"):
        loop.unfinished([other, planned], tmp_path, resume=False)
    with pytest.raises(RunError, match=r"es\.sigma: 0\.02, now 0\.03"):
        loop.unfinished([other, plan(tmp_path, "keyframes_every=2", "es.sigma=0.03")], tmp_path, resume=True)


def test_changed_spec_is_refused_and_named(finished, tmp_path):
    with pytest.raises(RunError, match=r"es\.sigma: 0\.02, now 0\.03"):
        loop.run(plan(tmp_path, "keyframes_every=2", "es.sigma=0.03"), finished.path, resume=True, listen=quiet)
    with pytest.raises(RunError, match="--resume"):
        loop.run(plan(tmp_path), finished.path, resume=False, listen=quiet)


def test_measuring_does_not_change_training(tmp_path, finished):
    """The same run measured only at its ends, by weights alone: the same weights after every update."""
    planned = plan(tmp_path, "measure.every=4")
    bare = planned.spec.model_copy(update={"probes": type(planned.spec.probes)()})
    store = loop.run(PlannedRun(given=planned.given, spec=bare), tmp_path / "bare", resume=False, listen=quiet)
    assert [u.weights_hash for u in store.updates()] == [u.weights_hash for u in finished.updates()]


def random_states() -> tuple:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


@pytest.mark.parametrize("training", [False, True])
def test_probes_leave_no_trace(tmp_path, training):
    """Live weights, master, mode and every global random state, before and after each probe."""
    session = prepare(plan(tmp_path).spec, None, quiet)
    state = State.at_base(session.base.weights)
    session.engine.write(state.weights)
    session.engine.model.train(training)
    checkpoint = Checkpoint(step=0, weights=state.weights, base=session.base.weights, updates=())
    random.seed(11)
    np.random.seed(12)  # noqa: NPY002
    torch.manual_seed(13)
    assert [probe.name for probe in session.probes] == ["weights", "lm_eval", "kl"]
    for probe in session.probes:
        before = random_states()
        live = weights_hash(dict(session.engine.model.named_parameters()))
        first = probe.measure(checkpoint, session.engine)
        assert probe.measure(checkpoint, session.engine) == first
        assert random_states() == before, probe.name
        assert weights_hash(dict(session.engine.model.named_parameters())) == live
        assert state.hash() == session.base.weights_hash
        assert session.engine.model.training is training


class Constant:
    """A target whose reward says nothing: ``value`` for every answer."""

    name = "constant"
    lm_eval_task = "embedded_countdown"

    def __init__(self, value: float) -> None:
        self.value = value

    def score(self, item, completion) -> Score:
        return Score(reward=self.value, correct=False, parsed=True)


def trainer_with(tmp_path: Path, reward: float, listen: Listener = quiet) -> EsTrainer:
    planned = plan(tmp_path)
    session = prepare(planned.spec.model_copy(update={"probes": type(planned.spec.probes)()}), None, listen)
    state = State.at_base(session.base.weights)
    return EsTrainer(
        planned.spec, state, session.rollouts, Constant(reward), session.items, session.prompts, session.shape
    )


def test_equal_rewards_give_a_zero_update_and_a_note(tmp_path):
    trainer = trainer_with(tmp_path, 0.1)
    before = trainer.state.hash()
    update = trainer.iterate()
    assert update.note == "all rewards equal: zero ES step, the anchor still applied"
    assert (update.step_norm, update.coefficients) == (0.0, (0.0,) * 4)
    assert update.weights_hash == before


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_a_named_failure(tmp_path, reward):
    trainer = trainer_with(tmp_path, reward)
    with pytest.raises(TrainingError, match=r"step 1, member 0, item [0-9a-f]{16}"):
        trainer.iterate()


def test_a_failure_is_recorded_as_one(tmp_path, monkeypatch):
    def fail(self):
        raise TrainingError("the reward broke")

    monkeypatch.setattr(EsTrainer, "iterate", fail)
    with pytest.raises(TrainingError):
        loop.run(plan(tmp_path), tmp_path / "run", resume=False, listen=quiet)
    manifest = RunStore.open(tmp_path / "run").manifest
    assert (manifest.status, manifest.error) == ("failed", "TrainingError: the reward broke")


def test_nothing_is_written_when_the_input_is_bad(tmp_path):
    with pytest.raises(Exception, match="embedded_rules"):
        loop.run(
            plan(tmp_path, 'probes.lm_eval={tasks=["embedded_rulez"], items=3}'),
            tmp_path / "run",
            resume=False,
            listen=quiet,
        )
    assert not (tmp_path / "run").exists()


def test_export_loads_as_the_trained_weights(tmp_path, finished):
    from transformers import AutoModelForCausalLM

    assert export(finished.path, 3, tmp_path / "hf") == 3
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    weights = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
    assert weights_hash(weights) == finished.updates()[2].weights_hash


def test_mirrored_and_bfloat16_run(tmp_path):
    planned = plan(tmp_path, "es.mirrored=true", 'model.dtype="bfloat16"', "es.iterations=2")
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    update = store.updates()[0]
    assert (len(update.seeds), len(update.coefficients), len(update.rewards)) == (2, 2, 4)
