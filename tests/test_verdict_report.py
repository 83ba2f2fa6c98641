"""The report's judgements on synthetic runs whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.errors import DriftlabError
from driftlab.report.contents import all_tables
from driftlab.report.formats import markdown_text
from driftlab.report.frames import build_frames
from driftlab.report.lost import shown_items
from driftlab.report.page import write_report
from driftlab.report.runs import RunData
from driftlab.report.tables import format_table
from driftlab.report.verdict_tables import (
    control_comparison_table,
    floor_table,
    rule_comparison_table,
    seed_means_table,
    target_curve_table,
    verdict_table,
)  # fmt: skip
from driftlab.report.verdicts import AVERAGE
from driftlab.report.words import diagnosis, explained
from driftlab.run.records import Example
from tests.test_report import ACCURACY, STEPS, TARGET, N, failed, manifest, row, said, toy_run, with_a_lost_rule

CHOICE = "toy_choice"


def seeded(arm: str, seed: int, lost: int = 0, control: str = "none") -> RunData:
    """A run whose final step loses ``lost`` further items of toy_choice."""
    run = toy_run(arm)
    spec = {**run.manifest.spec, "seed": seed, "control": control}
    right = round(ACCURACY[CHOICE][30] * N)
    examples = [
        replace(e, correct=float(int(e.item[-3:]) < right - lost)) if (e.task, e.step) == (CHOICE, 30) else e
        for e in run.examples
    ]
    rows = [
        replace(m, value=(right - lost) / N) if (m.group, m.step, m.quantity) == (CHOICE, 30, "accuracy") else m
        for m in run.measurements
    ]
    made = manifest(arm, spec=spec, run_id=f"{arm}-{seed}")
    return replace(run, manifest=made, examples=examples, measurements=rows)


def cells(table, **where: str) -> dict[str, str]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    (found,) = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return found


def test_a_fall_is_called_by_its_name_with_the_corrected_interval() -> None:
    frames = build_frames([toy_run()])
    found = frames.verdicts.set_index("task").loc[CHOICE]
    assert found["verdict"] == "declined"
    # d is −1 for 12 of 60 items: variance by hand, half counts included. The only task that ever changes is judged
    # alone, its final change at 97.5 %: one look's t, to the error of 40,000 draws.
    error = math.sqrt((12 / 60 - 0.04) / 59 + 1 / 3600)
    factor = (found["final_change"] - found["final_low"]) / error
    assert factor == pytest.approx(scipy_stats.t.ppf(1 - 0.025 / 2, 59), abs=0.04)
    assert (found["lowest_step"], found["lowest_change"]) == (20, pytest.approx(-0.3))
    assert (found["gained"], found["lost"]) == (0, 12)
    assert found["drawdown"] == pytest.approx(0.3)
    shown = cells(verdict_table(frames), **{"prior task": CHOICE})
    assert shown["gained / lost"] == "0 / 12 of 60"
    assert shown["floor, points"] == "not measured"


def test_a_run_of_two_checkpoints_gets_no_verdict() -> None:
    frames = build_frames([toy_run(steps=(0, 10))])
    assert set(frames.verdicts["verdict"]) == {"cannot say"}
    assert frames.verdicts["reason"].str.contains("3 checkpoints, base included, and 2 were measured").all()
    assert frames.targets.set_index("curve").loc["target accuracy", "verdict"] == "cannot say"


def test_too_few_items_say_how_many_would_do() -> None:
    run = with_a_lost_rule(toy_run())
    frames = build_frames([run])
    rules = frames.verdicts.set_index("task").loc["toy_rules"]
    assert rules["verdict"] == "cannot say"
    half = rules["final_high"] - rules["final_change"]
    # The final change of −1/60 leaves 5 − 1.7 points of room, and the half width falls with the root of n.
    assert rules["items_needed"] == math.ceil(N * (half / (0.05 - 1 / 60)) ** 2)
    assert "about 230 items would do" in rules["reason"]  # 222, rounded up to two digits
    assert set(build_frames([run], margin=0.2).verdicts.set_index("task").loc["toy_rules", ["verdict"]]) == {"stable"}


def generated_prior(run: RunData, unparsed: int = 0) -> RunData:
    """The same run with a third prior, toy_written, whose answers are generated: 30 of 60 right, then 24."""
    rows, examples = list(run.measurements), list(run.examples)
    for step in STEPS:
        right = 30 if step == 0 else 24
        rows.append(row(step, "lm_eval", "accuracy", "toy_written", right / N, "fraction", n_unparsed=unparsed))
        rows.append(row(step, "lm_eval", "unparsed_fraction", "toy_written", unparsed * (step > 0) / N, "fraction"))
        rows.append(row(step, "lm_eval", "accuracy_parsed", "toy_written", 0.5, "fraction"))
        rows.append(row(step, "lm_eval", "truncated_fraction", "toy_written", 0.25, "fraction"))
        for i in range(N):
            examples.append(
                Example(
                    step=step, task="toy_written", item=f"w-{i:03d}", cluster=f"w-{i:03d}", correct=float(i < right),
                    score=None, output_length=3, parsed=True, truncated=False, output=f"<b>{step}</b>", answer=str(i),
                )
            )  # fmt: skip
    return replace(run, measurements=rows, examples=examples)


def test_profiles_are_never_averaged_together() -> None:
    frames = build_frames([generated_prior(with_a_lost_rule(toy_run()))])
    assert frames.profiles == {
        CHOICE: "log-likelihood", "toy_rules": "log-likelihood", "toy_written": "generative"
    }  # fmt: skip
    averages = frames.averages[frames.averages["step"] == 30].set_index("profile")["difference"]
    assert averages["log-likelihood"] == pytest.approx((-0.2 - 1 / 60) / 2)
    assert averages["generative"] == pytest.approx(-0.1)
    judged = frames.verdicts[frames.verdicts["task"] == AVERAGE]
    assert list(judged["profile"]) == ["log-likelihood"]  # one generative task is its own average
    assert "average of 2 prior tasks, log-likelihood" in said(frames)


def test_format_is_told_apart_from_knowledge() -> None:
    shown = cells(format_table(build_frames([generated_prior(toy_run(), unparsed=12)])), task="toy_written")
    assert shown["accuracy"] == "50.0 → 40.0"
    assert shown["unparsed"] == "0.0 → 20.0"
    assert shown["accuracy among parsed"] == "50.0 → 50.0"
    assert shown["truncated"] == "25.0 → 25.0"


def test_what_is_lost_among_parsed_answers_is_paired() -> None:
    """At the end 12 answers, 3 of them right at the base, cannot be read; of the other 48 six are lost."""
    run = generated_prior(toy_run())
    unread = {f"w-{i:03d}" for i in (*range(3), *range(40, 49))}
    last = [
        replace(e, parsed=False, correct=0.0) if e.task == "toy_written" and e.step == 30 and e.item in unread else e
        for e in run.examples
    ]
    found = build_frames([replace(run, examples=last)]).differences
    change = found.query("task == 'toy_written' and step == 30").iloc[0]
    # Right at the base: 30, at the end 24, less 3 unread. Among the 48 read at both: 27 before, 21 after.
    assert (change["parsed_n"], change["parsed_difference"]) == (48, pytest.approx(-6 / 48))
    assert change["difference"] == pytest.approx(-9 / 60)


def test_seeds_are_the_unit() -> None:
    runs = [seeded("ES", seed, lost) for seed, lost in enumerate((0, 3, 9))]
    frames = build_frames(runs)
    assert frames.repeated
    values = [-0.2, -0.25, -0.35]
    ends = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = frames.seeds.query("task == @CHOICE and step == 30").iloc[0]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((np.mean(values), ends.low, ends.high))
    assert found["sd"] == pytest.approx(np.std(values, ddof=1))
    assert cells(seed_means_table(frames), task=CHOICE)["verdicts of the seeds"] == "3 declined"
    assert "ES, 3 seeds: by step 30 the target toy_target" in said(frames)
    pooled = frames.targets[frames.targets["run"] == "ES, mean of 3 seeds"]
    assert set(pooled["curve"]) == {"target accuracy"}
    assert pooled["highest"].iloc[0] == pytest.approx(0.8)


def test_an_arm_beside_the_random_walk() -> None:
    one = build_frames([seeded("ES", 0), seeded("walk", 0, 9, "shuffled-reward")])
    found = one.controls[one.controls["kind"] == "control"].set_index("task").loc[CHOICE]
    assert (found["change"], found["walk"], found["difference"]) == pytest.approx((-0.2, -0.35, 0.15))
    # Paired on items: 9 of 60 gained.
    error = math.sqrt((9 / 60 - 0.15**2) / 59 + 1 / 3600)
    assert found["high"] - found["difference"] == pytest.approx(scipy_stats.t.ppf(0.975, 59) * error)
    assert found["unit"] == "items"
    runs = [seeded(arm, seed, lost, control) for seed in (0, 1, 2) for arm, lost, control in (
        ("ES", (0, 3, 9)[seed], "none"), ("walk", (4, 5, 6)[seed], "shuffled-reward"))]  # fmt: skip
    several = build_frames(runs).controls.set_index("task").loc[CHOICE]
    differences = [4 / 60, 2 / 60, -3 / 60]
    ends = scipy_stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (several["difference"], several["low"], several["high"]) == pytest.approx(
        (np.mean(differences), ends.low, ends.high)
    )
    assert (several["unit"], several["n"]) == ("seeds", 3)
    shown = control_comparison_table(build_frames(runs))
    assert cells(shown, task=CHOICE)["unit"] == "3 seeds"
    apart = build_frames([seeded("ES", 0), seeded("walk", 1, 9, "shuffled-reward")])
    assert cells(control_comparison_table(apart), task=CHOICE)["difference"] == ("the two arms share no training seed")


def test_what_the_walk_explains_in_words() -> None:
    runs = [with_a_lost_rule(seeded("ES", 0)), with_a_lost_rule(seeded("walk", 0, 1, "shuffled-reward"))]
    sentence = explained(build_frames(runs))[-1]
    assert (
        "by −10.8 points, by −11.7 in the random walk (walk)" in sentence
    )  # toy_choice −13/60, toy_rules −1/60, halved
    assert "so the random walk alone may explain the change" in sentence
    more = [with_a_lost_rule(seeded("ES", 0)), with_a_lost_rule(seeded("walk", 0, 30, "shuffled-reward"))]
    assert "the arm ended higher than the random walk" in explained(build_frames(more))[-1]


def test_stopping_rules() -> None:
    table = rule_comparison_table(build_frames([toy_run()]))
    reward = cells(table, rule="peak of the training reward")
    # The reward saturates at iteration 27 and only falls after it; the nearest measured step is 30.
    assert (reward["stops at"], reward["read at"], reward[CHOICE]) == ("27", "30", "−20.0")
    accuracy = cells(table, rule="peak of the target accuracy")
    assert (accuracy["stops at"], accuracy[TARGET], accuracy[CHOICE]) == ("20", "+60.0", "−30.0")
    assert cells(table, rule="last step")[TARGET] == "+50.0"
    decline = cells(table, rule="first clear prior decline")
    assert decline["stops at"] == "20"  # −10 points at step 10 are 6 of 60 items: not clear
    best = cells(table, rule="highest prior average")
    assert (best["stops at"], best[CHOICE]) == ("0", "0.0")


def test_the_targets_curve() -> None:
    frames = build_frames([toy_run()])
    accuracy = frames.targets.set_index("curve").loc["target accuracy"]
    # 0.2, 0.5, 0.8, 0.7 over 60 items: from step 20 to the end six items are lost and none gained, 2.19 standard
    # errors (half counts at both ends: sqrt((6/60 - 0.01)/59 + 2/3600) = 0.0456); one-sided for three competitors the
    # critical value is at most Bonferroni's t(1 - 0.05/3) = 2.18 for the peak's interval, and about 2.5 for a decay.
    assert (accuracy["peak"], accuracy["peak_low"], accuracy["peak_high"]) == (20, 20, 20)
    assert accuracy["verdict"] == "cannot say"
    assert "not sure enough to call a decay" in accuracy["reason"]
    assert cells(target_curve_table(frames), curve="target accuracy")["highest"] == "0.800"
    (sentence,) = diagnosis(frames)
    assert sentence.startswith("ES: the training reward still rises at the end")
    assert "LIT-236's decay has not begun" in sentence


def test_the_floor_is_the_largest_over_conditions() -> None:
    run = toy_run()
    extra = [
        row(0, "floor", f"floor_{what}_{variant}", CHOICE, value, "fraction")
        for variant, difference, flips in (("batch", -0.002, 0.01), ("order", 0.001, 0.02))
        for what, value in (("difference", difference), ("flips", flips))
    ]
    frames = build_frames([replace(run, measurements=[*run.measurements, *extra])])
    found = frames.floors.iloc[0]
    assert (found["task"], found["difference"], found["flips"], found["variants"]) == (
        CHOICE, 0.002, 0.02, "batch, order",
    )  # fmt: skip
    assert floor_table(frames).rows[0][:3] == (CHOICE, "0.2", "2.00")
    assert cells(verdict_table(frames), **{"prior task": CHOICE})["floor, points"] == "0.2"


def test_lost_items_with_their_answers(tmp_path: Path) -> None:
    run = generated_prior(toy_run())
    texts = {"toy_written": {"w-024": {"question": "<script>x</script>" + "q" * 400, "right": "42"}}}
    frames = build_frames([replace(run, items=texts)])
    written = frames.lost[frames.lost["task"] == "toy_written"]
    # Items 24 to 29 are right at the base and wrong at all three later steps.
    assert list(written["item"]) == [f"w-{i:03d}" for i in range(24, 30)]
    assert set(zip(written["lost"], written["of"], strict=True)) == {(3, 3)}
    choice = frames.lost[frames.lost["task"] == CHOICE]
    # Right at the base: 48. At steps 10, 20, 30 right: 42, 30, 36: items 42 to 47 lost thrice, 36 to 41 twice.
    counts = choice["lost"].value_counts().to_dict()
    assert counts == {3: 6, 2: 6, 1: 6}
    item = next(found for found in shown_items(frames.lost) if found.item == "w-024")
    assert (item.base_answer, item.answer, item.right, item.where) == ("24", "24", "42", "ES, step 30")
    assert item.question is not None
    assert item.question.startswith("[…] q")
    page = (write_report([replace(run, items=texts)], tmp_path / "report") / "report.html").read_text()
    assert "<script>x" not in page
    assert "lost at 3 of 3 checkpoints" in page


def test_items_that_some_steps_lack_are_named() -> None:
    run = toy_run()
    kept = [e for e in run.examples if (e.task, e.step, e.item) != (CHOICE, 20, "toy_choice-007")]
    frames = build_frames([replace(run, examples=kept)])
    problem = frames.problems[frames.problems["status"] == "unpaired"].iloc[0]
    assert problem["step"] == "20"
    assert "1 of 60 items are not stored at every step, for example toy_choice-007" in problem["note"]
    assert frames.verdicts.set_index("task").loc[CHOICE, "n"] == 59


def test_seeds_that_end_alike_still_have_the_items_error() -> None:
    """Three seeds lose the same item: their scatter is 0, and the interval is that over items, t with 19 clusters."""
    frames = build_frames([with_a_lost_rule(seeded("ES", seed)) for seed in (0, 1, 2)])
    found = frames.seeds.query("task == 'toy_rules' and step == 30").iloc[0]
    single = build_frames([with_a_lost_rule(seeded("ES", 0))]).differences
    one = single.query("task == 'toy_rules' and step == 30").iloc[0]
    assert (found["sd"], found["low"], found["high"]) == pytest.approx((0.0, one["low"], one["high"]))


def test_runs_of_one_arm_are_its_seeds_and_nothing_else() -> None:
    again = replace(seeded("ES", 0), manifest=manifest("ES", run_id="again", spec=seeded("ES", 0).manifest.spec))
    with pytest.raises(DriftlabError, match="ES-0, again differ in nothing: they share a seed"):
        build_frames([seeded("ES", 0), again])
    other = seeded("ES", 1)
    wider = {**other.manifest.spec, "name": "wide", "es": {**other.manifest.spec["es"], "sigma": 0.5}}
    frames = build_frames([seeded("ES", 0), replace(other, manifest=manifest("ES", run_id="b", spec=wider))])
    assert list(frames.runs["arm"]) == ["ES (toy-ES)", "ES (wide)"]
    assert not frames.repeated


def test_a_task_that_failed_at_the_end_gets_no_verdict_and_no_average() -> None:
    frames = build_frames([failed(with_a_lost_rule(toy_run()), 30, CHOICE, "out of memory")])
    found = frames.verdicts.set_index("task")
    assert found.loc[CHOICE, "verdict"] == "cannot say"
    assert found.loc[CHOICE, "reason"] == "the final step 30 was not measured"
    assert found.loc[AVERAGE, "reason"] == f"{CHOICE}: the final step 30 was not measured"
    assert found.loc[[CHOICE, AVERAGE], "final_change"].isna().all()


def test_a_step_that_lost_most_of_its_items_does_not_take_them_from_the_others() -> None:
    run = toy_run()
    few = [e for e in run.examples if (e.task, e.step) != (CHOICE, 20) or int(e.item[-3:]) < 6]
    frames = build_frames([replace(run, examples=few)])
    found = frames.verdicts.set_index("task").loc[CHOICE]
    assert (found["n"], found["final_change"]) == (60, pytest.approx(-0.2))
    change = frames.differences.query("task == @CHOICE and step == 30").iloc[0]
    assert change["bootstrap_low"] < -0.2 < change["bootstrap_high"]


def test_an_average_lacks_no_task() -> None:
    """The third prior was never measured in the second run: its average is no average of three."""
    whole, partly = generated_prior(with_a_lost_rule(toy_run())), with_a_lost_rule(toy_run("other"))
    frames = build_frames([whole, failed(partly, 10, "toy_rules", "gone")])
    other = frames.verdicts[(frames.verdicts["run"] == "other") & (frames.verdicts["task"] == AVERAGE)]
    assert list(other["verdict"]) == ["cannot say"]
    assert other["reason"].iloc[0] == "its tasks were not measured at the same steps"


def test_two_profiles_keep_their_averages_over_seeds() -> None:
    frames = build_frames([generated_prior(with_a_lost_rule(seeded("ES", seed))) for seed in (0, 1)])
    means = frames.seeds.query("task == @AVERAGE and step == 30").set_index("profile")["mean"]
    assert means.to_dict() == pytest.approx({"log-likelihood": (-0.2 - 1 / 60) / 2, "generative": -0.1})
    assert "was not measured" not in said(frames)


def test_a_walk_with_other_settings_is_named_so() -> None:
    anchored = seeded("ES+AWD", 0)
    spec = {**anchored.manifest.spec, "anchor": {"penalty": "l2", "lambda": 2.0}}
    anchored = replace(anchored, manifest=manifest("ES+AWD", run_id="awd", spec=spec))
    frames = build_frames([anchored, seeded("walk", 0, 9, "shuffled-reward")])
    assert not frames.controls["alike"].any()
    shown = cells(control_comparison_table(frames), task=CHOICE)
    assert shown["against"] == "walk (other settings)"


def test_seeds_are_compared_with_the_walk_at_one_step() -> None:
    """The walk of seed 1 ends at step 20: every seed and task is read there."""
    short = toy_run("walk", steps=(0, 10, 20))
    spec = {**short.manifest.spec, "seed": 1, "control": "shuffled-reward"}
    short = replace(short, manifest=manifest("walk", run_id="short", spec=spec))
    frames = build_frames([seeded("ES", 0), seeded("ES", 1), seeded("walk", 0, control="shuffled-reward"), short])
    assert set(frames.controls["step"].dropna()) == {20}
    assert cells(control_comparison_table(frames), task=CHOICE)["step"] == "20"


def test_what_is_not_known_is_no_zero_in_the_rules() -> None:
    run = toy_run()
    without_target = [e for e in run.examples if e.task != TARGET]
    table = rule_comparison_table(build_frames([replace(run, examples=without_target)]))
    best = cells(table, rule="highest prior average")
    assert (best["stops at"], best[TARGET], best[CHOICE]) == ("0", "–", "0.0")
    short = rule_comparison_table(build_frames([toy_run(steps=(0, 10))]))
    assert cells(short, rule="first clear prior decline")["note"] == "not known: no prior task was judged"
    assert cells(short, rule="peak of the target accuracy")["stops at"] == "10"


def test_a_reward_that_only_falls_is_no_decay_after_a_gain() -> None:
    run = toy_run()
    falling = [replace(u, rewards=tuple(1.0 - 0.02 * u.step + 0.001 * m for m in range(4))) for u in run.updates]
    (sentence,) = diagnosis(build_frames([replace(run, updates=falling)]))
    assert "no gain came first" in sentence
    walk = seeded("walk", 0, control="shuffled-reward")
    assert len(diagnosis(build_frames([run, walk]))) == 1  # a control is no training


def test_a_constant_metric_gets_no_verdict() -> None:
    found = build_frames([toy_run()]).verdicts.set_index("task").loc["toy_rules"]
    assert (found["verdict"], found["reason"]) == (
        "cannot say", "no item changed at any step of any run: the metric is constant",
    )  # fmt: skip


def test_a_single_cluster_has_no_interval_anywhere() -> None:
    run = toy_run()
    chance = [row(step, "lm_eval", "chance", CHOICE, 0.25, "fraction") for step in STEPS]
    one = [replace(e, cluster="same") if e.task == CHOICE else e for e in run.examples]
    frames = build_frames([replace(run, examples=one, measurements=[*run.measurements, *chance])])
    change = frames.differences.query("task == @CHOICE and step == 30").iloc[0]
    assert change[["low", "high", "bootstrap_low", "detectable", "retention_low"]].isna().all()
    assert change["retention"] == pytest.approx((0.6 - 0.25) / (0.8 - 0.25))
    assert "no interval" in cells(verdict_table(frames), **{"prior task": CHOICE})["retained, %"]


def test_odd_text_does_not_stop_a_report(tmp_path: Path) -> None:
    run = generated_prior(toy_run())
    odd = [replace(e, answer="[x](http://y)\r`") if e.task == "toy_written" else e for e in run.examples]
    out = write_report([replace(run, examples=odd)], tmp_path / "report")
    assert "[x](http://y)" in (out / "tables" / "lost-items.csv").read_text()
    assert markdown_text("[x](http://y)\r|") == "[x]\\(http://y) \\|"


def test_every_table_has_its_columns_with_controls_and_seeds() -> None:
    runs = [seeded(arm, seed, seed, control) for seed in (0, 1) for arm, control in (
        ("ES", "none"), ("walk", "shuffled-reward"))]  # fmt: skip
    for table in all_tables(build_frames(runs)):
        assert all(len(cell) == len(table.columns) for cell in table.rows), table.name
