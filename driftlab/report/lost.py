"""The items most often lost: right at the base and wrong later, with both answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from driftlab.report.pairing import each

SHOWN = 3
"""Items per task on the page; the CSV holds every item that was lost at all."""
LENGTH = 300
LOST_COLUMNS = ["task", "item", "lost", "of", "base_answer", "run", "step", "answer", "right", "question"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LostItem:
    """One item on the page; texts are cut to ``LENGTH`` characters, questions at their beginning."""

    task: str
    item: str
    lost: int
    of: int
    question: str | None
    right: str | None
    base_answer: str | None
    answer: str | None
    where: str


def lost_table(examples: pd.DataFrame, texts: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> pd.DataFrame:
    """Per (task, item) right at the base: at how many of the measured checkpoints of all runs it was wrong.

    Most often lost first, then by item; ``answer`` is that of the last checkpoint that lost it. Items never lost are
    left out.

    Args:
        examples: with the columns run, step, task, item, correct, answer, output.
        texts: by task and item ``question`` and ``right``; may lack any.
    """
    told = examples["answer"].where(examples["answer"].notna(), examples["output"])
    table = examples.assign(told=told).drop_duplicates(["run", "step", "task", "item"])
    base = table[table["step"] == 0].set_index(["run", "task", "item"])
    right = base.index[base["correct"] == 1.0]
    later = table[table["step"] > 0].set_index(["run", "task", "item"])
    later = later[later.index.isin(right)].reset_index()
    later["wrong"] = later["correct"] < 1.0
    counts = later.groupby(["task", "item"])["wrong"].agg(["sum", "size"])
    counts = counts[counts["sum"] > 0].reset_index()
    answers = base["told"].reset_index().drop_duplicates(["task", "item"]).set_index(["task", "item"])["told"]
    wrong = later[later["wrong"]].drop_duplicates(["task", "item"], keep="last").set_index(["task", "item"])
    rows = []
    for task, item, lost, of in counts[["task", "item", "sum", "size"]].itertuples(index=False, name=None):
        text = (texts.get(task) or {}).get(item) or {}
        last = wrong.loc[(task, item)]
        rows.append(
            {"task": task, "item": item, "lost": int(lost), "of": int(of), "base_answer": answers.get((task, item))}
            | {"run": last["run"], "step": int(last["step"]), "answer": last["told"]}
            | {"right": text.get("right"), "question": text.get("question")}
        )
    frame = pd.DataFrame(rows, columns=LOST_COLUMNS)
    order = {task: number for number, task in enumerate(tasks)}
    frame = frame.assign(rank=frame["task"].map(order), never=-frame["lost"].astype(float))
    return frame.sort_values(["rank", "never", "item"], kind="stable").drop(columns=["rank", "never"])


def shown_items(table: pd.DataFrame) -> list[LostItem]:
    """The first ``SHOWN`` of each task."""
    found = []
    for row in each(table.groupby("task", sort=False).head(SHOWN)):
        found.append(
            LostItem(
                task=str(row.task),
                item=str(row.item),
                lost=int(row.lost),
                of=int(row.of),
                question=_end(row.question),
                right=_text(row.right),
                base_answer=_text(row.base_answer),
                answer=_text(row.answer),
                where=f"{row.run}, step {row.step}",
            )
        )
    return found


def _text(value: Any) -> str | None:
    if value is None or pd.isna(value):
        return None
    text = str(value)
    return text if len(text) <= LENGTH else text[:LENGTH] + " […]"


def _end(value: Any) -> str | None:
    """The end of a question, where what is asked stands."""
    if value is None or pd.isna(value):
        return None
    text = str(value)
    return text if len(text) <= LENGTH else "[…] " + text[-LENGTH:]
