"""What a trainer is: it moves the weights of a state and says so after each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

from driftlab.models.checkpoints import State
from driftlab.models.flops import Shape, backward, forward
from driftlab.run.records import Cost, Iteration

Record = Callable[[Iteration], None]
"""Told of every iteration, in order."""
Arrive = Callable[[], None]
"""Called whenever ``Trainer.state`` holds the weights of its step and they may be measured."""


class Trainer(Protocol):
    state: State
    """Base and current weights; a trainer that keeps its own may fill ``weights`` at scheduled steps only."""

    def train(self, record: Record, arrive: Arrive) -> None:
        """From ``state.step`` to the end."""
        ...


def cost_of(
    shape: Shape,
    prompts: Sequence[int],
    generated: Sequence[int],
    device: str,
    *,
    trained: bool,
    reference: bool = False,
) -> Cost:
    """Cost of rollouts of given token counts; what was stored is added by whoever stores it.

    Args:
        prompts, generated: tokens of each rollout's prompt and answer.
        trained: the rollouts were also passed forward and backward for a gradient.
        reference: and forward through the reference model of a KL penalty.
    """
    lengths = [prompt + answer for prompt, answer in zip(prompts, generated, strict=True)]
    passes = 1 + trained + reference
    return Cost(
        rollouts=len(lengths),
        forward_flops=passes * forward(shape, lengths),
        backward_flops=backward(shape, lengths) if trained else 0.0,
        process_peak_bytes=_process_peak(),
        device_peak_bytes=torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None,
        stored_bytes=0,
    )


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peaks(device: str) -> None:
    """Let the peaks begin anew, as far as the system allows: several runs of one process are told apart on Linux."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        _RESET.write_text("5")


def _process_peak() -> int | None:
    """Largest resident memory of this process since ``reset_peaks``, or ever where that cannot be had."""
    with suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in units of 1,024 bytes, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
