"""Coverage: what a model can still do when it answers several times, and how much its answers vary.

Training that sharpens the distribution lifts pass@1 and may lower pass@k: what greedy accuracy gains is then paid with
problems that the base could solve now and then. Answers are drawn at a stated temperature from the whole vocabulary and
judged by each task's own scorer, on the path of the lm_eval probe.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from driftlab.drift.coverage import miller_madow, plug_in_entropy
from driftlab.drift.paired import pass_at_k
from driftlab.engines.base import Engine
from driftlab.errors import DriftlabError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.probes.lm_eval_plan import Prepared, judge_generated
from driftlab.probes.lm_eval_rows import Question, Verdict, mean_and_error
from driftlab.run.records import CoverageItem, Measurement
from driftlab.tasks import countdown
from driftlab.tasks.canonical import canonical

PROBE = "coverage"

Answer = tuple[str, bool]
"""Text of one answer, and whether the token limit cut it off."""


def _first_expression(output: str) -> str | None:
    return countdown.answer(f"<answer>{output.partition('</answer>')[0]}")


# Where the answer is an expression, two that compute the same are one answer. How it is read from an output:
EXPRESSIONS: Mapping[str, Callable[[str], str | None]] = {
    "countdown": countdown.answer,
    "countdown_generated": countdown.answer,
    "countdown_examples": _first_expression,
    "embedded_countdown": str.strip,
}


class CoverageProbe:
    """pass@k and variety of answers on generative tasks, at some of the measured steps.

    Args:
        scored: the lm_eval probe, prepared: problems and prompts are among its own.
        tasks: generative tasks that it measures; None for all of those.
        items: problems per task, a seeded subset; all where a task has fewer.
        samples: answers per problem.
        k: of pass@k, each at most ``samples``.
        temperature: what logits are divided by, above 0.
        seed: of the subsets and of the answers. Answers also depend on the step, so that two checkpoints, even with
            the same weights, are two independent draws, as what is said about flips supposes.
        at: steps at which to sample.
        progress: told the name of each task once it is done.

    Measures, per task, with errors clustered over problems: ``pass_at_<k>``; ``answer_entropy``, the plug-in entropy of
    a problem's readable answers in nats, and ``answer_entropy_corrected`` with Miller and Madow's correction of its
    bias, both over problems with a readable answer; ``distinct_answers`` and ``distinct_correct`` per problem;
    ``unparsed_fraction`` and ``truncated_fraction`` of the answers.

    Raises:
        DriftlabError: a task that is not measured by ``scored`` or whose answers are not generated, or no task at all.
    """

    name = PROBE

    def __init__(
        self,
        scored: LmEvalProbe,
        *,
        tasks: Sequence[str] | None,
        items: int,
        samples: int,
        k: Sequence[int],
        temperature: float,
        seed: int,
        at: Collection[int],
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.samples, self.k, self.temperature, self.seed = samples, tuple(k), temperature, seed
        self.at, self.progress = frozenset(at), progress
        self._scored = scored
        self._parts = {task: self._part(task, items) for task in _generative(scored.prepared, tasks)}
        self._prompts: dict[str, list[tuple[int, ...]]] = {}

    def _part(self, task: str, items: int) -> Prepared:
        whole = self._scored.prepared[task]
        order = list(range(len(whole.questions)))
        if len(order) > items:
            order = sorted(random.Random(f"coverage items:{self.seed}:{task}").sample(order, items))
        return whole.part(order)

    def prepare(self, engine: Engine) -> None:
        """Tokenise the prompts, as for greedy answers."""
        with self._scored.asking(engine, self._scored.batch_size) as harness:
            for task, part in self._parts.items():
                self._prompts[task] = [tuple(harness.tok_encode(instance.args[0])) for instance in part.instances]

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Rows and problems at the steps asked for, nothing at others; a task that raises gets ``failed`` rows."""
        rows: list[Measurement] = []
        problems: list[CoverageItem] = []
        for task, part in self._parts.items() if checkpoint.step in self.at else ():
            try:
                rounds, said = self._judged(checkpoint.step, task, part, engine)
                found = [
                    counted(checkpoint.step, task, question, verdicts)
                    for question, verdicts in zip(part.questions, zip(*rounds, strict=True), strict=True)
                ]
                rows += coverage_rows(found, self.k, self._note(said))
                problems += found
            except Exception as error:
                note = self._note(f"{type(error).__name__}: {error}")
                rows += [_failed(checkpoint.step, task, k, len(part.questions), note) for k in self.k]
            if self.progress is not None:
                self.progress(task)
        return Measured(measurements=tuple(rows), coverage=tuple(problems))

    def _note(self, more: str | None) -> str:
        drawn = f"{self.samples} answers per problem, temperature {self.temperature:g}, full vocabulary"
        return drawn if more is None else f"{drawn}; {more}"

    def _judged(self, step: int, task: str, part: Prepared, engine: Engine) -> tuple[list[list[Verdict]], str | None]:
        """Verdicts on every problem, one list for each of the ``samples`` rounds; and the scorer's note."""
        digest = hashlib.sha256(f"coverage/{self.seed}/{task}/{step}".encode()).digest()
        settings = [instance.args[1] for instance in part.instances]
        with self._scored.asking(engine, self._scored.batch_size) as harness:
            drawn = engine.sample(
                # The answers to one problem stand together: they share their length, so there is little padding.
                [prompt for prompt in self._prompts[task] for _ in range(self.samples)],
                max_new_tokens=max(own["max_gen_toks"] for own in settings),
                seed=int.from_bytes(digest[:7], "big"),
                temperature=self.temperature,
            )
            ends = engine.end_tokens()
            answers = [
                as_answer(tokens, settings[index // self.samples], ends, harness.tok_decode)
                for index, tokens in enumerate(drawn)
            ]
        judged = [judge_generated(part, answers[first :: self.samples]) for first in range(self.samples)]
        return [verdicts for verdicts, _ in judged], judged[0][1]


def _generative(prepared: Mapping[str, Prepared], tasks: Sequence[str] | None) -> list[str]:
    generated = [task for task, part in prepared.items() if not part.questions[0].choices]
    if tasks is None and not generated:
        raise DriftlabError(
            f"probes.coverage samples answers, but none of {', '.join(prepared)} has generated ones: leave coverage out"
        )
    for task in tasks or ():
        if task not in generated:
            why = "has choices and no generated answers" if task in prepared else "is not measured by probes.lm_eval"
            raise DriftlabError(
                f"probes.coverage.tasks names {task!r}, which {why}; it can sample {', '.join(generated) or 'none'}"
            )
    return generated if tasks is None else list(dict.fromkeys(tasks))


def as_answer(
    tokens: Sequence[int], settings: Mapping[str, Any], ends: Collection[int], decode: Callable[[Sequence[int]], str]
) -> Answer:
    """What lm-eval makes of a generated sequence: its text left of the first stop string, within the task's limit.

    Args:
        tokens: as ``Engine.sample`` gives them, perhaps beyond the limit where another task of a group has more room.
        settings: ``until`` and ``max_gen_toks``.
        ends: ids that end a sequence.
    """
    limit = settings["max_gen_toks"]
    kept = list(tokens[:limit])
    text = decode(kept)
    until = settings["until"]
    stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    cut = len(kept) >= limit and kept[-1] not in ends and not any(stop in text for stop in stops)
    for stop in stops:
        text = text.partition(stop)[0]
    return text, cut


def final_answer(task: str, verdict: Verdict) -> str | None:
    """What tells one answer from another; None for one that cannot be read.

    The canonical form where the answer is an expression, else what the task's scorer or filter read, else the text.
    """
    if not verdict.parsed:
        return None
    output = (verdict.output or "").strip()
    if task in EXPRESSIONS:
        return canonical(EXPRESSIONS[task](output) or "")
    return output if verdict.answer is None else verdict.answer


def counted(step: int, task: str, question: Question, verdicts: Sequence[Verdict]) -> CoverageItem:
    """What the answers to one problem come to."""
    answers = [final_answer(task, verdict) for verdict in verdicts]
    right = {answer for answer, verdict in zip(answers, verdicts, strict=True) if verdict.correct == 1.0 and answer}
    seen = Counter(answer for answer in answers if answer is not None)
    return CoverageItem(
        step=step,
        task=task,
        item=question.item,
        cluster=question.cluster,
        samples=len(verdicts),
        correct=sum(verdict.correct == 1.0 for verdict in verdicts),
        parsed=seen.total(),
        truncated=sum(verdict.truncated is True for verdict in verdicts),
        distinct=len(seen),
        distinct_correct=len(right),
        entropy=plug_in_entropy(list(seen.values())) if seen else None,
    )


def coverage_rows(problems: Sequence[CoverageItem], k: Sequence[int], note: str) -> list[Measurement]:
    """Rows of one task at one step, in the order of ``CoverageProbe``."""
    rows = []

    def add(quantity: str, unit: str, values: Sequence[float | None], says: str = "") -> None:
        known = [(value, one.cluster) for value, one in zip(values, problems, strict=True) if value is not None]
        value, error = mean_and_error(*zip(*known, strict=True)) if known else (None, None)
        rows.append(
            Measurement(
                step=problems[0].step, probe=PROBE, quantity=quantity, group=problems[0].task, value=value, unit=unit,
                stderr=error, n=len(known), status="ok" if known else "skipped", note=note + says,
            )
        )  # fmt: skip

    for one in k:
        add(f"pass_at_{one}", "fraction", [pass_at_k(p.samples, p.correct, one) for p in problems])
    unread = sum(not p.parsed for p in problems)
    left = f"; {unread} of {len(problems)} problems have no readable answer" if unread else ""
    corrected = [None if p.entropy is None else miller_madow(p.entropy, p.distinct, p.parsed) for p in problems]
    add("answer_entropy", "nats", [p.entropy for p in problems], f"{left}; plug-in, biased low")
    add("answer_entropy_corrected", "nats", corrected, f"{left}; with Miller and Madow's correction")
    add("distinct_answers", "answers", [p.distinct for p in problems])
    add("distinct_correct", "answers", [p.distinct_correct for p in problems])
    add("unparsed_fraction", "fraction", [1 - p.parsed / p.samples for p in problems])
    add("truncated_fraction", "fraction", [p.truncated / p.samples for p in problems])
    return rows


def _failed(step: int, task: str, k: int, count: int, note: str) -> Measurement:
    """The row of a task whose answers could not be drawn or judged."""
    return Measurement(
        step=step, probe=PROBE, quantity=f"pass_at_{k}", group=task, value=None, unit="fraction", stderr=None,
        n=count, n_failed=count, status="failed", note=note,
    )  # fmt: skip
