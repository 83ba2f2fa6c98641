"""GRPO by TRL in a run: what is counted, kept and repeated, and folders of checkpoints through the same probes."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from driftlab import loop
from driftlab.errors import DriftlabError, RunError, SpecError, TrainingError
from driftlab.models import flops
from driftlab.models.base import load_base
from driftlab.models.checkpoints import State, export, weights_at
from driftlab.models.hashing import weights_hash
from driftlab.run.plan import PlannedRun, load_plan
from driftlab.run.records import GradientStep
from driftlab.run.store import RunStore
from driftlab.session import Event, prepare
from driftlab.tasks.targets import target
from driftlab.trainers.grpo import GrpoTrainer
from driftlab.trainers.policy import canonical_weights, latest_state, prompt_order
from tests.helpers import tiny_llama, weights_of
from tests.test_loop import files

TOML = """
name = "tiny"
trainer = "grpo"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 8
max_new_tokens = 12
[grpo]
iterations = 4
beta = 0.0
learning_rate = 1e-3
prompts = 4
generations = 6
[es]
population = 4
iterations = 4
sigma = 0.02
rollouts = "stacked"
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
LORA = 'grpo.lora={rank = 2, scale = 4, modules = ["q_proj", "down_proj"]}'


def plan(folder: Path, *overrides: str) -> PlannedRun:
    file = folder / "tiny.toml"
    file.write_text(TOML)
    (planned,) = load_plan(str(file), list(overrides))
    return planned


def quiet(event: Event) -> None:
    """Nobody watches."""


def trained(folder: Path, *overrides: str) -> RunStore:
    return loop.run(plan(folder, *overrides), folder / "run", resume=False, listen=quiet)


