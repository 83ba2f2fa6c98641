"""What a person sees while a run goes on: a bar, a time estimate, and what is being done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from driftlab.run.spec import RunSpec
from driftlab.session import Event


class RunProgress:
    """Listens to ``loop.run`` for one arm; ``seconds`` sums the wall time of iterations and of measurements."""

    def __init__(self, spec: RunSpec, console: Console) -> None:
        self.spec, self.console = spec, console
        self.seconds = {"iterations": 0.0, "measurements": 0.0}
        self._counts = {"iterations": 0, "measurements": 0}
        self._points = spec.measured_steps()
        self._step = 0
        self._reward: float | None = None
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[arm]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task("", total=self.spec.es.iterations, arm=self.spec.arm, left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        if event.kind == "iteration":
            self._add("iterations", event)
            self._reward = event.reward
            words = f"reward {event.reward:.3f}"
        elif event.kind == "measured":
            self._add("measurements", event)
            words = "" if self._reward is None else f"reward {self._reward:.3f}"
        elif event.kind == "loading":
            words = f"loading {event.detail}"
        else:
            words = f"measuring {event.detail}"
        if event.step is not None:
            self._step = event.step
        assert self._task is not None
        self._bar.update(self._task, completed=self._step, description=words, left=self._left(self._step), refresh=True)

    def _add(self, part: str, event: Event) -> None:
        self.seconds[part] += event.seconds
        self._counts[part] += 1

    def _left(self, step: int) -> str:
        """Iterations and measurements still to come, each at its own mean cost so far."""
        if not all(self._counts.values()):
            return ""
        points = sum(point > step for point in self._points)
        left = (self.spec.es.iterations - step) * self.seconds["iterations"] / self._counts["iterations"]
        left += points * self.seconds["measurements"] / self._counts["measurements"]
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
