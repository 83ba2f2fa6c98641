"""What training took, against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftlab.report.ledger import ADDED, ledger_rows, spent
from tests.comparison_runs import cost, es_update, gradient_step


def test_es_and_grpo_are_added_up() -> None:
    es = ledger_rows([es_update(step, cost(20, 7.0, 0.0)) for step in (1, 2, 3)], 5)
    assert list(es["cumulated_rollouts"]) == [20, 40, 60]
    assert list(es["cumulated_forward_flops"]) == [7, 14, 21]
    assert list(es["cumulated_prompt_tokens"]) == [100, 200, 300]
    assert list(es["cumulated_stored_bytes"]) == [10, 20, 30]
    assert not es["derived"].any()
    # ES: rollout 2 s is the model, reward 0.5 s the environment, 4 - 2 - 0.5 s the rest, its own update inside.
    assert es.loc[2, ["cumulated_model_seconds", "cumulated_environment_seconds"]].tolist() == [6.0, 1.5]
    assert es.loc[2, ["cumulated_rest_seconds", "cumulated_total_seconds"]].tolist() == [4.5, 12.0]
    grpo = ledger_rows([gradient_step(step, cost(8, 3.0, 6.0, device=99)) for step in (1, 2)], None)
    assert grpo.loc[1, ["cumulated_rollouts", "cumulated_backward_flops"]].tolist() == [16.0, 12.0]
    assert grpo.loc[1, ["model_seconds", "environment_seconds", "rest_seconds"]].tolist() == [3.0, 0.25, 0.25]
    # A peak is the largest so far and adds nothing up.
    assert grpo["device_peak_bytes"].tolist() == [99.0, 99.0]


def test_old_runs_give_rollouts_only() -> None:
    """Schema 3 stores no cost: rollouts are 4 members times 5 prompts, and nothing else is made up."""
    old = ledger_rows([es_update(step, None) for step in (1, 2)], 5)
    assert old["cumulated_rollouts"].tolist() == [20, 40]
    assert old["derived"].all()
    assert old["cumulated_generated_tokens"].tolist() == [50, 100]
    unknown = ["forward_flops", "backward_flops", "stored_bytes", "process_peak_bytes", "device_peak_bytes"]
    assert old[unknown].isna().all().all()
    assert old["cumulated_forward_flops"].isna().all()


def test_other_code_recorded_nothing() -> None:
    """An imported run stores 0 tokens because nobody wrote them down, which is not 0."""
    table = ledger_rows([es_update(1, None, seconds={})], None)
    assert table[ADDED].isna().all().all()
    assert not table["derived"].any()


def test_a_gap_ends_the_sum() -> None:
    """The sum after an iteration without its number is unknown, however many follow."""
    table = ledger_rows(
        [gradient_step(1, cost(8, 3.0, 6.0)), gradient_step(2, None), gradient_step(3, cost(8, 3.0, 6.0))], None
    )
    assert table["cumulated_forward_flops"].isna().tolist() == [False, True, True]
    assert math.isclose(spent(table, "forward_flops", [1])[0], 3.0)


def test_spent_at_measured_steps() -> None:
    table = ledger_rows([es_update(step, cost(20, 7.0, 0.0)) for step in (1, 2, 3)], 5)
    found = spent(table, "rollouts", [0, 2, 3, 4])
    assert found[:3].tolist() == [0.0, 40.0, 60.0]
    assert np.isnan(found[3])
    # A run whose iterations somebody else made has spent nothing at the base, and after it nobody knows what.
    empty = spent(ledger_rows([], None), "rollouts", [0, 10])
    assert empty[0] == 0.0
    assert np.isnan(empty[1])


def test_units_of_an_iteration_do_not_depend_on_its_place() -> None:
    """Per-iteration columns are the differences of the cumulated ones."""
    table = ledger_rows([gradient_step(step, cost(step, 2.0 * step, 3.0 * step)) for step in (1, 2, 3, 4)], None)
    for name in ("rollouts", "forward_flops", "backward_flops"):
        assert np.diff(table[f"cumulated_{name}"], prepend=0.0) == pytest.approx(table[name])
