"""The lm_eval probe: real lm-eval tasks, their requests built once per run and scored at every checkpoint.

``lm_eval.simple_evaluate`` would rebuild every prompt, reseed the global generators and read the defaults of the
model's generation config at each checkpoint. Here the prompts are those of the same Task objects, the numbers are the
same per item (a test compares them), and nothing is left behind. Private names of lm-eval 0.4.13 are used, hence the
pinned version.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import lm_eval.tasks
import lm_eval.utils
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from driftlab.engines.base import Engine
from driftlab.errors import DriftlabError, MissingDataError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.lm_eval_batches import Pair
from driftlab.probes.lm_eval_plan import Choice, Prepared, answer, prepare
from driftlab.probes.lm_eval_rows import PROBE, Verdict, failed_row, task_rows
from driftlab.probes.no_trace import plain_greedy, quiet, untouched
from driftlab.run.records import Example, Measurement

_OWN_TASKS = Path(str(resources.files("driftlab") / "tasks" / "lm_eval"))
_STOCK_TASKS = Path(lm_eval.tasks.__file__).parent
# Indexing all of lm-eval's tasks takes about ten seconds; these folders hold the usual ones. Others use the full index.
_STOCK_FOLDERS = {
    "hellaswag": "hellaswag",
    "arc_challenge": "arc",
    "arc_easy": "arc",
    "piqa": "piqa",
    "gsm8k": "gsm8k",
    "winogrande": "winogrande",
    "leaderboard_mmlu_pro": "leaderboard/mmlu_pro",
    "mmlu_pro": "mmlu_pro",
}


@contextmanager
def _templates_compiled_once() -> Iterator[None]:
    """lm-eval compiles a task's template anew for every document, three times: most of the time of building prompts."""
    environment = lm_eval.utils.env
    environment.from_string = cache(environment.from_string)
    try:
        yield
    finally:
        del environment.from_string  # the method of the class is back


class _Harness(HFLM):
    """HFLM that also notes, per generated answer, whether the token limit cut it off."""

    def __init__(self, engine: Engine, batch_size: int) -> None:
        # A copy of the tokenizer: HFLM may give it a padding token and change its padding side.
        super().__init__(
            pretrained=engine.model,
            tokenizer=copy.deepcopy(engine.tokenizer),
            batch_size=batch_size,
            softmax_dtype="float32",
            device=str(engine.model.device),
        )
        # The choices of a question are encoded in turn, each with the prompt and then the prompt alone.
        self._encoded = lru_cache(maxsize=2)(super().tok_encode)
        self.cut: list[bool] = []
        self.contexts: list[str] = []
        self.cache_hook = self  # told of each answer, in the order in which they were generated

    def tok_encode(self, string: str, *args: Any, **kwargs: Any) -> list[int]:
        """Token ids; the last two plain encodings are remembered."""
        if args or kwargs or not hasattr(self, "_encoded"):
            return super().tok_encode(string, *args, **kwargs)
        return list(self._encoded(string))

    def add_partial(self, attribute: str, request: tuple[str, Any], answer: str) -> None:
        """lm-eval's hook for caches; nothing is cached here, only the order is noted."""
        self.contexts.append(request[0])

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **kwargs: Any) -> torch.Tensor:
        tokens = super()._model_generate(context, max_length, stop, **kwargs)
        eos = self.model.generation_config.eos_token_id
        ends = {self.eot_token_id, *(eos if isinstance(eos, list) else [eos])}
        for row in tokens[:, context.shape[1] :].tolist():
            text = self.tok_decode(row)
            ended = any(token in ends for token in row) or any(string and string in text for string in stop)
            self.cut.append(tokens.shape[1] >= max_length and not ended)
        return tokens

    def answers(self, instances: Sequence[Any]) -> list[tuple[str, bool]]:
        """Greedy answer to each request, and whether the token limit cut it off before an end or a stop string."""
        self.cut, self.contexts = [], []
        with plain_greedy(self.model):
            texts = self.generate_until(list(instances), disable_tqdm=True)
        cut = dict(zip(self.contexts, self.cut, strict=True))
        return [(text, cut[instance.args[0]]) for text, instance in zip(texts, instances, strict=True)]

    def pair(self, context: str, continuation: str) -> Pair:
        """Token ids of one request, the way ``HFLM.loglikelihood`` makes them."""
        if context:
            return self._encode_pair(context, continuation)
        tokens, prefix = self.tok_encode(continuation, add_special_tokens=False), self.prefix_token_id
        return ([prefix], tokens) if tokens[:1] != [prefix] else (tokens[:1], tokens[1:])


