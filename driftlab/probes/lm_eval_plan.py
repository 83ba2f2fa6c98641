"""What the lm_eval probe asks: the requests of a task, built once, and how a checkpoint's answers become verdicts.

Tasks are lm-eval's Task objects and the harness is its model wrapper, but nothing here imports lm-eval.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from driftlab.errors import DriftlabError
from driftlab.probes.lm_eval_batches import ChoiceBatch, Pair, choice_batches, score_choices, sharing_works
from driftlab.probes.lm_eval_rows import Question, Verdict, identify, judge_choice, stratum

_KINDS = ("multiple_choice", "generate_until")
_HEADLINES = ("acc_norm", "acc", "exact_match")
_OTHERS = ("parsed", "chance", "reward")  # metrics with a place of their own in a verdict
_DEFAULT_MAX_GEN_TOKS = 256  # lm-eval's own default, made explicit
_TOLERANT = "flexible-extract"  # lm-eval's name for the filter that takes any number-like answer
_UNREAD = "[invalid]"  # what lm-eval's regex filters return when nothing matches


class Harness(Protocol):
    """lm-eval's model wrapper, as far as a plan needs it."""

    model: Any
    max_length: int

    def tok_encode(self, string: str) -> list[int]: ...

    def apply_chat_template(self, chat_history: list[dict[str, str]]) -> str: ...

    def pair(self, context: str, continuation: str) -> Pair:
        """Token ids of one log-likelihood request."""
        ...

    def answers(self, instances: Sequence[Any]) -> list[tuple[str, bool]]:
        """Greedy answer to each request, and whether the token limit cut it off."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What decides the requests: how many items, which, how rendered. Fields as in ``LmEvalProbe``."""

    items: int
    seed: int
    batch_size: int
    chat: bool
    max_gen_toks: Mapping[str, int]


@dataclass(slots=True, eq=False)
class Prepared:
    """One requested task (a group counts as one): its questions, lm-eval's instances, and for choices the batches.

    ``shared``: whether the batches let the choices of a question share its prompt.
    """

    questions: list[Question] = field(default_factory=list)
    instances: list[Any] = field(default_factory=list)
    batches: list[ChoiceBatch] = field(default_factory=list)
    shared: bool = False

    def part(self, chosen: Sequence[int]) -> Prepared:
        """The questions at ``chosen`` (ascending) with their instances; batches are left to be built."""
        part = Prepared()
        for question in (self.questions[index] for index in chosen):
            first = len(part.instances)
            part.instances += self.instances[question.requests.start : question.requests.stop]
            part.questions.append(replace(question, requests=range(first, len(part.instances))))
        return part


def prepare(name: str, leaves: Sequence[Any], harness: Harness, choice: Choice) -> Prepared:
    """Choose items across ``leaves`` (lm-eval tasks, several for a group) and build their requests.

    Raises:
        DriftlabError: a kind of task that is not supported, or prompts that the model would have to cut.
    """
    kinds = {leaf.OUTPUT_TYPE for leaf in leaves}
    if len(kinds) != 1 or not kinds <= set(_KINDS):
        raise DriftlabError(
            f"lm-eval task {name!r} is of type {', '.join(sorted(map(str, kinds)))}, not {' or '.join(_KINDS)}; "
            "leave it out"
        )
    pool = [(leaf, index) for leaf, task in enumerate(leaves) for index in range(len(task.task_docs))]
    if len(pool) > choice.items:
        # Seeded by name too: a task has the same items whichever other tasks are measured.
        pool = sorted(random.Random(f"{choice.seed}:{name}").sample(pool, choice.items))
    prepared = Prepared()
    for leaf, task in enumerate(leaves):
        _build(name, prepared, task, [index for where, index in pool if where == leaf], harness, choice)
    if kinds == {"multiple_choice"}:
        pairs = [harness.pair(*instance.args) for instance in prepared.instances]
        # The last token is predicted, never read, so one more token than the model's length fits.
        _refuse_long(
            name, [len(context) + len(continuation) - 1 for context, continuation in pairs], harness.max_length
        )
        prepared.shared = sharing_works(harness.model, pairs)
        prepared.batches = choice_batches(pairs, choice.batch_size, shared=prepared.shared)
    else:
        room = [harness.max_length - instance.args[1]["max_gen_toks"] for instance in prepared.instances]
        _refuse_long(name, [len(harness.tok_encode(instance.args[0])) for instance in prepared.instances], min(room))
    return prepared


