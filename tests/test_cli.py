"""The command line from outside: bad input is one sentence and exit code 2, and nothing is written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_loop import TOML, files

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
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 9'))
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


def test_dry_run_of_the_papers_setting(tmp_path):
    """Published parameter count; 30 members, 500 iterations, 200 prompts: three million rollouts. Writes nothing."""
    result = driftlab("run", "lit238-qwen3b", "--dry-run", "--arm", "ES+AWD-L2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for text in ("3,085,938,688", "3,000,000", "6.2 GB", "lambda 10", "0.005"):
        assert text in result.stdout
    assert not list(tmp_path.iterdir())
