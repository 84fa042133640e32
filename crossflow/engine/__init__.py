"""When everything starts and ends: operations on in-order streams, blocks that repeat, and an event engine for the rest."""

from crossflow.engine.events import run_shared, run_tasks
from crossflow.engine.schedule import Schedule, durations, longest_path, schedule, stream_edges

__all__ = ["Schedule", "durations", "longest_path", "run_shared", "run_tasks", "schedule", "stream_edges"]
