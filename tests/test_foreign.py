"""Runs of es-awd: read, replayed bit for bit, imported, reported."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from driftlab.cli import app
from driftlab.drift.bands import average_curve
from driftlab.drift.curves import prior_verdict, run_critical_values
from driftlab.errors import DriftlabError, RunError, SpecError
from driftlab.importing import TEXT_SET, import_foreign
from driftlab.models.foreign import read_foreign
from driftlab.models.foreign_replay import replay, replay_notes, shared_noise_factor, tensor_names
from driftlab.models.hashing import weights_hash
from driftlab.report.frames import Frames, build_frames
from driftlab.report.page import write_report
from driftlab.report.runs import read_run
from driftlab.report.unpaired import TaskAccuracies
from driftlab.run.store import RunStore
from tests.foreign_imitation import CURVES, ITERATIONS, Settings, train
from tests.helpers import tiny_llama, tiny_tokenizer, weights_of

D_3B = 3_085_938_688  # parameters of Qwen2.5-3B-Instruct, tied embedding once (3.09 billion on its model card)
FUSED_PARTS = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
RENOISED = {"k_proj", "v_proj", "up_proj"}
"""Parts that do not come first in their fused tensor. On the CPU a tensor's first numbers do not depend on its size."""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "countdown_seed7"
    train(tiny_llama(), folder, Settings())
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "run")


def edit(file: Path, **changes: Any) -> None:
    document = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))


def args_with(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "args.json", **changes)


def update_with(step: int, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "iteration_updates" / f"iteration_{step:06d}.json", **changes)


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def row_with(**changes: Any) -> Callable[[Path], None]:
    """The second line of countdown.jsonl, changed."""

    def change(folder: Path) -> None:
        file = folder / "countdown.jsonl"
        lines = file.read_text().splitlines()
        lines[1] = json.dumps(json.loads(lines[1]) | changes)
        file.write_text("\n".join(lines) + "\n")

    return change


def test_a_run_is_read_as_it_was_written(original: Path) -> None:
    run = read_foreign(original)
    args = run.args
    assert (args.model_name, args.task, args.precision) == ("Qwen/Qwen2.5-3B-Instruct", "countdown", "float16")
    assert (args.sigma, args.alpha, args.population, args.mirrored, args.engines) == (0.02, 0.01, 10, False, 1)
    assert (args.iterations, args.seed, args.penalty, args.lam, args.decay) == (ITERATIONS, 7, "none", 0.0, 0.0)
    for step, update in enumerate(run.updates, start=1):
        stored = json.loads((original / "iteration_updates" / f"iteration_{step:06d}.json").read_text())
        assert (update.step, list(update.seeds)) == (step, stored["seeds"])
        assert list(update.coefficients) == stored["update_coefficients"]
        assert math.fsum(c * c for c in update.coefficients) == pytest.approx(10, rel=1e-4)  # z-scores of 10 members
    assert list(run.accuracies) == ["countdown", "hellaswag", "piqa"]
    for dataset, curve in CURVES.items():
        rows = run.accuracies[dataset]
        assert [(row.step, row.n) for row in rows] == [(step, n) for step, (_, n) in curve.items()]
        assert [row.value for row in rows] == pytest.approx([right / n for right, n in curve.values()])


def test_nothing_measured_is_no_zero_and_other_files_are_no_accuracies(folder: Path) -> None:
    row_with(num_examples=0, accuracy=0.0)(folder)
    (folder / "hellaswag_kl.jsonl").write_text(json.dumps({"step": 0, "accuracy": 3}) + "\n")
    (folder / "weight_change.jsonl").write_text(json.dumps({"step": 0, "frobenius_norm": 0.0}) + "\n")
    (folder / "mmlu-pro.jsonl").write_text(json.dumps({"step": 0, "num_examples": 4, "accuracy": 25}) + "\n")
    run = read_foreign(folder)
    assert (run.accuracies["countdown"][1].value, run.accuracies["countdown"][1].n) == (None, 0)
    assert set(run.accuracies) == {"countdown", "hellaswag", "piqa", "mmlu_pro"}
    assert run.unread == ("hellaswag_kl.jsonl", "weight_change.jsonl")


