"""What happens to a pipeline: crashes, edits of its file between runs, losses.

An edit is allowed whenever no process runs: after a crash that left a step open, after a failure, and when idle.
"""

from __future__ import annotations

from collections.abc import Callable

from model.changes.log import compacted, without
from model.changes.plan import Moves
from model.changes.run import ended
from model.changes.state import Config, File, State, budget, spend


def faults(config: Config, state: State) -> Moves:
    """Return everything that may happen in this state."""
    return [*_crash(config, state), *_edits(config, state), *_losses(config, state), *_restart(state)]


def _crash(config: Config, state: State) -> Moves:
    if state.run is None or not budget(state, "crash") or _open_step(state) not in config.crash_in:
        return []
    return [("CRASH", ended(spend(state, "crash"), ""))]


def _open_step(state: State) -> str:
    if state.step is None:
        return "none"
    return "prepared" if state.step.is_prepared else "planned"


def _restart(state: State) -> Moves:
    if not state.status.startswith("failed") or not budget(state, "restart"):
        return []
    return [("RESTART", spend(state, "restart")._replace(status=""))]


# -- edits --------------------------------------------------------------------------------------------------------


def _edits(config: Config, state: State) -> Moves:
    if state.run is not None or not budget(state, "edit"):
        return []
    after = spend(state, "edit")._replace(status="")
    moves: Moves = []
    for name in config.edits:
        if name in _OPERATIONS:
            changed = _OPERATIONS[name](after)
        else:
            changed = after._replace(file=_FILE_EDITS[name](state.file))
        if changed != after and _is_valid(changed.file):
            moves.append((f"EDIT {name}", changed))
    return moves


def _is_valid(file: File) -> bool:
    # start-from: log needs a log
    return file.logged or file.late != "log"


def _replay(state: State) -> State:
    return state._replace(replaying=True) if any(letter.is_open for letter in state.letters) else state


_FILE_EDITS: dict[str, Callable[[File], File]] = {
    "add late": lambda file: file._replace(late="boundary") if not file.late else file,
    "add late from log": lambda file: file._replace(late="log") if not file.late else file,
    "start-from leaves": lambda file: file._replace(late="boundary") if file.late else file,
    "remove late": lambda file: file._replace(late=""),
    "unit A": lambda file: file._replace(unit="A"),
    "unit B": lambda file: file._replace(unit="B"),
    "unit C": lambda file: file._replace(unit="C"),
    "code 1": lambda file: file._replace(code=1),
    "log on": lambda file: file._replace(logged=True),
    "log off": lambda file: file._replace(logged=False),
    "unit B, log off": lambda file: file._replace(unit="B", logged=False),
}
_OPERATIONS: dict[str, Callable[[State], State]] = {
    "data gone": lambda state: state._replace(gone=state.gone | {state.file.unit}),
    "replay": _replay,
}


# -- losses -------------------------------------------------------------------------------------------------------


def _losses(config: Config, state: State) -> Moves:
    moves: Moves = []
    step = state.step
    if budget(state, "lose") and state.run is None and step is not None and step.is_prepared and step.staged:
        moves.append(("STAGING LOST", spend(state, "lose")._replace(step=step._replace(staged=False))))
    if budget(state, "compact") and state.log:
        after = spend(state, "compact")
        if (smaller := compacted(config, after)) != after:
            moves.append(("COMPACTION", smaller))
    if budget(state, "gap"):
        lost = (offset for offset, entry in enumerate(state.log) if entry.present)
        moves += [(f"ENTRY {offset} LOST", without(spend(state, "gap"), offset)) for offset in lost]
    return moves
