"""ProofWriter: prompt, labels, and clusters by theory."""

from __future__ import annotations

import json
import math
from pathlib import Path

import datasets
import pytest

from driftlab.probes.lm_eval_rows import identify
from driftlab.tasks import proofwriter

DOC = {"theory": "Bob is big.", "question": "Bob is not big.", "answer": "False"}


def test_prompt() -> None:
    assert proofwriter.doc_to_text(DOC) == (
        "Bob is big.\nBased on the above, is the following statement true, false, or unknown? Bob is not big.\nAnswer:"
    )


def test_labels() -> None:
    assert [proofwriter.doc_to_target({"answer": label}) for label in ("True", "False", "Unknown")] == [0, 1, 2]
    with pytest.raises(ValueError, match="Maybe"):
        proofwriter.doc_to_target({"answer": "Maybe"})
    booleans = datasets.Dataset.from_list([{"answer": True}, {"answer": False}])
    assert proofwriter.process_docs(booleans)["answer"][:] == ["True", "False"]


@pytest.mark.parametrize(
    ("likelihoods", "correct", "unknown"),
    [((-3.0, -1.0, -2.0), 1.0, 0.0), ((-3.0, -2.0, -1.0), 0.0, 1.0), ((-1.0, -1.0, -math.inf), 0.0, 0.0)],
)
def test_scores(likelihoods: tuple[float, ...], correct: float, unknown: float) -> None:
    results = [(likelihood, False) for likelihood in likelihoods]
    assert proofwriter.process_results(DOC, results) == {"acc": correct, "unknown_fraction": unknown}


def test_questions_on_one_theory_share_a_cluster() -> None:
    docs = [DOC, {**DOC, "question": "Bob is big."}, {**DOC, "theory": "Bob is red."}, DOC]
    (a, b, c, again) = identify(docs)
    assert a[1] == b[1] == again[1] != c[1]
    assert len({item for item, _ in (a, b, c, again)}) == 4
    assert again[0] == f"{a[0]}#2"


def test_real_items(data_dir: Path) -> None:
    lines = (data_dir / "tasksource" / "proofwriter" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    dataset = datasets.Dataset.from_list([{"answer": json.loads(line)["answer"]} for line in lines])
    assert {proofwriter.doc_to_target(doc) for doc in proofwriter.process_docs(dataset)} == {0, 1, 2}