def test_a_penalty_of_strength_zero_is_none(folder: Path) -> None:
    edit(folder / "args.json", weight_decay_type="l2", weight_decay_lambda=0.0)
    assert (read_foreign(folder).args.penalty, read_foreign(folder).args.lam) == ("none", 0.0)


def test_reading_needs_no_torch() -> None:
    code = "import driftlab.models.foreign, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


UPDATES = "iteration_updates/iteration_00000{}.json"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no args": (without("args.json"), r"no es-awd run in .*args.json is missing; give"),
    "torn args": (lambda f: (f / "args.json").write_text("{"), r"args.json is not valid JSON"),
    "no object": (lambda f: (f / "args.json").write_text("[1]"), r"args.json holds no JSON object"),
    "no text": (lambda f: (f / "args.json").write_bytes(b"\xff\xfe"), r"args.json cannot be read"),
    "missing key": (args_with(sigma=...), r"args.json lacks sigma; restore"),
    "missing lambda": (args_with(weight_decay_lambda=...), r"lacks weight_decay_lambda"),
    "text for a number": (args_with(alpha="0.01"), r"alpha is '0.01', but should be a valid number"),
    "true for a number": (args_with(num_engines=True), r"num_engines is True, but should be a valid integer"),
    "no engines": (args_with(num_engines=0), r"num_engines is 0, but should be greater than or equal to 1"),
    "zero sigma": (args_with(sigma=0), r"sigma is 0, but should be greater than 0"),
    "infinite alpha": (args_with(alpha=math.inf), r"alpha is inf, but should be a finite number"),
    "unknown precision": (args_with(precision="float8"), r"precision is 'float8', but should be 'float16', 'bfloat16'"),
    "unknown penalty": (args_with(weight_decay_type="l3"), r"weight_decay_type is 'l3', but should be 'none', 'l1'"),
    "unknown task": (args_with(task="chess"), r"task is 'chess'"),
    "negative lambda": (args_with(weight_decay_lambda=-1), r"weight_decay_lambda is -1"),
    "no contraction": (
        args_with(weight_decay_type="l2", weight_decay_lambda=100.0),
        r"alpha is 0.01 and weight_decay_lambda 100, so alpha\*lambda is 1, but l2 decay needs it below 1",
    ),
    "odd pairs": (args_with(mirror_sampling=True, population_size=9), r"population_size is 9 with mirror_sampling"),
    "no updates": (lambda f: shutil.rmtree(f / "iteration_updates"), r"iteration_updates is missing"),
    "one gap": (without(UPDATES.format(2)), r"iteration 2 is missing; restore it from a copy$"),
    "end gap": (without(UPDATES.format(3)), r"iteration 3 is missing; .* set num_iterations to 2 in args.json if"),
    "many gaps": (args_with(num_iterations=5), r"iterations 4 to 5 are missing"),
    "too many": (args_with(num_iterations=2), r"iteration_000003.json goes beyond the 2 iterations"),
    "another iteration": (update_with(2, iteration=1), r"iteration_000002.json holds iteration 1, which its name"),
    "odd name": (
        lambda f: (f / UPDATES.format(2)).rename(f / "iteration_updates" / "iteration_2.json"),
        r"iteration_2.json holds iteration 2, which its name does not say",
    ),
    "few seeds": (update_with(1, seeds=[1, 2]), r"holds 2 seeds, but a population of 10 has 10"),
    "mirrored seeds": (args_with(mirror_sampling=True), r"holds 10 seeds, but a mirrored population of 10 has 5"),
    "few coefficients": (update_with(1, update_coefficients=[0.5]), r"holds 1 update_coefficients for 10 seeds"),
    "no coefficient": (update_with(1, update_coefficients=[math.nan] * 10), r"coefficients.0 is nan, but .* finite"),
    "half a seed": (update_with(1, seeds=[0.5] * 10), r"seeds.0 is 0.5, but should be a valid integer"),
    "negative seed": (update_with(1, seeds=[-1] * 10), r"seeds.0 is -1"),
    "mixed updates": (update_with(2, precision="bfloat16"), r"mixed precisions: iteration_000002.json is in bfloat16"),
    "mixed rows": (row_with(precision="float32"), r"mixed precisions: .*countdown.jsonl line 2 is in float32"),
    "mixed weights": (
        lambda f: torch.save({"w": torch.zeros(2)}, f / "final_model_weights.pt"),
        r"mixed precisions: final_model_weights.pt is in float32, and args.json says float16",
    ),
    "no weights": (lambda f: (f / "final_model_weights.pt").write_text("x"), r"final_model_weights.pt cannot be read"),
    "above 100": (row_with(accuracy=100.5), r"countdown.jsonl line 2: accuracy is 100.5, but should be less than"),
    "below 0": (row_with(accuracy=-1), r"accuracy is -1"),
    "no accuracy": (row_with(accuracy=math.nan), r"accuracy is nan, but should be a finite number"),
    "step twice": (row_with(step=0), r"countdown.jsonl line 2 holds step 0 a second time"),
    "late step": (row_with(step=9), r"line 2 holds step 9, beyond the 3 of args.json"),
    "torn row": (lambda f: (f / "piqa.jsonl").open("a").write('{"step": 3'), r"piqa.jsonl line 5 is not valid JSON"),
    "two spellings": (
        lambda f: [(f / f"mmlu{dash}pro.jsonl").write_text("") for dash in "-_"],
        r"mmlu_pro.jsonl and mmlu-pro.jsonl are of one dataset",
    ),
}


