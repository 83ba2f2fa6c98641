"""The KL probe against enumeration in float64 NumPy, and the marks it must not leave."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import RunError
from driftlab.probes.base import Checkpoint
from driftlab.probes.kl import KlProbe, full_vocabulary_kl, prompt_average, token_weighted
from driftlab.run.records import Measurement

PROMPTS = {
    "target": [(3, 4, 5), (6, 7), (8, 9, 10, 11), (12,), (13, 14, 15), (3, 3), (4, 9, 9)],
    "prior": [(5, 6, 7), (7, 8)],
}


def make_engine() -> TransformersEngine:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=20,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        model = LlamaForCausalLM(config).eval()
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    return TransformersEngine(model, tokenizer, batch_size=4)


def weights_of(engine: TransformersEngine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.model.named_parameters()}


def moved(base: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {n: t + scale * torch.randn(t.shape, generator=generator) for n, t in base.items()}


def checkpoint(base: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], step: int = 1) -> Checkpoint:
    return Checkpoint(step=step, weights=weights, base=base, updates=())


def make_probe(**changes: object) -> KlProbe:
    return KlProbe(PROMPTS, **({"max_new_tokens": 8, "seed": 5} | changes))  # type: ignore[arg-type]


def by_key(rows: Sequence[Measurement]) -> dict[tuple[str, str], Measurement]:
    return {(row.quantity, row.group): row for row in rows}


def global_states() -> tuple[object, bytes, bytes]:
    numpy_state = pickle.dumps(np.random.get_state())  # noqa: NPY002
    return random.getstate(), numpy_state, torch.get_rng_state().numpy().tobytes()


def enumerate_kl(base_logits: NDArray[np.float32], logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL at each position, one vocabulary entry after another."""
    result = []
    for p_row, q_row in zip(base_logits.astype(np.float64), logits.astype(np.float64), strict=True):
        p, q = np.exp(p_row - p_row.max()), np.exp(q_row - q_row.max())
        p, q = p / p.sum(), q / q.sum()
        result.append(math.fsum(float(a) * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return np.array(result, dtype=np.float64)


def test_full_vocabulary_kl_is_the_enumerated_one() -> None:
    rng = np.random.default_rng(0)
    base = (3 * rng.standard_normal((50, 17))).astype(np.float32)
    other = (3 * rng.standard_normal((50, 17))).astype(np.float32)
    kl = full_vocabulary_kl(torch.from_numpy(base), torch.from_numpy(other))
    assert kl.dtype == torch.float64
    assert kl.shape == (50,)
    np.testing.assert_allclose(kl.numpy(), enumerate_kl(base, other), rtol=1e-6)
    assert bool((kl > 0).all())


def test_small_divergences_are_resolved_beyond_float32_normalisation() -> None:
    """An early checkpoint: KL near 1e-8, below the 1e-7 by which float32 probabilities miss 1."""
    rng = np.random.default_rng(1)
    base = (4 * rng.standard_normal((40, 5000))).astype(np.float32)
    other = (base + 1e-4 * rng.standard_normal(base.shape)).astype(np.float32)
    kl = full_vocabulary_kl(torch.from_numpy(base), torch.from_numpy(other))
    exact = enumerate_kl(base, other)
    assert exact.mean() < 1e-8
    np.testing.assert_allclose(kl.numpy(), exact, rtol=0.02)
    assert bool((kl >= 0).all())


def test_kl_of_equal_logits_is_exactly_zero_and_constants_do_not_matter() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(3))
    assert torch.equal(full_vocabulary_kl(logits, logits.clone()), torch.zeros(5, dtype=torch.float64))
    assert float(full_vocabulary_kl(logits, logits + 2.0).abs().max()) < 1e-12
    with pytest.raises(ValueError, match="shape"):
        full_vocabulary_kl(logits, logits[:, :-1])


def test_improbable_tokens_do_not_break_the_sum() -> None:
    kl = full_vocabulary_kl(torch.tensor([[0.0, -1e6]]), torch.tensor([[0.0, 1.0]]))
    assert float(kl) == pytest.approx(math.log(1 + math.e), rel=1e-6)


def test_probe_equals_enumeration_on_the_model() -> None:
    engine = make_engine()
    base, probe = weights_of(engine), make_probe()
    probe.prepare(engine)
    tuned = moved(base, 0.05)
    engine.write(tuned)
    table = by_key(probe.measure(checkpoint(base, tuned), engine).measurements)
    assert len(table) == 4
    for text_set, references in probe.references.items():
        totals, lengths = [], []
        for reference in references:  # one unpadded sequence at a time, written out
            prompt, continuation = reference["prompt"], reference["continuation"]
            rows = []
            for weights in (base, tuned):
                engine.write(weights)
                with torch.no_grad():
                    logits = engine.model(input_ids=torch.tensor([prompt + continuation])).logits[0]
                rows.append(logits[len(prompt) - 1 : -1].numpy())
            assert len(rows[0]) == len(continuation)
            totals.append(math.fsum(enumerate_kl(rows[0], rows[1])))
            lengths.append(len(continuation))
        weighted, average = table["kl_base_to_step", text_set], table["kl_base_to_step_prompt_average", text_set]
        assert weighted.value == pytest.approx(sum(totals) / sum(lengths), rel=1e-4)
        assert average.value == pytest.approx(np.mean(np.divide(totals, lengths)), rel=1e-4)
        assert weighted.value is not None
        assert weighted.value > 1e-3
        assert weighted.n == average.n == len(references)
        assert weighted.unit == average.unit == "nats/token"
        assert weighted.note == f"{sum(lengths)} tokens"


def test_kl_to_itself_is_exactly_zero() -> None:
    engine = make_engine()
    base, probe = weights_of(engine), make_probe(sequences_per_call=3)
    probe.prepare(engine)
    for row in probe.measure(checkpoint(base, base, step=0), engine).measurements:
        assert (row.value, row.stderr, row.status) == (0.0, 0.0, "ok")
    engine.write(moved(base, 0.1))
    assert all(row.value for row in probe.measure(checkpoint(base, base), engine).measurements)
    engine.write(base)
    assert all(row.value == 0.0 for row in probe.measure(checkpoint(base, base), engine).measurements)


def test_references_given_back_give_identical_numbers() -> None:
    engine = make_engine()
    base, first = weights_of(engine), make_probe()
    first.prepare(engine)
    stored = json.loads(json.dumps(first.references))
    second, again = make_probe(references=stored), make_probe()
    second.prepare(engine)
    again.prepare(engine)
    assert again.references == first.references == second.references
    engine.write(moved(base, 0.02))
    rows = [probe.measure(checkpoint(base, base), engine) for probe in (first, second, again)]
    assert rows[0] == rows[1] == rows[2]


def test_drawing_depends_on_seed_and_set_but_not_on_other_sets() -> None:
    engine = make_engine()
    probe, other_seed = make_probe(), make_probe(seed=6)
    alone = KlProbe({"prior": PROMPTS["prior"]}, max_new_tokens=8, seed=5)
    for each in (probe, other_seed, alone):
        each.prepare(engine)
    assert alone.references["prior"] == probe.references["prior"]
    assert other_seed.references != probe.references
    assert all(1 <= len(r["continuation"]) <= 8 for rows in probe.references.values() for r in rows)


def test_no_trace_is_left() -> None:
    engine = make_engine()
    base, probe = weights_of(engine), make_probe()
    before = global_states()
    probe.prepare(engine)
    probe.measure(checkpoint(base, base), engine)
    assert global_states() == before
    assert not engine.model.training
    assert all(torch.equal(p, base[name]) for name, p in engine.model.named_parameters())
    assert all(p.grad is None for p in engine.model.parameters())


def test_logits_that_are_not_finite_are_a_failure() -> None:
    engine = make_engine()
    base, probe = weights_of(engine), make_probe()
    probe.prepare(engine)
    broken = dict(base)
    broken["lm_head.weight"] = base["lm_head.weight"].clone()
    broken["lm_head.weight"][0, 0] = math.inf
    engine.write(broken)
    for row in probe.measure(checkpoint(base, broken), engine).measurements:
        assert (row.status, row.value, row.stderr) == ("failed", None, None)
        assert row.n_failed == row.n
        assert "not finite" in (row.note or "")


def test_weighted_and_averaged_by_hand() -> None:
    totals, tokens = [1.0, 6.0, 0.5], [1, 4, 5]
    weighted, average = token_weighted(totals, tokens), prompt_average(totals, tokens)
    assert weighted.value == pytest.approx(7.5 / 10)
    # Residuals K - 0.75 L: 0.25, 3, -3.25.
    assert weighted.stderr == pytest.approx(math.sqrt(1.5 * (0.0625 + 9 + 10.5625)) / 10)
    assert average.value == pytest.approx((1.0 + 1.5 + 0.1) / 3)
    assert average.stderr == pytest.approx(np.std([1.0, 1.5, 0.1], ddof=1) / math.sqrt(3))


def test_equal_lengths_make_both_means_and_errors_the_same() -> None:
    totals, tokens = [0.3, 0.9, 0.1, 0.5], [7, 7, 7, 7]
    weighted, average = token_weighted(totals, tokens), prompt_average(totals, tokens)
    assert weighted.value == pytest.approx(average.value)
    assert weighted.stderr == pytest.approx(average.stderr)


def test_ratio_error_agrees_with_jackknife_and_bootstrap() -> None:
    """Linearised, jackknife and bootstrap errors agree to a few per cent at 60 sequences of uneven length."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(1, 40, 60)
    totals = tokens * rng.gamma(4.0, 0.02, 60)
    estimate = token_weighted(totals.tolist(), tokens.tolist())
    left_out = np.array([np.delete(totals, i).sum() / np.delete(tokens, i).sum() for i in range(60)])
    jackknife = math.sqrt(59 / 60 * ((left_out - left_out.mean()) ** 2).sum())
    picks = rng.integers(0, 60, (5000, 60))
    bootstrap = (totals[picks].sum(axis=1) / tokens[picks].sum(axis=1)).std(ddof=1)
    assert estimate.stderr == pytest.approx(jackknife, rel=0.05)
    assert estimate.stderr == pytest.approx(bootstrap, rel=0.06)


def test_one_sequence_has_a_value_and_no_error() -> None:
    assert token_weighted([0.6], [3]).stderr is None
    assert prompt_average([0.6], [3]).stderr is None
    assert token_weighted([0.6], [3]).value == prompt_average([0.6], [3]).value == pytest.approx(0.2)
    for estimate in (token_weighted, prompt_average):
        with pytest.raises(ValueError, match="at least one token"):
            estimate([], [])
        with pytest.raises(ValueError, match="at least one token"):
            estimate([0.0], [0])


def test_wrong_use_is_refused() -> None:
    engine = make_engine()
    base = weights_of(engine)
    with pytest.raises(RuntimeError, match="prepare"):
        make_probe().measure(checkpoint(base, base), engine)
    with pytest.raises(RuntimeError, match="prepare"):
        _ = make_probe().references
    with pytest.raises(ValueError, match="text set"):
        KlProbe({}, max_new_tokens=8, seed=0)
    with pytest.raises(ValueError, match="prior has no prompt"):
        KlProbe({"prior": []}, max_new_tokens=8, seed=0)
    with pytest.raises(RunError, match="this run asks for"):
        make_probe(references={})
    row = {"prompt": [1], "continuation": [2]}
    with pytest.raises(RunError, match="do not continue"):
        make_probe(references={"target": [row], "prior": [row]})
