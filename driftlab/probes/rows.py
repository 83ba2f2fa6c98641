"""Rows of one probe at one checkpoint."""

from __future__ import annotations

import math

from driftlab.run.records import Measurement


class Rows:
    """Collects the rows of one checkpoint; a missing value needs a reason, a non-finite one is a failure."""

    def __init__(self, step: int, probe: str) -> None:
        self.step, self.probe = step, probe
        self.rows: list[Measurement] = []

    def add(
        self,
        quantity: str,
        value: float | None,
        unit: str,
        n: int,
        *,
        group: str = "all",
        stderr: float | None = None,
        note: str | None = None,
    ) -> None:
        failed = value is not None and not math.isfinite(value)
        self.rows.append(
            Measurement(
                step=self.step,
                probe=self.probe,
                quantity=quantity,
                group=group,
                value=None if failed else value,
                unit=unit,
                stderr=None if failed else stderr,
                n=n,
                status="failed" if failed else "skipped" if value is None else "ok",
                note=f"the value is {value}: weights or records are not finite" if failed else note,
            )
        )
