"""Group relative policy optimisation by TRL's GRPOTrainer, on the task, rewards, prompts and base of the ES arms.

What the objective is and how a step is taken is TRL's business alone. This adapter hands it the run's settings, keeps
count of what it does, and makes the weights of scheduled steps available to the probes under canonical names.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from driftlab.errors import TrainingError
from driftlab.models.base import BaseModel, progress_bars_off
from driftlab.models.checkpoints import State
from driftlab.models.flops import Shape
from driftlab.models.hashing import weights_hash
from driftlab.models.save import save_folder
from driftlab.run.records import GradientStep
from driftlab.run.spec import RunSpec
from driftlab.tasks.base import Item, Target
from driftlab.trainers.base import Arrive, Record, cost_of
from driftlab.trainers.policy import canonical_weights, latest_state, prompt_order


@dataclass(slots=True)
class _Count:
    """What the iteration under way has done so far; token counts are those of each rollout."""

    rewards: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    model_seconds: float = 0.0
    reward_seconds: float = 0.0


class GrpoTrainer:
    """Args:
    spec: the run.
    state: base weights, and those of the step to go on from; ``weights`` follows at steps of ``schedule``.
    base: tokenizer and architecture; its live model is copied, not touched.
    prompts: token ids of ``items``; ``ends``: ids that end an answer.
    folder: where TRL keeps its state, and the base as a folder for the reference model of a KL penalty.
    schedule: steps at which weights are needed.
    """

    def __init__(
        self,
        spec: RunSpec,
        state: State,
        base: BaseModel,
        target: Target,
        items: Sequence[Item],
        prompts: Sequence[Sequence[int]],
        ends: Collection[int],
        shape: Shape,
        folder: Path,
        schedule: Sequence[int],
    ) -> None:
        assert spec.grpo is not None
        self.spec, self.grpo, self.state, self.base = spec, spec.grpo, state, base
        self.target, self.items, self.shape = target, items, shape
        self.folder, self.schedule = folder, frozenset(schedule)
        self.lengths, self.ends = [len(prompt) for prompt in prompts], ends
        self.count = _Count()

    def train(self, record: Record, arrive: Arrive) -> None:
        found = latest_state(self.folder, self.state.step)
        if self.state.step == self.spec.iterations:
            return
        with warnings.catch_warnings(), progress_bars_off():
            # Of one library about another; nothing that a user could change.
            warnings.simplefilter("ignore", FutureWarning)
            trainer = self._trainer()
            trainer.add_callback(_Follow(self, trainer, record, arrive))
            trainer.train(resume_from_checkpoint=None if found is None else str(found[1]))

    def _trainer(self) -> Any:
        """TRL's trainer; its class is made here because importing TRL takes seconds that other runs need not wait."""
        from datasets import Dataset
        from trl import GRPOTrainer

        own = self

        class Timed(GRPOTrainer):
            def training_step(self, *args: Any) -> Any:
                """Rollouts, rewards, forward and backward; not the optimiser's step."""
                started = time.perf_counter()
                loss = super().training_step(*args)
                own.count.model_seconds += time.perf_counter() - started
                return loss

        order = prompt_order(self.spec.seed, len(self.items), self.grpo.prompts, self.grpo.iterations)
        rows = [{"prompt": self._prompt(self.items[index]), "index": index} for index in order]
        trainer: Any = Timed(
            model=self._policy(),
            reward_funcs=[self._reward],
            args=self._config(),
            train_dataset=Dataset.from_list(rows),
            processing_class=copy.deepcopy(self.base.tokenizer),
            peft_config=self._adapter(),
        )
        if self.grpo.lora is not None:
            adapters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
            self.shape = replace(self.shape, adapter_weights=adapters)
        # Answers end where those of the ES arms do; TRL would add the tokenizer's own end to the model's.
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = sorted(self.ends)
        # It would print every log entry.
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _prompt(self, item: Item) -> Any:
        return [{"role": "user", "content": item.prompt}] if self.spec.model.chat else item.prompt

    def _policy(self) -> PreTrainedModel:
        """A trainable copy of the base in float32, whatever it is served in."""
        model = copy.deepcopy(self.base.model)
        for name, parameter in model.named_parameters():
            parameter.data = self.base.weights[name].to(parameter.device, copy=True)
        model.requires_grad_(True)
        model.config.dtype = torch.float32
        if self.grpo.beta > 0 and self.grpo.lora is None:
            # The reference model of the KL penalty is loaded from where the policy says that it came from.
            to = self.folder / "base"
            if not to.exists():
                save_folder(self.base.model, self.base.tokenizer, self.base.weights, to, torch.float32)
            model.config._name_or_path = str(to)
        return model

    def _adapter(self) -> Any:
        if self.grpo.lora is None:
            return None
        from peft import LoraConfig

        lora = self.grpo.lora
        return LoraConfig(
            r=lora.rank,
            lora_alpha=lora.scale,
            target_modules=list(lora.modules),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )

    def _config(self) -> Any:
        from trl import GRPOConfig

        grpo, dtype = self.grpo, self.spec.model.dtype
        batch = grpo.micro_batch or grpo.rollouts
        return GRPOConfig(
            output_dir=str(self.folder),
            seed=self.spec.seed,
            use_cpu=self.spec.model.device == "cpu",
            # Half precision is arithmetic, the weights stay float32.
            bf16=dtype == "bfloat16",
            fp16=dtype == "float16",
            max_steps=grpo.iterations,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=grpo.rollouts // batch,
            num_generations=grpo.generations,
            max_completion_length=self.spec.target.max_new_tokens,
            temperature=grpo.temperature,
            top_p=grpo.top_p,
            beta=grpo.beta,
            loss_type=grpo.loss,
            learning_rate=grpo.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=grpo.max_gradient_norm,
            weight_decay=0.0,
            optim="adamw_torch",
            # The rows are already in order, all iterations long: what TRL shuffles, a resumed run shuffles anew.
            shuffle_dataset=False,
            gradient_checkpointing=False,
            logging_steps=1,
            logging_nan_inf_filter=False,
            # The callback asks for a checkpoint where one is needed.
            save_strategy="no",
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
            log_level="error",
        )

    def _reward(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], index: list[int], **_: Any
    ) -> list[float | None]:
        """TRL's hook: the rewards of one batch of rollouts, by the target's own scorer. TRL passes more, unused."""
        started = time.perf_counter()
        rewards: list[float] = []
        for row, answer, ids in zip(index, completions, completion_ids, strict=True):
            item = self.items[row]
            text = answer if isinstance(answer, str) else answer[0]["content"]
            reward = self.target.score(item, text).reward
            if not math.isfinite(reward):
                raise TrainingError(
                    f"the reward of {self.target.name} is {reward} at step {self.state.step + 1}, item {item.id}: "
                    "rewards must be finite; --resume goes on from the last step that was measured or saved"
                )
            rewards.append(reward)
            self.count.prompts.append(self.lengths[row])
            self.count.answers.append(len(ids) - (bool(ids) and ids[-1] in self.ends))
        self.count.rewards += rewards
        self.count.reward_seconds += time.perf_counter() - started
        return list(rewards)

    def record_of(
        self, logs: Mapping[str, float], step: int, total_seconds: float, weights: str | None
    ) -> GradientStep:
        """The iteration that just ended; the count begins anew."""
        done, self.count = self.count, _Count()
        device = self.spec.model.device
        penalised = self.grpo.beta > 0
        for name in ("loss", "grad_norm", "kl"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise TrainingError(
                    f"{name} is {logs[name]} at step {step}: training diverged; lower grpo.learning_rate"
                )
        seconds = {
            "model": done.model_seconds - done.reward_seconds,
            "reward": done.reward_seconds,
            "total": total_seconds,
        }
        flat = min(done.rewards) == max(done.rewards)
        return GradientStep(
            step=step,
            rewards=tuple(done.rewards),
            step_norm=None,
            step_cosine=None,
            weights_hash=weights,
            prompt_tokens=sum(done.prompts),
            generated_tokens=sum(done.answers),
            seconds={part: round(value, 6) for part, value in seconds.items()},
            note="all rewards equal: no group tells its answers apart" if flat else None,
            cost=cost_of(self.shape, done.prompts, done.answers, device, trained=True, reference=penalised),
            generations=self.grpo.generations,
            loss=logs.get("loss"),
            gradient_norm=logs.get("grad_norm"),
            learning_rate=logs.get("learning_rate"),
            beta=self.grpo.beta,
            kl_estimate=logs.get("kl") if penalised else None,
        )


class _Follow(TrainerCallback):
    """Listens to TRL's loop: a record for every step, then the weights where they are scheduled."""

    def __init__(self, own: GrpoTrainer, trainer: Any, record: Record, arrive: Arrive) -> None:
        self.own, self.trainer, self.record, self.arrive = own, trainer, record, arrive
        self.started = time.perf_counter()
        self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self.seconds = time.perf_counter() - self.started
        step, every = state.global_step, self.own.grpo.save_every
        control.should_save = step in self.own.schedule or (every is not None and step % every == 0)
        return control

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        own, step, logs = self.own, state.global_step, given["logs"]
        if "loss" not in logs:  # the summary at the end of training
            return
        own.state.step = step
        fingerprint = None
        if step in own.schedule:
            own.state.weights = canonical_weights(self.trainer.model, own.state.base)
            fingerprint = weights_hash(own.state.weights)
        self.record(own.record_of(logs, step, self.seconds, fingerprint))
        self.started = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # TRL's own state is on disk by now: an interrupted measurement costs no training.
        self.arrive()
        self.started = time.perf_counter()
