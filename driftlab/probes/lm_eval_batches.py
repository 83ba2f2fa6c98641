"""Log-likelihoods of choices in prepared batches: tokenised, grouped and padded once, scored at every checkpoint.

The choices of one question share its prompt. With ``shared`` the prompt is read once: a row holds the prompt and
then every choice, and an attention mask keeps the choices from seeing each other. That is three to four times less
work for four choices; ``sharing_works`` says whether a model computes the same numbers that way.
"""

from __future__ import annotations

import inspect
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_PADDING = 0  # never read: padding stands right of a causal row, or is masked
_CHECKED_ROWS = 4

Pair = tuple[list[int], list[int]]
"""Token ids of a context and of the continuation whose log-likelihood is asked."""


@dataclass(slots=True)
class _Row:
    """One sequence: a trunk that every request in it continues, and branches that do not see each other.

    ``where`` gives per request the indices (trunk and branches counted through) that predict its tokens.
    """

    trunk: Sequence[int]
    branches: list[Sequence[int]]
    where: list[tuple[int, list[int]]]

    def __len__(self) -> int:
        return len(self.trunk) + sum(len(branch) for branch in self.branches)


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceBatch:
    """One forward pass. U predicting positions serve M continuation tokens: choices with a common prefix share them.

    Attributes:
        ids: [rows, time] token ids, padded.
        positions, segments: [rows, time] position ids, and 0 for the trunk, 1, 2, ... for branches, -1 for padding;
            None when every row is a plain causal sequence.
        keep: [P] times at which any row predicts; logits are computed there only.
        row, column: [U] indices of the predicting positions into [rows, P].
        point, token: [M] position (into U) and token id of each continuation token, request after request.
        requests, sizes: index and number of continuation tokens of each request.
    """

    ids: torch.Tensor
    positions: torch.Tensor | None
    segments: torch.Tensor | None
    keep: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    point: torch.Tensor
    token: torch.Tensor
    requests: list[int]
    sizes: list[int]


def choice_batches(
    pairs: Sequence[Pair], batch_size: int, *, shared: bool, shuffle: random.Random | None = None
) -> list[ChoiceBatch]:
    """Rows sorted by length, longest first, and cut into batches of ``batch_size``.

    Without ``shared`` rows, order and padding are those of lm-eval's own HFLM. With ``shuffle`` the rows are drawn in
    random order instead, so that each finds itself in other company.
    """
    rows = _shared_rows(pairs) if shared else _plain_rows(pairs)
    if shuffle is not None:
        shuffle.shuffle(rows)
    return [_batch(rows[i : i + batch_size], pairs) for i in range(0, len(rows), batch_size)]


def sharing_works(model: Any, pairs: Sequence[Pair]) -> bool:
    """Whether a few of the longest requests score the same with shared prompts as one by one.

    It does not where a model has no use for a mask, such as a recurrent one or some attention kernels.
    """
    longest = [index for row in _shared_rows(pairs)[:_CHECKED_ROWS] for index, _ in row.where]
    chosen = [pairs[index] for index in longest]
    plain, _ = score_choices(model, choice_batches(chosen, _CHECKED_ROWS, shared=False), len(chosen))
    try:
        shared, _ = score_choices(model, choice_batches(chosen, _CHECKED_ROWS, shared=True), len(chosen))
    except (RuntimeError, ValueError, TypeError):
        return False
    # Rounding grows with the sum; in half precision it is that of another batch size.
    allowed = (1e-4 if model.dtype == torch.float32 else 2e-2) * (1 + np.abs(plain))
    return bool((np.abs(shared - plain) <= allowed).all())


def _plain_rows(pairs: Sequence[Pair]) -> list[_Row]:
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (context, continuation) in enumerate(pairs):
        groups[(*context, *continuation[:-1])].append(index)

    def rank(entry: tuple[tuple[int, ...], list[int]]) -> tuple[int, tuple[int, ...]]:
        longest = max(entry[1], key=lambda index: len(pairs[index][1]))
        tokens = (*entry[0], pairs[longest][1][-1])
        return -len(tokens), tokens

    rows = []
    for prefix, members in sorted(groups.items(), key=rank):
        ends = [(index, list(range(len(prefix) - len(pairs[index][1]), len(prefix)))) for index in members]
        rows.append(_Row(prefix, [], ends))
    return rows


