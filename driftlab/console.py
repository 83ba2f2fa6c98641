"""What a person sees in the terminal: progress with a time estimate, and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.table import Table as RichTable

from driftlab.run.records import Measurement
from driftlab.run.spec import RunSpec
from driftlab.run.store import RunStore

if TYPE_CHECKING:
    from driftlab.drift.power import Outlook
    from driftlab.report.formats import Table
    from driftlab.session import Event


class RunProgress:
    """Listens to ``loop.run`` for one run; ``seconds`` sums the wall time of iterations and of measurements.

    Once ``stopped`` says so, the next event raises KeyboardInterrupt.
    """

    def __init__(self, spec: RunSpec, console: Console, stopped: Callable[[], bool]) -> None:
        self.spec, self.console, self.stopped = spec, console, stopped
        self.seconds = {"iterations": 0.0, "measurements": 0.0}
        self._counts = {"iterations": 0, "measurements": 0}
        self._points = spec.measured_steps()
        self._step = 0
        self._reward: float | None = None
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[run]}"),
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
        label = f"{self.spec.arm}, seed {self.spec.seed}"
        self._task = self._bar.add_task("", total=self.spec.iterations, run=label, left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        if self.stopped():
            raise KeyboardInterrupt
        if event.kind == "iteration":
            self._add("iterations", event)
            self._reward = event.reward
            words = self._reward_words()
        elif event.kind == "measured":
            self._add("measurements", event)
            words = self._reward_words()
        elif event.kind == "loading":
            words = f"loading {event.detail}"
        else:
            words = f"measuring {event.detail}"
        if event.step is not None:
            self._step = event.step
        assert self._task is not None
        self._bar.update(self._task, completed=self._step, description=words, left=self._left(self._step), refresh=True)

    def _reward_words(self) -> str:
        """Empty before the first iteration, and for a control, which earns no reward."""
        return "" if self._reward is None else f"reward {self._reward:.3f}"

    def _add(self, part: str, event: Event) -> None:
        self.seconds[part] += event.seconds
        self._counts[part] += 1

    def _left(self, step: int) -> str:
        """Iterations and measurements still to come, each at its own mean cost so far."""
        if not all(self._counts.values()):
            return ""
        points = sum(point > step for point in self._points)
        left = (self.spec.iterations - step) * self.seconds["iterations"] / self._counts["iterations"]
        left += points * self.seconds["measurements"] / self._counts["measurements"]
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"


def _steps(store: RunStore) -> str:
    """Iterations done of those asked for; of a run that somebody else trained, the last step measured."""
    spec = store.manifest.spec
    trainer = spec.get("trainer", "es")
    if trainer == "folders":
        return str(max(store.example_steps(), default="–"))
    return f"{len(store.updates())}/{spec[trainer]['iterations']}"


def runs_table(stores: Sequence[RunStore]) -> RichTable:
    """The runs of a folder, by path, which is what the other commands want: it is never cut."""
    path = Column("run", min_width=max(len(str(store.path)) for store in stores))
    table = RichTable(path, "status", "arm", "target", "model", "steps", "measured", box=None, pad_edge=False)
    for store in sorted(stores, key=lambda store: store.path):
        spec = store.manifest.spec
        table.add_row(
            str(store.path),
            store.manifest.status,
            spec["arm"],
            spec["target"]["task"],
            spec["model"]["source"],
            _steps(store),
            str(len(store.example_steps())),
        )
    return table


def measurement_table(rows: Sequence[Measurement]) -> RichTable:
    """Stored measurements, names never cut."""
    widths = {name: max((len(getattr(row, name)) for row in rows), default=0) for name in ("quantity", "group")}
    columns = [Column(name, min_width=width) for name, width in widths.items()]
    table = RichTable(*columns, "value", "stderr", "unit", "n", box=None, pad_edge=False)
    for row in rows:
        value = f"{row.status}: {row.note}" if row.value is None else f"{row.value:.5g}"
        error = "" if row.stderr is None else f"{row.stderr:.2g}"
        table.add_row(row.quantity, row.group, escape(value), error, row.unit, str(row.n))
    return table


def printable(table: Table) -> RichTable:
    """A report's table; intervals stand in square brackets, which rich would take for markup."""
    columns = [Column(escape(name), overflow="fold") for name in table.columns]
    shown = RichTable(*columns, title=escape(table.title), title_justify="left")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown


def outlook_table(found: Outlook, *, power: float, margin: float) -> RichTable:
    """What a planned run will be able to see; ``margin`` in points."""
    table = RichTable("", "", box=None, pad_edge=False)

    def points(value: float | None) -> str:
        return "none: more items must flip" if value is None else f"{100 * value:.1f} points"

    table.add_row(f"final change visible with power {power:g}, by a run's verdicts", points(found.visible_final))
    table.add_row("the same by one uncorrected comparison of one task", points(found.visible_once))
    table.add_row("dip at one earlier checkpoint, same flip rate", points(found.visible_dip))
    table.add_row("half width of the corrected interval of the final change", points(found.half_width))
    table.add_row("critical values: final, earlier", f"{found.critical.final:.2f}, {found.critical.path:.2f}")
    for size, needed in found.needed.items():
        text = "more items must flip" if needed is None else f"{needed:,} items"
        table.add_row(f"to see a final change of {100 * size:g} point{'' if size == 0.01 else 's'}", text)
    table.add_row(f"to call an unchanged task stable (±{margin:g} points)", f"{found.items_for_stable:,} items")
    return table