def _build(name: str, prepared: Prepared, task: Any, indices: Sequence[int], harness: Harness, choice: Choice) -> None:
    """Append questions and instances of one lm-eval task; few-shot examples are drawn as ``simple_evaluate`` does."""
    # Choices are asked in lm-eval's stock form: a bare continuation is no turn of a dialogue.
    chat = choice.chat and task.OUTPUT_TYPE == "generate_until"
    rendering = {"apply_chat_template": chat, "chat_template": harness.apply_chat_template if chat else None}
    if task.OUTPUT_TYPE == "generate_until":
        own = task.get_config("generation_kwargs")
        limit = choice.max_gen_toks.get(name) or int(own.get("max_gen_toks", _DEFAULT_MAX_GEN_TOKS))
        greedy = {"until": own["until"], "max_gen_toks": limit, "do_sample": False, "temperature": 0.0}
        task.set_config("generation_kwargs", greedy)
    task.set_fewshot_seed(choice.seed)
    docs = [task.task_docs[index] for index in indices]
    for index, doc, (item, cluster) in zip(indices, docs, identify(docs), strict=True):
        context = task.fewshot_context(
            doc,
            num_fewshot=task.get_config("num_fewshot") or 0,
            fewshot_as_multiturn=chat,
            gen_prefix=task.doc_to_prefix(doc),
            **rendering,
        )
        made = task.construct_requests(doc, context, metadata=(task.task_name, index, 1), **rendering)
        made = made if isinstance(made, list) else [made]
        first = len(prepared.instances)
        prepared.instances += made
        requests, (choices, gold) = range(first, len(prepared.instances)), _choices(task, doc)
        # Where the choices are beginnings (Winogrande), the text is what the target function gives.
        text = str(task.doc_to_target(doc) if task.multiple_input else task.doc_to_text(doc))
        right = " | ".join([choices[index] for index in gold] if choices else _targets(task, doc))
        prepared.questions.append(
            Question(item, cluster, stratum(doc), doc, task, requests, text, right, choices, gold)
        )


def _targets(task: Any, doc: Mapping[str, Any]) -> list[str]:
    """The right answers of a document whose answer is generated, as text."""
    target = task.doc_to_target(doc)
    return [str(one) for one in (target if isinstance(target, list) else [target])]


