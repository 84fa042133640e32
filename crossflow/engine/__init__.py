"""When everything starts and ends: operations on in-order streams, blocks that repeat, and an event engine for the rest."""

from crossflow.engine.events import run_shared, run_tasks
from crossflow.engine.schedule import Schedule, durations, longest_path, run_streams, schedule
from crossflow.engine.tasks import Copy, Rows, Task, copies, tasks_of

__all__ = [
    "Copy",
    "Rows",
    "Schedule",
    "Task",
    "copies",
    "durations",
    "longest_path",
    "run_shared",
    "run_streams",
    "run_tasks",
    "schedule",
    "tasks_of",
]
