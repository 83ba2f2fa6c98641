"""The lm_eval probe: per item equal to lm-eval's own evaluation, and no trace left."""

from __future__ import annotations

import hashlib
import os
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from driftlab.errors import DriftlabError, MissingDataError
from driftlab.probes.base import Checkpoint
from driftlab.probes.lm_eval import LmEvalProbe, _Harness, _load
from driftlab.probes.lm_eval_batches import choice_batches, score_choices, sharing_works
from driftlab.probes.lm_eval_plan import Choice, Prepared, judge_generated, prepare
from driftlab.probes.lm_eval_rows import Question, identify, judge_choice, mean_and_error, stratum, task_rows
from driftlab.probes.no_trace import untouched
from driftlab.run.records import Measurement

EMBEDDED = ["embedded_continuation", "embedded_knowledge", "embedded_rules"]
FROM_FOLDER = ["arc_challenge", "hellaswag", "leaderboard_mmlu_pro", "proofwriter"]
GENERATED = ["countdown_generated", "embedded_countdown", "gsm8k"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def tiny_engine(*, seed: int = 0, max_length: int = 8192, **generation: Any) -> Any:
    """A random two-layer Llama over characters; the probe needs an engine's model and tokenizer only."""
    words = [*SPECIAL, *(c for c in string.printable if c not in "\r\x0b\x0c\t")]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=max_length,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    model.requires_grad_(False)
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    return SimpleNamespace(model=model, tokenizer=tokenizer)


def checkpoint(step: int = 0) -> Checkpoint:
    return Checkpoint(step=step, weights={}, base={}, updates=())


def probe(tasks: list[str], data: Path | None = None, **changes: Any) -> LmEvalProbe:
    settings: dict[str, Any] = {
        "items": 12,
        "seed": 3,
        "batch_size": 8,
        "data": data,
        "max_gen_toks": dict.fromkeys(tasks, 12),
    }
    return LmEvalProbe(tasks, **{**settings, **changes})


def weights_hash(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.numpy().tobytes())
    return digest.hexdigest()


def indices(measured_by: LmEvalProbe, task: str) -> list[int]:
    prepared = measured_by.prepared[task]
    return [prepared.instances[question.requests.start].doc_id for question in prepared.questions]


@contextmanager
def state_kept() -> Iterator[None]:
    """lm-eval's own evaluation reseeds the global generators; the test session keeps its own."""
    with untouched(torch.nn.Identity()):
        yield


def reference(
    engine: Any, measured_by: LmEvalProbe, task: str, data: Path | None, *, chat: bool = False
) -> list[dict[str, Any]]:
    """Per item what ``lm_eval.simple_evaluate`` says on the same ids; of several filters the last."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with state_kept():
        (loaded,) = _load([task], data)[task]
        if loaded.OUTPUT_TYPE == "generate_until":
            loaded.set_config("generation_kwargs", {"max_gen_toks": 12, "do_sample": False}, update=True)
        model = HFLM(
            pretrained=engine.model, tokenizer=engine.tokenizer, batch_size=8, softmax_dtype="float32", device="cpu"
        )
        samples = {task: indices(measured_by, task)}
        results = simple_evaluate(
            model,
            tasks=[loaded],
            task_manager=TaskManager(include_defaults=False),  # it would index every task of lm-eval each time
            samples=samples,
            fewshot_random_seed=3,
            apply_chat_template=chat,
            bootstrap_iters=0,
            log_samples=True,
        )
    rows = results["samples"][task]
    last = rows[-1]["filter"]
    return sorted((row for row in rows if row["filter"] == last), key=lambda row: row["doc_id"])


def headline(row: dict[str, Any]) -> float:
    return float(next(row[name] for name in ("acc_norm", "acc", "exact_match") if name in row))


@pytest.mark.parametrize("task", [*EMBEDDED, *FROM_FOLDER])
def test_choices_equal_simple_evaluate_per_item(task: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue("data_dir") if task in FROM_FOLDER else None
    engine, subject = tiny_engine(), probe([task], data)
    subject.prepare(engine)
    for _ in range(2):
        measured = subject.measure(checkpoint(), engine)
        theirs = reference(engine, subject, task, data)
        assert [example.correct for example in measured.examples] == [headline(row) for row in theirs]
        for example, row, question in zip(measured.examples, theirs, subject.prepared[task].questions, strict=True):
            likelihoods = np.array([float(response[0][0]) for response in row["resps"]])
            right = np.isin(np.arange(len(likelihoods)), question.gold)
            assert example.score == pytest.approx(likelihoods[right].max() - likelihoods[~right].max(), abs=2e-3)
            # What was asked holds the choices: a continuation is the delimiter, a space, and the choice.
            choices = [arguments[1].removeprefix(" ") for arguments in row["arguments"]]
            lengths = [len(choice) if "acc_norm" in row else 1 for choice in choices]
            assert example.answer == choices[int(np.argmax(likelihoods / lengths))]
            assert example.stratum == row["doc"].get("category")
        accuracy = measured.measurements[0]
        assert accuracy.quantity == "accuracy"
        assert accuracy.value == pytest.approx(np.mean([headline(row) for row in theirs]))


@pytest.mark.parametrize("task", GENERATED)
def test_generated_answers_equal_simple_evaluate_per_item(task: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue("data_dir") if task == "gsm8k" else None
    engine, subject = tiny_engine(), probe([task], data, items=6)
    subject.prepare(engine)
    for _ in range(2):
        measured = subject.measure(checkpoint(), engine)
        theirs = reference(engine, subject, task, data)
        assert [example.output for example in measured.examples] == [row["resps"][0][0] for row in theirs]
        assert [example.correct for example in measured.examples] == [headline(row) for row in theirs]


def rows_of(measurements: Any) -> dict[str, Measurement]:
    return {row.quantity: row for row in measurements}


def test_the_chat_template_is_for_generated_answers_only(data_dir: Path) -> None:
    """Choices are asked as without one; answers are asked as ``simple_evaluate`` does it with the template."""
    engine = tiny_engine()
    engine.tokenizer.chat_template = (
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    plain, subject = (probe(["gsm8k", "proofwriter"], data_dir, items=3, chat=chat) for chat in (False, True))
    plain.prepare(engine)
    subject.prepare(engine)
    assert subject.settings_hash("proofwriter") == plain.settings_hash("proofwriter")
    theirs = reference(engine, subject, "gsm8k", data_dir, chat=True)
    prompts = [instance.args[0] for instance in subject.prepared["gsm8k"].instances]
    assert prompts == [row["arguments"][0][0] for row in theirs]
    assert all(prompt.count("[user] Question:") == 6 and prompt.endswith("[assistant] ") for prompt in prompts)
    measured = subject.measure(checkpoint(), engine)
    outputs = [example.output for example in measured.examples if example.task == "gsm8k"]
    assert outputs == [row["resps"][0][0] for row in theirs]


def test_texts_and_chance_of_the_documents(data_dir: Path) -> None:
    """Against the benchmark's own files: question without few-shot examples, right answer, and 1/number of options."""
    names = ["leaderboard_mmlu_pro", "hellaswag", "gsm8k", "embedded_countdown"]
    engine, subject = tiny_engine(max_length=50_000), probe(names, data_dir, items=5)
    subject.prepare(engine)
    texts = subject.item_texts()
    assert texts.keys() == set(names)
    measured = subject.measure(checkpoint(), engine)
    assert {(e.task, e.item) for e in measured.examples} == {(t, item) for t, items in texts.items() for item in items}
    chance = {row.group: row for row in measured.measurements if row.quantity == "chance"}
    documents = {name: {q.item: q.doc for q in subject.prepared[name].questions} for name in names}

    options = [len(doc["options"]) for doc in documents["leaderboard_mmlu_pro"].values()]
    assert chance["leaderboard_mmlu_pro"].value == pytest.approx(sum(1 / count for count in options) / 5, abs=1e-15)
    assert (chance["hellaswag"].value, chance["hellaswag"].note) == (0.25, None)
    for free in ("gsm8k", "embedded_countdown"):
        assert (chance[free].value, chance[free].stderr, chance[free].note) == (0.0, None, "free-form answer")

    for item, doc in documents["leaderboard_mmlu_pro"].items():
        lines = [doc["question"], *(f"{'ABCDEFGHIJ'[i]}. {text}" for i, text in enumerate(doc["options"]))]
        assert texts["leaderboard_mmlu_pro"][item] == {
            "question": "\n".join([*lines, "Answer:"]),
            "right": doc["answer"],
        }
    for item, doc in documents["hellaswag"].items():
        assert texts["hellaswag"][item] == {"question": doc["query"], "right": doc["choices"][int(doc["label"])]}
    for item, doc in documents["gsm8k"].items():
        expected = {"question": f"Question: {doc['question']}\nAnswer:", "right": doc["answer"]}
        assert texts["gsm8k"][item] == expected
    for item, doc in documents["embedded_countdown"].items():
        assert texts["embedded_countdown"][item] == {"question": doc["query"], "right": doc["solution"]}


def hand_made(**config: Any) -> Any:
    """A real lm-eval task on a few documents."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    docs = config.pop("docs")
    return ConfigurableTask(
        config={
            "task": "hand_made",
            "custom_dataset": lambda **_: {"test": Dataset.from_list(docs)},
            "test_split": "test",
        }
        | config
    )


def prepared_by_hand(task: Any) -> Prepared:
    engine = tiny_engine()
    choice = Choice(items=99, seed=0, batch_size=8, chat=False, max_gen_toks={})
    with state_kept():
        return prepare("hand_made", [task], _Harness(engine, 8), choice)


def test_answers_that_were_read_and_accuracy_among_them() -> None:
    """Five outputs, of which four can be read and three are right; a scorer that says what a guess is worth.

    By hand: accuracy 3/5; among the parsed 3/4, their error sqrt(sum of squared residuals)/4 with the factor 4/3,
    where two items share a theory: residuals (1/4 + 1/4), 1/4, -3/4, so 3 clusters and the factor 3/2.
    """
    docs = [{"n": i, "right": f"word{i}", "theory": "T" if i < 2 else f"T{i}", "options": i + 1} for i in range(5)]

    def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        read = results[0] != "[invalid]"
        return {"acc": float(results[0] == doc["right"]), "parsed": float(read), "chance": 1 / doc["options"]}

    task = hand_made(
        docs=docs,
        output_type="generate_until",
        doc_to_text=lambda doc: f"Say word {doc['n']}:",
        doc_to_target=lambda doc: doc["right"],
        process_results=score,
        generation_kwargs={"until": ["\n"]},
        filter_list=[
            {
                "name": "word",
                "filter": [{"function": "regex", "regex_pattern": r"(word\d)"}, {"function": "take_first"}],
            }
        ],
    )
    prepared = prepared_by_hand(task)
    outputs = ["so word0.", "word1", "no idea", "(word3)", "word2, I think"]
    verdicts, note = judge_generated(prepared, [(text, False) for text in outputs])
    measurements, examples = task_rows(0, "hand_made", prepared.questions, verdicts, note=note)
    assert [example.answer for example in examples] == ["word0", "word1", None, "word3", "word2"]
    assert [example.parsed for example in examples] == [True, True, False, True, True]
    rows = rows_of(measurements)
    assert (rows["accuracy"].value, rows["accuracy"].n, rows["accuracy"].n_unparsed) == (0.6, 5, 1)
    read = rows["accuracy_parsed"]
    assert (read.value, read.n, read.n_failed, read.n_unparsed) == (0.75, 4, 0, 0)
    assert read.stderr == pytest.approx(np.sqrt((0.5**2 + 0.25**2 + 0.75**2) * 3 / 2) / 4, rel=1e-12)
    assert rows["unparsed_fraction"].value == 0.2
    chance = rows["chance"]
    assert chance.value == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5, rel=1e-15)
    assert (chance.stderr, chance.n, chance.note) == (None, 5, None)
    assert list(rows) == ["accuracy", "chance", "accuracy_parsed", "unparsed_fraction", "truncated_fraction"]

    verdicts, note = judge_generated(prepared, [("no idea", False)] * 5)
    none = rows_of(task_rows(0, "hand_made", prepared.questions, verdicts, note=note)[0])["accuracy_parsed"]
    assert (none.value, none.stderr, none.n, none.status, none.note) == (
        None,
        None,
        0,
        "skipped",
        "no answer could be read",
    )


def test_what_a_scorer_of_ours_reads_is_the_answer(data_dir: Path) -> None:
    """Without a filter the scorer reads the output itself; the module that holds it says what it read."""
    engine, subject = tiny_engine(), probe(["proofwriter_generative"], data_dir, items=4)
    subject.prepare(engine)
    prepared = subject.prepared["proofwriter_generative"]
    outputs = ["It follows.\nAnswer: True", "Answer: unknown", "I think it is True", ""]
    verdicts, _ = judge_generated(prepared, [(text, False) for text in outputs])
    assert [verdict.answer for verdict in verdicts] == ["True", "Unknown", None, None]
    assert [verdict.parsed for verdict in verdicts] == [True, True, False, False]
    assert [verdict.chance for verdict in verdicts] == [1 / 3] * 4
    right = [str(question.doc["answer"]) for question in prepared.questions]
    assert [verdict.correct for verdict in verdicts] == [right[0] == "True", right[1] == "Unknown", 0.0, 0.0]


def test_an_output_that_is_taken_as_it_is_is_stored_once() -> None:
    """Embedded Countdown has neither a filter nor a function that reads."""
    engine, subject = tiny_engine(), probe(["embedded_countdown"], items=3)
    subject.prepare(engine)
    prepared = subject.prepared["embedded_countdown"]
    outputs = [question.doc["solution"] for question in prepared.questions]
    verdicts, _ = judge_generated(prepared, [(text, False) for text in outputs])
    assert [verdict.output for verdict in verdicts] == outputs
    assert [(verdict.correct, verdict.parsed, verdict.answer) for verdict in verdicts] == [(1.0, True, None)] * 3


def test_several_right_answers_and_choices_that_are_beginnings() -> None:
    """Documents by hand; of three choices two are right, so that a guess is right in two of three cases."""
    several = hand_made(
        docs=[{"query": "Even?", "choices": ["2", "3", "4"], "gold": [0, 2], "category": 7}],
        output_type="multiple_choice",
        doc_to_text="{{query}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{gold}}",
    )
    (question,) = prepared_by_hand(several).questions
    assert (question.text, question.right, question.choices) == ("Even?", "2 | 4", ("2", "3", "4"))
    assert question.stratum == "7"
    verdict = judge_choice(question, np.array([-1.0, -3.0, -2.0]), normalised=False)
    assert (verdict.chance, verdict.correct, verdict.score, verdict.answer) == (2 / 3, 1.0, 2.0, "2")

    beginnings = hand_made(
        docs=[{"ends": "was late.", "choices": ["Ann", "Bob"], "gold": 1}],
        output_type="multiple_choice",
        doc_to_text=lambda doc: doc["gold"],
        doc_to_choice="{{choices}}",
        doc_to_target=lambda doc: doc["ends"],
    )
    (question,) = prepared_by_hand(beginnings).questions
    assert (question.text, question.right, question.stratum) == ("was late.", "Bob", None)


def test_a_category_is_a_stratum_and_no_cluster() -> None:
    docs = [{"q": 1, "category": "law"}, {"q": 2, "category": "law"}, {"q": 3, "category": ""}, {"q": 4}]
    assert [stratum(doc) for doc in docs] == ["law", "law", "", None]
    assert len({cluster for _, cluster in identify(docs)}) == 4


@pytest.mark.parametrize("shared", [False, True])
def test_log_likelihoods_equal_the_harness(shared: bool) -> None:
    """Request by request: shared prompts of unlike length, choices that begin alike, an empty context."""
    from lm_eval.api.instance import Instance

    engine = tiny_engine()
    texts = [("a question", " yes"), ("a question", " yet"), ("a question", " y"), ("", "alone"), ("trail ", "x")]
    texts += [(prompt, f" {choice}") for prompt in ("long " * 40, "short") for choice in ("one", "two", "three")]
    harness = _Harness(engine, 3)
    with state_kept():
        instances = [Instance("loglikelihood", {}, text, i) for i, text in enumerate(texts)]
        theirs = harness.loglikelihood(instances, disable_tqdm=True)
    pairs = [harness.pair(*text) for text in texts]
    ours, greedy = score_choices(engine.model, choice_batches(pairs, 3, shared=shared), len(texts))
    assert ours == pytest.approx([value for value, _ in theirs], abs=1e-4)
    assert greedy.tolist() == [said for _, said in theirs]


def test_prompts_are_shared_only_where_the_model_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    pairs = [([5, 6, 7, 8], [9 + choice, 20, 21]) for choice in range(4)]
    assert sharing_works(engine.model, pairs)
    forward = engine.model.forward

    def deaf(input_ids: Any, logits_to_keep: Any = 0, **_: Any) -> Any:
        return forward(input_ids, logits_to_keep=logits_to_keep)

    monkeypatch.setattr(engine.model, "forward", deaf)
    assert not sharing_works(engine.model, pairs)


def test_no_trace() -> None:
    engine, subject = tiny_engine(repetition_penalty=1.7, max_new_tokens=2), probe(["countdown_generated"])
    engine.model.train()
    engine.model.model.layers[0].eval()
    subject_before = (
        engine.tokenizer.padding_side,
        engine.tokenizer.pad_token,
        engine.model.generation_config.to_dict(),
    )

    def state() -> tuple[Any, ...]:
        modes = tuple(module.training for module in engine.model.modules())
        numpy = np.random.get_state()  # noqa: NPY002
        generators = random.getstate(), str(numpy), torch.get_rng_state().tolist()
        return *generators, modes, weights_hash(engine.model), os.getcwd(), dict(os.environ)

    before = state()
    subject.prepare(engine)
    assert state() == before
    subject.measure(checkpoint(), engine)
    assert state() == before
    after = (engine.tokenizer.padding_side, engine.tokenizer.pad_token, engine.model.generation_config.to_dict())
    assert after == subject_before


def test_no_trace_when_scoring_raises_and_other_tasks_go_on(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    engine, told = tiny_engine(), []
    subject = probe(["countdown_generated", "proofwriter"], data_dir, items=3, progress=told.append)
    subject.prepare(engine)

    def broken(*_: Any, **__: Any) -> None:
        random.seed(1)
        torch.manual_seed(1)
        os.environ["DRIFTLAB_TEST"] = "left behind"
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine.model, "generate", broken)
    states = random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)
    measured = subject.measure(checkpoint(), engine)
    assert (random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)) == states
    failed, *others = measured.measurements
    assert (failed.status, failed.value, failed.group, failed.n_failed) == ("failed", None, "countdown_generated", 3)
    assert failed.note is not None
    assert "out of memory" in failed.note
    assert {row.group for row in others} == {"proofwriter"}
    assert all(row.status == "ok" for row in others)
    assert told == ["countdown_generated", "proofwriter"]


def test_generation_config_of_the_model_does_not_matter() -> None:
    plain, odd = tiny_engine(), tiny_engine(repetition_penalty=1.9, max_new_tokens=2, do_sample=True, temperature=3.0)
    subject = probe(["countdown_generated"], items=4)
    subject.prepare(plain)
    assert subject.measure(checkpoint(), plain) == subject.measure(checkpoint(), odd)


def test_subset_is_seeded_sorted_and_independent_of_the_batch_size(data_dir: Path) -> None:
    engine = tiny_engine()
    one, two, other = (probe(["piqa"], data_dir, **changes) for changes in ({}, {"batch_size": 3}, {"seed": 4}))
    for subject in (one, two, other):
        subject.prepare(engine)
    assert indices(one, "piqa") == indices(two, "piqa") == sorted(indices(one, "piqa"))
    assert len(set(indices(one, "piqa"))) == 12
    assert indices(other, "piqa") != indices(one, "piqa")
    assert one.settings_hash("piqa") == two.settings_hash("piqa") != other.settings_hash("piqa")
    ones, twos = one.measure(checkpoint(), engine).examples, two.measure(checkpoint(), engine).examples
    assert [example.item for example in ones] == [example.item for example in twos]
    assert [example.score for example in ones] == pytest.approx([example.score for example in twos], abs=2e-3)


def test_all_items_when_a_task_has_fewer(data_dir: Path) -> None:
    subject = probe(["proofwriter"], data_dir, items=10**6)
    subject.prepare(tiny_engine())
    assert indices(subject, "proofwriter") == list(range(600))


def test_scores_follow_the_weights(data_dir: Path) -> None:
    """Nothing is cached between checkpoints, and the same weights give the same numbers to the bit."""
    engine, subject = tiny_engine(), probe(["piqa", "countdown_generated"], data_dir)
    subject.prepare(engine)
    before = subject.measure(checkpoint(), engine)
    kept = {name: parameter.clone() for name, parameter in engine.model.named_parameters()}
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.add_(0.3 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    changed = subject.measure(checkpoint(), engine)
    assert [example.score for example in changed.examples] != [example.score for example in before.examples]
    assert [example.output for example in changed.examples] != [example.output for example in before.examples]
    engine.model.load_state_dict({**engine.model.state_dict(), **kept})
    assert subject.measure(checkpoint(), engine) == before


def test_contexts_are_a_seeded_sample_of_the_prompts(data_dir: Path) -> None:
    subject = probe(["piqa"], data_dir)
    subject.prepare(tiny_engine())
    contexts = subject.contexts("piqa", 5, 0)
    assert contexts == subject.contexts("piqa", 5, 0)
    assert contexts != subject.contexts("piqa", 5, 1)
    assert len(set(contexts)) == 5
    assert sorted(subject.contexts("piqa", 100, 0)) == sorted({i.args[0] for i in subject.prepared["piqa"].instances})
    assert all(context.startswith("Question: ") and context.endswith("\nAnswer:") for context in contexts)


def test_groups_count_as_one_task(data_dir: Path) -> None:
    subject = probe(["mmlu_pro"], data_dir, items=5, max_gen_toks={"mmlu_pro": 4})
    engine = tiny_engine(max_length=50_000)
    subject.prepare(engine)
    measured = subject.measure(checkpoint(), engine)
    assert {row.group for row in measured.measurements} == {"mmlu_pro"}
    assert measured.measurements[0].n == 5
    assert len({question.task.task_name for question in subject.prepared["mmlu_pro"].questions}) > 1


def test_truncation_is_counted() -> None:
    engine, subject = tiny_engine(), probe(["countdown_generated"], items=5)
    subject.prepare(engine)
    rows = {row.quantity: row for row in subject.measure(checkpoint(), engine).measurements}
    assert rows["truncated_fraction"].value == 1.0
    with torch.no_grad():  # a final norm of zero makes all logits equal; greedy then says token 0, forever
        engine.model.model.norm.weight.zero_()
    assert subject.measure(checkpoint(), engine).measurements[0].n == 5
    engine.model.generation_config.eos_token_id = 0
    rows = {row.quantity: row for row in subject.measure(checkpoint(), engine).measurements}
    assert rows["truncated_fraction"].value == 0.0
    assert rows["unparsed_fraction"].value == 1.0
    assert rows["accuracy"].n_unparsed == 5


def question(choices: tuple[str, ...], gold: tuple[int, ...]) -> Question:
    """A question of which only the choices matter."""
    texts = dict.fromkeys(("text", "right"), "")
    return Question(
        item=str(choices), cluster=str(choices), stratum=None, doc={}, task=None, requests=range(len(choices)),
        choices=choices, gold=gold, **texts,
    )  # fmt: skip


def test_choices_that_tie_count_as_the_first_and_are_named() -> None:
    """Two items, one of which ties: right by luck, and the note says so."""
    questions = [question(("a", "b"), (0,)), question(("a", "c"), (1,))]
    scores = [np.array([-2.0, -2.0]), np.array([-2.0, -1.0])]
    verdicts = [judge_choice(q, s, normalised=False) for q, s in zip(questions, scores, strict=True)]
    measurements, examples = task_rows(0, "t", questions, verdicts)
    assert [example.answer for example in examples] == ["a", "c"]
    assert measurements[0].value == 1.0
    assert measurements[0].note is not None
    assert measurements[0].note.startswith("1 items give every choice the same log-likelihood")


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("choices", [("a", "bb", "ccc", "d"), ("alone",)])
def test_scores_that_tell_nothing_apart_are_no_accuracy(choices: tuple[str, ...], normalised: bool) -> None:
    """A scorer that always returns 0 would keep an accuracy of 1/4 for ever: so often is the first choice right."""
    questions = [question((*choices[:-1], f"{choices[-1]}{i}"), (i % len(choices),)) for i in range(8)]
    verdicts = [judge_choice(q, np.zeros(len(choices)), normalised=normalised) for q in questions]
    measurements, examples = task_rows(5, "t", questions, verdicts)
    assert [(r.quantity, r.step, r.status, r.value, r.n, r.n_failed) for r in measurements] == [
        ("accuracy", 5, "failed", None, 8, 8)
    ]
    assert measurements[0].note is not None
    assert "the same log-likelihood" in measurements[0].note
    assert examples == []


def test_flat_and_not_finite_likelihoods_of_a_model_are_failures(data_dir: Path) -> None:
    """A final norm of zero makes all logits equal, and MMLU-Pro's choices are one token each."""
    engine, subject = tiny_engine(), probe(["leaderboard_mmlu_pro"], data_dir, items=4)
    subject.prepare(engine)
    for broken, reason in ((0.0, "the same log-likelihood"), (float("nan"), "not finite")):
        with torch.no_grad():
            engine.model.model.norm.weight.fill_(broken)
        measured = subject.measure(checkpoint(), engine)
        assert [(row.status, row.value, row.n_failed) for row in measured.measurements] == [("failed", None, 4)]
        assert measured.measurements[0].note is not None
        assert reason in measured.measurements[0].note
        assert measured.examples == ()
        assert subject.base_verdicts == {}


def test_prompts_that_would_be_cut_are_refused(data_dir: Path) -> None:
    with pytest.raises(DriftlabError, match=r"leaderboard_mmlu_pro.*requests need up to \d+ tokens"):
        probe(["leaderboard_mmlu_pro"], data_dir).prepare(tiny_engine(max_length=256))
    with pytest.raises(DriftlabError, match="countdown_generated"):
        probe(["countdown_generated"], max_gen_toks={"countdown_generated": 300}).prepare(tiny_engine(max_length=256))


def test_missing_data_is_named(data_dir: Path, tmp_path: Path) -> None:
    engine = tiny_engine()
    with pytest.raises(MissingDataError, match=r"piqa.*baber/piqa.*--data DIR"):
        probe(["piqa"], tmp_path).prepare(engine)
    with pytest.raises(MissingDataError, match="no such folder"):
        probe(["piqa"], tmp_path / "nowhere").prepare(engine)
    with pytest.raises(MissingDataError, match="countdown_generated"):
        probe(["countdown"]).prepare(engine)
    with pytest.raises(MissingDataError, match=r"piqa.*hub.*--data DIR"):
        probe(["piqa"]).prepare(engine)


@pytest.mark.slow
def test_unknown_task_gives_the_nearest_names() -> None:
    with pytest.raises(DriftlabError, match=r"unknown lm-eval task 'hellaswagg'.*hellaswag"):
        probe(["hellaswagg"]).prepare(tiny_engine())


def test_clusters_widen_the_error() -> None:
    values = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    mean, independent = mean_and_error(values, list("abcdef"))
    assert mean == 0.5
    assert independent == pytest.approx(np.std(values, ddof=1) / np.sqrt(6))
    _, clustered = mean_and_error(values, list("aaabbb"))
    assert clustered == pytest.approx(np.sqrt((1.5**2 + 1.5**2) * 2) / 6)
    assert mean_and_error(values, ["a"] * 6) == (0.5, None)
