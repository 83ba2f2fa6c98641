"""The target tasks by name."""

from __future__ import annotations

import difflib

from driftlab.errors import SpecError
from driftlab.tasks.base import Target
from driftlab.tasks.countdown import Countdown, GeneratedCountdown
from driftlab.tasks.countdown_examples import CountdownWithExamples
from driftlab.tasks.embedded.countdown import EmbeddedCountdown
from driftlab.tasks.embedded.rules_written import RulesWritten
from driftlab.tasks.embedded.twohop_written import TwohopWritten
from driftlab.tasks.generative.gsm8k import Gsm8k
from driftlab.tasks.generative.proofwriter import ProofWriter

TARGETS: dict[str, Target] = {
    "countdown": Countdown(),
    "countdown_examples": CountdownWithExamples(),
    "countdown_generated": GeneratedCountdown(),
    "embedded_countdown": EmbeddedCountdown(),
    "embedded_rules_written": RulesWritten(),
    "embedded_twohop_written": TwohopWritten(),
    "gsm8k": Gsm8k(),
    "proofwriter": ProofWriter(),
}


def target(name: str) -> Target:
    """The target task called ``name``.

    Raises:
        SpecError: there is none; the message gives the nearest names.
    """
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS) or sorted(TARGETS)
        raise SpecError(f"unknown target task {name!r}; nearest: {', '.join(near)}")
    return TARGETS[name]