class LmEvalProbe:
    """Accuracy of lm-eval tasks.

    Args:
        tasks: names of lm-eval tasks or groups: driftlab's own, or any that lm-eval ships.
        items: items per task, a seeded sorted subset; all of them when a task has fewer.
        seed: of the subsets and of random few-shot examples.
        batch_size: rows (prompts with all their choices) per forward pass; fixed, because scores depend on it in
            the last digits.
        data: folder in Hugging Face hub layout that holds the datasets; None for the hub.
        chat: render the prompts of generated answers with the tokenizer's chat template. Choices are always scored
            without it, in lm-eval's stock form: the log-likelihood of a bare continuation after a template's opening
            of the assistant's turn is no standard measurement.
        max_gen_toks: token limit of generated answers by task; each task's own where it is not named.
        progress: told the name of each task once it is scored.

    Measures, per task: ``accuracy`` (length-normalised where the task defines that, then ``accuracy_raw`` is the plain
    one) and ``chance``, the accuracy of blind guessing; choice tasks ``margin``, the log-likelihood of the right choice
    minus the best other, in nats; generated ones ``accuracy_parsed`` (among the answers that could be read),
    ``unparsed_fraction`` and ``truncated_fraction``; and any further metric that the task's own scorer returns.

    Attributes:
        prepared: requests by task, once ``prepare`` has run.
        batch_size: as given.
        base_verdicts: verdicts on the base model by task, in the order of its questions, once step 0 has been measured;
            tasks that failed there are absent. The floor probe compares with them.
    """

    name = PROBE

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        items: int,
        seed: int,
        batch_size: int,
        data: Path | None,
        chat: bool = False,
        max_gen_toks: Mapping[str, int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.tasks, self.data, self.progress, self.batch_size = tuple(tasks), data, progress, batch_size
        self.prepared: dict[str, Prepared] = {}
        self.base_verdicts: dict[str, list[Verdict]] = {}
        self._choice = Choice(items=items, seed=seed, batch_size=batch_size, chat=chat, max_gen_toks=max_gen_toks or {})
        self._harness: _Harness | None = None

    def prepare(self, engine: Engine) -> None:
        """Load the tasks, choose the items, build and tokenise every request.

        Raises:
            DriftlabError: unknown task, a kind of task that is not supported, or prompts longer than the model allows.
            MissingDataError: a dataset is not where it was said to be.
        """
        with self.asking(engine, self.batch_size) as harness:
            loaded = _load(self.tasks, self.data)
            self.prepared = {name: prepare(name, loaded[name], harness, self._choice) for name in self.tasks}

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Score every task; one that raises becomes a ``failed`` row with the reason, the others go on."""
        rows: list[Measurement] = []
        examples: list[Example] = []
        if checkpoint.step == 0:
            self.base_verdicts = {}
        with self.asking(engine, self.batch_size) as harness:
            for name, task in self.prepared.items():
                try:
                    verdicts, note = answer(task, harness)
                    made = task_rows(checkpoint.step, name, task.questions, verdicts, note=note)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    made = [failed_row(checkpoint.step, name, len(task.questions), reason)], []
                # A task without examples has failed.
                if checkpoint.step == 0 and made[1]:
                    self.base_verdicts[name] = verdicts
                rows += made[0]
                examples += made[1]
                if self.progress is not None:
                    self.progress(name)
        return Measured(measurements=tuple(rows), examples=tuple(examples))

    @contextmanager
    def asking(self, engine: Engine, batch_size: int) -> Iterator[_Harness]:
        """lm-eval's wrapper around the model as it is now; the model and the process are as before afterwards.

        ``batch_size`` is the number of generated answers per batch; prepared choices bring their own batches.
        """
        with untouched(engine.model), quiet(), _templates_compiled_once():
            held = self._harness
            if held is None or held.model is not engine.model or held.batch_size != batch_size:
                held = self._harness = _Harness(engine, batch_size)
            yield held

    def item_texts(self) -> dict[str, dict[str, dict[str, str]]]:
        """``question`` (without few-shot examples) and ``right`` answer of every item, by task and item."""
        return {
            name: {question.item: {"question": question.text, "right": question.right} for question in task.questions}
            for name, task in self.prepared.items()
        }

    def contexts(self, task: str, count: int, seed: int) -> list[str]:
        """``count`` distinct prompts of ``task``, as shown to the model, drawn with ``seed``; all when it has fewer.

        Drawn, because items stand in the order of their file: its head may be one category or one source.
        """
        distinct = list(dict.fromkeys(instance.args[0] for instance in self.prepared[task].instances))
        return random.Random(f"{seed}:{task}").sample(distinct, min(count, len(distinct)))

    def settings_hash(self, task: str) -> str:
        """First 16 hex digits of the SHA-256 of everything asked: contexts, continuations, generation settings."""
        asked = ["greedy, plain generation config", [list(i.args) for i in self.prepared[task].instances]]
        text = json.dumps(asked, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _load(names: Sequence[str], data: Path | None) -> dict[str, list[Any]]:
    """lm-eval's Task objects of each name: one for a task, several for a group or tag."""
    folders = [_STOCK_TASKS / _STOCK_FOLDERS[name] for name in names if name in _STOCK_FOLDERS]
    manager = TaskManager(include_defaults=False, include_path=[_OWN_TASKS, *dict.fromkeys(folders)])
    if not set(names) <= set(manager.task_index):
        manager = TaskManager(include_path=[_OWN_TASKS])
    unknown = [name for name in names if name not in manager.task_index]
    if unknown:
        near = difflib.get_close_matches(unknown[0], manager.all_tasks, n=5)
        raise DriftlabError(f"unknown lm-eval task {unknown[0]!r}; nearest: {', '.join(near) or 'none'}")
    return {name: _load_one(manager, name, data) for name in names}


def _load_one(manager: TaskManager, name: str, data: Path | None) -> list[Any]:
    # The folder's datasets are converted in a throw-away cache and kept in memory: the folder stays as it is, and
    # processes that run at the same time share nothing.
    with tempfile.TemporaryDirectory(prefix="driftlab-") as cache:
        members = _members(manager, name, data, cache)
        try:
            return list(manager.load({"group": f"driftlab:{name}", "task": members})["tasks"].values())
        except DriftlabError:
            raise
        except Exception as error:
            where = f"the folder {data}" if data is not None else "the Hugging Face hub"
            raise MissingDataError(
                f"lm-eval task {name!r} could not be loaded from {where} ({type(error).__name__}: {error}); "
                "give a folder in hub layout that holds its dataset with --data DIR"
            ) from error


def _members(manager: TaskManager, name: str, data: Path | None, cache: str) -> list[dict[str, Any]]:
    """Leaf tasks of ``name`` with the overrides that make them read their dataset from the folder ``data``."""
    entry = manager.task_index[name]
    config = entry.cfg or {}
    children = sorted(entry.tags) if entry.kind.name == "TAG" else config.get("task")
    if entry.kind.name in ("GROUP", "TAG") and isinstance(children, list):
        # A member is a name, or a dictionary that names a task and overrides parts of it.
        dicts = [{"task": child} if isinstance(child, str) else child for child in children]
        return [
            {**child, **member}
            for child in dicts
            for member in _members(manager, str(child.get("task", child.get("group"))), data, cache)
        ]
    path, own_reader = config.get("dataset_path"), config.get("custom_dataset") is not None
    if data is None or path is None:
        return [{"task": name}]
    if not (data / path).is_dir():
        known = f"it has no folder {path}" if data.is_dir() else "there is no such folder"
        raise MissingDataError(
            f"lm-eval task {name!r} needs the dataset {path} in {data}, but {known}; "
            "put it there or give another --data DIR"
        )
    folder = str((data / path).resolve())
    if own_reader:
        return [{"task": name, "dataset_kwargs": {"folder": folder}}]
    reading = {**(config.get("dataset_kwargs") or {}), "cache_dir": cache, "keep_in_memory": True}
    return [{"task": name, "dataset_path": folder, "dataset_kwargs": reading}]
