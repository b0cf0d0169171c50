"""The model of the delivery protocol, as the explorer sees it."""

from __future__ import annotations

from model.protocol import check, world
from model.protocol.process import process_moves, start
from model.protocol.shared import Moves
from model.protocol.state import Config, State, initial, owner


class ProtocolModel:
    """One configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def initial(self) -> State:
        """Return the state before the first run."""
        return initial(self._config)

    def steps(self, state: State) -> Moves:
        """Return what every process may do next, that of a frozen owner included."""
        moves = start(state) if owner(state) is None and state.status is None else []
        for process in state.processes:
            prefix = "" if process.epoch == state.epoch else "zombie: "
            moves += [(prefix + label, after) for label, after in process_moves(self._config, state, process)]
        return moves

    def faults(self, state: State) -> Moves:
        """Return what may happen to it."""
        return world.faults(self._config, state)

    def violation(self, state: State, final: bool) -> str | None:
        """Return the invariant that is broken."""
        return check.violation(self._config, state, final)

    def outcome(self, state: State) -> str:
        """Return the status of a final state."""
        return check.outcome(state)
