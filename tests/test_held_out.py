"""The held-out split of the target: what is in it, what is measured, what a report says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driftlab import loop
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import SpecError
from driftlab.models.base import load_base
from driftlab.probes.base import Checkpoint
from driftlab.probes.held_out import HeldOutProbe, held_out_items
from driftlab.report.contents import all_tables
from driftlab.report.frames import build_frames
from driftlab.report.held_out import held_out_words
from driftlab.report.runs import read_run
from driftlab.run.plan import load_plan
from driftlab.tasks.targets import target
from tests.test_loop import TOML, quiet

TASK = target("embedded_countdown")


def test_no_item_is_in_both_sets():
    batch = TASK.train_items(count=20, seed=3, data=None)
    drawn = TASK.train_items(count=50, seed=3, data=None)
    held_out = held_out_items(drawn, batch, 30, TASK.name)
    assert len({item.id for item in held_out}) == 30
    assert not {item.id for item in held_out} & {item.id for item in batch}
    # Other order of numbers, same puzzle: ids would not tell, so compare what is asked.
    puzzles = [{(tuple(sorted(i.fields["numbers"])), i.fields["target"]) for i in found} for found in (held_out, batch)]
    assert not puzzles[0] & puzzles[1]


def test_a_pool_that_is_too_small_is_refused():
    batch = TASK.train_items(count=5, seed=0, data=None)
    with pytest.raises(SpecError, match="held_out.items is 6, but embedded_countdown has 5 items beside"):
        held_out_items(TASK.train_items(count=10, seed=0, data=None), batch, 6, TASK.name)


def test_rewards_are_those_of_the_scorer_and_errors_those_of_numpy():
    base = load_base("nano", dtype=torch.float32, device="cpu")
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=64)
    batch = TASK.train_items(count=40, seed=0, data=None)
    held_out = held_out_items(TASK.train_items(count=100, seed=0, data=None), batch, 60, TASK.name)
    prompts = [engine.encode(item.prompt, chat=False) for item in (*batch, *held_out)]
    probe = HeldOutProbe(TASK, batch, held_out, prompts, max_new_tokens=12)
    checkpoint = Checkpoint(step=0, weights=base.weights, base=base.weights, updates=())
    rows = {row.quantity: row for row in probe.measure(checkpoint, engine).measurements}
    answers = engine.generate(prompts, max_new_tokens=12)
    scores = [TASK.score(item, a.text).reward for item, a in zip((*batch, *held_out), answers, strict=True)]
    seen, unseen = np.array(scores[:40]), np.array(scores[40:])
    assert rows["training_reward"].value == pytest.approx(seen.mean(), rel=1e-14)
    assert rows["held_out_reward"].value == pytest.approx(unseen.mean(), rel=1e-14)
    assert (rows["training_reward"].n, rows["held_out_reward"].n) == (40, 60)
    assert rows["reward_gap"].value == pytest.approx(seen.mean() - unseen.mean(), abs=1e-15)
    error = np.sqrt(seen.var(ddof=1) / 40 + unseen.var(ddof=1) / 60)
    assert rows["reward_gap"].stderr == pytest.approx(error, rel=1e-14)
    assert rows["held_out_accuracy"].value == rows["held_out_reward"].value  # this task pays for answers alone


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held-out")
    file = folder / "tiny.toml"
    file.write_text(TOML + "[probes.held_out]\nitems = 20\n")
    (planned,) = load_plan(str(file))
    return loop.run(planned, folder / "run", resume=False, listen=quiet)


def test_a_run_measures_it_and_its_report_shows_it(finished):
    frames = build_frames([read_run(finished.path)])
    (table,) = [table for table in all_tables(frames) if table.name == "held-out"]
    assert table.rows[0][2] == "8 / 20"
    assert sorted(set(table.data["step"])) == [0, 2, 4]
    assert held_out_words(frames) == []  # one seed says nothing over seeds


def test_a_report_without_it_has_no_place_for_it(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TOML)
    (planned,) = load_plan(str(file), ["es.iterations=2"])
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    assert "held-out" not in [table.name for table in all_tables(build_frames([read_run(store.path)]))]
