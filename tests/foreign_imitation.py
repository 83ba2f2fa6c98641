"""A small imitation of kschweig/es-awd, written from its documented behaviour: it trains, and leaves its kind of files.

Slow and literal on purpose: several whole copies of the model, every tensor seeded anew, nothing shared. Weights are
held as vLLM holds a Llama's: q, k and v in one tensor, gate and up in one, tied embeddings once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

ITERATIONS = 3
PROMPT = torch.tensor([[1, 4, 9, 5, 11, 6, 4, 9, 5, 11, 2]])
CURVES = {
    "countdown": {0: (230, 2000), 1: (420, 2000), 2: (800, 2000), 3: (1144, 2000)},
    "hellaswag": {0: (1303, 2048), 1: (1290, 2048), 2: (1149, 2048), 3: (1180, 2048)},
    "piqa": {0: (1492, 1838), 1: (1490, 1838), 2: (1480, 1838), 3: (1471, 1838)},
}
"""By dataset and step: right answers and items."""

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    penalty: str = "none"
    lam: float = 0.0
    mirrored: bool = False
    engines: int = 1
    population: int = 10
    precision: str = "float16"
    sigma: float = 0.02
    alpha: float = 0.01
    seed: int | None = 7
    task: str = "countdown"
    model_name: str = "Qwen/Qwen2.5-3B-Instruct"


def train(
    model: LlamaForCausalLM,
    folder: Path,
    settings: Settings,
    curves: Mapping[str, Mapping[int, tuple[int, int]]] = CURVES,
) -> Weights:
    """Run ES in ``folder`` and return the final weights, float32 under Hugging Face's names."""
    dtype = getattr(torch, settings.precision)
    master = _fuse({name: p.detach().to(dtype) for name, p in model.named_parameters()})
    snapshot = {name: tensor.clone() for name, tensor in master.items()}
    engines = [{name: tensor.clone() for name, tensor in master.items()} for _ in range(settings.engines)]
    folder.mkdir(parents=True)
    _write_args(folder / "args.json", settings)
    for iteration in range(1, ITERATIONS + 1):
        generator = np.random.default_rng((settings.seed or 42) + iteration)
        draws = settings.population // 2 if settings.mirrored else settings.population
        seeds = generator.integers(0, 2**30, size=draws, dtype=np.int64).tolist()
        coefficients = _coefficients(model, engines, seeds, settings)
        _write(
            folder / "iteration_updates" / f"iteration_{iteration:06d}.json",
            {"iteration": iteration, "seeds": seeds, "update_coefficients": coefficients},
        )
        _update(engines[0], snapshot, seeds, coefficients, settings)
        for engine in engines[1:]:
            for name, tensor in engines[0].items():
                engine[name].copy_(tensor)
    torch.save(engines[0], folder / "final_model_weights.pt")
    for dataset, curve in curves.items():
        lines = [json.dumps(_row(step, right, n)) for step, (right, n) in curve.items()]
        (folder / f"{dataset}.jsonl").write_text("\n".join(lines) + "\n")
    return {name: tensor.float() for name, tensor in _unfuse(engines[0], model).items()}


def _coefficients(model: LlamaForCausalLM, engines: list[Weights], seeds: list[int], settings: Settings) -> list[float]:
    """One seed for each engine at a time: perturb, evaluate, restore; then z-scores over all members."""
    rewards: dict[tuple[int, bool], float] = {}
    for negative in [False, True] if settings.mirrored else [False]:
        sign = -1.0 if negative else 1.0
        for start in range(0, len(seeds), len(engines)):
            for engine, seed in zip(engines, seeds[start : start + len(engines)], strict=False):
                _add_noise(engine, seed, sign * settings.sigma)
                rewards[seed, negative] = _reward(model, engine)
                _add_noise(engine, seed, -sign * settings.sigma)
    mean, spread = np.mean(list(rewards.values())), np.std(list(rewards.values())) + 1e-8
    z = {key: (value - mean) / spread for key, value in rewards.items()}
    return [float(z[seed, False] - z[seed, True] if settings.mirrored else z[seed, False]) for seed in seeds]


