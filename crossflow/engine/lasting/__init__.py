"""Runs of months: interruptions by cause, checkpoints, restarts, spares; by renewal reward (`renewal`) and by events (`events`)."""
