"""Fits the parameters of a system to what was measured on it, and learns what physics leaves over."""