def _choices(task: Any, doc: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Text of each choice and indices of the right ones; empty for a task without choices."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return (), ()
    choices = task.doc_to_choice(doc)
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    found = [
        choices.index(one) if isinstance(one, str) and one in choices else one
        for one in (gold if isinstance(gold, list) else [gold])
    ]
    if not found or not all(isinstance(one, int) and 0 <= one < len(choices) for one in found):
        raise DriftlabError(
            f"lm-eval task {task.task_name!r} has a document whose answer {gold!r} is not among its choices"
        )
    return tuple(choices), tuple(found)


def _refuse_long(name: str, lengths: Sequence[int], limit: int) -> None:
    # lm-eval would cut the beginning, few-shot examples and instructions first, with no more than a log line.
    over = sum(length > limit for length in lengths)
    if over:
        raise DriftlabError(
            f"lm-eval task {name!r}: {over} of {len(lengths)} requests need up to {max(lengths)} tokens, "
            f"the model has room for {limit}; leave the task out, lower max_gen_toks or take a model with more room"
        )


def answer(prepared: Prepared, harness: Harness) -> tuple[list[Verdict], str | None]:
    """Verdict on every question by the model as it is now, and a note for the task's rows."""
    if prepared.batches:
        likelihood, greedy = score_choices(harness.model, prepared.batches, len(prepared.instances))
        return [_judge(question, likelihood, greedy) for question in prepared.questions], None
    return judge_generated(prepared, harness.answers(prepared.instances))


def _judge(question: Question, likelihood: np.ndarray, greedy: np.ndarray) -> Verdict:
    """Verdict on a choice; a task's own scorer decides where it has one."""
    asked = slice(question.requests.start, question.requests.stop)
    normalised = "acc_norm" in question.task.aggregation()
    # acc_mutual_info tasks append the choices without context; the headline does not use them.
    verdict = judge_choice(question, likelihood[asked][: len(question.choices)], normalised=normalised)
    if verdict.correct is None or not callable(question.task.config.process_results):
        return verdict
    results = list(zip(likelihood[asked].tolist(), greedy[asked].tolist(), strict=True))
    correct, extra = _headline(question.task.process_results(question.doc, results))
    return replace(verdict, correct=correct, extra=extra)


def judge_generated(prepared: Prepared, answers: Sequence[tuple[str, bool]]) -> tuple[list[Verdict], str | None]:
    """Apply each task's filters and scorer; of several filters the most tolerant counts, and the note names it.

    ``answers``: text and whether the token limit cut it off, one for each instance.
    """
    for instance, (text, _) in zip(prepared.instances, answers, strict=True):
        # Both must be reset: lm-eval appends, and would go on judging the first checkpoint's answers.
        instance.resps, instance.filtered_resps = [text], {}
    verdicts, note = [], None
    for _, group in groupby(prepared.questions, key=lambda question: id(question.task)):
        questions = list(group)
        task = questions[0].task
        task._instances = [prepared.instances[question.requests.start] for question in questions]
        task.apply_filters()
        names = list(task._instances[0].filtered_resps)
        chosen = _TOLERANT if _TOLERANT in names else names[0]
        note = f"answers read with the filter {chosen}" if len(names) > 1 else None
        for question, instance in zip(questions, task._instances, strict=True):
            verdicts.append(_judge_one(question, instance.filtered_resps[chosen], answers[question.requests.start]))
    return verdicts, note


def _judge_one(question: Question, read: Any, given: tuple[str, bool]) -> Verdict:
    """Verdict on what a filter ``read`` in the answer that was ``given`` (text, and whether it was cut off)."""
    metrics = question.task.process_results(question.doc, [read])
    correct, extra = _headline(metrics)
    parsed = bool(metrics.get("parsed", read != _UNREAD))
    text, cut = given
    return Verdict(
        correct=correct,
        # A scorer that reads one of several options says how likely a guess is right.
        chance=float(metrics.get("chance", 0.0)),
        score=float(metrics.get("reward", correct)),
        answer=_answer_read(question, read) if parsed else None,
        output=text,
        parsed=parsed,
        truncated=cut,
        extra=extra,
    )


def _answer_read(question: Question, filtered: Any) -> str | None:
    """What the scorer takes for the answer: ``read(doc, output)`` of its module where that is ours and has one.

    Otherwise what the task's filters left, if they left a text; None for a task without filters.
    """
    config = question.task.config
    module = getattr(config.process_results, "__module__", "")
    reader = getattr(sys.modules.get(module), "read", None) if module.startswith("driftlab.") else None
    found = filtered if config.filter_list else None
    if reader is not None:
        found = reader(question.doc, filtered)
    return found if isinstance(found, str) else None


def _headline(metrics: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """The metric that says right or wrong, and the further ones."""
    name = next((name for name in _HEADLINES if name in metrics), None)
    if name is None:
        raise DriftlabError(f"the task returned {sorted(metrics)}; one of {', '.join(_HEADLINES)} is needed")
    further = {key: float(value) for key, value in metrics.items() if key not in (*_HEADLINES, *_OTHERS)}
    return float(metrics[name]), further