@pytest.mark.parametrize(("damage", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(folder: Path, damage: Callable[[Path], Any], said: str) -> None:
    damage(folder)
    with pytest.raises(RunError, match=said) as error:
        read_foreign(folder)
    assert "\n" not in str(error.value)
    assert ";" in str(error.value)  # what to do


def test_gaps_are_told_as_ranges(folder: Path) -> None:
    for step in range(4, 13):
        shutil.copy(folder / UPDATES.format(1), folder / "iteration_updates" / f"iteration_{step:06d}.json")
        update_with(step, iteration=step)(folder)
    edit(folder / "args.json", num_iterations=12)
    for step in (3, 5, 7, 8, 9):
        (folder / UPDATES.format(step)).unlink()
    with pytest.raises(RunError, match=r"iterations 3, 5 and 7 to 9 are missing; restore them from a copy$"):
        read_foreign(folder)


def different(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> set[str]:
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


def part(name: str) -> str:
    return name.split(".")[-2]


@pytest.mark.parametrize("engines", [1, 4])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("penalty", "lam"), [("none", 0.0), ("l1", 0.02), ("l2", 3.0)])
def test_the_fused_replay_gives_the_trained_weights(
    tmp_path: Path, penalty: str, lam: float, mirrored: bool, engines: int
) -> None:
    model = tiny_llama()
    base = weights_of(model)
    final = train(
        model, tmp_path / "run", Settings(penalty=penalty, lam=lam, mirrored=mirrored, engines=engines), curves={}
    )
    run = read_foreign(tmp_path / "run")
    ((step, fused),) = replay(run, base, layout="fused", device="cpu", steps=[ITERATIONS])
    assert step == ITERATIONS
    assert not different(fused, final)
    assert all(tensor.dtype == torch.float32 for tensor in fused.values())
    assert len(different(fused, base)) == len(base)
    # Unfused, everything that is no part of a fused tensor is as trained, and what does not come first in one is not.
    ((_, unfused),) = replay(run, base, layout="hf", device="cpu", steps=[ITERATIONS])
    odd = different(unfused, final)
    assert {name for name in base if part(name) in RENOISED} <= odd
    assert {part(name) for name in odd} <= FUSED_PARTS


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_other_precisions(tmp_path: Path, precision: str) -> None:
    model = tiny_llama(attention_bias=True)  # with biases, as Qwen2 has them
    settings = Settings(precision=precision, penalty="l2", lam=3.0, engines=3)
    final = train(model, tmp_path / "run", settings, curves={})
    steps = dict(replay(read_foreign(tmp_path / "run"), weights_of(model), layout="fused", device="cpu", steps=[0, 3]))
    assert not different(steps[3], final)
    rounded = {name: tensor.to(getattr(torch, precision)).float() for name, tensor in weights_of(model).items()}
    assert not different(steps[0], rounded)


def test_the_masters_own_visits_leave_a_residue(original: Path, folder: Path) -> None:
    """With ten engines the master serves one member of ten; with one engine all of them."""
    edit(folder / "args.json", num_engines=10)
    base = weights_of(tiny_llama())
    runs = [read_foreign(path) for path in (original, folder)]
    ones, tens = (dict(replay(run, base, layout="fused", device="cpu", steps=[1]))[1] for run in runs)
    assert different(ones, tens)
    widest = max(float((ones[name] - tens[name]).abs().max()) for name in base)
    assert widest <= 10 * 2**-10  # some roundings of float16 numbers below 2, and no step


def test_replaying_leaves_no_trace(original: Path) -> None:
    run, base = read_foreign(original), weights_of(tiny_llama())
    before, state = weights_hash(base), torch.get_rng_state()
    whole = dict(replay(run, base, layout="fused", device="cpu", steps=[3, 1, 2, 2]))
    assert list(whole) == [1, 2, 3]
    for step, weights in replay(run, base, layout="fused", device="cpu", steps=[1, 2, 3]):
        assert not different(weights, whole[step])
        for tensor in weights.values():
            tensor.zero_()
    assert weights_hash(base) == before
    assert torch.equal(torch.get_rng_state(), state)
    for step in (-1, 4):
        with pytest.raises(RunError, match=rf"has steps 0 to 3, not {step}"):
            next(replay(run, base, layout="fused", device="cpu", steps=[step]))


def test_what_is_fused() -> None:
    base = {f"model.layers.0.{name}": torch.zeros(2, 2) for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight")}
    with pytest.raises(RunError, match=r"to fuse; use --replay hf"):
        tensor_names(base, "fused")
    for name in ("q_proj", "k_proj", "v_proj"):
        base |= {f"model.layers.0.self_attn.{name}.{kind}": torch.zeros(2, 2) for kind in ("weight", "bias")}
    names = tensor_names(base, "fused")
    for kind in ("weight", "bias"):
        assert tuple(f"model.layers.0.self_attn.{p}_proj.{kind}" for p in "qkv") in names
    assert len(names) == 4
    assert tensor_names(base, "hf") == [(name,) for name in base]
    del base["model.layers.0.self_attn.k_proj.bias"]
    with pytest.raises(RunError, match=r"lacks model.layers.0.self_attn.k_proj.bias"):
        tensor_names(base, "fused")


def test_notes_say_what_the_replay_is_not() -> None:
    base = weights_of(tiny_llama())
    assert "received other noise" in replay_notes(base, layout="hf", device="cpu")[0]
    fused = replay_notes(base, layout="fused", device="cpu")
    assert ["CPU" in note for note in fused] == [True, False]
    assert "fills the 20 rows of model.embed_tokens.weight up to a multiple of 64" in fused[1]
    assert replay_notes(weights_of(tiny_llama(vocab_size=64)), layout="fused", device="cuda") == ()


def test_shared_noise_widens_the_scatter() -> None:
    # Three tensors of 8 numbers share noise, one of 8 in another shape does not: sqrt((9 * 8 + 8) / 32).
    base = {f"a{number}": torch.zeros(2, 4) for number in range(3)} | {"b": torch.zeros(8)}
    assert shared_noise_factor(base, "hf") == pytest.approx(math.sqrt(80 / 32))


def found(store: RunStore, quantity: str, step: int, group: str = "all") -> Any:
    (row,) = [m for m in store.measurements() if (m.quantity, m.step, m.group) == (quantity, step, group)]
    return row


@pytest.mark.parametrize(("penalty", "lam"), [("none", 0.0), ("l2", 3.0)])
def test_an_import_without_weights(tmp_path: Path, penalty: str, lam: float) -> None:
    train(tiny_llama(), tmp_path / "theirs", Settings(penalty=penalty, lam=lam, mirrored=True))
    store = import_foreign(tmp_path / "theirs", tmp_path / "runs", name="ours")
    assert store.path == tmp_path / "runs" / "ours"
    again = RunStore.open(store.path)
    assert (again.manifest.status, again.manifest.spec["arm"]) == ("finished", "ES+AWD-L2" if lam else "ES")
    assert (again.manifest.spec["target"]["task"], again.manifest.model["weights_hash"]) == ("countdown", None)
    assert again.example_steps() == [0, 1, 2, 3]
    # E||theta_t - theta_0||^2 = d * v_t, v_t = q^2 (v_(t-1) + (alpha/N)^2 sum c^2), q = 1 - alpha * lambda.
    v = 0.0
    for step, update in enumerate(again.updates(), start=1):
        stored = json.loads((tmp_path / "theirs" / UPDATES.format(step)).read_text())
        assert list(update.coefficients) == stored["update_coefficients"]
        assert (len(update.seeds), update.population, update.sigma, update.alpha) == (5, 10, 0.02, 0.01)
        assert (update.weights_hash, update.step_norm, update.rewards) == (None, None, ())
        assert (update.penalty, update.decay) == (penalty, 0.01 * lam)
        v = (1 - 0.01 * lam) ** 2 * (v + (0.01 / 10) ** 2 * sum(c * c for c in stored["update_coefficients"]))
        row = found(again, "predicted_norm", step)
        assert (row.value, row.n, row.stderr) == (pytest.approx(math.sqrt(D_3B * v)), D_3B, None)
        assert found(again, "predicted_norm_alpha", step).value == pytest.approx(0.01 * math.sqrt(D_3B * step / 10))
    assert (found(again, "update_norm", 3).status, found(again, "update_norm", 3).value) == ("skipped", None)
    accuracy = found(again, "accuracy", 2, "hellaswag")
    assert (accuracy.value, accuracy.n) == (pytest.approx(1149 / 2048), 2048)
    assert accuracy.stderr == pytest.approx(math.sqrt(1149 * 899 / 2048**3))


def test_unknown_size_is_a_gap_with_a_reason(folder: Path, tmp_path: Path) -> None:
    edit(folder / "args.json", model_name="./gone", global_seed=0)
    row_with(num_examples=0, accuracy=0.0)(folder)
    (folder / "weight_change.jsonl").write_text("")
    store = import_foreign(folder, tmp_path / "runs", name="ours")
    rows = {row.quantity: row for row in store.measurements() if row.step == 3 and row.probe == "weights"}
    assert {row.status for row in rows.values()} == {"skipped"}
    assert "--model" in str(rows["predicted_norm"].note)
    nothing = found(store, "accuracy", 1, "countdown")
    assert (nothing.value, nothing.status, nothing.n) == (None, "failed", 0)
    notes = " ".join(store.manifest.provenance["import_notes"])
    for word in (
        "size of the model is not known",
        "seed 42 for global seed 0",
        "g and g + 1 share",
        "weight_change.jsonl",
    ):
        assert word in notes


def test_an_import_with_replayed_weights(tmp_path: Path, model_folder: Path) -> None:
    settings = Settings(penalty="l2", lam=3.0, engines=4, model_name=str(model_folder))
    final = train(tiny_llama(), tmp_path / "theirs", settings)
    store = import_foreign(tmp_path / "theirs", tmp_path / "runs", name="ours", layout="fused", kl_texts=3)
    updates = store.updates()
    assert updates[-1].weights_hash == weights_hash(final)
    base = {name: tensor.half().double() for name, tensor in weights_of(tiny_llama()).items()}
    moved = math.sqrt(sum(float((final[name].double() - base[name]).square().sum()) for name in base))
    assert found(store, "update_norm", 3).value == pytest.approx(moved)
    tied = float((final["model.embed_tokens.weight"].double() - base["model.embed_tokens.weight"]).square().sum())
    assert found(store, "update_norm_state_dict", 3).value == pytest.approx(math.sqrt(moved**2 + tied))
    assert found(store, "step_norm", 1).value == pytest.approx(found(store, "update_norm", 1).value)
    assert updates[0].step_cosine is None
    assert updates[1].step_cosine is not None
    assert found(store, "update_norm", 0).value == found(store, "kl_base_to_step", 0, TEXT_SET).value == 0.0
    assert found(store, "kl_base_to_step", 3, TEXT_SET).value > 0
    # float16 rounding moves this short walk's norm by little; its scatter is that of shared noise, 1/sqrt(2d) times it.
    row = found(store, "predicted_norm", 3)
    factor = shared_noise_factor(base, "fused")
    assert found(store, "random_walk_ratio", 3).value == pytest.approx(1.0, abs=4 * factor / math.sqrt(2 * row.n))
    assert row.stderr == pytest.approx(row.value * factor / math.sqrt(2 * row.n), rel=1e-6)
    assert [len(texts) for texts in store.references().values()] == [3]


def test_only_some_steps_and_only_what_is_possible(folder: Path, tmp_path: Path, model_folder: Path) -> None:
    out = tmp_path / "runs"
    store = import_foreign(folder, out, name="a", model=str(model_folder), layout="hf", steps=[2])
    assert [update.weights_hash is None for update in store.updates()] == [True, False, True]
    assert store.updates()[1].step_cosine is not None  # steps 0 and 1 were rebuilt on the way
    assert (found(store, "update_norm", 2).status, found(store, "update_norm", 3).status) == ("ok", "skipped")
    notes = store.manifest.provenance["import_notes"]
    assert "received other noise" in notes[0]
    assert any("was trained from Qwen/Qwen2.5-3B-Instruct" in note for note in notes)
    with pytest.raises(RunError, match="already exists"):
        import_foreign(folder, out, name="a")
    with pytest.raises(RunError, match="add --replay"):
        import_foreign(folder, out, name="b", steps=[2])
    with pytest.raises(RunError, match="has steps 0 to 3, not -1"):
        import_foreign(folder, out, name="c", model=str(model_folder), layout="hf", steps=[-1])
    with pytest.raises(RunError, match="has steps 0 to 3, not 4"):
        import_foreign(folder, out, name="b", model=str(model_folder), layout="fused", steps=[4])
    assert not (out / "b").exists()


def frames_of(tmp_path: Path, *runs: tuple[str, Settings, dict[str, Any]]) -> Frames:
    """Frames of imported runs; per run its folder's name, settings and curves."""
    stores = []
    for name, settings, curves in runs:
        folder = tmp_path / "theirs" / name
        train(tiny_llama(), folder, settings, curves)
        stores.append(import_foreign(folder, tmp_path / "ours", name=name))
    return build_frames([read_run(store.path) for store in stores])


def unpaired_variance(right: int, n: int) -> float:
    return right / n * (1 - right / n) / (n - 1) + 0.5 / n**2


def test_verdicts_without_items(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, ("es", Settings(), CURVES))
    row = frames.differences.query("task == 'hellaswag' and step == 3").iloc[0]
    change = 1180 / 2048 - 1303 / 2048
    error = math.sqrt(unpaired_variance(1303, 2048) + unpaired_variance(1180, 2048))
    half = stats.t.ppf(0.975, 2047) * error
    assert (row["difference"], row["stderr"]) == (pytest.approx(change), pytest.approx(error))
    assert (row["low"], row["high"]) == (pytest.approx(change - half), pytest.approx(change + half))
    assert (row["status"], row["n"]) == ("ok", 2048)
    assert row[["gained", "lost", "retention", "unpaired"]].isna().all()
    assert row["note"].startswith("unpaired")
    average = frames.averages.query("step == 3").iloc[0]
    assert average["difference"] == pytest.approx((change + (1471 - 1492) / 1838) / 2)
    assert math.isnan(average["gained"])
    words = {row.task: (row.verdict, row.reason) for row in frames.verdicts.itertuples()}
    assert {task: word for task, (word, _) in words.items()} == {
        "hellaswag": "declined",
        "piqa": "stable",
        "": "declined",
    }
    assert all(reason.startswith("unpaired; ") for _, reason in words.values())
    assert set(frames.profiles.values()) == {"generative"}
    band = frames.bands.query("task == 'hellaswag' and step == 3").iloc[0]
    # One comparison alone has 2.24 standard errors at its 97.5 %; two tasks and their average need more.
    assert 2.24 < (band["high"] - band["change"]) / error < 3.0
    target = {row.curve: row for row in frames.targets.itertuples()}
    assert target["target accuracy"].verdict == "still rising"
    assert target["target accuracy"].highest == pytest.approx(0.572)
    assert target["training reward"].reason == "the run stores no rewards"
    problems = {(row.what, row.status): row.note for row in frames.problems.itertuples()}
    assert "unpaired binomial" in problems["lm_eval accuracy, countdown, hellaswag, piqa", "unpaired"]


def test_a_report_of_imported_runs(tmp_path: Path, model_folder: Path) -> None:
    for name, settings in (("es", Settings()), ("awd", Settings(penalty="l2", lam=3.0))):
        train(tiny_llama(), tmp_path / name, settings)
        import_foreign(tmp_path / name, tmp_path / "runs", name=name, model=str(model_folder), layout="fused")
    runs = [read_run(tmp_path / "runs" / name) for name in ("es", "awd")]
    first, second = (write_report(runs, tmp_path / out) for out in ("a", "b"))
    for file in (path for path in first.rglob("*") if path.is_file()):
        assert file.read_bytes() == (second / file.relative_to(first)).read_bytes()
    text = (first / "report.md").read_text()
    assert "unpaired; " in text
    assert "another draw of the same walk" in text
    assert str(tmp_path) not in text
    assert (first / "figures" / "norms.png").is_file()
    assert (first / "figures" / "differences.png").is_file()


def scaled(curves: dict[str, Any], dataset: str, step: int, right: int) -> dict[str, Any]:
    return curves | {dataset: curves[dataset] | {step: (right, curves[dataset][step][1])}}


def test_seeds_are_the_unit_and_arms_share_the_base(tmp_path: Path) -> None:
    changed = scaled(CURVES, "piqa", 3, 1400)
    frames = frames_of(
        tmp_path,
        ("es-0", Settings(seed=1), CURVES),
        ("es-1", Settings(seed=2), changed),
        ("awd-0", Settings(seed=1, penalty="l1", lam=0.02), scaled(CURVES, "piqa", 3, 1480)),
        ("awd-1", Settings(seed=2, penalty="l1", lam=0.02), scaled(CURVES, "piqa", 3, 1489)),
    )
    row = frames.seeds.query("arm == 'ES' and task == 'piqa' and step == 3").iloc[0]
    changes = np.array([1471 - 1492, 1400 - 1492]) / 1838
    half = stats.t.ppf(0.975, 1) * changes.std(ddof=1) / math.sqrt(2)
    assert (row["seeds"], row["mean"], row["sd"]) == (
        2,
        pytest.approx(changes.mean()),
        pytest.approx(changes.std(ddof=1)),
    )
    assert (row["low"], row["high"]) == (pytest.approx(changes.mean() - half), pytest.approx(changes.mean() + half))
    # Hellaswag ended alike in both seeds: the interval is the items', base and final error.
    same = frames.seeds.query("arm == 'ES' and task == 'hellaswag' and step == 3").iloc[0]
    error = math.sqrt(unpaired_variance(1303, 2048) + unpaired_variance(1180, 2048))
    assert same["high"] - same["mean"] == pytest.approx(stats.t.ppf(0.975, 2047) * error)
    mean = frames.seeds.query("arm == 'ES' and task == '' and step == 3").iloc[0]
    assert mean["mean"] == pytest.approx((changes.mean() + (1180 - 1303) / 2048) / 2)
    beside = frames.controls.query("task == 'piqa'").iloc[0]
    assert (beside["arm"], beside["against"], beside["unit"], beside["n"]) == ("ES+AWD-L1", "ES", "seeds", 2)
    gaps = np.array([1480 - 1471, 1489 - 1400]) / 1838
    assert beside["difference"] == pytest.approx(gaps.mean())
    assert beside["high"] - gaps.mean() == pytest.approx(stats.t.ppf(0.975, 1) * gaps.std(ddof=1) / math.sqrt(2))
    # Both arms ended alike on hellaswag, from one base: its error cancels.
    alike = frames.controls.query("task == 'hellaswag'").iloc[0]
    assert alike["difference"] == pytest.approx(0.0)
    both = math.sqrt(2 * unpaired_variance(1180, 2048))
    assert alike["high"] == pytest.approx(stats.t.ppf(0.975, 2047) * both)


def test_runs_that_do_not_belong_together(tmp_path: Path) -> None:
    other = CURVES | {"piqa": {step: (right // 2, 919) for step, (right, _) in CURVES["piqa"].items()}}
    with pytest.raises(DriftlabError, match=r"must share the items and prompts of piqa.*how they were asked differ"):
        frames_of(tmp_path / "items", ("a", Settings(), CURVES), ("b", Settings(seed=2), other))
    small = Settings(seed=2, model_name="Qwen/Qwen2.5-1.5B-Instruct")
    with pytest.raises(DriftlabError, match=r"must share the base model: .*1\.5B"):
        frames_of(tmp_path / "models", ("a", Settings(), CURVES), ("b", small, CURVES))


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        ({1: (5, 10), 2: (5, 10), 3: (5, 10)}, "the base was not measured"),
        ({0: (5, 10), 1: (5, 10), 2: (5, 10)}, "the final step 3 was not measured"),
        ({0: (5, 10), 3: (5, 10)}, "a curve verdict needs 3 checkpoints, base included, and 2 were measured"),
        ({0: (0, 1), 1: (1, 1), 3: (0, 1)}, "one item says nothing about the error"),
    ],
)
def test_no_verdict_without_a_curve(tmp_path: Path, curve: dict[int, Any], said: str) -> None:
    frames = frames_of(tmp_path, ("es", Settings(), CURVES | {"hellaswag": curve}))
    row = frames.verdicts.query("task == 'hellaswag'").iloc[0]
    assert (row["verdict"], row["reason"]) == ("cannot say", said)
    assert frames.verdicts.query("task == ''").iloc[0]["reason"] == f"hellaswag: {said}"


def test_unchanged_runs_are_rarely_called_changed() -> None:
    """Three tasks, eight checkpoints, independent answers: at most 5 of 100 runs may hold any false verdict."""
    generator, runs, false = np.random.default_rng(5), 300, 0
    chances, counts = (0.3, 0.6, 0.8), (400, 900, 1200)
    steps = tuple(range(9))
    for _ in range(runs):
        curves = []
        for p, n in zip(chances, counts, strict=True):
            values = generator.binomial(n, p, len(steps)) / n
            task = TaskAccuracies(
                steps=steps, values=values, counts=np.full(len(steps), float(n)), profile="generative"
            )
            curves.append(task.curve())
        critical = run_critical_values(curves, averaged=[0, 1, 2], seed=0, draws=4000)
        judged = [prior_verdict(curve, steps[1:], critical) for curve in (*curves, average_curve(curves))]
        false += any(one.word not in ("stable", "cannot say") for one in judged)
    assert 0 < false / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_the_command(folder: Path, tmp_path: Path, model_folder: Path) -> None:
    runner, out = CliRunner(), tmp_path / "runs"
    odd = folder.rename(folder.with_name("Qwen run (1)"))
    options = ["--model", str(model_folder), "--replay", "hf", "--step", "3", "--kl", "2", "--arm", "theirs"]
    done = runner.invoke(app, ["import", str(odd), "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    assert "received other noise" in done.output
    assert f"3 updates, measured at 4 steps: {out / 'Qwen-run-1-'}" in done.output
    listed = runner.invoke(app, ["ls", str(out)])
    for word in ("finished", "theirs", "countdown", "3/3"):
        assert word in listed.output
    shown = runner.invoke(app, ["show", str(out / "Qwen-run-1-")])
    assert shown.exit_code == 0, shown.output
    assert "no rewards" in shown.output
    assert "kl_base_to_step" in shown.output
    wrong = runner.invoke(app, ["import", str(odd), "--replay", "sideways"])
    assert isinstance(wrong.exception, SpecError)
