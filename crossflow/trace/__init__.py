"""Timelines as others read them: traces for Perfetto and Holistic Trace Analysis."""