@pytest.fixture(scope="module")
def base():
    return load_base("nano", dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunStore:
    return trained(tmp_path_factory.mktemp("grpo"))


@pytest.fixture(scope="module")
def penalised(tmp_path_factory) -> RunStore:
    return trained(tmp_path_factory.mktemp("penalised"), "grpo.beta=0.04", "grpo.micro_batch=12")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> RunStore:
    return trained(tmp_path_factory.mktemp("adapted"), LORA)


def test_every_iteration_is_recorded(finished):
    updates = finished.updates()
    assert [update.step for update in updates] == [1, 2, 3, 4]
    for update in updates:
        assert isinstance(update, GradientStep)
        assert len(update.rewards) == 24
        assert set(update.rewards) <= {0.0, 1.0}  # the scorer's only values
        assert update.cost is not None
        assert update.cost.rollouts == 24
        assert 24 <= update.generated_tokens <= 24 * 12
        assert update.learning_rate == 1e-3
        assert update.kl_estimate is None
        assert update.seconds["model"] + update.seconds["reward"] <= update.seconds["total"]


def test_prompts_are_those_of_the_evolution_arms(finished, base):
    """Each prompt G times, tokenised as the engine does: with all 8 items in two iterations, the sum is exact."""
    items = target("embedded_countdown").train_items(count=8, seed=0, data=None)
    lengths = sum(len(base.tokenizer(item.prompt)["input_ids"]) for item in items)
    first, second, *_ = finished.updates()
    assert first.prompt_tokens + second.prompt_tokens == 6 * lengths


def test_an_iteration_never_asks_an_item_twice():
    order = prompt_order(3, 7, 3, 5)
    batches = [order[at : at + 3] for at in range(0, 15, 3)]
    assert all(len(set(batch)) == 3 for batch in batches)
    rounds = [set(order[at : at + 6]) for at in (0, 6)]  # the seventh item is left out of a round
    assert all(len(found) == 6 and found < set(range(7)) for found in rounds)
    assert order == prompt_order(3, 7, 3, 5) != prompt_order(4, 7, 3, 5)


def test_measured_steps_are_kept_and_the_rest_is_not(finished, base):
    assert finished.keyframe_steps() == [2, 4]
    assert finished.example_steps() == [0, 2, 4]
    hashes = [update.weights_hash for update in finished.updates()]
    assert [found is None for found in hashes] == [True, False, True, False]
    assert weights_hash(weights_at(finished, base.weights, 4)) == hashes[3]
    with pytest.raises(RunError, match=r"kept the weights of steps 0, 2, 4, not of 3"):
        weights_at(finished, base.weights, 3)
    sizes = [update.cost.stored_bytes for update in finished.updates()]
    assert sizes == [0, (finished.path / "weights/step-000002.safetensors").stat().st_size, 0, sizes[1]]


def test_probes_read_it_as_they_read_evolution(finished, base):
    """The norm of the kept weights in float64, and no law, which is that of evolution strategies."""
    rows = {(row.quantity, row.group): row for row in finished.measurements() if row.step == 4}
    weights = weights_at(finished, base.weights, 4)
    squared = sum(float((weights[name].double() - base.weights[name].double()).square().sum()) for name in weights)
    assert rows["update_norm", "all"].value == pytest.approx(squared**0.5, rel=1e-12)  # summed in another order
    assert squared > 0
    assert rows["kl_base_to_step", "embedded_rules"].value > 0
    for quantity in ("predicted_norm", "predicted_norm_alpha", "random_walk_ratio", "step_norm"):
        assert rows[quantity, "all"].status == "skipped"


class Seen(GrpoTrainer):
    """Remembers the rollouts."""

    def _reward(self, prompts, completions, completion_ids, index, **more):
        rewards = super()._reward(prompts, completions, completion_ids, index, **more)
        self.rollouts = list(zip(index, completion_ids, rewards, strict=True))
        return rewards


def test_the_first_step_is_adams_of_a_gradient_computed_apart(tmp_path):
    """The policy gradient with group-standardised rewards, in float64, from the rollouts that TRL drew.

    AdamW's first step is -lr c / (|c| + 1e-8), c the gradient clipped to length 1: -lr times the sign wherever it is
    large.
    """
    planned = plan(tmp_path, "grpo.iterations=1", "measure.every=1", "grpo.temperature=1.0")
    session = prepare(planned.spec, None, quiet)
    state = State.at_base(session.base.weights)
    batch = (session.target, session.items, session.prompts, session.engine.end_tokens(), session.shape)
    parts = (session.base, *batch, tmp_path / "trainer", [1])
    trainer = Seen(planned.spec, state, *parts)
    trainer.train(lambda update: None, lambda: None)
    model = copy.deepcopy(session.base.model).double().requires_grad_(True)
    groups: dict[int, list[tuple[list[int], float]]] = {}
    for index, ids, reward in trainer.rollouts:
        groups.setdefault(index, []).append((ids, reward))
    assert {len(group) for group in groups.values()} == {6}
    for index, group in groups.items():
        rewards = torch.tensor([reward for _, reward in group], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)  # TRL's epsilon
        prompt = list(session.prompts[index])
        for (ids, _), advantage in zip(group, advantages, strict=True):
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
            (-advantage * chosen.mean() / len(trainer.rollouts)).backward()
    checked, length = 0, sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        # There Adam's epsilon takes less than a thousandth.
        large = gradient.abs() / max(length, 1.0) > 2e-5
        step = (state.weights[name].double() - session.base.weights[name].double())[large]
        # A thousandth of the step, and half a unit in the last place of the weight.
        allowed = 1e-3 * 1e-3 + 2.0**-24 * session.base.weights[name].double()[large].abs()
        assert ((step + 1e-3 * gradient[large].sign()).abs() <= allowed).all(), name
        checked += int(large.sum())
    assert checked > 50_000


def test_a_saved_step_that_is_not_measured_is_gone_on_from(tmp_path):
    """Saved every iteration, measured at the ends only: interrupted after step 3, nothing is made again."""
    whole = tmp_path / "whole"
    whole.mkdir()
    settings = ("measure.every=4", "grpo.save_every=1")
    expected = files(trained(whole, *settings).path)
    planned, path, seen = plan(tmp_path, *settings), tmp_path / "run", []

    def listen(event: Event) -> None:
        seen.append((event.kind, event.step))
        if (event.kind, event.step) == ("iteration", 4) and seen.count(("iteration", 4)) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=False, listen=listen)
    store = loop.run(planned, path, resume=True, listen=listen)
    assert [step for kind, step in seen if kind == "iteration"] == [1, 2, 3, 4, 4]
    assert any("goes on from step 3, 1 later updates are made again" in notice for notice in store.notices)
    assert files(path) == expected


