"""What the layout of tensors does to a replayed model: es-awd's scheme on the embedded model, fused and unfused.

    python benchmarks/foreign_layout.py --out reports/foreign-layout

es-awd (LIT-238) trains on vLLM's fused tensors (qkv_proj, gate_up_proj) with noise that is seeded anew for every
tensor, and its KL script replays the same seeds into Hugging Face's unfused ones. Here both are replayed from the same
records, in float16, N = 30, 100 steps, eight engines, alpha = sigma / 2, and sigma as large beside the weights as
published (0.001 where their root mean square is 0.023).

Two kinds of records, several seeds each. *trained*: the coefficients are z-scored rewards of the members around the
fused weights; the reward is the mean log-probability of a right answer to 32 embedded Countdown items. *random walk*:
z-scored normal numbers. KL is over the full vocabulary, on texts drawn from the base.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from driftlab.engines.transformers import TransformersEngine
from driftlab.models.base import BaseModel, load_base
from driftlab.models.foreign import ForeignArgs, ForeignRun, ForeignUpdate
from driftlab.models.foreign_replay import Layout, Master, replay, tensor_names
from driftlab.probes.kl import full_vocabulary_kl, token_weighted
from driftlab.tasks.embedded.countdown import evaluation_docs
from driftlab.tasks.embedded.world import SEED, build_world

Weights = Mapping[str, torch.Tensor]

STEPS = (25, 50, 75, 100)
POPULATION, ENGINES = 30, 8
PUBLISHED_SIGMA, PUBLISHED_RMS = 0.001, 0.023
TEXTS, TEXT_TOKENS = 64, 48
SEEDS = (0, 1, 2)
RENOISED = ("k_proj", "v_proj", "up_proj")
"""Parts that do not come first in their fused tensor; q_proj and gate_proj get the same noise in both layouts."""


class Reward:
    """Mean log-probability per answer of right answers to embedded Countdown items."""

    def __init__(self, base: BaseModel, items: int = 32) -> None:
        docs = evaluation_docs(build_world(SEED))[:items]
        encode = base.tokenizer
        prompts = [encode(doc["query"])["input_ids"] for doc in docs]
        answers = [
            encode(f" {doc['solution']}", add_special_tokens=False)["input_ids"] + [encode.eos_token_id] for doc in docs
        ]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        self.ids = torch.full((items, longest), encode.pad_token_id)
        self.answer = torch.zeros((items, longest), dtype=torch.bool)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            # Padded on the right: nothing that counts looks at it.
            self.ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            self.answer[row, len(prompt) : len(prompt) + len(answer)] = True
        self.model = base.model

    def __call__(self, weights: Weights) -> float:
        with torch.no_grad():
            found = torch.func.functional_call(self.model, dict(weights), (self.ids,), {"use_cache": False})
            told = found.logits[:, :-1].log_softmax(-1).gather(2, self.ids[:, 1:, None])[..., 0]
        return float((told * self.answer[:, 1:]).sum() / len(self.ids))


def arguments_of(sigma: float) -> ForeignArgs:
    return ForeignArgs.model_validate(
        {
            "model_name": "nano",
            "task": "countdown",
            "sigma": sigma,
            "alpha": sigma / 2,
            "population_size": POPULATION,
            "mirror_sampling": False,
            "num_engines": ENGINES,
            "num_iterations": STEPS[-1],
            "global_seed": None,
            "precision": "float16",
            "weight_decay_type": "none",
            "weight_decay_lambda": 0.0,
            "eval_interval": STEPS[0],
            "caching": False,
        }
    )


def member(master: Weights, groups: list[tuple[str, ...]], seed: int, sigma: float) -> dict[str, torch.Tensor]:
    """A member's weights in float32: the fused float16 tensors plus sigma times noise."""
    found = {}
    for names in groups:
        fused = torch.cat([master[name] for name in names]).half()
        noise = torch.randn(fused.shape, dtype=fused.dtype, generator=torch.Generator().manual_seed(seed))
        rows = [master[name].shape[0] for name in names]
        found |= zip(names, fused.add_(noise, alpha=sigma).float().split(rows), strict=True)
    return found


