"""When everything starts and ends: in-order schedules as longest paths, and an event engine for the rest."""

from crossflow.timeline.events import run_shared, run_tasks
from crossflow.timeline.schedule import Schedule, longest_path, schedule

__all__ = ["Schedule", "longest_path", "run_shared", "run_tasks", "schedule"]
