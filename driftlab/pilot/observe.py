"""The first iterations of a run, for real: timed, counted, and gone."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from driftlab import loop
from driftlab.errors import SpecError
from driftlab.models.checkpoints import State
from driftlab.run.parts import ProbesSpec
from driftlab.run.plan import PlannedRun, resolve
from driftlab.run.records import Cost, Iteration
from driftlab.run.spec import RunSpec
from driftlab.session import Event, Listener, prepare
from driftlab.trainers.controls import TRAINERS

FEWEST = 3
"""Iterations of a pilot: a warm-up, and two that have a spread."""
REPEATS = (3, 10)
"""Times that one member and the whole population are timed: at least, and at most while they take few seconds."""
FEW_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What a pilot saw.

    Attributes:
        updates: its iterations.
        rollouts: seconds of one member and of the whole population, pair by pair; or why there are none.
        members, prompts: of one iteration of ES; 0 members where nobody rolls out.
        start_seconds: loading, preparing, measuring the base: all that is neither iteration nor last measurement.
        start_bytes: the run directory once the base was measured.
        line_bytes: of each iteration's record.
        measured_seconds, measured_bytes: of the pilot's last checkpoint.
        trainer_bytes: what the trainer keeps to go on from, until the run is finished.
    """

    updates: tuple[Iteration, ...]
    rollouts: tuple[tuple[float, float], ...] | str
    members: int
    prompts: int
    start_seconds: float
    start_bytes: int
    line_bytes: tuple[int, ...]
    measured_seconds: float
    measured_bytes: int
    trainer_bytes: int

    @property
    def costs(self) -> list[Cost]:
        found = [update.cost for update in self.updates if update.cost is not None]
        assert len(found) == len(self.updates), "every trainer records what an iteration cost"
        return found

    def seconds(self, *parts: str) -> list[float]:
        """Of each iteration after the first, which is the warm-up."""
        return [sum(update.seconds.get(part, 0.0) for part in parts) for update in self.updates[1:]]


def shortened(planned: PlannedRun, iterations: int) -> PlannedRun:
    """The run with so many iterations, measured at its base and its end alone."""
    spec = planned.spec
    if spec.trainer == "folders":
        raise SpecError(f"arm {spec.arm!r} reads checkpoints and trains nothing: choose others with --arm")
    if iterations < FEWEST:
        raise SpecError(
            f"--iterations is {iterations}, but a pilot needs {FEWEST}: a warm-up, and two that have a spread"
        )
    given = {
        **planned.given,
        spec.trainer: {**planned.given[spec.trainer], "iterations": iterations},
        "measure": {},
        # Sampled at few steps only, they would be counted at every one.
        "probes": {name: own for name, own in planned.given.get("probes", {}).items() if name != "coverage"},
        # One keyframe at the end shows its size.
        **({} if spec.keyframes_every is None else {"keyframes_every": iterations}),
    }
    return PlannedRun(given=given, spec=resolve(given, f"the pilot of arm {spec.arm!r}"))


def observe(planned: PlannedRun, listen: Listener) -> Observed:
    """Run ``planned`` whole, then time its rollouts; nothing stays on disk."""
    spec = planned.spec
    events: list[tuple[Event, int]] = []
    kept = [0]
    with tempfile.TemporaryDirectory(prefix="driftlab-pilot-") as place:
        path = Path(place) / "run"

        def follow(event: Event) -> None:
            if event.kind in ("iteration", "measured"):
                kept.append(_size(path / "trainer"))
                events.append((event, _size(path) - kept[-1]))
            listen(event)

        started = time.perf_counter()
        store = loop.run(planned, path, resume=False, listen=follow)
        wall = time.perf_counter() - started
        updates, trainer_bytes = tuple(store.updates()), max(kept)
    (_, start), *trained, (last, end) = events
    sizes = [start, *(size for _, size in trained)]
    grown = [after - before for before, after in pairwise(sizes)]
    stored = [0 if update.cost is None else update.cost.stored_bytes for update in updates]
    return Observed(
        updates=updates,
        rollouts=time_rollouts(spec, listen),
        members=spec.evolution.population if spec.trainer == "es" and spec.rolls_out else 0,
        prompts=spec.target.train_items,
        start_seconds=wall - last.seconds - sum(update.seconds["total"] for update in updates),
        start_bytes=start,
        line_bytes=tuple(size - own for size, own in zip(grown, stored, strict=True)),
        measured_seconds=last.seconds,
        measured_bytes=end - sizes[-1],
        trainer_bytes=trainer_bytes,
    )


def time_rollouts(spec: RunSpec, listen: Listener) -> tuple[tuple[float, float], ...] | str:
    """Seconds of one member alone and of the whole population, each answering all prompts; or why they have none."""
    if spec.trainer != "es":
        return f"rollouts of trainer {spec.trainer} are drawn inside its own step and cannot be timed one by one"
    if not spec.rolls_out:
        return f"a {spec.control} control has no rollouts"
    session = prepare(spec.model_copy(update={"probes": ProbesSpec()}), None, listen)
    rollouts, prompts = session.rollouts, session.prompts
    assert rollouts is not None
    state = State.at_base(session.base.weights, spec.precision.resolved)
    trainer = TRAINERS[spec.control](spec, state, rollouts, session.target, session.items, prompts, session.shape)
    members = trainer.members(trainer.ask())

    def timed(count: int) -> float:
        listen(Event(kind="probing", detail=f"the time of {count} member{'' if count == 1 else 's'}"))
        started = time.perf_counter()
        rollouts(state.weights, members[:count], prompts)
        return time.perf_counter() - started

    timed(1)  # warm-up
    pairs: list[tuple[float, float]] = []
    while len(pairs) < REPEATS[0] or (len(pairs) < REPEATS[1] and sum(map(sum, pairs)) < FEW_SECONDS):
        pairs.append((timed(1), timed(len(members))))
    return tuple(pairs)


def _size(folder: Path) -> int:
    """Bytes of all files in a folder, 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
