"""Tasks in a simulator that a policy can succeed in or not. Needs the extra `simulate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgewright.checkpoint.text import shown
from edgewright.errors import UsageError
from edgewright.evaluate.tasks.reacher import Reacher, ReacherTorque
from edgewright.evaluate.tasks.task import VIEWS, Task, TaskSpec, View

__all__ = ["TASKS", "VIEWS", "Task", "TaskSpec", "View", "open_task"]

_KINDS: tuple[type[Reacher], ...] = (Reacher, ReacherTorque)
_OPEN: Mapping[str, Callable[[View], Task]] = {kind.spec.name: kind for kind in _KINDS}
#: The tasks there are, by name.
TASKS: Mapping[str, TaskSpec] = {kind.spec.name: kind.spec for kind in _KINDS}


def open_task(name: str, view: View = "rendered") -> Task:
    """Return a task, to be closed after use; `view` is how its camera images are made.

    Raises UsageError for a task or a view that isn't there, MissingExtraError without the simulator, HostError where
    images can't be rendered.
    """
    if name not in TASKS:
        raise UsageError(f"There is no task {shown(name)}; the tasks are {', '.join(TASKS)}.")
    if view not in VIEWS:
        raise UsageError(f"Images can't be {shown(view)}: they are {' or '.join(VIEWS)}.")
    return _OPEN[name](view)