def _shared_rows(pairs: Sequence[Pair]) -> list[_Row]:
    rows: dict[tuple[int, ...], _Row] = {}
    starts: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for index, (context, continuation) in enumerate(pairs):
        trunk, branch = tuple(context), tuple(continuation[:-1])
        row = rows.setdefault(trunk, _Row(trunk, [], []))
        if branch and (trunk, branch) not in starts:
            starts[trunk, branch] = len(row)
            row.branches.append(branch)
        start = starts.get((trunk, branch), 0)
        row.where.append((index, [len(trunk) - 1, *range(start, start + len(branch))]))
    return sorted(rows.values(), key=lambda row: (-len(row.trunk), -len(row), row.trunk))


def _batch(rows: Sequence[_Row], pairs: Sequence[Pair]) -> ChoiceBatch:
    masked = any(len(row.branches) > 1 for row in rows)
    # Behind a mask padding may stand anywhere: trunks end together, so that few times need logits.
    end = max(len(row.trunk) for row in rows)
    shifts = [end - len(row.trunk) if masked else 0 for row in rows]
    time = max(shift + len(row) for shift, row in zip(shifts, rows, strict=True))
    ids = torch.full((len(rows), time), _PADDING, dtype=torch.long)
    positions, segments = torch.zeros_like(ids), torch.full_like(ids, -1)
    points: dict[tuple[int, int], int] = {}
    point, token, requests, sizes = [], [], [], []
    for i, (row, shift) in enumerate(zip(rows, shifts, strict=True)):
        at = shift
        for segment, tokens in enumerate([row.trunk, *row.branches]):
            first = len(row.trunk) if segment else 0
            ids[i, at : at + len(tokens)] = torch.tensor(tokens)
            positions[i, at : at + len(tokens)] = torch.arange(first, first + len(tokens))
            segments[i, at : at + len(tokens)] = segment
            at += len(tokens)
        for index, where in row.where:
            point += [points.setdefault((i, shift + offset), len(points)) for offset in where]
            token += pairs[index][1]
            requests.append(index)
            sizes.append(len(where))
    keep = sorted({moment for _, moment in points})
    columns = {moment: column for column, moment in enumerate(keep)}
    return ChoiceBatch(
        ids=ids,
        positions=positions if masked else None,
        segments=segments if masked else None,
        keep=torch.tensor(keep),
        row=torch.tensor([i for i, _ in points]),
        column=torch.tensor([columns[moment] for _, moment in points]),
        point=torch.tensor(point),
        token=torch.tensor(token),
        requests=requests,
        sizes=sizes,
    )


def _mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[rows, 1, time, time] additive mask: a token sees itself, its trunk, and its own branch up to itself."""
    trunk = (segments == 0).unsqueeze(1)
    own = segments.unsqueeze(1) == segments.unsqueeze(2)
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool, device=segments.device).tril()
    seen = (trunk | own) & causal  # padding sees padding: a row that sees nothing would give NaN
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


@torch.no_grad()
def score_choices(model: Any, batches: Sequence[ChoiceBatch], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihoods in nats (float32 softmax) and whether greedy decoding would say the same; both shape [count]."""
    likelihood, greedy = np.full(count, np.nan), np.zeros(count, dtype=bool)
    narrow = "logits_to_keep" in inspect.signature(model.forward).parameters
    for batch in batches:
        keep = batch.keep.to(model.device)
        settings: dict[str, Any] = {"use_cache": False}
        if batch.segments is not None and batch.positions is not None:
            settings["position_ids"] = batch.positions.to(model.device)
            settings["attention_mask"] = _mask(batch.segments.to(model.device), model.dtype)
        if narrow:
            logits = model(batch.ids.to(model.device), logits_to_keep=keep, **settings).logits
        else:
            logits = model(batch.ids.to(model.device), **settings).logits[:, keep]
        picked = torch.log_softmax(logits[batch.row, batch.column], dim=-1, dtype=torch.float32)
        said = picked.argmax(dim=-1).cpu()[batch.point] == batch.token
        values = picked.cpu()[batch.point, batch.token]
        starts = np.cumsum([0, *batch.sizes[:-1]])
        likelihood[batch.requests] = [float(part.sum()) for part in values.split(batch.sizes)]
        greedy[batch.requests] = np.logical_and.reduceat(said.numpy(), starts)
    return likelihood, greedy
