"""An audit of reward functions as tables, a page and CSV files. The same audit gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.formats import Table, markdown_text, to_csv, to_markdown, without_folders
from driftlab.tasks.audit import Finding, shown
from driftlab.tasks.audit_forms import Form
from driftlab.tasks.audit_fuzz import Fuzzed

PAGE = "audit.md"
_CSV = ("outputs.csv", "random-texts.csv")
CRASHES_SHOWN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """One target: how many items were drawn, how many have a known right answer, and what was found."""

    target: str
    items: int
    solved: int
    form: Form
    findings: tuple[Finding, ...]
    fuzzed: Fuzzed

    @property
    def faults(self) -> int:
        """Kinds of canned outputs with a fault, and random texts not survived."""
        return sum(finding.fault for finding in self.findings) + len(self.fuzzed.crashes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """All targets, those that could not be loaded with the reason, and the seed of items and random texts."""

    audited: tuple[Audited, ...]
    skipped: tuple[tuple[str, str], ...]
    seed: int

    @property
    def faults(self) -> int:
        return sum(one.faults for one in self.audited)


def check_folder(out: Path) -> None:
    """Raises DriftlabError when ``out`` holds something that is not an audit."""
    check_replaceable(out, [PAGE, *_CSV], "an audit")


def write_audit(audit: Audit, out: Path) -> Path:
    """Write audit.md and two CSV files to folder ``out``, replacing an earlier audit there; its absolute path.

    Raises:
        DriftlabError: ``out`` holds something else.
    """
    check_folder(out)
    outputs, texts = outputs_table(audit), texts_table(audit)
    files = {PAGE: _page(audit, outputs, texts), _CSV[0]: to_csv(outputs), _CSV[1]: to_csv(texts)}
    return replace_folder(out, {name: text.encode() for name, text in files.items()})


def verdict(audit: Audit) -> str:
    """The audit in one sentence."""
    names = ", ".join(one.target for one in audit.audited) or "no target"
    if not audit.faults:
        return f"No fault: of these texts {names} give answer credit to right answers only, and they survived all."
    found = ", ".join(f"{one.target} ({one.faults})" for one in audit.audited if one.faults)
    return f"Faults: {found}; audited: {names}."


def summary(one: Audited) -> str:
    """One target in one sentence."""
    outputs = sum(finding.n for finding in one.findings)
    crashes = len(one.fuzzed.crashes)
    return (
        f"{one.target}: {outputs:,} canned outputs of {len(one.findings)} kinds on {one.items} items "
        f"({one.solved} with a known right answer), rewards in 0 to {one.form.highest:g}, form alone up to "
        f"{one.form.format_credit:g}; {one.fuzzed.count:,} random texts, {crashes} not survived"
    )


def outputs_table(audit: Audit) -> Table:
    """Canned outputs that earn more than 0 or show a fault; the CSV holds all of them."""
    rows, data = [], []
    for one in audit.audited:
        for finding in one.findings:
            data.append({"target": one.target, **asdict(finding), "fault": finding.fault, "why": finding.why})
            if finding.paid or finding.fault:
                numbers = (f"{finding.paid} of {finding.n}", f"{finding.mean:.3f}", f"{finding.highest:.3f}")
                rows.append((one.target, finding.output, *numbers, str(finding.correct), finding.why))
    return Table(
        name="outputs",
        title="Canned outputs that earn more than 0",
        columns=("target", "output", "earning", "mean reward", "highest", "answer credit", "why"),
        rows=tuple(rows),
        data=pd.DataFrame(data),
        source="",
    )


def texts_table(audit: Audit) -> Table:
    """Random texts per target, and the first of those that were not survived; the CSV holds all of these."""
    rows, data = [], []
    for one in audit.audited:
        found = one.fuzzed
        said = "; ".join(f"{shown(c.text, 40)}: {c.problem}" for c in found.crashes[:CRASHES_SHOWN])
        counts = (f"{found.count:,}", f"{found.paid:,}", f"{found.correct:,}", str(len(found.crashes)))
        rows.append((one.target, *counts, said or "–"))
        about = {"target": one.target, "texts": found.count, "paid": found.paid, "correct": found.correct}
        data += [about | {"kind": c.kind, "text": ascii(c.text), "problem": c.problem} for c in found.crashes] or [
            about
        ]
    return Table(
        name="random-texts",
        title="Random texts",
        columns=("target", "texts", "earning", "answer credit", "not survived", "which"),
        rows=tuple(rows),
        data=pd.DataFrame(data, columns=["target", "texts", "paid", "correct", "kind", "text", "problem"]),
        source="",
    )


def _page(audit: Audit, outputs: Table, texts: Table) -> str:
    parts = ["# Reward audit", markdown_text(verdict(audit))]
    parts += [f"- {markdown_text(summary(one))}" for one in audit.audited]
    parts += [f"- {markdown_text(f'{name}: not audited, {without_folders(reason)}')}" for name, reason in audit.skipped]
    parts += [
        f"Items and random texts are drawn with seed {audit.seed}. Credit for the form alone is what a reward promises "
        "and no fault; so is answer credit where the answer that counts, by the target's rule, is right. A fault is "
        "answer credit for anything else, an output that makes the scorer raise or run code, or a reward outside its "
        "range.",
        f"## {outputs.title}",
        to_markdown(outputs, rest=":---"),
        f"## {texts.title}",
        "Answer credit is no fault here: a mutated right answer can still be right, and chance hits one now and then.",
        to_markdown(texts, rest=":---"),
    ]
    return "\n\n".join(_joined(parts)) + "\n"


def _joined(parts: Sequence[str]) -> list[str]:
    """Lines of one list stand together."""
    found: list[str] = []
    for part in parts:
        if part.startswith("- ") and found and found[-1].startswith("- "):
            found[-1] += f"\n{part}"
        else:
            found.append(part.rstrip("\n"))
    return found
