"""Timelines as people and other tools read them: traces for Perfetto and Holistic Trace Analysis, Gantt charts, comparisons."""

from crossflow.trace.compare import Comparison, compare, draw_comparison
from crossflow.trace.gantt import Gantt, draw_gantt, gantt_of
from crossflow.trace.perfetto import write_ranks, write_trace
from crossflow.trace.text import text_comparison, text_gantt

__all__ = [
    "Comparison",
    "Gantt",
    "compare",
    "draw_comparison",
    "draw_gantt",
    "gantt_of",
    "text_comparison",
    "text_gantt",
    "write_ranks",
    "write_trace",
]
