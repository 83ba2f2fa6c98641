"""The command line from outside: bad input is one sentence and exit code 2, and nothing is written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from driftlab.run.store import RunStore, in_order
from tests.test_loop import TOML, files
from tests.test_store import MANIFEST

BASE_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def driftlab(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "driftlab.cli", *arguments],
        cwd=cwd,
        env={**BASE_ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TOML)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "tiny.toml", "--set", "es.popultion=5"], "did you mean 'es.population'"),
        (["run", "tiny.toml", "--set", "anchor.lambda=100.0"], "alpha*lambda below 1"),
        (["run", "tiny.toml", "--set", "es.population=1"], "use 2 or more"),
        (["run", "tiny.toml", "--set", "es.population=5", "--set", "es.mirrored=true"], "use an even number"),
        (["run", "tiny.toml", "--set", "target.task=countdwn"], "countdown"),
        (["run", "tinny"], "no preset or .toml file named 'tinny'"),
        (["run", "tiny.toml", "--model", "nowhere/at/all"], "driftlab models fetch smollm2-135m"),
        (["run", "tiny.toml", "--set", "target.task=countdown", "--data", "nowhere"], "nowhere"),
        (["run", "tiny.toml", "--set", 'probes.lm_eval.tasks=["embedded_rulez"]'], "embedded_rules"),
        (["show", "nowhere"], "run.json is missing"),
        (["ls", "nowhere"], "driftlab demo"),
        (["report", "nowhere"], "no runs in nowhere"),
        (["run", "tiny.toml", "--seeds", ""], "--seeds takes whole numbers"),
        (["run", "tiny.toml", "--seeds", "-1,0"], "got '-1' in '-1,0'"),
        (["run", "tiny.toml", "--seeds", "0,1,0"], "names seed 0 more than once"),
        (["run", "tiny.toml", "--seeds", "0,1", "--set", "seed=3"], "both name the seed"),
        (["demo", "--seeds", "one"], "--seeds takes whole numbers"),
        (["run", "tiny.toml", "--set", 'control="base"'], "a base arm takes no anchor"),
        (["models", "fetch", "smollm"], "smollm2-135m"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(folder, arguments, sentence):
    result = driftlab(*arguments, cwd=folder, DRIFTLAB_DATA="")
    assert result.returncode == 2, result.stderr
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(entry.name for entry in folder.iterdir()) == ["tiny.toml"]


def test_run_resume_report_show_export_and_corruption(folder):
    """One small run through every command; then its files are damaged."""
    quick = ["run", "tiny.toml", "--set", "es.iterations=2"]
    result = driftlab(*quick, cwd=folder)
    assert result.returncode == 0, result.stderr
    run = folder / "runs" / "tiny" / "es-s0"
    assert (folder / "runs" / "tiny" / "report" / "report.html").is_file()
    # Two iterations change no item of twelve, and the table must say so instead of a bare 0.0.
    assert re.search(r"\[(no item changed|[−+]\d)", result.stdout)

    assert "already exists" in driftlab(*quick, cwd=folder).stderr
    before = files(run)
    assert driftlab(*quick, "--resume", cwd=folder).returncode == 0
    changed = driftlab(*quick, "--resume", "--set", "es.sigma=0.03", cwd=folder)
    assert changed.returncode == 2
    assert "es.sigma: 0.02, now 0.03" in changed.stderr
    assert files(run) == before

    assert "finished" in driftlab("ls", cwd=folder).stdout
    assert "update_norm" in driftlab("show", "runs/tiny/es-s0", cwd=folder).stdout
    assert driftlab("export", "runs/tiny/es-s0", "--step", "1", "--to", "hf", cwd=folder).returncode == 0
    assert (folder / "hf" / "model.safetensors").is_file()
    beyond = driftlab("export", "runs/tiny/es-s0", "--step", "3", "--to", "hf3", cwd=folder)
    assert (beyond.returncode, "steps 0 to 2, not 3" in beyond.stderr) == (2, True)
    assert driftlab("report", "runs/tiny", "--out", "again", cwd=folder).returncode == 0
    assert files(folder / "again", updates=False) == files(folder / "runs" / "tiny" / "report", updates=False)

    updates = run / "updates.jsonl"
    updates.write_bytes(b"nonsense\n" + updates.read_bytes())
    broken = driftlab("report", "runs/tiny/es-s0", "--out", "broken", cwd=folder)
    assert broken.returncode == 2
    assert "updates.jsonl line 1" in broken.stderr
    assert not (folder / "broken").exists()
    manifest = run / "run.json"
    manifest.write_text(re.sub(r'"schema": \d+', '"schema": 9', manifest.read_text()))
    assert "schema 9; this driftlab reads schema 1" in driftlab("show", "runs/tiny/es-s0", cwd=folder).stderr


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_and_resumed_equals_uninterrupted(folder, sign):
    """A real process, stopped once it has some updates on disk."""
    arguments = ["run", "tiny.toml", "--set", "es.iterations=12", "--set", "keyframes_every=3"]
    assert driftlab(*arguments, "--out", "whole", cwd=folder).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "driftlab.cli", *arguments],
        cwd=folder,
        env=BASE_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    updates = folder / "runs" / "tiny" / "es-s0" / "updates.jsonl"
    while not (updates.exists() and updates.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(sign)
    _, errors = process.communicate()
    if sign != signal.SIGKILL:
        assert process.returncode == 130
        assert "--resume" in errors
    assert updates.read_bytes().count(b"\n") < 12
    assert driftlab(*arguments, "--resume", cwd=folder).returncode == 0
    assert files(folder / "runs" / "tiny" / "es-s0") == files(folder / "whole" / "tiny" / "es-s0")


ARMS = """
[arms."a shuffle"]
control = "shuffled-reward"
[arms."ES"]
anchor = { penalty = "none", lambda = 0.0 }
"""


def test_several_seeds_are_several_runs_and_one_report(folder):
    """Two arms and two seeds, seed by seed; and the same report when it is asked for by the folder."""
    (folder / "arms.toml").write_text(TOML + ARMS)
    result = driftlab("run", "arms.toml", "--set", "es.iterations=1", "--seeds", "3,1", cwd=folder)
    assert result.returncode == 0, result.stderr
    ended = [line.split(" in ")[1].split(" ")[0] for line in result.stderr.splitlines() if ": finished in " in line]
    assert ended == [f"runs/tiny/{name}" for name in ("a-shuffle-s3", "es-s3", "a-shuffle-s1", "es-s1")]
    # The terminal shows means over the two seeds, an arm a row.
    assert re.search(r"│ ES +│ 2 +│", result.stdout)
    assert re.search(r"│ a shuffle +│ 2 +│", result.stdout)
    # Controls come last, whatever the names and the order of the file.
    report = folder / "runs" / "tiny" / "report"
    text = (report / "report.md").read_text()
    assert text.index("ES, seed 1") < text.index("ES, seed 3") < text.index("a shuffle, seed 1")
    assert driftlab("report", "runs/tiny", "--out", "again", cwd=folder).returncode == 0
    assert files(folder / "again", updates=False) == files(report, updates=False)


def test_controls_come_last_in_a_report():
    """By control, anchor, arm, seed and path; a run stored before there were controls names none."""
    described = [
        ("random-direction", "none", "walk", 0),
        (None, "none", "z plain", 0),
        ("none", "l2", "a anchored", 0),
        ("none", "none", "ES", 2),
        ("none", "none", "ES", 10),
        ("none", "l1", "a anchored", 1),
        ("base", "none", "a base", 0),
        ("shuffled-reward", "l2", "a anchored shuffle", 0),
    ]
    stores = []
    for index, (control, penalty, arm, seed) in enumerate(described):
        spec = {"anchor": {"penalty": penalty}, "arm": arm, "seed": seed, "control": control}
        if control is None:
            del spec["control"]
        stores.append(RunStore(Path(f"run-{index}"), replace(MANIFEST, spec=spec), []))
    assert [int(store.path.name[4:]) for store in in_order(stores)] == [3, 4, 1, 2, 5, 6, 0, 7]


def test_a_dry_run_of_several_seeds_names_them(folder):
    """One table an arm: seeds do not change sizes. Nothing is written."""
    (folder / "arms.toml").write_text(TOML + ARMS)
    result = driftlab("run", "arms.toml", "--dry-run", "--seeds", "0,1,2", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"for each of seeds +(.*?) *\n", result.stdout) == ["0, 1, 2"] * 2
    assert result.stdout.count("base model ") == 2
    assert sorted(entry.name for entry in folder.iterdir()) == ["arms.toml", "tiny.toml"]


def test_dry_run_of_the_papers_setting(tmp_path):
    """Published parameter count; 30 members, 500 iterations, 200 prompts: three million rollouts. Writes nothing."""
    result = driftlab("run", "lit238-qwen3b", "--dry-run", "--arm", "ES+AWD-L2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for text in ("3,085,938,688", "3,000,000", "6.2 GB", "lambda 10", "0.005"):
        assert text in result.stdout
    assert not list(tmp_path.iterdir())