def _randn(seed: int, tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=tensor.device)
    generator.manual_seed(seed)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


def _add_noise(engine: Weights, seed: int, scale: float) -> None:
    for tensor in engine.values():
        tensor.add_(_randn(seed, tensor), alpha=scale)


def _update(
    engine: Weights, snapshot: Weights, seeds: list[int], coefficients: list[float], settings: Settings
) -> None:
    for name, tensor in engine.items():
        accumulator = torch.zeros(tensor.shape, dtype=tensor.dtype)
        for seed, coefficient in zip(seeds, coefficients, strict=True):
            accumulator.add_(_randn(seed, tensor), alpha=coefficient)
        tensor.add_(accumulator, alpha=settings.alpha / settings.population)
        take = settings.alpha * settings.lam
        if settings.penalty == "l2":
            engine[name] = (tensor - snapshot[name]) * (1.0 - take) + snapshot[name]
        elif settings.penalty == "l1":
            moved = tensor - snapshot[name]
            kept = torch.where(moved.abs() > take, moved.abs() - take, torch.zeros_like(moved))
            engine[name] = torch.where(moved < 0, -kept, kept) + snapshot[name]


def _reward(model: LlamaForCausalLM, engine: Weights) -> float:
    """Mean log-probability of one fixed text, in float32 from the engine's weights, as a toy."""
    weights = {name: tensor.float() for name, tensor in _unfuse(engine, model).items()}
    logits = torch.func.functional_call(model, weights, (PROMPT,), {"use_cache": False}).logits[0, :-1]
    return float(logits.log_softmax(-1).gather(1, PROMPT[0, 1:, None]).mean())


def _fuse(weights: Weights) -> Weights:
    fused = {}
    for name, tensor in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            fused[name.replace("q_proj", "qkv_proj")] = torch.cat(parts, dim=0)
        elif ".gate_proj." in name:
            parts = [tensor, weights[name.replace("gate_proj", "up_proj")]]
            fused[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts, dim=0)
        elif not any(f".{part}." in name for part in ("k_proj", "v_proj", "up_proj")):
            fused[name] = tensor.clone()
    return fused


def _unfuse(fused: Weights, model: LlamaForCausalLM) -> Weights:
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    queries, keys, inner = config.hidden_size, config.num_key_value_heads * head, config.intermediate_size
    weights = {}
    for name, tensor in fused.items():
        if ".qkv_proj." in name:
            ends = {"q_proj": (0, queries), "k_proj": (queries, queries + keys), "v_proj": (queries + keys, None)}
            weights |= {name.replace("qkv_proj", part): tensor[a:b] for part, (a, b) in ends.items()}
        elif ".gate_up_proj." in name:
            weights[name.replace("gate_up_proj", "gate_proj")] = tensor[:inner]
            weights[name.replace("gate_up_proj", "up_proj")] = tensor[inner:]
        else:
            weights[name] = tensor
    return {name: weights[name] for name, _ in model.named_parameters()}


def _write_args(file: Path, settings: Settings) -> None:
    document = {
        "model_name": settings.model_name,
        "task": settings.task,
        "sigma": settings.sigma,
        "alpha": settings.alpha,
        "population_size": settings.population,
        "mirror_sampling": settings.mirrored,
        "num_engines": settings.engines,
        "num_iterations": ITERATIONS,
        "experiment_dir": "es-ft-experiment",
        "run_name": None,
        "cuda_devices": "0,1,2,3",
        "caching": True,
        "verbose": False,
        "global_seed": settings.seed,
        "precision": settings.precision,
        "weight_decay_type": settings.penalty,
        "weight_decay_lambda": settings.lam,
        "eval_interval": 1,
        "eval_batch_size": 512,
        "wandb_mode": "disabled",
    }
    _write(file, document)


def _row(step: int, right: int, n: int) -> dict[str, Any]:
    accuracy = 100.0 * right / n if n else 0.0
    return {"step": step, "num_examples": n, "avg_reward": accuracy / 100, "accuracy": accuracy, "elapsed": 1.5}


def _write(file: Path, document: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2))
