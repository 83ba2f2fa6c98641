"""The held-out split of the target: what is in it, what is measured, what a report says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from driftlab import loop
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import SpecError
from driftlab.models.base import load_base
from driftlab.probes.base import Checkpoint
from driftlab.probes.held_out import HeldOutProbe, held_out_items
from driftlab.report.contents import all_tables
from driftlab.report.frames import Frames, build_frames
from driftlab.report.held_out import held_out_table, held_out_words
from driftlab.report.page import render
from driftlab.report.runs import RunData, read_run
from driftlab.run.plan import load_plan
from driftlab.run.records import Measurement
from driftlab.run.store import RunStore
from driftlab.session import _held_out_probe
from driftlab.tasks.base import Item, content_hash
from driftlab.tasks.targets import target
from tests.comparison_runs import TARGET, TASKS, store_run
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


def puzzle(*numbers: int, target: int) -> Item:
    fields = {"numbers": list(numbers), "target": target}
    return Item(id=content_hash(fields), prompt="", fields=fields)


def test_the_same_puzzle_in_another_order_is_the_same():
    batch = [puzzle(1, 2, 3, target=6)]
    drawn = [puzzle(3, 2, 1, target=6), puzzle(1, 2, 4, target=7), puzzle(4, 2, 1, target=7), puzzle(1, 2, 3, target=5)]
    assert held_out_items(drawn, batch, 2, "toy") == (drawn[1], drawn[3])
    evaluated = [{"numbers": [2, 1, 4], "target": 7.0, "cluster": "x"}]
    assert held_out_items(drawn, batch, 1, "toy", evaluated) == (drawn[3],)
    with pytest.raises(SpecError, match="toy has 1 items beside"):
        held_out_items(drawn, batch, 2, "toy", evaluated)


@pytest.mark.parametrize(
    "fields", [{"question": "a", "answer": "#### 1"}, {"theory": "t", "question": "a", "answer": "True"}]
)
def test_a_question_that_is_evaluated_is_not_held_out(fields):
    def item(**changed: str) -> Item:
        return Item(id=content_hash(fields | changed), prompt="", fields=fields | changed)

    assert held_out_items([item(), item(question="b")], [], 1, "toy", [fields]) == (item(question="b"),)


def test_a_pool_that_is_too_small_is_refused():
    batch = TASK.train_items(count=5, seed=0, data=None)
    with pytest.raises(SpecError, match=r"held_out\.items is 6, but embedded_countdown has 5 items beside"):
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
    assert "reward_gap_change" not in rows


def test_the_change_of_the_gap_is_paired_and_leaves_no_trace():
    base = load_base("nano", dtype=torch.float32, device="cpu")
    engine = TransformersEngine(base.model, base.tokenizer, batch_size=64)
    batch = TASK.train_items(count=30, seed=1, data=None)
    held_out = held_out_items(TASK.train_items(count=70, seed=1, data=None), batch, 40, TASK.name)
    items = (*batch, *held_out)
    prompts = [engine.encode(item.prompt, chat=False) for item in items]

    def rewards() -> np.ndarray:
        answers = engine.generate(prompts, max_new_tokens=12)
        return np.array([TASK.score(item, answer.text).reward for item, answer in zip(items, answers, strict=True)])

    before = rewards()
    probe = HeldOutProbe(TASK, batch, held_out, prompts, max_new_tokens=12)
    probe.prepare(engine)
    generator = torch.Generator().manual_seed(0)
    moved = {name: w + 0.03 * torch.randn(w.shape, generator=generator) for name, w in base.weights.items()}
    engine.write(moved)
    change = rewards() - before
    assert np.count_nonzero(change[:30]) > 0
    assert np.count_nonzero(change[30:]) > 0

    engine.model.train()
    state = torch.get_rng_state()
    checkpoint = Checkpoint(step=3, weights=moved, base=base.weights, updates=())
    rows = {row.quantity: row for row in probe.measure(checkpoint, engine).measurements}
    assert engine.model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, moved[name]) for name, p in engine.model.named_parameters())

    row = rows["reward_gap_change"]
    assert row.value == pytest.approx(change[:30].mean() - change[30:].mean(), abs=1e-15)
    error = np.sqrt(change[:30].var(ddof=1) / 30 + change[30:].var(ddof=1) / 40)
    assert row.stderr == pytest.approx(error, rel=1e-14)
    assert row.note == "training batch of 30 minus 40 held-out items, paired with the base by item"
    at_base = {
        r.quantity: r
        for r in probe.measure(
            Checkpoint(step=0, weights=base.weights, base=base.weights, updates=()), engine
        ).measurements
    }
    assert "reward_gap_change" not in at_base


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            "[probes.held_out]\nitems = 5000\n",
            "probes.held_out.items is 5000 beside a training batch of 8, but embedded_countdown has",
        ),
        ("[probes.held_out]\nitems = 1\n", "probes.held_out.items"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(tmp_path, changed, sentence):
    file = tmp_path / "tiny.toml"
    file.write_text(TOML + changed)
    with pytest.raises(SpecError, match=sentence):
        loop.run(load_plan(str(file))[0], tmp_path / "run", resume=False, listen=quiet)
    assert not (tmp_path / "run").exists()


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
    assert sorted(table.data.loc[table.data["quantity"] == "reward_gap_change", "step"]) == [2, 4]
    assert len(held_out_words(frames)) <= 1


def test_checkpoints_of_somebody_elses_training_have_no_held_out_split(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TOML + "[probes.held_out]\nitems = 20\n")
    (planned,) = load_plan(str(file))
    spec = planned.spec.model_copy(update={"trainer": "folders"})
    with pytest.raises(SpecError, match="what checkpoints in folders were trained on is not known"):
        _held_out_probe(spec, TASK, None, TransformersEngine, [], [])


def test_a_report_without_it_has_no_place_for_it(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TOML)
    (planned,) = load_plan(str(file), ["es.iterations=2"])
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    assert "held-out" not in [table.name for table in all_tables(build_frames([read_run(store.path)]))]


# What a report says, on rows with numbers known by hand.


def rows_of(
    step: int, training: float, held_out: float, errors: tuple[float, float], n: tuple[int, int]
) -> list[Measurement]:
    def row(quantity: str, value: float, stderr: float, count: int) -> Measurement:
        return Measurement(
            step=step,
            probe="held_out",
            quantity=quantity,
            group=TARGET,
            value=value,
            unit="reward",
            stderr=stderr,
            n=count,
        )

    return [
        row("training_reward", training, errors[0], n[0]),
        row("held_out_reward", held_out, errors[1], n[1]),
        row("reward_gap", training - held_out, math.hypot(*errors), sum(n)),
    ]


def change_of(step: int, value: float, stderr: float) -> Measurement:
    return Measurement(
        step=step,
        probe="held_out",
        quantity="reward_gap_change",
        group=TARGET,
        value=value,
        unit="reward",
        stderr=stderr,
        n=1,
    )


RIGHT = {task: {0: [0, 1], 10: [0, 1, 2]} for task in TASKS}


def frames_of(tmp_path: Path, *runs: list[Measurement]) -> tuple[Frames, list[RunData]]:
    """A report's frames of runs of one arm, seeds 0, 1, ..., with these rows beside their own."""
    found = []
    for seed, rows in enumerate(runs):
        path = store_run(tmp_path, "ES", RIGHT, seed=seed).path
        store = RunStore.open(path)
        for step in (0, 10):
            store.add_measured(step, [row for row in rows if row.step == step], store.examples(step))
        found.append(read_run(path))
    return build_frames(found), found


