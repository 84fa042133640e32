"""Timing of programs: operations on in-order streams, blocks of them that repeat, and when everything starts and ends."""
