"""The model of a pipeline that is edited, as the explorer sees it."""

from __future__ import annotations

from model.changes import check, run, world
from model.changes.state import Config, State


class ChangesModel:
    """One configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def initial(self) -> State:
        """Return the state before the first run."""
        return self._config.initial()

    def steps(self, state: State) -> run.Moves:
        """Return what the protocol does next."""
        return run.run_steps(self._config, state)

    def faults(self, state: State) -> run.Moves:
        """Return what may happen to it."""
        return world.faults(self._config, state)

    def violation(self, state: State, final: bool) -> str | None:
        """Return the invariant that is broken."""
        return check.violation(self._config, state, final)

    def outcome(self, state: State) -> str:
        """Return the status of a final state."""
        return check.outcome(state)
