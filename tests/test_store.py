"""The run directory: round trips, torn lines, bad lines, unknown schemas."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from driftlab.errors import RunError
from driftlab.run.records import Example, GradientStep, Measurement, Update
from driftlab.run.store import SCHEMA, Manifest, RunStore, find_runs

MANIFEST = Manifest(
    schema=SCHEMA,
    run_id="a/b",
    status="started",
    error=None,
    digest="d",
    given={},
    spec={},
    model={},
    tasks={},
    provenance={},
)


def update(step: int) -> Update:
    return Update(
        step=step,
        seeds=(1, 2**31 - 1),
        coefficients=(1.0000000000000002, -1.1e-17),
        population=2,
        sigma=0.1,
        alpha=0.05,
        penalty="l2",
        decay=0.01,
        rewards=(0.25, 0.75),
        step_norm=1.5,
        step_cosine=None,
        weights_hash="f00",
        prompt_tokens=10,
        generated_tokens=20,
        seconds={"total": 0.1},
        note="α ≠ 0",
    )


def row(step: int) -> Measurement:
    return Measurement(
        step=step, probe="kl", quantity="q", group="g", value=0.1 + step, unit="nats/token", stderr=None, n=3
    )


def example(step: int) -> Example:
    return Example(
        step=step, task="t", item="i", cluster="c", correct=1.0, score=None, output_length=3, parsed=True,
        truncated=False, output="<b>\n\u2028é", stratum="law", answer="é",
    )  # fmt: skip


ITEMS = {"task": {"a1": {"question": "Où ?\n", "right": "là\u2028"}, "a1#2": {"question": "", "right": "A | B"}}}


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path / "run", MANIFEST, {}, ITEMS)


def test_round_trip(store):
    updates = [update(1), update(2)]
    for record in updates:
        store.append_update(record)
    store.add_measured(0, [row(0)], [example(0)])
    again = RunStore.open(store.path)
    assert again.manifest == MANIFEST
    assert again.updates() == updates
    assert again.measurements() == [row(0)]
    assert again.examples(0) == [example(0)]
    assert again.items() == ITEMS
    assert [found.path for found in find_runs(store.path.parent)] == [store.path]


def test_existing_directory_is_refused(store):
    with pytest.raises(RunError, match="--resume"):
        RunStore.create(store.path, MANIFEST, {}, {})


def test_torn_last_line_is_dropped_with_a_notice_and_trimmed(store):
    store.append_update(update(1))
    file = store.path / "updates.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    again = RunStore.open(store.path)
    assert again.updates() == [update(1)]
    assert "torn" in again.notices[0]
    again.trim()
    assert file.read_bytes() == whole


def test_every_cut_of_the_file_reads_or_is_torn(store):
    """A kill can stop a write at any byte: the whole lines before it must read."""
    for step in (1, 2):
        store.append_update(update(step))
    file = store.path / "updates.jsonl"
    whole = file.read_bytes()
    for length in range(len(whole) + 1):
        file.write_bytes(whole[:length])
        assert len(RunStore.open(store.path).updates()) == whole[:length].count(b"\n")


@pytest.mark.parametrize("bad", [b"{}", b"not json", b'{"step": 1, "surprise": 2}', b"[1]", b"\xff"])
def test_any_other_bad_line_names_file_and_line(store, bad):
    store.append_update(update(1))
    file = store.path / "updates.jsonl"
    file.write_bytes(file.read_bytes() + bad + b"\n")
    with pytest.raises(RunError, match=r"updates.jsonl line 2 "):
        store.updates()


def test_a_missing_step_is_named(store):
    store.append_update(update(1))
    store.append_update(update(3))
    with pytest.raises(RunError, match="line 2 holds step 3"):
        store.updates()


def test_rows_of_an_incomplete_step_do_not_count(store):
    """Killed between the rows and the examples file: the step is measured again on resume."""
    store.add_measured(0, [row(0)], [])
    whole = (store.path / "measurements.jsonl").read_bytes()
    store.add_measured(5, [row(5)], [])
    (store.path / "examples" / "step-000005.jsonl.gz").unlink()
    assert store.measurements() == [row(0)]
    store.trim()
    assert (store.path / "measurements.jsonl").read_bytes() == whole


def test_unknown_schema_stops_and_says_what_is_read(store):
    file = store.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(RunError, match="schema 99; this driftlab reads schema 1, 2, 3, 4: "):
        RunStore.open(store.path)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}'])
def test_broken_run_json(store, text):
    (store.path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json"):
        RunStore.open(store.path)


def test_no_run_there(tmp_path):
    with pytest.raises(RunError, match="driftlab ls"):
        RunStore.open(tmp_path)


def test_same_examples_and_items_same_bytes(tmp_path):
    stores = [RunStore.create(tmp_path / name, MANIFEST, {}, ITEMS) for name in "ab"]
    for one in stores:
        one.add_measured(3, [], [example(3)])
    assert len({next((one.path / "examples").iterdir()).read_bytes() for one in stores}) == 1
    assert len({(one.path / "items.json.gz").read_bytes() for one in stores}) == 1


def test_items_are_written_once(store):
    """Whatever a resumed run does to its directory, the texts stay the file that was written at creation."""
    file = store.path / "items.json.gz"
    before = file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino
    again = RunStore.open(store.path)
    again.trim()
    again.set_status("started")
    again.append_update(update(1))
    again.add_measured(0, [row(0)], [example(0)])
    assert (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_items_that_are_lost_or_damaged_are_named(store):
    file = store.path / "items.json.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))
    with pytest.raises(RunError, match=r"items\.json\.gz cannot be read"):
        store.items()
    file.write_bytes(gzip.compress(b"{"))
    with pytest.raises(RunError, match=r"items\.json\.gz is not valid JSON"):
        store.items()
    file.unlink()
    with pytest.raises(RunError, match=r"items\.json\.gz cannot be read"):
        store.items()


def test_a_missing_value_is_never_a_number():
    with pytest.raises(ValueError, match="status ok"):
        replace(row(0), value=None)
    with pytest.raises(ValueError, match="status failed"):
        replace(row(0), status="failed")


def test_status(store):
    store.set_status("failed", "why")
    assert (RunStore.open(store.path).manifest.status, RunStore.open(store.path).manifest.error) == ("failed", "why")
    assert not list(store.path.glob(".*"))


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_a_run_of_every_schema_version_still_reads(schema):
    """Stored with the first release of its schema and never changed: two iterations on the embedded model."""
    store = RunStore.open(Path(__file__).parent / "data" / f"run_v{schema}")
    assert (store.manifest.schema, store.manifest.status) == (schema, "finished")
    assert [u.step for u in store.updates()] == [1, 2]
    assert store.example_steps() == [0, 2]
    assert len(store.examples(2)) == 12
    assert {u.delta for u in store.updates()} == ({0.02} if schema > 2 else {None})
    probes = [["weights", "kl", "lm_eval"], ["floor"], ["rounding"], ["coverage", "held_out"]]
    assert {row.probe for row in store.measurements()} == {name for names in probes[:schema] for name in names}
    assert all((u.cost is None) == (schema < 4) for u in store.updates())
    assert [len(store.coverage(step)) for step in (0, 2)] == ([5, 5] if schema > 3 else [0, 0])
    assert store.notices == []


def test_a_run_of_grpo_still_reads():
    """Stored with schema 4, its weights left out: two iterations with a KL penalty on the embedded model."""
    store = RunStore.open(Path(__file__).parent / "data" / "run_v4_grpo")
    first, second = store.updates()
    assert isinstance(first, GradientStep)
    assert (first.beta, first.generations, len(first.rewards), first.cost.rollouts) == (0.04, 4, 16, 16)
    assert first.kl_estimate == pytest.approx(0, abs=1e-6)
    assert second.weights_hash is not None
    assert store.example_steps() == [0, 2]


def test_a_run_of_schema_1_has_no_texts():
    """Its items had neither stratum nor answer, and their texts were not kept: None and nothing, not an error."""
    store = RunStore.open(Path(__file__).parent / "data" / "run_v1")
    assert store.items() == {}
    assert {(e.stratum, e.answer) for step in (0, 2) for e in store.examples(step)} == {(None, None)}


def test_the_texts_of_a_run_of_schema_2_are_those_of_its_examples():
    store = RunStore.open(Path(__file__).parent / "data" / "run_v2")
    examples = [example for step in store.example_steps() for example in store.examples(step)]
    assert {(e.task, e.item) for e in examples} == {
        (task, item) for task, found in store.items().items() for item in found
    }
    taken = [e for e in examples if e.task == "embedded_rules"]
    assert len(taken) == 12
    assert all((store.items()[e.task][e.item]["right"] == e.answer) == bool(e.correct) for e in taken)


@pytest.mark.parametrize("position", [12, 40, -5])
def test_damaged_examples_are_named(store, position):
    store.add_measured(0, [row(0)], [example(0)] * 50)
    file = store.path / "examples" / "step-000000.jsonl.gz"
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(bytes(data))
    with pytest.raises(RunError, match="step-000000"):
        store.examples(0)


def test_a_run_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    """Killed while it is created: nothing under its name, and the next attempt succeeds."""

    def fail(file, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("driftlab.run.store._replace", fail)
        with pytest.raises(KeyboardInterrupt):
            RunStore.create(tmp_path / "run", MANIFEST, {}, {})
    assert not (tmp_path / "run").exists()
    assert RunStore.create(tmp_path / "run", MANIFEST, {"task": []}, {}).references() == {"task": []}
