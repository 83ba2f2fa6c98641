"""The engines against transformers itself and against each other."""

from __future__ import annotations

import pytest
import torch

from driftlab.engines import stacked
from driftlab.engines.population import Member, SequentialRollouts, StackedRollouts, population
from driftlab.engines.transformers import TransformersEngine
from driftlab.es.precision import FLOAT32
from tests.helpers import tiny_llama, tiny_tokenizer, weights_of

PROMPTS = [(1, 5, 6, 7), (1, 9), (1, 4, 4, 12, 17, 8, 3), (1, 19, 18)]


@pytest.fixture
def engine() -> TransformersEngine:
    return TransformersEngine(tiny_llama(), tiny_tokenizer(), batch_size=3)


def test_generate_equals_one_prompt_at_a_time_without_cache(engine):
    """Reference: argmax of a fresh full forward for each new token, no padding, no cache."""
    completions = engine.generate(PROMPTS, max_new_tokens=6)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = list(prompt)
        while len(ids) < len(prompt) + 6:
            ids.append(int(engine.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == 2:
                break
        new = ids[len(prompt) :]
        assert completion.tokens == tuple(token for token in new if token != 2)
        assert completion.truncated == (new[-1] != 2)


def test_continuation_logits_equal_unpadded_forward(engine):
    continuations = [(5, 6), (7, 8, 9, 10), (4,), (11, 2)]
    for prompt, continuation, logits in zip(
        PROMPTS, continuations, engine.continuation_logits(PROMPTS, continuations), strict=True
    ):
        full = engine.model(torch.tensor([prompt + continuation])).logits[0, len(prompt) - 1 : -1]
        # float32 sums of 16 to 24 terms of order one, in another order: 100 ulp is generous and far below any effect.
        torch.testing.assert_close(logits, full, rtol=1e-5, atol=1e-5)


def test_sample_follows_the_model_and_leaves_global_state(engine):
    """First-token frequencies over 4,000 draws of one prompt against softmax, within 4 standard errors each."""
    state = torch.get_rng_state()
    count = 4000
    drawn = engine.sample([PROMPTS[0]] * count, max_new_tokens=1, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    expected = engine.model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
    frequency = torch.bincount(torch.tensor([row[0] for row in drawn]), minlength=20) / count
    allowed = 4 * (expected * (1 - expected) / count).sqrt() + 1 / count
    assert ((frequency - expected).abs() < allowed).all()
    assert drawn[:5] == engine.sample([PROMPTS[0]] * 5, max_new_tokens=1, seed=3)


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False, "num_key_value_heads": 4}])
def test_stacked_logits_equal_transformers(overrides):
    """Every member's last-position logits, with padding, against the transformers model holding its weights."""
    model = tiny_llama(**overrides)
    master = weights_of(model)
    engine = TransformersEngine(model, tiny_tokenizer(), batch_size=8)
    members = [Member(seed, 0.1) for seed in (1, 2, 3)]
    copies = list(population(master, members, "keyed", FLOAT32, 1))
    model_m = stacked.StackedLlama(model.config, {name: torch.stack([c[name] for c in copies]) for name in master})
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in PROMPTS])
    real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in PROMPTS])
    mask = torch.ones(width, width, dtype=torch.bool).tril() & real[:, None] | torch.eye(width, dtype=torch.bool)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    logits = model_m.logits(ids[None].expand(3, -1, -1), positions, mask, {})
    for index, copy in enumerate(copies):
        engine.write(copy)
        for row, prompt in enumerate(PROMPTS):
            expected = model(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(logits[index, row], expected, rtol=1e-5, atol=1e-5)


def test_stacked_rollouts_equal_sequential_rollouts():
    engine = TransformersEngine(tiny_llama(), tiny_tokenizer(), batch_size=8)
    master = weights_of(engine.model)
    members = [Member(seed, sign * 0.2) for sign in (1, -1) for seed in range(5)]
    settings = {"engine": engine, "scheme": "keyed", "max_new_tokens": 8, "threads": 1}
    one = SequentialRollouts(**settings)(master, members, PROMPTS)
    other = StackedRollouts(**settings)(master, members, PROMPTS)
    assert one == other
    assert len({completion.tokens for member in one for completion in member}) > 5


def test_members_are_written_elsewhere_and_served_in_one_rounding():
    model = tiny_llama().to(torch.bfloat16)
    engine = TransformersEngine(model, tiny_tokenizer(), batch_size=8)
    master = {name: w + 1e-4 for name, w in weights_of(model).items()}
    before = {name: w.clone() for name, w in master.items()}
    SequentialRollouts(engine=engine, scheme="keyed", max_new_tokens=2, threads=1)(master, [Member(7, 0.01)], PROMPTS)
    assert all(torch.equal(master[name], before[name]) for name in master)
    engine.write(master)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, master[name].to(torch.bfloat16))


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"hidden_act": "gelu"}, "activation"), ({"attention_bias": True}, "biases"), ({"model_type": "qwen2"}, "qwen2")],
)
def test_what_cannot_be_stacked_is_refused(change, reason):
    config = tiny_llama().config
    assert stacked.check_supported(config) is None
    for name, value in change.items():
        setattr(config, name, value)
    assert reason in stacked.check_supported(config)
