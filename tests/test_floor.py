"""The noise floor: exactly the flips that a model with planted noise makes, and no trace.

The models here are the embedded one with an offset added to one token's logits, which depends on how a sequence is
batched. What that does to each item is worked out sequence by sequence, without batches, padding or masks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from driftlab.errors import SpecError
from driftlab.models.base import load_base
from driftlab.probes.base import Checkpoint
from driftlab.probes.floor import FloorProbe, compare, conditions
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.probes.lm_eval_rows import Question, Verdict
from driftlab.run.plan import resolve
from driftlab.run.records import Measurement
from driftlab.session import prepare
from driftlab.tasks.base import Item
from driftlab.tasks.embedded.countdown import EmbeddedCountdown

BATCH = 8
TOKEN_LIMIT = 12
Offset = Callable[[torch.Tensor, bool], float]
"""Offset in nats from a batch's token ids and whether choices share their prompt (a mask says which they may see)."""


class Noisy(LlamaForCausalLM):
    """A Llama whose logits for ``token`` are off by ``offset``, once that is given; counts its forward passes."""

    token = 0
    offset: Offset | None = None
    calls = 0

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Any = None, logits_to_keep: Any = 0, **kwargs: Any
    ) -> Any:
        output = super().forward(input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep, **kwargs)
        self.calls += 1
        if self.offset is not None:
            shared = attention_mask is not None and attention_mask.dim() == 4
            output.logits[..., self.token] += self.offset(input_ids, shared)
        return output


def noisy_engine() -> Any:
    base = load_base("nano", dtype=torch.float32, device="cpu")
    model = Noisy(base.model.config).eval().requires_grad_(False)
    model.load_state_dict(base.model.state_dict())
    model.generation_config = base.model.generation_config
    return SimpleNamespace(model=model, tokenizer=base.tokenizer)


def checkpoint(step: int = 0) -> Checkpoint:
    return Checkpoint(step=step, weights={}, base={}, updates=())


def scored(engine: Any, task: str, *, items: int, batch_size: int = BATCH) -> LmEvalProbe:
    """The lm_eval probe, ready; noise may be switched on now: what is prepared does not depend on it."""
    probe = LmEvalProbe(
        [task], items=items, seed=0, batch_size=batch_size, data=None, max_gen_toks={"embedded_countdown": TOKEN_LIMIT}
    )
    probe.prepare(engine)
    return probe


def measured(engine: Any, subject: LmEvalProbe, **settings: Any) -> dict[str, Measurement]:
    """Rows of the floor by quantity, after the first scoring."""
    subject.measure(checkpoint(), engine)
    rows = FloorProbe(subject, **{"items": None, "seed": 0, **settings}).measure(checkpoint(), engine).measurements
    assert len({row.quantity for row in rows}) == len(rows)
    assert {(row.step, row.probe) for row in rows} == {(0, "floor")}
    return {row.quantity: row for row in rows}


def choice_scores(engine: Any, doc: dict[str, Any], offset: float) -> np.ndarray:
    """Log-likelihood of each choice in nats, one plain sequence at a time, with a constant offset."""
    found = []
    for choice in doc["choices"]:
        prompt, whole = (engine.tokenizer(text)["input_ids"] for text in (doc["query"], f"{doc['query']} {choice}"))
        logits = LlamaForCausalLM.forward(engine.model, torch.tensor([whole])).logits[0].double()
        logits[:, engine.model.token] += offset
        chosen = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1).gather(
            1, torch.tensor(whole[len(prompt) :])[:, None]
        )
        found.append(float(chosen.sum()))
    return np.array(found)


