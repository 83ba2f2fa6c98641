"""The weights probe against plain float64 NumPy, and what it says where something is not defined."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from driftlab.drift import theory
from driftlab.engines.base import Engine
from driftlab.probes.base import Checkpoint
from driftlab.probes.weights import WeightsProbe, group_changes, layer_group
from driftlab.run.records import Measurement, Penalty, Update

NO_ENGINE = cast(Engine, None)  # the probe reads tensors only

LLAMA = {
    "model.embed_tokens.weight": "embedding",
    "model.layers.0.self_attn.q_proj.weight": "layer.0.attention",
    "model.layers.11.self_attn.o_proj.weight": "layer.11.attention",
    "model.layers.11.mlp.gate_proj.weight": "layer.11.mlp",
    "model.layers.0.input_layernorm.weight": "norm",
    "model.layers.0.post_attention_layernorm.weight": "norm",
    "model.norm.weight": "norm",
    "lm_head.weight": "head",
}
QWEN = {
    "model.layers.3.self_attn.k_proj.bias": "layer.3.attention",
    "model.layers.3.mlp.down_proj.weight": "layer.3.mlp",
    "model.layers.3.self_attn.q_norm.weight": "norm",
}
GPT2 = {
    "transformer.wte.weight": "embedding",
    "transformer.wpe.weight": "embedding",
    "transformer.h.5.attn.c_attn.weight": "layer.5.attention",
    "transformer.h.5.mlp.c_fc.bias": "layer.5.mlp",
    "transformer.h.5.ln_1.weight": "norm",
    "transformer.ln_f.bias": "norm",
}
OTHERS = {
    "gpt_neox.layers.2.attention.query_key_value.weight": "layer.2.attention",
    "gpt_neox.embed_in.weight": "embedding",
    "embed_out.weight": "head",
    "model.decoder.layers.7.fc1.weight": "layer.7.mlp",
    "model.layers.1.block_sparse_moe.experts.4.w1.weight": "layer.1.mlp",
    "backbone.layers.1.mixer.in_proj.weight": "other",
    "something.else": "other",
}


@pytest.mark.parametrize(("name", "group"), [*LLAMA.items(), *QWEN.items(), *GPT2.items(), *OTHERS.items()])
def test_layer_group(name: str, group: str) -> None:
    assert layer_group(name) == group


def test_layer_groups_know_every_parameter_of_real_models() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    small: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    models = [
        LlamaForCausalLM(LlamaConfig(**small, intermediate_size=16, num_key_value_heads=1)),
        Qwen2ForCausalLM(Qwen2Config(**small, intermediate_size=16, num_key_value_heads=1, tie_word_embeddings=True)),
        GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2)),
    ]
    for model in models:
        groups = {layer_group(name) for name, _ in model.named_parameters()}
        layers = {f"layer.{i}.{part}" for i in range(2) for part in ("attention", "mlp")}
        assert groups - {"head"} == layers | {"embedding", "norm"}


def make_weights(scale: float = 0.01) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    rng = np.random.default_rng(1)
    shapes = {
        "model.embed_tokens.weight": (13, 6),
        "model.layers.0.self_attn.q_proj.weight": (6, 6),
        "model.layers.0.self_attn.k_proj.weight": (3, 6),
        "model.layers.0.mlp.up_proj.weight": (9, 6),
        "model.layers.0.input_layernorm.weight": (6,),
        "extra.bias": (4,),
    }
    base, weights = {}, {}
    for name, shape in shapes.items():
        start = rng.standard_normal(shape).astype(np.float32)
        change = (scale * rng.standard_normal(shape) * (rng.random(shape) > 0.25)).astype(np.float32)
        base[name], weights[name] = torch.from_numpy(start), torch.from_numpy(start + change)
    return base, weights


def make_updates(steps: int, *, penalty: Penalty = "none", decay: float = 0.0, population: int = 4) -> list[Update]:
    rng = np.random.default_rng(2)
    updates = []
    for t in range(1, steps + 1):
        rewards = rng.standard_normal(population)
        z = (rewards - rewards.mean()) / rewards.std()
        updates.append(
            Update(
                step=t,
                seeds=tuple(range(population * t, population * (t + 1))),
                coefficients=tuple(z.tolist()),
                population=population,
                sigma=0.004,
                alpha=0.002,
                penalty=penalty,
                decay=decay,
                rewards=tuple(rewards.tolist()),
                step_norm=0.1 * t,
                step_cosine=None if t == 1 else -0.25,
                weights_hash="",
                prompt_tokens=0,
                generated_tokens=0,
                seconds={},
            )
        )
    return updates


def measure(
    base: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], updates: list[Update], *, tau: float = 1e-6
) -> dict[tuple[str, str], Measurement]:
    checkpoint = Checkpoint(step=len(updates), weights=weights, base=base, updates=updates)
    rows = WeightsProbe(tau).measure(checkpoint, NO_ENGINE).measurements
    table = {(row.quantity, row.group): row for row in rows}
    assert len(table) == len(rows)
    return table


def value(row: Measurement) -> float:
    assert row.status == "ok"
    assert row.value is not None
    return row.value


def test_rows_equal_plain_float64_numpy() -> None:
    base, weights = make_weights()
    table = measure(base, weights, make_updates(3), tau=0.005)
    start = np.concatenate([t.numpy().ravel() for t in base.values()]).astype(np.float64)
    change = np.concatenate([t.numpy().ravel() for t in weights.values()]).astype(np.float64) - start
    assert value(table["update_norm", "all"]) == pytest.approx(np.linalg.norm(change), rel=1e-14)
    relative = np.linalg.norm(change) / np.linalg.norm(start)
    assert value(table["relative_update_norm", "all"]) == pytest.approx(relative, rel=1e-14)
    assert value(table["max_abs_change", "all"]) == np.abs(change).max()
    assert value(table["zero_fraction", "all"]) == (change == 0).mean()
    assert 0.1 < value(table["zero_fraction", "all"]) < 0.5
    assert value(table["sparsity", "all"]) == (np.abs(change) <= 0.005).mean()
    assert "0.005" in (table["sparsity", "all"].note or "")
    assert all(row.n == change.size for (_, group), row in table.items() if group == "all")
    assert (table["update_norm", "all"].unit, table["zero_fraction", "all"].unit) == ("l2", "fraction")
    attention = [n for n in base if "self_attn" in n]
    by_hand = math.sqrt(sum(float(((weights[n].double() - base[n].double()) ** 2).sum()) for n in attention))
    assert value(table["update_norm", "layer.0.attention"]) == pytest.approx(by_hand, rel=1e-14)
    assert table["update_norm", "layer.0.attention"].n == 54


def test_groups_partition_all_parameters() -> None:
    base, weights = make_weights()
    table = measure(base, weights, make_updates(1))
    groups = [row for (quantity, group), row in table.items() if quantity == "update_norm" and group != "all"]
    assert {row.group for row in groups} == {"embedding", "layer.0.attention", "layer.0.mlp", "norm", "other"}
    assert sum(value(row) ** 2 for row in groups) == pytest.approx(value(table["update_norm", "all"]) ** 2, rel=1e-14)
    assert sum(row.n for row in groups) == table["update_norm", "all"].n


def test_changes_whose_half_precision_square_is_zero_are_seen() -> None:
    base = {"lm_head.weight": torch.zeros(10_000, dtype=torch.float16)}
    weights = {"lm_head.weight": torch.full((10_000,), 1e-5, dtype=torch.float16)}
    assert float((weights["lm_head.weight"] ** 2).sum()) == 0.0
    table = measure(base, weights, [])
    stored = float(weights["lm_head.weight"][0])
    assert value(table["update_norm", "all"]) == pytest.approx(100 * stored, rel=1e-12)
    assert value(table["zero_fraction", "all"]) == 0.0
    skipped = table["relative_update_norm", "all"]
    assert (skipped.status, skipped.value) == ("skipped", None)


def test_slices_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    base, weights = make_weights()
    whole = group_changes(weights, base, 1e-6)
    monkeypatch.setattr("driftlab.probes.weights._SLICE", 5)
    sliced = group_changes(weights, base, 1e-6)
    for group, change in whole.items():
        assert sliced[group].squared == pytest.approx(change.squared, rel=1e-14)
        assert (sliced[group].n, sliced[group].unchanged) == (change.n, change.unchanged)
        assert (sliced[group].largest, sliced[group].within_tau) == (change.largest, change.within_tau)


def test_base_model_has_moved_nowhere() -> None:
    base, _ = make_weights()
    table = measure(base, base, [])
    for quantity in ("update_norm", "relative_update_norm", "max_abs_change", "predicted_norm"):
        assert value(table[quantity, "all"]) == 0.0
    assert value(table["zero_fraction", "all"]) == value(table["sparsity", "all"]) == 1.0
    for quantity in ("step_norm", "step_cosine", "random_walk_ratio", "predicted_norm_anchored"):
        row = table[quantity, "all"]
        assert (row.status, row.value) == ("skipped", None)
        assert row.note


def test_predictions_and_ratio() -> None:
    base, weights = make_weights()
    table = measure(base, weights, make_updates(5))
    d = table["update_norm", "all"].n
    expected = theory.alpha_form(0.002, d, 5, 4)
    predicted = table["predicted_norm", "all"]
    assert value(predicted) == pytest.approx(expected, rel=1e-12)
    assert predicted.stderr == pytest.approx(expected / math.sqrt(2 * d), rel=1e-12)
    assert value(table["predicted_norm_alpha", "all"]) == pytest.approx(expected, rel=1e-12)
    assert value(table["predicted_norm_sigma", "all"]) == pytest.approx(2 * expected, rel=1e-12)
    assert table["predicted_norm_anchored", "all"].status == "skipped"
    ratio = value(table["update_norm", "all"]) / expected
    assert value(table["random_walk_ratio", "all"]) == pytest.approx(ratio, rel=1e-12)
    assert all(row.stderr is None for row in table.values() if row is not predicted)


def test_anchored_prediction_where_the_penalty_is_l2() -> None:
    base, weights = make_weights()
    table = measure(base, weights, make_updates(5, penalty="l2", decay=0.1))
    expected = theory.anchored_form(0.002, 0.1, table["update_norm", "all"].n, 5, 4)
    assert value(table["predicted_norm_anchored", "all"]) == pytest.approx(expected, rel=1e-12)
    assert value(table["predicted_norm", "all"]) == pytest.approx(expected, rel=1e-12)
    mixed = make_updates(2, penalty="l2", decay=0.1) + make_updates(3, penalty="l2", decay=0.2)[2:]
    changed = measure(base, weights, mixed)["predicted_norm_anchored", "all"]
    assert changed.status == "skipped"
    assert "changed" in (changed.note or "")


def test_l1_is_predicted_and_a_run_without_a_law_is_skipped() -> None:
    base, weights = make_weights()
    table = measure(base, weights, make_updates(4, penalty="l1", decay=1e-4))
    assert 0.0 < value(table["predicted_norm", "all"]) < value(table["predicted_norm_alpha", "all"])
    mixed = make_updates(1, penalty="l1", decay=1e-4) + make_updates(2, penalty="l2", decay=0.1)[1:]
    table = measure(base, weights, mixed)
    assert table["predicted_norm", "all"].status == table["random_walk_ratio", "all"].status == "skipped"


def test_repeated_noise_is_predicted_without_an_anchor_and_skipped_with_a_reason_under_l1() -> None:
    """Two steps of one seed with coefficients 1 and 3: sqrt(d) * alpha/N * 4."""
    base, weights = make_weights()
    updates = [replace(u, seeds=(9,), coefficients=(c,)) for u, c in zip(make_updates(2), (1.0, 3.0), strict=True)]
    table = measure(base, weights, updates)
    d = table["update_norm", "all"].n
    assert value(table["predicted_norm", "all"]) == pytest.approx(math.sqrt(d) * 0.002 / 4 * 4, rel=1e-12)
    assert value(table["predicted_norm_alpha", "all"]) == pytest.approx(theory.alpha_form(0.002, d, 2, 4), rel=1e-12)
    table = measure(base, weights, [replace(u, penalty="l1", decay=1e-4) for u in updates])
    assert table["predicted_norm", "all"].status == table["random_walk_ratio", "all"].status == "skipped"
    assert "seeds repeat" in (table["predicted_norm", "all"].note or "")


def test_steps_that_move_nothing_are_predicted_to() -> None:
    base, _ = make_weights()
    updates = [replace(u, seeds=(), coefficients=(), rewards=(), step_norm=0.0) for u in make_updates(3)]
    table = measure(base, base, updates)
    for quantity in ("update_norm", "predicted_norm", "step_norm"):
        assert value(table[quantity, "all"]) == 0.0
    assert table["predicted_norm", "all"].stderr == 0.0
    assert (table["random_walk_ratio", "all"].status, table["random_walk_ratio", "all"].value) == ("skipped", None)
    assert table["random_walk_ratio", "all"].note


def test_last_step() -> None:
    base, weights = make_weights()
    first = measure(base, weights, make_updates(1))
    assert value(first["step_norm", "all"]) == 0.1
    assert first["step_cosine", "all"].status == "skipped"
    later = measure(base, weights, make_updates(2))
    assert (value(later["step_norm", "all"]), value(later["step_cosine", "all"])) == (0.2, -0.25)
    assert (later["step_norm", "all"].unit, later["step_cosine", "all"].unit) == ("l2", "cosine")


def test_a_checkpoint_of_unrecorded_steps_has_norms_but_no_prediction() -> None:
    base, weights = make_weights()
    rows = WeightsProbe().measure(Checkpoint(step=7, weights=weights, base=base, updates=()), NO_ENGINE).measurements
    status = {(row.quantity, row.group): row.status for row in rows}
    assert status["update_norm", "all"] == "ok"
    for quantity in ("step_norm", "predicted_norm", "predicted_norm_alpha", "random_walk_ratio"):
        assert status[quantity, "all"] == "skipped"


def test_broken_weights_are_a_failure_and_not_a_number() -> None:
    base, weights = make_weights()
    weights["extra.bias"][1] = math.nan
    table = measure(base, weights, make_updates(2))
    for key in [("update_norm", "all"), ("update_norm", "other"), ("max_abs_change", "all")]:
        assert (table[key].status, table[key].value) == ("failed", None)
        assert table[key].note
    assert table["update_norm", "embedding"].status == "ok"


def test_weights_that_do_not_match_the_base_are_refused() -> None:
    base, weights = make_weights()
    with pytest.raises(ValueError, match=r"extra\.bias: shape"):
        group_changes(weights | {"extra.bias": torch.zeros(5)}, base, 0.0)
    with pytest.raises(ValueError, match="the first is more"):
        group_changes(weights | {"more": torch.zeros(5)}, base, 0.0)
    with pytest.raises(ValueError, match="tau"):
        WeightsProbe(-1.0)


def test_tensors_stay_as_they_were() -> None:
    base, weights = make_weights()
    before = {name: tensor.clone() for name, tensor in (base | {f"t.{k}": v for k, v in weights.items()}).items()}
    measure(base, weights, make_updates(1))
    after = base | {f"t.{k}": v for k, v in weights.items()}
    assert all(torch.equal(before[name], after[name]) for name in before)
