"""What the terminal shows and when it stops a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from driftlab.console import RunProgress, outlook_table
from driftlab.drift.power import outlook
from driftlab.session import Event
from tests.test_loop import plan


def test_an_interrupt_that_a_library_swallowed_stops_the_run_at_its_next_event(tmp_path: Path) -> None:
    asked = []
    progress = RunProgress(plan(tmp_path).spec, Console(file=io.StringIO()), lambda: bool(asked))
    with progress:
        progress(Event(kind="iteration", step=1, seconds=0.1, reward=None))
        asked.append("Ctrl-C")
        with pytest.raises(KeyboardInterrupt):
            progress(Event(kind="iteration", step=2, seconds=0.1, reward=0.5))


def test_what_power_prints() -> None:
    stream = io.StringIO()
    found = outlook(500, 0.05, 20, 4, margin=0.05)
    Console(file=stream, width=120).print(outlook_table(found, power=0.8, margin=5.0))
    text = stream.getvalue()
    # One comparison, 5 % flips: 2.8 points by the reference's table; 10 points cannot be made by 5 % of the items.
    assert "2.8 points" in text
    assert "to see a final change of 10 points" in text
    assert "more items must flip" in text