N, ERRORS = (50, 200), (0.06, 0.03)


def half_width(stderr: float, n: tuple[int, int] = N) -> float:
    """Half a gained and half a lost item in either set, and Student's t of the smaller."""
    return float(stats.t.ppf(0.975, min(n) - 1)) * math.sqrt(stderr**2 + 1 / n[0] ** 2 + 1 / n[1] ** 2)


def test_a_gap_beyond_its_interval_is_said_with_the_part_that_came_since_the_base(tmp_path):
    rows = [*rows_of(0, 0.30, 0.28, ERRORS, N), *rows_of(10, 0.80, 0.55, ERRORS, N), change_of(10, 0.23, 0.05)]
    frames, _ = frames_of(tmp_path, rows)
    gap, change = half_width(math.hypot(*ERRORS)), half_width(0.05)
    assert gap < 0.25
    assert held_out_words(frames) == [
        "ES: at step 10 the training reward outruns the held-out reward by "
        f"0.250 [{0.25 - gap:.3f}, {0.25 + gap:.3f}]; "
        f"since the base this gap changed by 0.230 [{0.23 - change:.3f}, {0.23 + change:.3f}]."
    ]
    table = held_out_table(frames)
    assert table is not None
    assert table.rows[0][-1] == "training pulled ahead"
    assert table.rows[0][-2] == f"0.230 [{0.23 - change:.3f}, {0.23 + change:.3f}]"


