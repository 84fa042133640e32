"""Traces of real steps: read, explained, replayed with changes, and written as programs."""
