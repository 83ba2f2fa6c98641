"""``driftlab emulate`` from outside."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from driftlab.cli import app
from driftlab.emulation import sample_of, walk_of
from driftlab.errors import DriftlabError, SpecError
from driftlab.run.plan import load_plan

FAST = ["--set", "es.iterations=20", "--coordinates", "3000"]


def emulated(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["emulate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_demo_walks_as_its_law_says():
    """sigma 0.01, alpha 0.005, N = 30, d = 157,696, 20 steps: 0.005 sqrt(157696 * 20 / 30) = 1.6212. The second arm's
    anchor has its own law; the third arm is the first one's walk and is not shown again."""
    lines = [line for line in emulated("nano-awd", *FAST).splitlines() if re.search(r"\s20\s", line)]
    assert [line.split()[0] for line in lines] == ["ES", "ES+AWD-L2"]
    assert lines[0].split()[2] == lines[0].split()[4] == "1.6212"
    q = 0.99
    anchored = 1.6212 * (q**2 * (1 - q**40) / (1 - q**2) / 20) ** 0.5
    assert float(lines[1].split()[2]) == pytest.approx(anchored, abs=2e-4)


def test_a_model_that_is_not_here_needs_its_size_and_a_deviation():
    text = emulated("lit238-qwen3b", "--arm", "ES", "--weight-std", "0.023", *FAST)
    assert "3,085,938,688 weights" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--coordinates", "1"), "--coordinates is 1"),
        (("--weight-std", "0"), "--weight-std is 0"),
        (("--set", "control=base", "--set", 'anchor={penalty="none", lambda=0.0}'), "does not walk"),
        (("--model", "nowhere/at/all"), "nowhere/at/all"),
    ],
)
def test_bad_input(arguments, sentence):
    with pytest.raises(DriftlabError, match=sentence):
        emulated("nano-awd", "--arm", "ES", *arguments)


def test_weights_are_those_of_the_model():
    sample = sample_of("nano", weight_std=None, coordinates=5000, seed=0)
    assert sample.d == 157_696
    assert abs(sample.base.size - 5000) < 50


def test_a_control_without_rollouts_has_no_walk():
    (planned,) = load_plan("nano-awd", ["control=random-direction"], ["ES"])
    with pytest.raises(SpecError, match="does not walk"):
        walk_of(planned.spec)
