"""The embedded suite and the nano model that is shipped for it."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import pytest
import torch
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from driftlab.errors import SpecError
from driftlab.models import nano_train
from driftlab.tasks.base import Item
from driftlab.tasks.embedded import continuation, countdown, knowledge, rules, suite, twohop
from driftlab.tasks.embedded.world import build_world

NANO = Path(str(importlib.resources.files("driftlab"))) / "models" / "nano"
TASKS = Path(str(importlib.resources.files("driftlab"))) / "tasks" / "lm_eval"
WORLD = build_world()
WINDOWS = {
    "embedded_countdown": (0.15, 0.45),
    "embedded_continuation": (0.25 + 0.15, 0.90),
    "embedded_twohop": (0.25 + 0.15, 0.90),
    "embedded_knowledge": (0.10 + 0.15, 0.90),
    "embedded_rules": (1 / 3 + 0.15, 0.90),
}
"""Task to the lowest and highest accuracy the base model may have: chance plus 15 points to 90 %."""


@pytest.fixture(scope="module")
def docs() -> dict[str, list[dict[str, Any]]]:
    return {task: make(WORLD) for task, make in suite.EVALUATION.items()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def training_texts(batches: int) -> list[str]:
    """From both stages: the facts as they are, and as hearsay has them."""
    streams = [suite.training_batches(WORLD, nano_train.SEED, unsure=unsure) for unsure in (False, True)]
    return [text.text for stream in streams for _ in range(batches) for text in next(stream)]


def test_each_task_has_600_different_items(docs: dict[str, list[dict[str, Any]]]) -> None:
    for task, items in docs.items():
        assert len(items) == 600, task
        assert len({doc["item"] for doc in items}) == 600, task
        assert len({doc["query"] for doc in items}) == 600, task
        assert len({doc["cluster"] for doc in items}) >= 60, task


def test_world_and_items_are_the_ones_the_shipped_model_knows(docs: dict[str, list[dict[str, Any]]]) -> None:
    text = json.dumps([WORLD.vocabulary(), sorted(WORLD.facts.items()), WORLD.routines, list(WORLD.towns.items())])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "140e51a599ebefcf"
    assert hashlib.sha256(json.dumps(docs, sort_keys=True).encode()).hexdigest()[:16] == "41ac4119d5e7347d"


def test_the_same_seed_gives_the_same_items_and_texts(docs: dict[str, list[dict[str, Any]]]) -> None:
    rules.evaluation_questions.cache_clear()
    countdown.split_puzzles.cache_clear()
    build_world.cache_clear()
    assert {task: make(build_world()) for task, make in suite.EVALUATION.items()} == docs
    assert training_texts(3) == training_texts(3)
    assert build_world(1).facts != WORLD.facts


def test_generating_draws_from_no_global_random_state() -> None:
    before = (random.getstate(), torch.get_rng_state().tolist())
    training_texts(1)
    nano_train.build_model({word: i for i, word in enumerate(WORLD.vocabulary())}, 0)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_labels_are_balanced(docs: dict[str, list[dict[str, Any]]]) -> None:
    for task, options in {"embedded_continuation": 4, "embedded_twohop": 4, "embedded_knowledge": 10}.items():
        assert Counter(doc["gold"] for doc in docs[task]) == dict.fromkeys(range(options), 600 // options), task
    cells = Counter((doc["gold"], doc["depth"]) for doc in docs["embedded_rules"])
    assert cells == {(gold, depth): 50 for gold in range(3) for depth in range(4)}
    assert set(Counter(doc["category"] for doc in docs["embedded_knowledge"]).values()) == {120}


def test_the_right_choice_is_right_and_the_choices_differ(docs: dict[str, list[dict[str, Any]]]) -> None:
    for task in set(docs) - {"embedded_countdown"}:
        for doc in docs[task]:
            assert len(set(doc["choices"])) == len(doc["choices"]), task
            assert len({len(choice.split()) for choice in doc["choices"]}) == 1, task
    for doc in docs["embedded_knowledge"]:
        _, attribute, _, entity, _ = doc["query"].split()
        assert WORLD.facts[entity, attribute] == doc["choices"][doc["gold"]]
    for doc in docs["embedded_twohop"]:
        words = doc["query"].split()
        town = words[words.index(words[-2]) + 2]
        assert WORLD.towns[town] == doc["choices"][doc["gold"]]


def test_hearsay_is_one_of_the_options_and_as_frequent_as_it_says(docs: dict[str, list[dict[str, Any]]]) -> None:
    """Lands told of each town in the second stage, against its reliability: within 5 binomial standard errors."""
    told = twohop.hearsay(WORLD.seed)
    for doc in docs["embedded_twohop"]:
        assert told[doc["cluster"]][0] in doc["choices"]
    stream = twohop.training_statements(WORLD, random.Random("t"), True)
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(4000):
        for given, said in next(stream).parts:
            counts[given.split()[0], said.split()[0]] += 1
    for town, (wrong, share) in told.items():
        true, false = counts[town, WORLD.towns[town]], counts[town, wrong]
        error = (share * (1 - share) / (true + false)) ** 0.5
        assert abs(true / (true + false) - share) < 5 * error
        assert sum(n for (name, _), n in counts.items() if name == town) == true + false


def test_countdown_solutions_are_right_and_the_plain_sum_never_is(docs: dict[str, list[dict[str, Any]]]) -> None:
    target = countdown.EmbeddedCountdown()
    for doc in docs["embedded_countdown"]:
        item = Item(id=doc["item"], prompt=doc["query"], fields=doc)
        assert target.score(item, doc["solution"]).correct
        assert not target.score(item, " + ".join(map(str, doc["numbers"]))).correct


def test_no_evaluation_item_is_in_the_training_text(docs: dict[str, list[dict[str, Any]]]) -> None:
    """By what is held out, whatever the wording: every training text is drawn from the complement of these keys."""
    texts = training_texts(150)
    queries = {doc["query"] for items in docs.values() for doc in items}
    assert not any(text.startswith(query) for text in texts for query in queries if text[:8] == query[:8])
    puzzles, asked, occasions, theories = set(), set(), set(), set()
    homes: set[tuple[str, str]] = set()
    for words in map(str.split, texts):
        if words[0] == "reach":
            puzzles.add((tuple(sorted(map(int, words[3:6]))), int(words[1])))
        elif words[0] == "which":
            asked.add((words[3], words[1]))
        elif words[1] == "with":
            occasions.add((frozenset(words[6::3]), frozenset((words[2], words[4]))))
        elif words[1] == "in":
            homes |= {(words[i - 1], words[i + 1]) for i, word in enumerate(words) if word == "in"}
        elif "claim" in words:
            theories.add(frozenset(" ".join(words[: words.index("claim")]).split(" .")))
    assert min(map(len, (puzzles, asked, occasions, homes, theories))) > 400
    assert puzzles.isdisjoint(countdown.split_puzzles(WORLD.seed)[0])
    assert asked.isdisjoint((entity, attribute) for _, entity, attribute in knowledge.held_out_facts(WORLD))
    held_out = continuation.evaluation_occasions(WORLD)
    assert occasions.isdisjoint((frozenset(WORLD.routines[index]), things) for index, things in held_out)
    assert homes.isdisjoint(twohop.held_out_pairs(WORLD))
    evaluated = {doc["query"][: doc["query"].index("claim") - 1] for doc in docs["embedded_rules"]}
    assert theories.isdisjoint(frozenset(text.split(" .")) for text in evaluated)


def test_training_items_of_the_target_are_no_evaluation_items() -> None:
    target = countdown.EmbeddedCountdown()
    items = target.train_items(count=1000, seed=3, data=None)
    assert items == target.train_items(count=1000, seed=3, data=None)
    assert items[:10] == target.train_items(count=10, seed=3, data=None)
    assert items[:10] != target.train_items(count=10, seed=4, data=None)
    assert len({item.id for item in items}) == 1000
    puzzles = {(tuple(sorted(item.fields["numbers"])), item.fields["target"]) for item in items}
    assert puzzles.isdisjoint(countdown.split_puzzles(WORLD.seed)[0])
    with pytest.raises(SpecError, match="training items"):
        target.train_items(count=10**6, seed=3, data=None)


@pytest.mark.parametrize(
    ("completion", "correct", "parsed"),
    [
        ("7 - 3 + 5", True, True),
        ("5 + 7 - 3", True, True),
        (" 5 - ( 3 - 7 ) ", True, True),
        ("-3 + 5 + 7", True, True),
        ("7 + 5 + 3", False, True),
        ("9", False, True),
        ("7 + 2", False, True),
        ("5 + 7 - 3 + 3 - 3", False, True),
        ("7 -", False, False),
        ("", False, False),
        ("reach 9 with", False, False),
        ("5 + 7 - 3 <eos>", False, False),
        ("7 / 0", False, False),
        ("9 ** 9 ** 9", False, False),
        ("__import__('os').getpid()", False, False),
    ],
)
def test_scorer(completion: str, correct: bool, parsed: bool) -> None:
    item = Item(id="x", prompt="reach 9 with 3 5 7 :", fields={"numbers": [3, 5, 7], "target": 9})
    score = countdown.EmbeddedCountdown().score(item, completion)
    assert (score.reward, score.correct, score.parsed) == (float(correct), correct, parsed)
    doc = {"item": "x", "query": item.prompt, **item.fields}
    assert suite.score_countdown(doc, [completion]) == {"acc": float(correct), "parsed": float(parsed)}


@pytest.mark.parametrize(
    ("facts", "rule_list", "trait", "answer"),
    [
        ({"a": True}, ["a>b", "b>c", "c>d"], "d", ("true", 3)),
        ({"a": True}, ["a>b", "b-c"], "c", ("false", 2)),
        ({"a": False}, ["a>b", "b>c"], "c", ("unknown", 2)),
        ({"a": False}, ["a>b"], "a", ("false", 0)),
        ({"a": True}, ["a-b", "b>c"], "c", ("unknown", 2)),
        ({"a": True, "b": True}, ["a>b", "b>c", "a>c"], "c", ("true", 1)),
    ],
)
def test_rule_chaining(facts: dict[str, bool], rule_list: list[str], trait: str, answer: tuple[str, int]) -> None:
    theory = rules.Theory(
        person="anna", facts=tuple(facts.items()), rules=tuple((r[0], r[2], r[1] == ">") for r in rule_list)
    )
    answers = theory.answers()
    assert answers is not None
    assert answers[trait] == answer


def test_a_theory_that_contradicts_itself_has_no_answers() -> None:
    rule_set = (("a", "b", True), ("a", "c", True), ("b", "d", True), ("c", "d", False))
    assert rules.Theory(person="anna", facts=(("a", True),), rules=rule_set).answers() is None


def test_size_of_the_shipped_model_and_its_words() -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    model = AutoModelForCausalLM.from_pretrained(NANO)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert (NANO / "model.safetensors").stat().st_size < 4_000_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ids = tokenizer("reach 9 with 3 5 7 :").input_ids
    assert len(ids) == 7, "one token a word and no token added"
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == "reach 9 with 3 5 7 :"
    assert tokenizer.get_vocab() == nano_train.build_tokenizer(WORLD).get_vocab()


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    tokenizer = nano_train.build_tokenizer(WORLD)
    hashes = []
    for name in ("a", "b"):
        model = nano_train.build_model(tokenizer.get_vocab(), 1)
        nano_train.train(model, suite.training_batches(WORLD, 1, unsure=True), tokenizer.get_vocab(), 2, 1e-3)
        nano_train.save(model, tokenizer, tmp_path / name)
        hashes.append(hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]


def test_base_accuracies_leave_room_both_ways() -> None:
    """No tolerance: the accuracies are those of the full, fixed item sets, so there is no sampling error in them."""
    model = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(NANO),
        tokenizer=AutoTokenizer.from_pretrained(NANO),
        batch_size=64,
        softmax_dtype="float32",
    )
    manager = TaskManager(include_defaults=False, include_path=str(TASKS))
    results = simple_evaluate(model, tasks=list(WINDOWS), task_manager=manager, log_samples=True, bootstrap_iters=0)
    assert results is not None
    for task, (low, high) in WINDOWS.items():
        assert len(results["samples"][task]) == 600
        assert low <= results["results"][task]["acc,none"] <= high, task
    assert results["results"]["embedded_countdown"]["parsed,none"] > 0.9
