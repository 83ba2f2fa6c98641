"""ProofWriter as a choice among three labels; ``tasks/lm_eval/proofwriter.yaml`` refers to these functions.

Open world: a statement that follows neither way from the theory is Unknown. Tafjord et al. 2021, arXiv 2012.13048.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LABELS = ("True", "False", "Unknown")
"""The choices, in the order of the task definition."""


def process_docs(dataset: Any) -> Any:
    """A ``datasets.Dataset`` with answers as text: some copies hold JSON booleans beside the string Unknown."""
    import datasets  # heavy, and needed by lm-eval only

    features = dataset.features.copy()
    features["answer"] = datasets.Value("string")
    return dataset.map(lambda doc: {"answer": str(doc["answer"])}, features=features)


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt: theory, statement, and the start of the answer."""
    return (
        f"{doc['theory']}\n"
        f"Based on the above, is the following statement true, false, or unknown? {doc['question']}\n"
        "Answer:"
    )


def doc_to_target(doc: Mapping[str, Any]) -> int:
    """Index of the right label in ``LABELS``.

    Raises:
        ValueError: the answer is none of them.
    """
    if doc["answer"] not in LABELS:
        raise ValueError(f"ProofWriter answer {doc['answer']!r} is none of {', '.join(LABELS)}")
    return LABELS.index(doc["answer"])


def process_results(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """``acc``, and whether the answer was Unknown: the largest class, so a model that collapses to it looks capable.

    Args:
        results: (log-likelihood in nats, greedy) of each label.
    """
    likelihoods = [likelihood for likelihood, _ in results]
    chosen = likelihoods.index(max(likelihoods))
    return {"acc": float(chosen == doc_to_target(doc)), "unknown_fraction": float(LABELS[chosen] == "Unknown")}
