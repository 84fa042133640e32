"""Embedding look-ups by their data: how often rows are hit, and what of them caches hold."""