def test_a_gap_that_was_there_before_training_is_not_laid_to_it(tmp_path):
    rows = [*rows_of(0, 0.50, 0.28, ERRORS, N), *rows_of(10, 0.80, 0.55, ERRORS, N), change_of(10, 0.03, 0.05)]
    (sentence,) = held_out_words(frames_of(tmp_path, rows)[0])
    assert "but the change of this gap since the base, 0.030 [−0." in sentence
    assert sentence.endswith("cannot be told from 0.")


@pytest.mark.parametrize(
    ("training", "held_out", "errors", "n"),
    [
        (0.60, 0.55, ERRORS, N),
        # 5 of 200 against 0 of 64: an exact test gives p = 0.34, the plain error of the second set is 0.
        (0.025, 0.0, (0.0111, 0.0), (200, 64)),
        (1.0, 1.0, (0.0, 0.0), N),
    ],
)
def test_no_more_is_said_than_the_interval_does(tmp_path, training, held_out, errors, n):
    rows = [*rows_of(0, 0.5, 0.5, ERRORS, n), *rows_of(10, training, held_out, errors, n)]
    frames, _ = frames_of(tmp_path, rows)
    assert held_out_words(frames) == []
    table = held_out_table(frames)
    assert table is not None
    assert table.rows[0][-1] == "cannot say"
    if held_out == 0.0:
        assert stats.fisher_exact([[5, 195], [0, 64]]).pvalue > 0.3


def test_the_other_way_round_is_said_the_other_way_round(tmp_path):
    rows = [*rows_of(0, 0.5, 0.5, ERRORS, N), *rows_of(10, 0.3, 0.7, ERRORS, N)]
    (sentence,) = held_out_words(frames_of(tmp_path, rows)[0])
    gap = half_width(math.hypot(*ERRORS))
    assert sentence.startswith(
        f"ES: at step 10 the held-out reward outruns the training reward by 0.400 [{0.4 - gap:.3f}, {0.4 + gap:.3f}]"
    )


def test_over_seeds_the_interval_is_that_over_seeds_but_not_narrower_than_over_items(tmp_path):
    def seeds(*changes: float) -> list[list[Measurement]]:
        return [
            [*rows_of(0, 0.4, 0.4, ERRORS, N), *rows_of(10, 0.6, 0.5, ERRORS, N), change_of(10, value, 0.05)]
            for value in changes
        ]

    apart = [0.4, 0.6, 0.8]
    half = float(stats.t.ppf(0.975, 2)) * 0.2 / math.sqrt(3)
    assert half > half_width(0.05)
    assert held_out_words(frames_of(tmp_path / "apart", *seeds(*apart))[0]) == [
        "ES: since the base the training reward outran the held-out reward by "
        f"0.600 [{0.6 - half:.3f}, {0.6 + half:.3f}] over 3 seeds."
    ]
    near = held_out_words(frames_of(tmp_path / "near", *seeds(0.2, 0.201, 0.202))[0])
    half = half_width(0.05)
    assert near == [
        "ES: since the base the training reward outran the held-out reward by "
        f"0.201 [{0.201 - half:.3f}, {0.201 + half:.3f}] over 3 seeds."
    ]
    # Seeds agree, but their common items do not bear it.
    assert held_out_words(frames_of(tmp_path / "small", *seeds(0.05, 0.051, 0.052))[0]) == []


def test_the_report_shows_table_figure_and_sentence_twice_the_same(tmp_path):
    rows = [*rows_of(0, 0.30, 0.28, ERRORS, N), *rows_of(10, 0.80, 0.55, ERRORS, N), change_of(10, 0.23, 0.05)]
    frames, runs = frames_of(tmp_path, rows)
    files = render(frames, runs)
    assert {"figures/held-out.png", "tables/held-out.csv"} <= files.keys()
    assert b"the training reward outruns the held-out reward by" in files["report.md"]
    assert files == render(frames, runs)