def test_a_torn_state_is_not_gone_on_from(tmp_path):
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    assert latest_state(tmp_path, 4) == (4, tmp_path / "checkpoint-4")
    assert latest_state(tmp_path, 3) == (2, tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_st')
    assert latest_state(tmp_path, 4) == (2, tmp_path / "checkpoint-2")
    assert latest_state(tmp_path / "nowhere", 4) is None


def test_training_that_diverges_is_a_named_failure(tmp_path):
    session = prepare(plan(tmp_path).spec, None, quiet)
    batch = (session.target, session.items, session.prompts, session.engine.end_tokens(), session.shape)
    parts = (session.base, *batch, tmp_path / "trainer", [4])
    trainer = GrpoTrainer(session.spec, State.at_base(session.base.weights), *parts)
    with pytest.raises(TrainingError, match=r"grad_norm is nan at step 3: training diverged; lower"):
        trainer.record_of({"loss": 0.1, "grad_norm": float("nan")}, 3, 1.0, None)


def test_what_trl_needs_to_go_on_is_gone_when_the_run_is_finished(finished):
    assert not finished.trainer_folder.exists()


def test_beta_has_no_default(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TOML.replace("beta = 0.0\n", ""))
    with pytest.raises(SpecError, match=r"lacks 'grpo.beta'"):
        load_plan(str(file))


def test_a_penalty_measures_its_own_kl(penalised):
    """At the first step policy and reference are one model, and k3 of equal probabilities is 0."""
    estimates = [update.kl_estimate for update in penalised.updates()]
    assert estimates[0] == pytest.approx(0.0, abs=1e-6)  # float32 log-probabilities of two forward passes
    assert estimates[3] > 0


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_micro_batches_make_the_same_rollouts_one_step(tmp_path, loss):
    """Passes of 24, and of 6 rollouts: the same rollouts, and one gradient; hot answers are of unequal lengths."""
    common = ("grpo.iterations=1", "measure.every=1", "grpo.temperature=3.0", f'grpo.loss="{loss}"')
    norms, rewards = [], []
    for size in (24, 6):
        folder = tmp_path / str(size)
        folder.mkdir()
        (update,) = trained(folder, *common, f"grpo.micro_batch={size}").updates()
        norms.append(update.gradient_norm)
        rewards.append(update.rewards)
    assert rewards[0] == rewards[1]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)  # float32 sums in another order


@pytest.mark.slow  # trains twice
@pytest.mark.parametrize("overrides", [(), (LORA, "grpo.beta=0.04")])
def test_interrupted_and_resumed_is_bit_identical(tmp_path, overrides):
    """Interrupted while measuring step 2 and again after step 3, whose update must be made anew."""
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = files(trained(whole, *overrides).path)
    planned, path = plan(tmp_path, *overrides), tmp_path / "run"
    events: list[tuple[str, int | None]] = []

    def stop_at(kind: str, step: int):
        def listen(event: Event) -> None:
            events.append((event.kind, event.step))
            if (event.kind, event.step) == (kind, step):
                raise KeyboardInterrupt

        return listen

    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=False, listen=stop_at("measured", 2))
    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=True, listen=stop_at("iteration", 3))
    assert len(RunStore.open(path).updates()) == 3
    loop.run(planned, path, resume=True, listen=quiet)
    found = files(path)
    for contents in (expected, found):
        for name in [name for name in contents if name.startswith("trainer")]:
            del contents[name]
    assert found == expected


