"""Contexts that put everything back: what a measurement may change while it lasts, and nobody may notice afterwards."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import datasets
import numpy as np
import torch
from transformers import GenerationConfig


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards modes, random states, working directory and environment are as before.

    Random states are those of ``random``, NumPy's global generator, torch and, where in use, every CUDA device.
    """
    modes = [(module, module.training) for module in model.modules()]
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    folder, environment = os.getcwd(), dict(os.environ)
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        os.chdir(folder)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings of the libraries; both as before afterwards."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "transformers", "datasets")]
    levels, bars = [logger.level for logger in loggers], datasets.are_progress_bars_disabled()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def plain_greedy(model: Any) -> Iterator[None]:
    """Greedy decoding and nothing else: a model's generation config may hold penalties and a length limit of its own.

    Those would apply even without sampling, and its ``max_new_tokens`` would override the task's limit.
    """
    before = model.generation_config
    keep = {key: getattr(before, key, None) for key in ("eos_token_id", "bos_token_id", "pad_token_id")}
    try:
        model.generation_config = GenerationConfig(do_sample=False, **keep)
        yield
    finally:
        model.generation_config = before