def records(base: BaseModel, args: ForeignArgs, seed: int, reward: Callable[[Weights], float] | None) -> ForeignRun:
    """Seeds and coefficients of one run; without a reward they know nothing."""
    generator, updates = np.random.default_rng(seed), []
    groups = tensor_names(base.weights, "fused")
    master = Master(args, base.weights, layout="fused", device="cpu")
    for step in range(1, args.iterations + 1):
        seeds = generator.integers(0, 2**30, size=POPULATION).tolist()
        if reward is None:
            values = generator.standard_normal(POPULATION)
        else:
            weights = master.weights()
            values = np.array([reward(member(weights, groups, one, args.sigma)) for one in seeds])
        z = (values - values.mean()) / (values.std() + 1e-8)
        updates.append(ForeignUpdate(step=step, seeds=tuple(seeds), coefficients=tuple(map(float, z))))
        if reward is not None:
            master.advance(updates[-1])
    return ForeignRun(path=Path("nano"), args=args, updates=tuple(updates), accuracies={}, unread=())


class Texts:
    """Texts drawn from the base, and the logits that any weights give on them."""

    def __init__(self, base: BaseModel) -> None:
        self.engine = TransformersEngine(base.model, base.tokenizer, batch_size=TEXTS)
        self.prompts = [(base.tokenizer.bos_token_id,)] * TEXTS
        self.texts = self.engine.sample(self.prompts, max_new_tokens=TEXT_TOKENS, seed=0)

    def logits(self, weights: Weights) -> list[torch.Tensor]:
        self.engine.write(weights)
        return self.engine.continuation_logits(self.prompts, self.texts)


def divergence(one: list[torch.Tensor], other: list[torch.Tensor]) -> tuple[float, float]:
    """KL(one || other) in nats per token, token-weighted, and its standard error over texts."""
    totals = [float(full_vocabulary_kl(a, b).sum()) for a, b in zip(one, other, strict=True)]
    found = token_weighted(totals, [len(a) for a in one])
    assert found.stderr is not None
    return found.value, found.stderr


def norm(a: Weights, names: list[str]) -> float:
    return math.sqrt(math.fsum(float(a[name].double().square().sum()) for name in names))


def cosine(a: Weights, b: Weights, names: list[str]) -> float:
    product = math.fsum(float((a[name].double() * b[name].double()).sum()) for name in names)
    return product / (norm(a, names) * norm(b, names))


def rows_of(kind: str, seed: int, run: ForeignRun, base: BaseModel, texts: Texts, reward: Reward) -> list[dict]:
    layouts: dict[Layout, dict[int, dict[str, torch.Tensor]]] = {
        layout: dict(replay(run, base.weights, layout=layout, device="cpu", steps=[0, *STEPS]))
        for layout in ("fused", "hf")
    }
    start = layouts["fused"][0]
    names = list(start)
    odd = [name for name in names if name.split(".")[-2] in RENOISED]
    before = texts.logits(start)
    rows = []
    for step in STEPS:
        fused, unfused = layouts["fused"][step], layouts["hf"][step]
        moved, other = ({name: w[name] - start[name] for name in names} for w in (fused, unfused))
        trained, replayed = texts.logits(fused), texts.logits(unfused)
        row = {
            "kind": kind,
            "seed": seed,
            "step": step,
            "norm_fused": norm(moved, names),
            "norm_hf": norm(other, names),
        }
        row |= {"cosine": cosine(moved, other, names), "cosine_k_v_up": cosine(moved, other, odd)}
        pairs = {"base_fused": (before, trained), "base_hf": (before, replayed), "fused_hf": (trained, replayed)}
        for name, pair in pairs.items():
            row[f"kl_{name}"], row[f"kl_{name}_stderr"] = divergence(*pair)
        row |= {"reward_base": reward(start), "reward_fused": reward(fused), "reward_hf": reward(unfused)}
        rows.append(row)
    return rows