def test_adapters_are_merged_exactly_and_live_weights_stay(adapted, base):
    """Only the adapted tensors moved, by a matrix of the rank asked for."""
    weights = weights_at(adapted, base.weights, 4)
    moved = {name for name in weights if not torch.equal(weights[name], base.weights[name])}
    assert moved == {name for name in weights if "q_proj" in name or "down_proj" in name}
    for name in moved:
        values = torch.linalg.svdvals((weights[name] - base.weights[name]).double())
        # What is left beyond rank 2 is the float32 rounding of the sum base + delta.
        assert values[2] < 1e-5 * values[0] + 1e-6


def test_frozen_weights_take_half_a_backward_pass(adapted, base):
    """Rank 2 on q (in + out) and down (in + out) of every layer; frozen weights pass gradients on, once 2 P."""
    sizes = [base.weights[name].shape for name in base.weights if "q_proj" in name or "down_proj" in name]
    adapters = sum(2 * (rows + columns) for rows, columns in sizes)
    shape = flops.shape_of(base.model)
    for update in adapted.updates():
        tokens = update.prompt_tokens + update.generated_tokens
        saved = 2 * shape.weights * tokens
        # Forward over everything twice (answers drawn, then trained on); backward twice a forward less what is saved.
        assert update.cost.backward_flops == pytest.approx(update.cost.forward_flops - saved, rel=1e-14)
        assert update.cost.forward_flops > 2 * 2 * (shape.weights + adapters) * tokens


