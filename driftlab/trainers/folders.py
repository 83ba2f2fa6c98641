"""Checkpoints that somebody else trained, one after the other: no training, and no updates to record."""

from __future__ import annotations

from driftlab.models.checkpoints import State
from driftlab.models.folders import folder_weights, steps_in
from driftlab.run.spec import RunSpec
from driftlab.trainers.base import Arrive, Record


class FolderTrainer:
    def __init__(self, spec: RunSpec, state: State) -> None:
        assert spec.folders is not None
        self.state, self.folders = state, steps_in(spec.folders.path)

    def train(self, record: Record, arrive: Arrive) -> None:
        """Arrive at every step after that of ``state``, ascending."""
        for step, folder in self.folders.items():
            if step > self.state.step:
                self.state.step, self.state.weights = step, folder_weights(folder, self.state.base)
                arrive()
