"""The faults."""

from __future__ import annotations

from model.protocol.shared import Moves
from model.protocol.state import Config, Process, State, budget, owner, spent, with_process


def faults(config: Config, state: State) -> Moves:
    """Return everything that may happen in this state."""
    holder = owner(state)
    return [*(_to_owner(state, holder) if holder else []), *_around(config, state, holder)]


def _to_owner(state: State, holder: Process) -> Moves:
    moves: Moves = []
    if budget(state, "crash"):
        left = tuple(one for one in state.processes if one is not holder)
        moves.append(("CRASH", state._replace(budgets=spent(state, "crash"), processes=left)))
    if budget(state, "power"):
        lost = state._replace(budgets=spent(state, "power"), processes=(), consumers=state.durable)
        moves.append(("POWER CUT", lost))
    if budget(state, "freeze") and holder.phase != "end connections":
        epoch = state.epoch + 1
        processes = (*state.processes, Process(epoch, "end connections"))
        moves.append(("TAKEOVER", state._replace(budgets=spent(state, "freeze"), epoch=epoch, processes=processes)))
    return moves


def _around(config: Config, state: State, holder: Process | None) -> Moves:
    moves: Moves = []
    if budget(state, "flip"):
        moves.append(("VERDICTS CHANGE", state._replace(budgets=spent(state, "flip"), version=1)))
    is_starting = holder is None or holder.phase in ("end connections", "scan")
    if budget(state, "lose") and state.staging and is_starting:
        moves.append(("STAGING LOST", state._replace(budgets=spent(state, "lose"), staging=frozenset())))
    if budget(state, "gone") and state.positions != config.records:
        moves.append(("SOURCE ROTATED", state._replace(budgets=spent(state, "gone"), gone=1)))
    if holder is not None and budget(state, "stop") and not holder.stopping:
        asked = state._replace(budgets=spent(state, "stop"))
        moves.append(("STOP ASKED", with_process(asked, holder, holder._replace(stopping=1))))
    if budget(state, "restart") and state.status not in (None, "idle"):
        moves.append(("OPERATOR RESTARTS", state._replace(budgets=spent(state, "restart"), status=None, gone=0)))
    if budget(state, "rewind") and state.status == "idle":
        zero = (0,) * len(config.records)
        rewound = state._replace(status=None, generation=state.generation + 1, positions=zero, acked=zero)
        moves.append(("REWIND", rewound._replace(budgets=spent(state, "rewind"), epoch=state.epoch + 1)))
    return moves
