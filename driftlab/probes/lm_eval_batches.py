"""Log-likelihoods of choices in prepared batches: tokenised, grouped and padded once, scored at every checkpoint."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_PADDING = 0  # right padding behind a causal mask: any token id gives the same scores

Pair = tuple[list[int], list[int]]
"""Token ids of a context and of the continuation whose log-likelihood is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceBatch:
    """One forward pass. U predicting positions serve M continuation tokens: choices with a common prefix share them.

    Attributes:
        ids: [rows, time] token ids, right-padded.
        keep: [P] times at which any row predicts; logits are computed there only.
        row, column: [U] indices of the predicting positions into [rows, P].
        point, token: [M] position (into U) and token id of each continuation token, request after request.
        requests, sizes: index and number of continuation tokens of each request.
    """

    ids: torch.Tensor
    keep: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    point: torch.Tensor
    token: torch.Tensor
    requests: list[int]
    sizes: list[int]


def choice_batches(pairs: Sequence[Pair], batch_size: int) -> list[ChoiceBatch]:
    """Group requests that share all but the last token, sort by length, cut into batches: the harness's own order."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (context, continuation) in enumerate(pairs):
        groups[(*context, *continuation[:-1])].append(index)

    def rank(entry: tuple[tuple[int, ...], list[int]]) -> tuple[int, tuple[int, ...]]:
        longest = max(entry[1], key=lambda index: len(pairs[index][1]))
        tokens = (*entry[0], pairs[longest][1][-1])
        return -len(tokens), tokens

    ordered = sorted(groups.items(), key=rank)
    return [_batch(ordered[i : i + batch_size], pairs) for i in range(0, len(ordered), batch_size)]


def _batch(rows: Sequence[tuple[tuple[int, ...], list[int]]], pairs: Sequence[Pair]) -> ChoiceBatch:
    ids = torch.full((len(rows), max(len(prefix) for prefix, _ in rows)), _PADDING, dtype=torch.long)
    points: dict[tuple[int, int], int] = {}
    point, token, requests, sizes = [], [], [], []
    for row, (prefix, members) in enumerate(rows):
        ids[row, : len(prefix)] = torch.tensor(prefix)
        for index in members:
            continuation = pairs[index][1]
            start = len(prefix) - len(continuation)
            point += [points.setdefault((row, start + i), len(points)) for i in range(len(continuation))]
            token += continuation
            requests.append(index)
            sizes.append(len(continuation))
    keep = sorted({time for _, time in points})
    columns = {time: column for column, time in enumerate(keep)}
    return ChoiceBatch(
        ids=ids,
        keep=torch.tensor(keep),
        row=torch.tensor([row for row, _ in points]),
        column=torch.tensor([columns[time] for _, time in points]),
        point=torch.tensor(point),
        token=torch.tensor(token),
        requests=requests,
        sizes=sizes,
    )


@torch.no_grad()
def score_choices(model: Any, batches: Sequence[ChoiceBatch], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihoods in nats (float32 softmax) and whether greedy decoding would say the same; both shape [count]."""
    likelihood, greedy = np.full(count, np.nan), np.zeros(count, dtype=bool)
    narrow = "logits_to_keep" in inspect.signature(model.forward).parameters
    for batch in batches:
        ids, keep = batch.ids.to(model.device), batch.keep.to(model.device)
        if narrow:
            logits = model(ids, use_cache=False, logits_to_keep=keep).logits
        else:
            logits = model(ids, use_cache=False).logits[:, keep]
        picked = torch.log_softmax(logits[batch.row, batch.column], dim=-1, dtype=torch.float32)
        said = picked.argmax(dim=-1).cpu()[batch.point] == batch.token
        values = picked.cpu()[batch.point, batch.token]
        starts = np.cumsum([0, *batch.sizes[:-1]])
        likelihood[batch.requests] = [float(part.sum()) for part in values.split(batch.sizes)]
        greedy[batch.requests] = np.logical_and.reduceat(said.numpy(), starts)
    return likelihood, greedy