def verdicts(engine: Any, docs: Sequence[dict[str, Any]], offsets: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Correctness and margin of each item under its offset; no item may be too close to call."""
    correct, margins = [], []
    for doc, offset in zip(docs, offsets, strict=True):
        scores = choice_scores(engine, doc, offset)
        ordered = np.sort(scores)
        # Batched float32 scores of this model differ from these by less than 1e-5.
        assert ordered[-1] - ordered[-2] > 1e-4
        correct.append(float(scores.argmax() == doc["gold"]))
        margins.append(scores[doc["gold"]] - np.delete(scores, doc["gold"]).max())
    return np.array(correct), np.array(margins)


def assert_equal(rows: dict[str, Measurement], condition: str, before: Any, after: Any, count: int) -> None:
    """The rows of one condition against verdicts worked out by hand."""
    flips, difference = rows[f"floor_flips_{condition}"], rows[f"floor_difference_{condition}"]
    assert (flips.status, flips.n, flips.n_failed, flips.unit) == ("ok", count, 0, "fraction")
    assert flips.value == pytest.approx(np.mean(before[0] != after[0]), abs=1e-12)
    assert difference.value == pytest.approx(np.mean(after[0] - before[0]), abs=1e-12)
    margin = rows[f"floor_margin_{condition}"]
    assert (margin.unit, margin.stderr) == ("nats", None)
    assert margin.value == pytest.approx(np.abs(after[1] - before[1]).max(), abs=2e-5)


def documents(subject: LmEvalProbe, task: str) -> list[dict[str, Any]]:
    return [dict(question.doc) for question in subject.prepared[task].questions]


def test_half_the_batch_flips_what_it_flips() -> None:
    """40 items are five batches of eight and ten of four; the offset is there in the batches of four only."""
    engine = noisy_engine()
    subject = scored(engine, "embedded_knowledge", items=40)
    docs = documents(subject, "embedded_knowledge")
    engine.model.token = engine.tokenizer(docs[0]["choices"][docs[0]["gold"]])["input_ids"][0]
    engine.model.offset = lambda ids, shared: 3.0 if len(ids) == BATCH // 2 else 0.0
    rows = measured(engine, subject)
    before, after = verdicts(engine, docs, [0.0] * 40), verdicts(engine, docs, [3.0] * 40)
    assert 0 < (before[0] != after[0]).sum() < 40
    assert_equal(rows, "batch", before, after, 40)
    assert_equal(rows, "order", before, before, 40)
    assert rows["floor_flips_batch"].note == "batches of 4 instead of 8"
    # One-token choices need no branches: there is no other layout of the same prompts.
    assert not any("layout" in quantity for quantity in rows)


def test_another_layout_flips_what_it_flips() -> None:
    """Four choices of several tokens share a prompt; the offset is there only where each has its own row."""
    engine = noisy_engine()
    subject = scored(engine, "embedded_continuation", items=24)
    assert subject.prepared["embedded_continuation"].shared
    docs = documents(subject, "embedded_continuation")
    engine.model.token = engine.tokenizer(docs[0]["choices"][docs[0]["gold"]])["input_ids"][0]
    engine.model.offset = lambda ids, shared: 0.0 if shared else 4.0
    rows = measured(engine, subject)
    before, after = verdicts(engine, docs, [0.0] * 24), verdicts(engine, docs, [4.0] * 24)
    assert 0 < (before[0] != after[0]).sum() < 24
    assert_equal(rows, "layout", before, after, 24)
    for condition in ("batch", "order"):
        assert_equal(rows, condition, before, before, 24)


def test_other_company_flips_what_it_flips() -> None:
    """The offset depends on all ids of a batch, and the model notes which batch every prompt was in."""
    engine = noisy_engine()
    subject = scored(engine, "embedded_knowledge", items=40)
    docs = documents(subject, "embedded_knowledge")
    engine.model.token = engine.tokenizer(docs[0]["choices"][docs[0]["gold"]])["input_ids"][0]
    batches: list[tuple[frozenset[tuple[int, ...]], float]] = []

    def offset(ids: torch.Tensor, shared: bool) -> float:
        size = 3.0 if int(ids.sum()) % 2 else 0.0
        if len(ids) == BATCH:
            batches.append((frozenset(tuple(token for token in row if token) for row in ids.tolist()), size))
        return size

    engine.model.offset = offset
    rows = measured(engine, subject)
    assert len(batches) == 10  # five of the first scoring, five in random order
    first, second = batches[:5], batches[5:]
    assert {members for members, _ in first} != {members for members, _ in second}
    prompts = [tuple(engine.tokenizer(doc["query"])["input_ids"]) for doc in docs]
    assert len(set(prompts)) == 40
    before, after = (
        verdicts(engine, docs, [next(size for members, size in half if prompt in members) for prompt in prompts])
        for half in (first, second)
    )
    assert 0 < (before[0] != after[0]).sum() < 40
    assert_equal(rows, "order", before, after, 40)


def greedy(engine: Any, prompt: str, offset: float) -> str:
    """Greedy continuation, one sequence, no cache, with a constant offset."""
    ids = engine.tokenizer(prompt)["input_ids"]
    start = len(ids)
    while len(ids) < start + TOKEN_LIMIT:
        logits = LlamaForCausalLM.forward(engine.model, torch.tensor([ids])).logits[0, -1]
        logits[engine.model.token] += offset
        if int(logits.argmax()) == engine.tokenizer.eos_token_id:
            break
        ids.append(int(logits.argmax()))
    return str(engine.tokenizer.decode(ids[start:], skip_special_tokens=True))


def test_generated_answers_flip_too() -> None:
    """24 prompts are three batches of eight and six of four; the offset favours a minus sign in batches of four."""
    engine = noisy_engine()
    subject = scored(engine, "embedded_countdown", items=24)
    docs, target = documents(subject, "embedded_countdown"), EmbeddedCountdown()
    (engine.model.token,) = engine.tokenizer("-")["input_ids"]
    companies: list[frozenset[str]] = []

    def offset(ids: torch.Tensor, shared: bool) -> float:
        if ids.shape[1] > 1:  # the prompts; afterwards one token at a time
            companies.append(frozenset(engine.tokenizer.batch_decode(ids, skip_special_tokens=True)))
        return 1.0 if len(ids) == BATCH // 2 else 0.0

    engine.model.offset = offset
    rows = measured(engine, subject)

    def correct(size: float) -> np.ndarray:
        items = [Item(id="", prompt=d["query"], fields={"numbers": d["numbers"], "target": d["target"]}) for d in docs]
        return np.array([float(target.score(item, greedy(engine, item.prompt, size)).correct) for item in items])

    before, after = correct(0.0), correct(1.0)
    assert 0 < (before != after).sum() < 24
    assert rows["floor_flips_batch"].value == pytest.approx(np.mean(before != after), abs=1e-12)
    assert rows["floor_difference_batch"].value == pytest.approx(np.mean(after - before), abs=1e-12)
    assert rows["floor_flips_order"].value == rows["floor_difference_order"].value == 0.0
    assert len(rows) == 4  # neither margins nor another layout
    # Three of the first scoring, six of half the size, three in random order: the same prompts in other company.
    assert [len(members) for members in companies] == [8] * 3 + [4] * 6 + [8] * 3
    assert set(companies[:3]) != set(companies[9:])
    assert frozenset().union(*companies[:3]) == frozenset().union(*companies[9:])


def question(cluster: str) -> Question:
    return Question(
        item=cluster, cluster=cluster, stratum=None, doc={}, task=None, requests=range(2), text="", right="",
        choices=("a", "b"), gold=(0,),
    )  # fmt: skip


def test_rows_of_hand_made_verdicts() -> None:
    """Five items, one not finite the second time; of four, two flip down and one up; clusters of two and two.

    Changes -1, 0, -1, +1: mean -1/4, residual sums -1/2 and +1/2, so the error is sqrt(2 * (1/4 + 1/4)) / 4 = 1/4.
    Flips 1, 0, 1, 1: mean 3/4, residual sums -1/2 and +1/2, the same error.
    """
    engine = noisy_engine()
    condition = next(conditions(scored(engine, "embedded_rules", items=5).prepared["embedded_rules"], BATCH))
    first = [Verdict(correct=c, chance=0.5, score=s) for c, s in ((1, 0.1), (1, 2), (1, 0.2), (0, -0.1), (0, -3))]
    second = [Verdict(correct=c, chance=0.5, score=s) for c, s in ((0, -0.1), (1, 2), (0, -0.5), (1, 0.1))]
    second.append(Verdict(correct=None, chance=0.5))
    questions = [question(cluster) for cluster in "aabbc"]
    flips, difference, margin = compare("t", condition, questions, first, second)
    assert (flips.value, flips.stderr, flips.n, flips.n_failed) == (0.75, 0.25, 5, 1)
    assert (difference.value, difference.stderr, difference.n) == (-0.25, 0.25, 5)
    assert (margin.value, margin.unit) == (0.7, "nats")


@pytest.mark.parametrize("task", ["embedded_knowledge", "embedded_countdown"])
def test_no_trace_and_none_at_later_steps(task: str) -> None:
    engine = noisy_engine()
    subject = scored(engine, task, items=12)
    first = subject.measure(checkpoint(), engine)
    engine.model.train()
    engine.model.model.layers[0].eval()

    def state() -> tuple[Any, ...]:
        numpy = np.random.get_state()  # noqa: NPY002
        modes = [module.training for module in engine.model.modules()]
        weights = [parameter.clone() for parameter in engine.model.parameters()]
        return random.getstate(), str(numpy), torch.get_rng_state().tolist(), modes, [w.tolist() for w in weights]

    before, floor = state(), FloorProbe(subject, items=None, seed=0)
    again = floor.measure(checkpoint(), engine)
    assert state() == before
    assert all(row.status == "ok" for row in again.measurements)
    assert again.examples == ()
    assert floor.measure(checkpoint(), engine) == again
    calls = engine.model.calls
    assert floor.measure(checkpoint(3), engine).measurements == ()
    assert engine.model.calls == calls
    assert subject.measure(checkpoint(), engine) == first


def test_a_condition_that_fails_says_why_and_the_others_go_on() -> None:
    engine, told = noisy_engine(), []
    subject = scored(engine, "embedded_knowledge", items=16)

    def offset(ids: torch.Tensor, shared: bool) -> float:
        if len(ids) == BATCH // 2:
            raise RuntimeError("out of memory")
        return 0.0

    engine.model.offset = offset
    rows = measured(engine, subject, progress=told.append)
    failed = rows.pop("floor_flips_batch")
    assert (failed.status, failed.value, failed.n, failed.n_failed) == ("failed", None, 16, 16)
    assert failed.note == "batches of 4 instead of 8: RuntimeError: out of memory"
    assert rows.keys() == {"floor_flips_order", "floor_difference_order", "floor_margin_order"}
    assert all(row.status == "ok" for row in rows.values())
    assert told == ["embedded_knowledge"]

    engine.model.offset = lambda ids, shared: float("nan") if len(ids) == BATCH // 2 else 0.0
    failed = measured(engine, subject)["floor_flips_batch"]
    assert failed.note is not None
    assert "no item has a finite score" in failed.note


def test_without_a_first_scoring_there_is_no_floor() -> None:
    engine = noisy_engine()
    subject = scored(engine, "embedded_knowledge", items=16)
    engine.model.offset = lambda ids, shared: float("nan")
    rows = measured(engine, subject)
    assert rows.keys() == {"floor_flips_batch", "floor_flips_order"}
    for row in rows.values():
        assert (row.status, row.value) == ("failed", None)
        assert row.note is not None
        assert "no first scoring" in row.note


def test_a_subset_is_seeded_and_compared_with_its_own_items() -> None:
    """The offset depends on nothing here, so that any item compared with another one's verdict would show."""
    engine = noisy_engine()
    subject = scored(engine, "embedded_continuation", items=24)
    whole = measured(engine, subject)
    for seed in range(4):
        rows = measured(engine, subject, items=7, seed=seed)
        assert rows.keys() == whole.keys()
        for row in rows.values():
            assert row.n == 7
            # Rounding of float32 sums of a few nats; margins of different items are nats apart.
            assert row.value == pytest.approx(0.0, abs=2e-5)
    assert measured(engine, subject, items=24) == measured(engine, subject, items=10**6) == whole


@pytest.mark.parametrize(
    ("batch_size", "items", "note"),
    [(1, 3, "batches of 2 instead of 1"), (64, 6, "batches of 3 instead of 6"), (3, 6, "batches of 1 instead of 3")],
)
@pytest.mark.parametrize("task", ["embedded_knowledge", "embedded_countdown"])
def test_the_other_batch_size_is_another_one(task: str, batch_size: int, items: int, note: str) -> None:
    """Also where all items fit in one batch, half of which would hold them all again."""
    subject = scored(noisy_engine(), task, items=items, batch_size=batch_size)
    assert next(conditions(subject.prepared[task], batch_size)).note == note


SPEC: dict[str, Any] = {
    "name": "floor",
    "model": {"source": "nano"},
    "target": {"task": "embedded_countdown", "train_items": 2, "max_new_tokens": TOKEN_LIMIT},
    "es": {"population": 2, "iterations": 1, "sigma": 0.01},
}
LM_EVAL = {"tasks": ["embedded_rules"], "items": 4}


def test_a_session_measures_the_floor_after_the_tasks() -> None:
    events: list[str] = []
    spec = resolve({**SPEC, "probes": {"lm_eval": LM_EVAL, "floor": {"items": 3}}}, "spec")
    session = prepare(spec, None, lambda event: events.append(event.detail))
    assert [probe.name for probe in session.probes] == ["weights", "lm_eval", "floor"]
    assert {task: len(found) for task, found in session.item_texts.items()} == {
        "embedded_countdown": 4,
        "embedded_rules": 4,
    }
    for probe in session.probes[1:]:
        rows = probe.measure(checkpoint(), session.engine).measurements
        assert {row.group for row in rows} == session.item_texts.keys()
    assert {row.n for row in rows} == {3}
    assert events[-2:] == ["noise floor of embedded_countdown done", "noise floor of embedded_rules done"]


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ({"floor": {}}, r"probes\.floor measures the noise of probes\.lm_eval, which is absent"),
        ({"lm_eval": LM_EVAL, "floor": {"items": 0}}, r"probes\.floor\.items in spec is 0"),
    ],
)
def test_a_floor_of_nothing_is_refused(probes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        resolve({**SPEC, "probes": probes}, "spec")
    assert resolve({**SPEC, "probes": {"lm_eval": LM_EVAL, "floor": {}}}, "spec").probes.floor is not None