def sentences(table: pd.DataFrame, base: BaseModel) -> str:
    """What the last step shows."""
    share = sum(w.numel() for name, w in base.weights.items() if name.split(".")[-2] in RENOISED) / base.n_parameters
    last = table[table["step"] == STEPS[-1]]
    trained = last[last["kind"] == "trained"]
    gains = {name: trained[f"reward_{name}"] - trained["reward_base"] for name in ("fused", "hf")}

    def spread(values: pd.Series, form: str = ".2f") -> str:
        return f"{values.min():{form}} to {values.max():{form}}"

    return f"""**What this shows.** k, v and up, {100 * share:.0f} % of the parameters, get unrelated noise (cosine \
{spread(last["cosine_k_v_up"], "+.3f")}); everything else moves alike, q and gate too, because they come first in \
their fused tensor and the CPU's numbers do not depend on a tensor's size. So the two displacements have a cosine of \
{last["cosine"].mean():.2f}, the share of parameters with common noise ({1 - share:.2f}). The norm hardly tells the \
layouts apart ({spread(last["norm_hf"] / last["norm_fused"])} times). The KL of one run does, at the \
last step: the unfused replay lies \
at {spread(last["kl_base_hf"] / last["kl_base_fused"])} times the KL of the trained weights from the base, and the two \
models lie {spread(last["kl_fused_hf"] / last["kl_base_fused"])} times that KL from each other. Of what training \
gained in reward the unfused replay has {spread(100 * gains["hf"] / gains["fused"], ".0f")} %.

**What it does not show.** How large this is in a real model: in Qwen2.5-3B k, v and up are 28 % of the parameters, \
but this is a synthetic model with {len(base.weights)} tensors, and three seeds. Whether q and gate agree on an \
accelerator was not run. Not even the law of the walk is the same in both layouts: tensors of equal shape share noise, \
and unfused q, k, v and o (of equal shape here) are four where fused there is one beside another."""


def page(table: pd.DataFrame, base: BaseModel, sigma: float) -> str:
    """Means over seeds at every step, and what they say."""
    head = ["records", "step", "norm fused", "norm hf", "cosine of the two", "of k, v, up", "KL(base‖fused)"]
    head += ["KL(base‖hf)", "KL(fused‖hf)", "reward base", "reward fused", "reward hf"]
    lines = ["| " + " | ".join(head) + " |", "|:---|" + "---:|" * (len(head) - 1)]
    for (kind, step), part in table.groupby(["kind", "step"], sort=False):
        mean = part.drop(columns=["kind"]).mean()
        cells = [kind, str(step), f"{mean['norm_fused']:.3f}", f"{mean['norm_hf']:.3f}", f"{mean['cosine']:.3f}"]
        cells += [f"{mean['cosine_k_v_up']:+.3f}"]
        for name in ("base_fused", "base_hf", "fused_hf"):
            values = 1000 * part[f"kl_{name}"]
            cells.append(f"{values.mean():.1f} ({values.min():.1f} to {values.max():.1f})")
        cells += [f"{mean[f'reward_{name}']:.2f}" for name in ("base", "fused", "hf")]
        lines.append("| " + " | ".join(cells) + " |")
    told = "\n".join([*lines, "", sentences(table, base)]).replace(" -", " −").replace("(-", "(−")
    return f"""# The same records in another layout of tensors are another model

Made by `python benchmarks/foreign_layout.py --out reports/foreign-layout`; every seed and the standard errors over \
texts are in [layout.csv](layout.csv).

es-awd (LIT-238) trains on vLLM's fused tensors and seeds the noise anew for every tensor; its KL script replays the \
same seeds into Hugging Face's unfused tensors. Here that scheme runs on the embedded model ({base.n_parameters:,} \
parameters, synthetic tasks) on the CPU: float16, N = {POPULATION}, α = σ/2, σ = {sigma:.3g} (as large beside the \
weights' root mean square as published), {ENGINES} engines, no anchor, {len(SEEDS)} seeds. *trained*: the rewards are \
mean log-probabilities of right answers to 32 items, around the fused weights; *random walk*: the coefficients know \
nothing. KL in millinats per token over the full vocabulary, on {TEXTS} texts of at most {TEXT_TOKENS} tokens drawn \
from the base: mean (and range) over seeds.

{told}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    base = load_base("nano", dtype=torch.float32, device="cpu")
    squares = sum(float(w.double().square().sum()) for w in base.weights.values())
    sigma = PUBLISHED_SIGMA / PUBLISHED_RMS * math.sqrt(squares / base.n_parameters)
    args, texts, reward = arguments_of(sigma), Texts(base), Reward(base)
    rows = []
    for kind, scored in (("trained", reward), ("random walk", None)):
        for seed in SEEDS:
            rows += rows_of(kind, seed, records(base, args, seed, scored), base, texts, reward)
            print(
                {key: value if isinstance(value, str) else round(value, 4) for key, value in rows[-1].items()},
                flush=True,
            )
    table = pd.DataFrame(rows)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "layout.csv", index=False, float_format="%.6g")
    text = page(table, base, sigma)
    (out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
