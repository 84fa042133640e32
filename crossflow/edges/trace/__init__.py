"""Timelines as people and other tools read them: traces for Perfetto and Holistic Trace Analysis, Gantt charts, comparisons."""