def test_canonical_weights_equal_pefts_own_merge():
    model = tiny_llama()
    start = weights_of(model)
    wrapped = get_peft_model(model, LoraConfig(r=2, lora_alpha=6, target_modules=["v_proj"], task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    found = canonical_weights(wrapped, start)
    merged = dict(copy.deepcopy(wrapped).merge_and_unload().named_parameters())
    assert any(not torch.equal(found[name], start[name]) for name in start)
    assert all(torch.equal(found[name], merged[name]) for name in start)


@pytest.mark.parametrize("tied", [True, False])
def test_forward_operations_equal_those_that_torch_counts(tied):
    """torch counts every multiplication of matrices that it runs; its attention is over the whole square."""
    model, n = tiny_llama(tie_word_embeddings=tied), 7
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(n)[None])
    shape = flops.shape_of(model)
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    attention = 4 * 2 * 16 * n * n  # 2 layers of 4 heads of 4
    assert counter.get_total_flops() == 2 * (shape.weights - norms) * n + attention
    # Causal attention by enumeration: token i looks at i tokens.
    causal = sum(4 * 2 * 16 * i for i in range(1, n + 1))
    assert flops.forward(shape, [n]) == 2 * shape.weights * n + causal


def test_backward_operations():
    shape = flops.Shape(weights=1000, layers=2, width=8)
    assert flops.backward(shape, [3, 5]) == 2 * flops.forward(shape, [3, 5])
    with_adapters = flops.Shape(weights=1000, layers=2, width=8, adapter_weights=10)
    attention = 2 * 2 * 8 * (3 * 4)
    # Frozen weights pass gradients on (2 P), adapters take their own as well (4 P).
    assert flops.backward(with_adapters, [3]) == 2 * 1000 * 3 + 4 * 10 * 3 + 2 * attention


def test_cost_follows_the_formula(finished, penalised, base):
    """Generation and training pass forward; a penalty's reference once more. Lengths are at most 12 + prompt."""
    shape = flops.shape_of(base.model)
    for store, passes in ((finished, 2), (penalised, 3)):
        for update in store.updates():
            tokens = update.prompt_tokens + update.generated_tokens
            weights_only = 2 * shape.weights * tokens
            assert update.cost.forward_flops > passes * weights_only
            assert update.cost.backward_flops == pytest.approx(2 / passes * update.cost.forward_flops, rel=1e-15)


def test_folders_of_checkpoints_go_the_same_way(finished, tmp_path):
    """A run's checkpoints exported as TRL names them measure the same, to the bit, as the run itself did."""
    sequence = tmp_path / "sequence"
    for step in (2, 4):
        export(finished.path, step, sequence / f"checkpoint-{step}")
    store = trained(tmp_path, 'trainer="folders"', f'folders.path="{sequence}"')
    assert store.updates() == []
    ours, theirs = (
        {
            (row.step, row.probe, row.quantity, row.group): asdict(row)
            for row in run.measurements()
            if row.quantity not in _NEED_UPDATES
        }
        for run in (store, finished)
    )
    assert ours == theirs
    examples = [[asdict(one) for step in (0, 2, 4) for one in run.examples(step)] for run in (store, finished)]
    assert examples[0] == examples[1]


_NEED_UPDATES = (
    "step_norm",
    "step_cosine",
    "predicted_norm",
    "predicted_norm_alpha",
    "predicted_norm_sigma",
    "predicted_norm_anchored",
    "random_walk_ratio",
)


def test_folders_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(DriftlabError, match="no folder at"):
        trained(tmp_path, 'trainer="folders"', f'folders.path="{tmp_path}/nowhere"')
    (tmp_path / "empty").mkdir()
    with pytest.raises(DriftlabError, match="holds no checkpoint"):
        trained(tmp_path, 'trainer="folders"', f'folders.path="{tmp_path}/empty"')
    sequence = tmp_path / "sequence"
    (sequence / "backup2024").mkdir(parents=True)
    (sequence / "backup2024" / "config.json").write_text("{}")
    with pytest.raises(DriftlabError, match="holds no checkpoint"):  # a date is no step
        trained(tmp_path, 'trainer="folders"', f'folders.path="{sequence}"')
    (sequence / "checkpoint-6").mkdir()
    (sequence / "checkpoint-6" / "adapter_config.json").write_text("{}")
    with pytest.raises(DriftlabError, match=r"checkpoint-6 holds no config.json: merge adapters"):
        trained(tmp_path, 'trainer="folders"', f'folders.path="{sequence}"')
    (sequence / "checkpoint-6").rename(sequence / "checkpoint-0")
    (sequence / "checkpoint-0" / "config.json").write_text("{}")
    with pytest.raises(DriftlabError, match="checkpoint-0 is of step 0, which is the base model"):
        trained(tmp_path, 'trainer="folders"', f'folders.path="{sequence}"')
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("grpo.prompts=9", "grpo.prompts is 9, but the training batch has 8"),
        ("seed=4294967296", r"seed is 4294967296, but TRL takes seeds below 2\*\*32"),
        ('model.dtype="float16"', "model.dtype is float16, in which TRL does not train on a CPU"),
        ("es.population=9", "--set es.population=9 changes nothing: no arm chosen"),
        ("grpo.micro_batch=7", "must be a whole number of micro batches"),
        ('anchor={penalty = "l2", lambda = 1.0}', "anchor is set, but it belongs to evolution strategies"),
        ('control="base"', "control is set, but it belongs to evolution strategies"),
        ("measure.at=[9]", "measure.at names step 9, but the run ends at step 4"),
        ('trainer="folders"', r"trainer is folders, but there is no \[folders\] table"),
    ],
)
def test_settings_that_cannot_be(tmp_path, override, words):
    with pytest.raises(SpecError, match=words):
        plan(tmp_path, override)


def test_adapters_on_modules_that_do_not_exist(tmp_path):
    with pytest.raises(SpecError, match=r"names 'w_proj', but the model's linear layers are down_proj, gate_proj"):
        trained(tmp_path, 'grpo.lora={rank = 2, scale = 4, modules = ["q_proj", "w_proj"]}')
    assert not (tmp_path / "run").exists()


def test_without_trl_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the package trl; install it with `pip install 'driftlab\[grpo\]'`"):
        trained(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_own_table_only(finished):
    spec = json.loads((finished.path / "run.json").read_text())["spec"]
    assert spec["es"] is None
    assert spec["grpo"]["beta"] == 0.0
